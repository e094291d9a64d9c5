// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* The thread that runs minor cycles. */
#include "event.h"
#include "location.h"
#include "minor.h"
#include "nursery.h"
#include "os.h"
#include "sweep.h"
#include "thread.h"
#include "world.h"

/* Returns how many finalizers became ready. */
static uint64_t minor_cycle(struct ebbgc_heap *h)
{
	uint64_t since, ready = 0;
	bool wanted;

	pause_begin(h);
	/* No cycle ends its marking now, so all regions stay swept. */
	sweep_all(h);
	pthread_mutex_lock(&h->lock);
	wanted = h->nursery.requested;
	h->stats.minor_concurrent += wanted && h->marking && h->nursery.young != REGION_NONE;
	pthread_mutex_unlock(&h->lock);
	/* A pause of the collector may have included it. */
	if (wanted) {
		/* Allocation looks at residency, and cycles may be far apart. */
		location_update(h);
		since = os_now();
		world_stop(h);
		ready = minor_collect(h);
		world_resume(h, since);
	}
	pause_end(h);
	return ready;
}

static void *minor_thread(void *arg)
{
	struct ebbgc_heap *h = arg;
	struct nursery *n = &h->nursery;

	thread_name(h, "ebb-gc-minor");
	pthread_mutex_lock(&h->lock);
	for (;;) {
		uint64_t ready;

		while (!h->quit && !n->requested)
			pthread_cond_wait(&n->wanted, &h->lock);
		if (h->quit)
			break;
		pthread_mutex_unlock(&h->lock);
		ready = minor_cycle(h);
		if (ready)
			event_send(h, EBBGC_EVENT_FINALIZERS_READY, ready, NULL);
		pthread_mutex_lock(&h->lock);
	}
	pthread_mutex_unlock(&h->lock);
	return NULL;
}

int nursery_start(struct ebbgc_heap *h)
{
	int r;

	if (!h->nursery.old)
		return 0;
	r = thread_start(&h->nursery.thread, minor_thread, h);
	h->nursery.started = !r;
	return r;
}

void nursery_stop(struct ebbgc_heap *h)
{
	if (!h->nursery.started || os_forked(h->pid))
		return;
	pthread_mutex_lock(&h->lock);
	h->quit = true;
	pthread_cond_signal(&h->nursery.wanted);
	pthread_mutex_unlock(&h->lock);
	pthread_join(h->nursery.thread, NULL);
}
