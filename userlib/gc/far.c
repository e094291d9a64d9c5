// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* Giving a heap a far generation, and taking it away. */
#include <errno.h>
#include <sys/mman.h>
#include "far.h"
#include "far_trace.h"
#include "forward.h"
#include "leave.h"
#include "os.h"
#include "safepoint.h"
#include "versions.h"

#define RESERVE_SHARE 16u	/* of the budget, by default; of addresses, at most */
#define WINDOW_SHARE 4u		/* of the budget may be leaving */
#define LEAST_BYTES ((size_t)2 << 20)
#define OPTIONS_LEAST_FAR (sizeof(size_t) * 2)

static size_t granule_bytes(const struct ebbgc_heap *h)
{
	return (size_t)h->region_count * REGION_WORDS * sizeof(uint64_t);
}

static int far_options_take(struct ebbgc_far_options *to, const struct ebbgc_far_options *from)
{
	int r;

	ebbgc_far_options_init(to);
	r = versioned_copy(to, sizeof(*to), from, from->struct_size, OPTIONS_LEAST_FAR);
	if (r)
		return r;
	to->struct_size = sizeof(*to);
	if (!to->reserve_bytes)
		to->reserve_bytes = to->local_bytes / RESERVE_SHARE;
	return to->local_bytes < LEAST_BYTES || to->reserve_bytes > to->local_bytes / 2 ? -EINVAL :
											  0;
}

static void tables_free(struct ebbgc_heap *h)
{
	struct far *f = &h->far;

	if (f->regions)
		munmap(f->regions, h->region_count * sizeof(*f->regions));
	if (f->named)
		munmap(f->named, granule_bytes(h));
	if (f->holders)
		munmap(f->holders, h->region_count * sizeof(*f->holders));
	for (unsigned int i = 0; i < 2; i++)
		if (f->oldest.items[i])
			munmap(f->oldest.items[i], h->region_count * sizeof(struct aged));
	if (f->oldest.places)
		munmap(f->oldest.places, h->region_count * sizeof(*f->oldest.places));
	if (f->naming)
		munmap(f->naming, h->region_count * sizeof(*f->naming));
	if (f->marking.sent)
		munmap(f->marking.sent, granule_bytes(h));
	if (f->marking.named)
		munmap(f->marking.named, granule_bytes(h));
	if (f->marking.holders)
		munmap(f->marking.holders, h->region_count * sizeof(*f->marking.holders));
	if (f->marking.buffer)
		munmap(f->marking.buffer, REGION_SIZE);
	if (f->marking.passed)
		munmap(f->marking.passed, granule_bytes(h));
	if (f->marking.names)
		munmap(f->marking.names, granule_bytes(h));
	if (f->marking.sets)
		munmap(f->marking.sets, FAR_SETS * sizeof(*f->marking.sets));
	f->marking = (struct far_marking){ 0 };
	f->regions = NULL;
	f->named = NULL;
	f->holders = f->naming = NULL;
	f->oldest = (struct oldest){ 0 };
}

static int tables_create(struct ebbgc_heap *h)
{
	struct far *f = &h->far;

	f->regions = os_map(h->region_count * sizeof(*f->regions));
	f->named = os_map(granule_bytes(h));
	f->holders = os_map(h->region_count * sizeof(*f->holders));
	f->naming = os_map(h->region_count * sizeof(*f->naming));
	for (unsigned int i = 0; i < 2; i++)
		f->oldest.items[i] = os_map(h->region_count * sizeof(struct aged));
	f->oldest.places = os_map(h->region_count * sizeof(*f->oldest.places));
	return f->regions && f->named && f->holders && f->naming && f->oldest.items[0] &&
	       f->oldest.items[1] && f->oldest.places ? 0 : -ENOMEM;
}

/* Lock held. */
static int may_attach(const struct ebbgc_heap *h)
{
	if (h->far.on)
		return -EALREADY;
	if (h->mutators)
		return -EBUSY;
	/* Both ask about pages of regions that have none; plain loads bring nothing. */
	if (h->options.mode == EBBGC_MEMLINER ||
	    (h->options.features & (EBBGC_EXACT | EBBGC_DROP)) || h->moving.plain)
		return -ENOTSUP;
	return 0;
}

/* Lock held: fills in what is not zero. */
static void far_begin(struct ebbgc_heap *h, const struct ebbgc_far_store *store,
		      const struct ebbgc_far_options *o)
{
	struct far *f = &h->far;

	f->store = *store;
	f->options = *o;
	f->budget = o->local_bytes >> REGION_SHIFT;
	f->reserve = (o->reserve_bytes + REGION_SIZE - 1) >> REGION_SHIFT;
	f->window = f->budget / WINDOW_SHARE;
	/* The budget may exceed the heap. */
	f->addresses = h->region_count / RESERVE_SHARE;
	if (f->addresses > f->reserve)
		f->addresses = f->reserve;
	f->low = h->region_count / 2;
	f->leaving = f->away = f->mine = (struct region_list){ REGION_NONE, REGION_NONE };
	f->queue = REGION_NONE;
	for (size_t k = 0; k < SMALL_KINDS - KIND_MOVABLE; k++)
		f->arrivals[k].region = REGION_NONE;
	pthread_mutex_init(&f->arrivals_lock, NULL);
	pthread_cond_init(&f->made_room, NULL);
}

/* Lock held: regions that were taken before may leave, too. */
static void oldest_fill(struct ebbgc_heap *h)
{
	for (unsigned int i = 0; i < 2 * (SMALL_KINDS - KIND_MOVABLE); i++) {
		const struct region_list *lists = i % 2 ? h->full : h->partial;

		for (uint32_t r = lists[KIND_MOVABLE + i / 2].head; r != REGION_NONE;
		     r = h->regions[r].next)
			oldest_add(&h->far.oldest, r, h->regions[r].swept, h->regions[r].arrived);
	}
}

static bool jobs_are_valid(const struct ebbgc_far_jobs *j)
{
	return !j || (j->struct_size >= offsetof(struct ebbgc_far_jobs, compact) && j->begin &&
		      j->trace && j->end);
}

int ebbgc_far_attach_size(ebbgc_heap_t *h, const struct ebbgc_far_store *from, size_t store_size,
			  const struct ebbgc_far_options *options)
{
	struct ebbgc_far_store store = { 0 };
	struct ebbgc_far_options o;
	int r = far_options_take(&o, options);

	if (!r)
		r = versioned_copy(&store, sizeof(store), from, store_size, STORE_LEAST);
	if (r)
		return r;
	if (!store.alloc || !store.write || !store.read || !store.free ||
	    !jobs_are_valid(store.jobs))
		return -EINVAL;
	if (os_forked(h->pid))
		return -ECHILD;
	pthread_mutex_lock(&h->lock);
	r = may_attach(h);
	if (!r)
		r = forwards_create(h);
	if (!r) {
		r = tables_create(h);
		if (r)
			tables_free(h);
	}
	if (!r) {
		far_begin(h, &store, &o);
		oldest_fill(h);
		r = leave_start(h);
		if (r)
			tables_free(h);
	}
	if (!r) {
		h->far.on = true;
		/* The next region locks the new tables from the start on. */
		h->side_locked = 0;
	}
	pthread_mutex_unlock(&h->lock);
	return r;
}

void far_destroy(struct ebbgc_heap *h)
{
	/* A cycle may not have ended. */
	far_trace_end(h);
	leave_nothing(h);
	tables_free(h);
}

static void *wait_evicted(void *arg)
{
	struct mutator *m = arg;
	struct ebbgc_heap *h = m->heap;
	uint64_t ticket = ++h->far.evict;

	pthread_cond_broadcast(&h->far.wanted);
	mutator_block(m);
	mutator_lend(m);
	while (h->far.evicted < ticket)
		mutator_wait(h, &h->far.made_room);
	mutator_unblock(m);
	return NULL;
}

int ebbgc_far_evict(ebbgc_mutator_t *mutator)
{
	struct mutator *m = mutator_of(mutator);
	struct ebbgc_heap *h = m->heap;
	int r;

	if (!h->far.on)
		return -EINVAL;
	if (os_forked(h->pid))
		return -ECHILD;
	pthread_mutex_lock(&h->lock);
	with_stack(m, wait_evicted, m);
	r = h->far.failed;
	pthread_mutex_unlock(&h->lock);
	return r;
}
