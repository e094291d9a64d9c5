// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "barrier.h"
#include "event.h"
#include "heap.h"
#include "os.h"
#include "stats.h"
#include "world.h"

void pause_begin(struct ebbgc_heap *h)
{
	pthread_mutex_lock(&h->pausing);
}

void pause_end(struct ebbgc_heap *h)
{
	pthread_mutex_unlock(&h->pausing);
}

void world_stop(struct ebbgc_heap *h)
{
	uint64_t since = os_now();

	pthread_mutex_lock(&h->lock);
	h->stop = true;
	for (struct mutator *m = h->mutators; m; m = m->next)
		__atomic_store_n(&m->public.poll, 1, __ATOMIC_RELAXED);
	while (h->running)
		pthread_cond_wait(&h->stopped, &h->lock);
	since = os_now() - since;
	if (since > h->stats.stop_max_ns)
		h->stats.stop_max_ns = since;
	pthread_mutex_unlock(&h->lock);
	event_send(h, EBBGC_EVENT_PAUSE_BEGIN, since, NULL);
}

void world_resume(struct ebbgc_heap *h, uint64_t since)
{
	uint64_t ns;

	pthread_mutex_lock(&h->lock);
	h->stop = false;
	for (struct mutator *m = h->mutators; m; m = m->next) {
		__atomic_store_n(&m->public.poll, 0, __ATOMIC_RELAXED);
		barrier_set(h, m);
	}
	pthread_cond_broadcast(&h->resume);
	ns = os_now() - since;
	stats_count_pause(h, ns);
	pthread_mutex_unlock(&h->lock);
	event_send(h, EBBGC_EVENT_PAUSE_END, ns, NULL);
}
