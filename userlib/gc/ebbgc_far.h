/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * The store of a far generation (ebbgc_far_attach()) in a far pool of libebbfar: for programs that
 * link both libraries, of which neither needs the other.
 *
 *	ebbfar_open(&options, &pool);
 *	ebbgc_far_pool(&store, pool);
 *	ebbgc_far_attach(heap, &store, &far_options);
 *	...
 *	ebbgc_heap_destroy(heap);
 *	ebbfar_close(pool);
 *
 * With several pools of different donors, regions go to each in turn; with handles that were opened
 * with EBBFAR_JOBS, the donors trace the objects that lie there, and far cycles read nothing, or
 * little.  If the memory of all is mapped, the heap reads: that takes no longer than the messages.
 *
 *	struct ebbgc_far_donors donors = { 0 };
 *
 *	donors.pools[donors.count++] = pool;
 *	ebbgc_far_donors(&store, &donors);
 *	...
 *	ebbgc_heap_destroy(heap);
 *	ebbgc_far_donors_end(&donors);
 *
 * The program then trusts the donors: wrong marks free live objects.  While they trace, libebbfar
 * takes up to 1.8 KiB for each region of 64 KiB there, beside the tables of the heap (local_bytes).
 *
 * Over TCP, what a donor has is lost when its handle has failed for good: loads of these objects
 * fail, far cycles go on at the other donors, and what only lost objects refer to is freed.  The
 * far cycle in which a handle fails frees nothing.
 *
 * A donor that refuses to trace, fails, or is too slow has the heap read everything in that cycle.
 * In the next one it is left out, and the heap reads what it has; after another failure it is left
 * out of two cycles, then of four, and so on, of 64 at most, until it succeeds.  A heap above 2^24
 * regions of 64 KiB, or with a type of more than 8 runs, is always read; far_donor_failures of the
 * statistics counts these cycles, too.
 *
 * At a unix socket a read copies from mapped memory, without a system call; over TCP it is one
 * round trip, and reads of several threads wait for each other.  When the pool's handle has failed
 * for good, reads fail with its error.
 */
#ifndef EBBGC_FAR_POOL_H
#define EBBGC_FAR_POOL_H

#include <errno.h>
#include <string.h>

#include <ebbfar.h>
#include <ebbgc.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline struct ebbfar_extent ebbgc_far_extent(const struct ebbgc_far_place *place)
{
	struct ebbfar_extent extent;

	extent.place = place->words[0];
	extent.size = place->words[1];
	extent.generation = place->words[2];
	return extent;
}

static inline int ebbgc_far_pool_alloc(void *pool, size_t bytes, struct ebbgc_far_place *place)
{
	struct ebbfar_extent extent;
	int r = ebbfar_alloc((ebbfar_t *)pool, bytes, &extent);

	if (r)
		return r;
	place->words[0] = extent.place;
	place->words[1] = extent.size;
	place->words[2] = extent.generation;
	return 0;
}

static inline int ebbgc_far_pool_write(void *pool, const struct ebbgc_far_place *place,
				       const void *from, size_t bytes)
{
	const struct ebbfar_extent extent = ebbgc_far_extent(place);

	return ebbfar_write((ebbfar_t *)pool, &extent, 0, from, bytes);
}

static inline int ebbgc_far_pool_read(void *pool, const struct ebbgc_far_place *place,
				      size_t offset, void *to, size_t bytes)
{
	const struct ebbfar_extent extent = ebbgc_far_extent(place);

	return ebbfar_read((ebbfar_t *)pool, &extent, offset, to, bytes);
}

static inline int ebbgc_far_pool_free(void *pool, const struct ebbgc_far_place *place)
{
	const struct ebbfar_extent extent = ebbgc_far_extent(place);

	return ebbfar_free((ebbfar_t *)pool, &extent);
}

/* Mapped memory stays readable. */
static inline int ebbgc_far_pool_lost(void *pool, const struct ebbgc_far_place *place)
{
	(void)place;
	return ebbfar_maps((ebbfar_t *)pool) || !*ebbfar_why((ebbfar_t *)pool) ? 0 : -ESHUTDOWN;
}

/* Fills in the store; @pool must last as long as the heap. */
static inline void ebbgc_far_pool(struct ebbgc_far_store *store, ebbfar_t *pool)
{
	store->arg = pool;
	store->alloc = ebbgc_far_pool_alloc;
	store->write = ebbgc_far_pool_write;
	store->read = ebbgc_far_pool_read;
	store->free = ebbgc_far_pool_free;
	store->jobs = 0;
	store->lost = ebbgc_far_pool_lost;
}

/* --- several donors, and their jobs ------------------------------------------------------- */

/* Zero it, set .pools and .count; it must last as long as the heap. */
struct ebbgc_far_donors {
	ebbfar_t *pools[EBBFAR_HEAP_POOLS];
	unsigned count;
	bool trace_mapped;		/* donors trace also if the memory of all is mapped */
	/* Of the functions below. */
	unsigned next, filled;		/* the pool to allocate from, and regions there in a row */
	uint32_t told;			/* types */
	ebbfar_heap_t *heap;
	const struct ebbgc_far_cycle *cycle;
	/* By pool: failures in a row, and cycles of which it is left out. */
	unsigned char failures[EBBFAR_HEAP_POOLS], waits[EBBFAR_HEAP_POOLS];
	unsigned char rests[EBBFAR_HEAP_POOLS]; /* cycles for which it does not compact */
	uint32_t out;			/* of this cycle: bits of pools */
	bool begun;			/* the cycle has not ended */
};

#define EBBGC_FAR_MOST 8184u	/* bytes of an object in the store, at most */

/* Regions in a row that go to one pool: what refers to one another often is of an age. */
#define EBBGC_FAR_ROW 32u

#define EBBGC_FAR_DOUBLINGS 6u	/* of the cycles of which a donor that fails is left out */
#define EBBGC_FAR_RESTS 8u	/* cycles, after a compaction that failed */

static inline unsigned ebbgc_far_donors_number(const struct ebbgc_far_place *place)
{
	return (unsigned)(place->words[1] >> 32);
}

static inline struct ebbfar_extent ebbgc_far_donors_extent(const struct ebbgc_far_place *place)
{
	struct ebbfar_extent extent = ebbgc_far_extent(place);

	extent.size &= UINT32_MAX;
	return extent;
}

static inline int ebbgc_far_donors_alloc(void *arg, size_t bytes, struct ebbgc_far_place *place)
{
	struct ebbgc_far_donors *d = (struct ebbgc_far_donors *)arg;
	int first = 0;

	for (unsigned i = 0; i < d->count; i++) {
		int r;

		if (d->filled >= EBBGC_FAR_ROW) {
			d->next = (d->next + 1) % d->count;
			d->filled = 0;
		}
		r = ebbgc_far_pool_alloc(d->pools[d->next], bytes, place);
		if (!r) {
			place->words[1] |= (uint64_t)d->next << 32;
			d->filled++;
			return 0;
		}
		/* A full one counts more than a lost one: a far cycle may help. */
		if (!first || r == -ENOSPC)
			first = r;
		d->filled = EBBGC_FAR_ROW;
	}
	return first;
}

static inline int ebbgc_far_donors_write(void *arg, const struct ebbgc_far_place *place,
					 const void *from, size_t bytes)
{
	const struct ebbgc_far_donors *d = (const struct ebbgc_far_donors *)arg;
	const struct ebbfar_extent extent = ebbgc_far_donors_extent(place);

	return ebbfar_write(d->pools[ebbgc_far_donors_number(place)], &extent, 0, from, bytes);
}

static inline int ebbgc_far_donors_read(void *arg, const struct ebbgc_far_place *place,
					size_t offset, void *to, size_t bytes)
{
	const struct ebbgc_far_donors *d = (const struct ebbgc_far_donors *)arg;
	const struct ebbfar_extent extent = ebbgc_far_donors_extent(place);

	return ebbfar_read(d->pools[ebbgc_far_donors_number(place)], &extent, offset, to, bytes);
}

static inline int ebbgc_far_donors_free(void *arg, const struct ebbgc_far_place *place)
{
	const struct ebbgc_far_donors *d = (const struct ebbgc_far_donors *)arg;
	const struct ebbfar_extent extent = ebbgc_far_donors_extent(place);

	return ebbfar_free(d->pools[ebbgc_far_donors_number(place)], &extent);
}

static inline int ebbgc_far_donors_lost(void *arg, const struct ebbgc_far_place *place)
{
	const struct ebbgc_far_donors *d = (const struct ebbgc_far_donors *)arg;

	return ebbgc_far_pool_lost(d->pools[ebbgc_far_donors_number(place)], place);
}

static inline int ebbgc_far_donors_found(void *arg, uint32_t region, uint32_t granule)
{
	const struct ebbgc_far_cycle *c = ((const struct ebbgc_far_donors *)arg)->cycle;

	return c->found(c->data, region, granule);
}

static inline void ebbgc_far_donors_marks(void *arg, uint32_t region, const uint64_t *marks,
					  const uint64_t *named)
{
	const struct ebbgc_far_cycle *c = ((const struct ebbgc_far_donors *)arg)->cycle;

	c->marks(c->data, region, marks, named);
}

static inline int ebbgc_far_donors_late(void *arg)
{
	const struct ebbgc_far_cycle *c = ((const struct ebbgc_far_donors *)arg)->cycle;

	return c->late(c->data);
}

static inline int ebbgc_far_donors_heap(struct ebbgc_far_donors *d)
{
	const struct ebbgc_far_cycle *c = d->cycle;
	struct ebbfar_heap_options o;

	if (d->heap)
		return 0;
	memset(&o, 0, sizeof(o));
	o.size = sizeof(o);
	o.pools = d->pools;
	o.count = d->count;
	o.base = c->base;
	o.mask = c->mask;
	o.regions = c->regions;
	o.found = ebbgc_far_donors_found;
	o.marks = ebbgc_far_donors_marks;
	o.data = d;
	o.late = ebbgc_far_donors_late;
	return ebbfar_heap_new(&o, &d->heap);
}

/*
 * Describes the type, or leaves it out if that is impossible: a donor that meets an object of it
 * says so, and the heap reads.
 */
static inline int ebbgc_far_donors_type(struct ebbgc_far_donors *d, const struct ebbgc_far_type *t)
{
	/* Elements that do not fit a slot: an object in the store has none. */
	const bool elements = t->length_width && t->element_size <= EBBGC_FAR_MOST;
	struct ebbfar_layout l;
	int r;

	memset(&l, 0, sizeof(l));
	l.size = (uint32_t)t->size;
	l.bitmap = t->bitmap;
	if (elements) {
		l.element_size = (uint32_t)t->element_size;
		l.length_offset = t->length_offset;
		l.length_width = t->length_width;
	}
	for (uint32_t i = 0; i < t->run_count; i++) {
		const struct ebbgc_run *run = &t->runs[i];

		if (!run->count || (run->count == EBBGC_COUNT_LENGTH && !elements))
			continue;
		if (l.runs == EBBFAR_RUNS)
			return 0;
		l.run[l.runs].offset = run->offset;
		/* With one reference it may be anything. */
		l.run[l.runs].stride = run->count == 1 ? 8 : run->stride;
		l.run[l.runs++].count = run->count == EBBGC_COUNT_LENGTH ? UINT32_MAX : run->count;
	}
	r = ebbfar_heap_type(d->heap, t->type, &l);
	return r == -EINVAL ? 0 : r;
}

static inline struct ebbfar_region ebbgc_far_donors_region(const struct ebbgc_far_region *from)
{
	struct ebbfar_region to;

	to.region = from->region;
	to.slot_bytes = from->slot_bytes;
	to.pool = ebbgc_far_donors_number(&from->place);
	to.leaf = from->leaf;
	to.extent = ebbgc_far_donors_extent(&from->place);
	to.live = from->live;
	to.gone = from->gone;
	return to;
}

/* Which donors have no part in this cycle? */
static inline void ebbgc_far_donors_leave_out(struct ebbgc_far_donors *d)
{
	d->out = 0;
	d->begun = true;
	for (unsigned i = 0; i < d->count; i++) {
		d->rests[i] -= d->rests[i] > 0;
		if (!d->waits[i] && !*ebbfar_why(d->pools[i]))
			continue;
		d->waits[i] -= d->waits[i] > 0;
		d->out |= UINT32_C(1) << i;
		(void)ebbfar_heap_leave_out(d->heap, i);
	}
}

/* @r: what ebbfar_heap_end() has returned. */
static inline void ebbgc_far_donors_judge(struct ebbgc_far_donors *d, int r)
{
	uint32_t faults = ebbfar_heap_faults(d->heap);

	for (unsigned i = 0; d->begun && i < d->count; i++) {
		if (faults >> i & 1) {
			d->waits[i] = (unsigned char)(1u << d->failures[i]);
			d->failures[i] += d->failures[i] < EBBGC_FAR_DOUBLINGS;
		} else if (!r && !(d->out >> i & 1)) {
			d->failures[i] = 0;
		}
	}
	d->begun = false;
}

static inline int ebbgc_far_donors_begin(void *arg, const struct ebbgc_far_cycle *cycle)
{
	struct ebbgc_far_donors *d = (struct ebbgc_far_donors *)arg;
	int r;

	d->cycle = cycle;
	r = ebbgc_far_donors_heap(d);
	if (!r)
		ebbgc_far_donors_leave_out(d);
	for (; !r && d->told < cycle->type_count; d->told += !r)
		r = ebbgc_far_donors_type(d, &cycle->types[d->told]);
	for (uint32_t i = 0; !r && i < cycle->stored_count; i++) {
		const struct ebbgc_far_region *from = &cycle->stored[i];
		struct ebbfar_region to;

		if (d->out >> ebbgc_far_donors_number(&from->place) & 1) {
			cycle->reads[i] = true;
			continue;
		}
		to = ebbgc_far_donors_region(from);
		r = ebbfar_heap_region(d->heap, &to);
	}
	return r;
}

static inline int ebbgc_far_donors_trace(void *arg, const struct ebbgc_far_set *sets, size_t count,
					 unsigned wait_ms)
{
	struct ebbgc_far_donors *d = (struct ebbgc_far_donors *)arg;
	int r = 0;

	for (size_t i = 0; !r && i < count; i++)
		r = ebbfar_heap_push(d->heap, sets[i].region, sets[i].word, sets[i].bits);
	return r ? r : ebbfar_heap_trace(d->heap, wait_ms);
}

static inline int ebbgc_far_donors_stop(void *arg, bool commit, unsigned wait_ms)
{
	struct ebbgc_far_donors *d = (struct ebbgc_far_donors *)arg;

	int r = -ECANCELED;

	if (d->heap) {
		r = ebbfar_heap_end(d->heap, commit, wait_ms);
		ebbgc_far_donors_judge(d, r);
	}
	return r;
}

static inline int ebbgc_far_donors_compact(void *arg, const struct ebbgc_far_region *from,
					   const uint64_t *keep, unsigned wait_ms,
					   struct ebbgc_far_place *to)
{
	struct ebbgc_far_donors *d = (struct ebbgc_far_donors *)arg;
	const struct ebbfar_region region = ebbgc_far_donors_region(from);
	struct ebbfar_extent extent;
	int r;

	/*
	 * Before the first cycle the donors do not know the heap.  A compaction that fails says
	 * nothing about tracing.
	 */
	if (!d->heap || d->out >> region.pool & 1 || d->rests[region.pool])
		return -EAGAIN;
	r = ebbfar_heap_evacuate(d->heap, &region, keep, wait_ms, &extent);
	if (r && r != -ENOMEM && r != -ENOSPC && r != -EAGAIN && r != -EBUSY)
		d->rests[region.pool] = EBBGC_FAR_RESTS;
	if (r)
		return r;
	to->words[0] = extent.place;
	to->words[1] = extent.size | (uint64_t)region.pool << 32;
	to->words[2] = extent.generation;
	return 0;
}

/* Fills in the store.  Returns 0; -EINVAL: .count is 0, or above EBBFAR_HEAP_POOLS. */
static inline int ebbgc_far_donors(struct ebbgc_far_store *store, struct ebbgc_far_donors *donors)
{
	static const struct ebbgc_far_jobs jobs = {
		sizeof(struct ebbgc_far_jobs), ebbgc_far_donors_begin, ebbgc_far_donors_trace,
		ebbgc_far_donors_stop, ebbgc_far_donors_compact,
	};
	bool trace = donors->trace_mapped;

	memset(store, 0, sizeof(*store));
	if (!donors->count || donors->count > EBBFAR_HEAP_POOLS)
		return -EINVAL;
	for (unsigned i = 0; i < donors->count; i++)
		trace = trace || !ebbfar_maps(donors->pools[i]);
	store->arg = donors;
	store->alloc = ebbgc_far_donors_alloc;
	store->write = ebbgc_far_donors_write;
	store->read = ebbgc_far_donors_read;
	store->free = ebbgc_far_donors_free;
	store->jobs = trace ? &jobs : 0;
	store->lost = ebbgc_far_donors_lost;
	return 0;
}

/* After ebbgc_heap_destroy(), before the handles are closed.  In a child of fork() does nothing. */
static inline void ebbgc_far_donors_end(struct ebbgc_far_donors *donors)
{
	ebbfar_heap_free(donors->heap);
	/* For a heap that is made after this one. */
	donors->heap = 0;
	donors->cycle = 0;
	donors->next = donors->filled = donors->told = donors->out = 0;
	donors->begun = false;
	memset(donors->failures, 0, sizeof(donors->failures));
	memset(donors->waits, 0, sizeof(donors->waits));
}

#ifdef __cplusplus
}
#endif

#endif
