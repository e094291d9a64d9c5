// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* Heaps: options, creation, the end. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "heap.h"
#include "versions.h"

#define FEATURE_BITS 8		/* no version has more */

static void options_default(struct ebbgc_options *o)
{
	size_t memory = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);

	*o = (struct ebbgc_options){
		.mode = EBBGC_CONCURRENT,
		.stacks = EBBGC_PRECISE,
		.sizing = EBBGC_GROWABLE,
		.max_bytes = memory / 2,
		.min_bytes = (size_t)16 << 20,
		.growth = 2.0,
		.pause_budget_ns = 2000000,
		.depth = 3,
		.delays = { 4, 2, 0 },
		.delta = 1,
		.epoch_percent = 10,
		.scan_percent = 5,
	};
}

void ebbgc_options_init_size(struct ebbgc_options *options, size_t struct_size)
{
	struct ebbgc_options o;

	options_default(&o);
	o.struct_size = struct_size;
	memset(options, 0, struct_size);
	memcpy(options, &o, struct_size < sizeof(o) ? struct_size : sizeof(o));
}

static int options_take(struct ebbgc_options *to, const struct ebbgc_options *from)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	const char *text;
	int r;

	options_default(to);
	if (from) {
		r = versioned_copy(to, sizeof(*to), from, from->struct_size, OPTIONS_LEAST);
		if (r)
			return r;
	}
	to->struct_size = sizeof(*to);
	text = secure_getenv("EBBGC_OPTIONS");
	if (text && ebbgc_options_parse(to, text))
		return -EINVAL;
	if (!to->markers)
		to->markers = cores < 8 ? 1 : cores < 4 * MARKERS_MAX ? (unsigned int)cores / 4 : MARKERS_MAX;
	/* Bitmaps of pages have no broken word. */
	to->max_bytes = (to->max_bytes + 4 * REGION_SIZE - 1) & -(4 * REGION_SIZE);
	if (to->features & (EBBGC_PARK | EBBGC_HINTS))
		to->features |= EBBGC_EXACT;
	if ((to->features & EBBGC_INCOGNITO) && (to->features & (EBBGC_ARRIVALS | EBBGC_HINTS)))
		return -EINVAL;
	if (to->features >> FEATURE_BITS)
		return -EINVAL;
	for (size_t i = 0; i < 3; i++)
		if (to->delays[i] >= WORK_FORCED)
			return -EINVAL;
	/* Exploring recurs. */
	if (to->depth > DEPTH_MAX || to->markers > MARKERS_MAX)
		return -EINVAL;
	if (to->max_bytes < (size_t)1 << 20 || to->max_bytes > (size_t)1 << 44 ||
	    (to->sizing == EBBGC_GROWABLE && !(to->growth > 1)) ||
	    (unsigned int)to->mode > EBBGC_MEMLINER ||
	    (unsigned int)to->residency > EBBGC_RESIDENCY_SIMULATED ||
	    to->delta > 7 || !to->epoch_percent || to->epoch_percent > 100 || !to->scan_percent ||
	    to->scan_percent > 100 ||
	    (unsigned int)to->stacks > EBBGC_CONSERVATIVE || (unsigned int)to->sizing > EBBGC_FIXED)
		return -EINVAL;
	return 0;
}

static void heap_free(struct ebbgc_heap *h)
{
	while (h->mutators) {
		/* Only in a child of fork(): threads of the parent. */
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
	types_destroy(h);
	regions_destroy(h);
	free(h);
}

static int heap_create(const struct ebbgc_options *options, ebbgc_heap_t **heap)
{
	struct ebbgc_heap *h = calloc(1, sizeof(*h));
	pthread_condattr_t steady;
	int r;

	if (!h)
		return -ENOMEM;
	r = options_take(&h->options, options);
	if (r || pthread_key_create(&h->key, mutator_key_destructor)) {
		free(h);
		return r ? r : -EAGAIN;
	}
	h->pid = getpid();
	h->park.pidfd = -1;
	h->bytes = h->options.max_bytes;
	h->backing.off = h->options.features & EBBGC_OVERCOMMIT;
	pthread_mutex_init(&h->lock, NULL);
	pthread_mutex_init(&h->marker.lock, NULL);
	pthread_cond_init(&h->marker.changed, NULL);
	pthread_cond_init(&h->resume, NULL);
	pthread_cond_init(&h->stopped, NULL);
	pthread_condattr_init(&steady);
	pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
	pthread_cond_init(&h->wanted, &steady);
	pthread_condattr_destroy(&steady);
	pthread_cond_init(&h->done, NULL);
	pthread_cond_init(&h->swept, NULL);
	pthread_cond_init(&h->released, NULL);
	pthread_cond_init(&h->turn, NULL);
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
	if (r) {
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

	/* Files are read, and ebbd is asked: who was cancelled there would leave half a heap. */
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
	if (!forked(h)) {
		bool busy;

		pthread_mutex_lock(&h->lock);
		busy = h->mutators;
		pthread_mutex_unlock(&h->lock);
		if (busy)
			return -EBUSY;
	}
	/* Threads are joined. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	collector_stop(h);
	pthread_key_delete(h->key);
	heap_free(h);
	pthread_setcancelstate(state, NULL);
	return 0;
}
