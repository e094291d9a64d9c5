// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
#include "attach.h"
#include "check.h"
#include "collect.h"
#include "far.h"
#include "finalize.h"
#include "forward.h"
#include "leave.h"
#include "location.h"
#include "mark_phase.h"
#include "notes.h"
#include "nursery.h"
#include "options.h"
#include "os.h"
#include "park.h"
#include "region.h"
#include "roots.h"
#include "safepoint.h"
#include "type.h"

static void heap_free(struct ebbgc_heap *h)
{
	while (h->mutators) {
		/* In a child of fork() only: threads of the parent. */
		struct mutator *m = h->mutators;

		h->mutators = m->next;
		mutator_free(m);
	}
	check_destroy(h);
	roots_destroy(h);
	finalizers_destroy(h);
	marker_destroy(h);
	notes_destroy(h);
	park_destroy(h);
	location_destroy(h);
	far_destroy(h);
	types_destroy(h);
	forwards_destroy(h);
	regions_destroy(h);
	free(h);
}

static int heap_create(const struct ebbgc_options *options, ebbgc_heap_t **heap)
{
	struct ebbgc_heap *h = calloc(1, sizeof(*h));
	int r;

	if (!h)
		return -ENOMEM;
	r = options_take(&h->options, options);
	if (r || pthread_key_create(&h->key, mutator_key_destructor)) {
		free(h);
		return r ? r : -EAGAIN;
	}
	h->pid = getpid();
	h->advice.pidfd = -1;
	h->bytes = h->options.max_bytes;
	h->nursery.at = h->options.nursery_bytes ? h->options.nursery_bytes : UINT64_MAX;
	h->backing.off = h->options.features & EBBGC_OVERCOMMIT;
	pthread_mutex_init(&h->pausing, NULL);
	pthread_mutex_init(&h->lock, NULL);
	pthread_mutex_init(&h->nursery.lock, NULL);
	pthread_mutex_init(&h->clearing, NULL);
	pthread_cond_init(&h->nursery.wanted, NULL);
	pthread_mutex_init(&h->marker.lock, NULL);
	pthread_cond_init(&h->marker.changed, NULL);
	pthread_cond_init(&h->resume, NULL);
	pthread_cond_init(&h->stopped, NULL);
	os_cond_init(&h->wanted);
	pthread_cond_init(&h->done, NULL);
	pthread_cond_init(&h->swept, NULL);
	pthread_cond_init(&h->released, NULL);
	pthread_cond_init(&h->turn, NULL);
	/* Cycles take turns before there is a far generation, too. */
	os_cond_init(&h->far.wanted);
	r = regions_create(h) ? -ENOMEM : types_create(h);
	if (!r)
		r = location_create(h);
	if (!r)
		r = park_create(h);
	if (!r)
		r = check_create(h);
	if (!r)
		r = marker_create(h);
	if (!r)
		r = collector_start(h);
	if (!r)
		r = nursery_start(h);
	if (r) {
		collector_stop(h);
		pthread_key_delete(h->key);
		heap_free(h);
		return r;
	}
	*heap = h;
	return 0;
}

int ebbgc_heap_create(const struct ebbgc_options *options, ebbgc_heap_t **heap)
{
	int state, r;

	/* Reading files and asking ebbd are cancellation points: do not leak a heap. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	r = heap_create(options, heap);
	pthread_setcancelstate(state, NULL);
	return r;
}

int ebbgc_heap_destroy(ebbgc_heap_t *h)
{
	int state;

	if (!h)
		return 0;
	if (!os_forked(h->pid)) {
		bool busy;

		pthread_mutex_lock(&h->lock);
		busy = h->mutators;
		pthread_mutex_unlock(&h->lock);
		if (busy)
			return -EBUSY;
	}
	/* pthread_join() is a cancellation point. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	collector_stop(h);
	nursery_stop(h);
	leave_stop(h);
	pthread_key_delete(h->key);
	heap_free(h);
	pthread_setcancelstate(state, NULL);
	return 0;
}
