// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/*
 * Small objects are cut from runs of free slots that a thread takes from a region it owns; a
 * run's allocation bits are set when it is taken, and its mark bits if marking is on, so that
 * cutting costs an addition.  Slots of a run that hold no object yet have a zero header.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include "heap.h"

/*
 * Sets bits from, from + stride, ... below `to`.  Where a stride divides a word, slots begin at the
 * same bits of every word.
 */
static void bits_fill(uint64_t *bits, size_t from, size_t to, size_t stride)
{
	uint64_t pattern;

	if (stride >= 64 || 64 % stride) {
		for (; from < to; from += stride)
			bits_publish(&bits[from >> 6], UINT64_C(1) << (from & 63));
		return;
	}
	pattern = ~UINT64_C(0) / ((UINT64_C(1) << stride) - 1);
	while (from < to) {
		size_t word = from >> 6, next = (word + 1) << 6;
		uint64_t mask = pattern & (~UINT64_C(0) << (from & 63));

		if (next > to)
			mask &= (UINT64_C(1) << (to & 63)) - 1;
		bits_publish(&bits[word], mask);
		from = next;
	}
}

/* The first bit set from `from` on, or `to`. */
static size_t bits_next(const uint64_t *bits, size_t from, size_t to)
{
	while (from < to) {
		uint64_t word = __atomic_load_n(&bits[from >> 6], __ATOMIC_RELAXED) >> (from & 63);

		if (word)
			return from + (size_t)__builtin_ctzll(word) < to ?
			       from + (size_t)__builtin_ctzll(word) : to;
		from = ((from >> 6) + 1) << 6;
	}
	return to;
}

static void run_mark(struct ebbgc_heap *h, const char *from, const char *to, size_t size)
{
	if (from < to)
		bits_fill(h->marks, granule_of(h, (uint64_t)(uintptr_t)from),
			  granule_of(h, (uint64_t)(uintptr_t)to), size >> GRANULE_SHIFT);
}

void supplies_blacken(struct ebbgc_heap *h, struct mutator *m)
{
	for (unsigned int k = 0; k < SMALL_KINDS; k++)
		run_mark(h, m->supply[k].next, m->supply[k].end, h->slot_size[k]);
}

void supplies_drop_regions(struct ebbgc_heap *h, struct mutator *m)
{
	for (unsigned int k = 0; k < SMALL_KINDS; k++) {
		if (m->supply[k].region != REGION_NONE)
			list_push(h, &h->partial[k], m->supply[k].region);
		m->supply[k].region = REGION_NONE;
	}
}

void allocated_add(struct ebbgc_heap *h, size_t bytes)
{
	if (__atomic_add_fetch(&h->allocated_bytes, bytes, __ATOMIC_RELAXED) >= h->trigger &&
	    h->asked == h->ended)
		collector_ask(h);
}

static void count_allocated(struct ebbgc_heap *h, struct mutator *m, size_t bytes)
{
	/* Runs are short in a heap with holes: no shared line is written for each. */
	m->uncounted += bytes;
	if (m->uncounted < RUN_BYTES)
		return;
	bytes = m->uncounted;
	m->uncounted = 0;
	if (__atomic_add_fetch(&h->allocated_bytes, bytes, __ATOMIC_RELAXED) <
	    __atomic_load_n(&h->trigger, __ATOMIC_RELAXED) || forked(h))
		return;
	pthread_mutex_lock(&h->lock);
	allocated_add(h, 0);
	pthread_mutex_unlock(&h->lock);
}

/* A safepoint: a thread that outruns the collector waits for it here, with nothing in hand. */
static void pace(struct ebbgc_heap *h, struct mutator *m)
{
	uint64_t since;

	ebbgc_poll(&m->public);
	if (__atomic_load_n(&h->allocated_bytes, __ATOMIC_RELAXED) <
	    __atomic_load_n(&h->stall_at, __ATOMIC_RELAXED) || forked(h))
		return;
	since = now_ns();
	pthread_mutex_lock(&h->lock);
	if (h->asked == h->ended)
		collector_ask(h);
	collector_wait(h, m);
	h->stats.stalls++;
	h->stats.stall_total_ns += now_ns() - since;
	pthread_mutex_unlock(&h->lock);
}

/* Takes the next run of the supply's region; false if it has no free slot left. */
static bool take_run(struct ebbgc_heap *h, struct mutator *m, unsigned int kind)
{
	struct supply *s = &m->supply[kind];
	struct region *r = &h->regions[s->region];
	size_t size = h->slot_size[kind], stride = size >> GRANULE_SHIFT;
	uint64_t *bits = h->allocated + (size_t)s->region * REGION_WORDS;
	size_t slots = REGION_SIZE / size, i = r->cursor, end;
	size_t most = size < RUN_BYTES ? RUN_BYTES / size : 1;

	while (i < slots && bit_test(bits, i * stride))
		i++;
	end = i + most < slots ? i + most : slots;
	end = bits_next(bits, i * stride, end * stride) / stride;
	r->cursor = (uint32_t)end;
	if (i == end)
		return false;
	s->next = region_start(h, s->region) + i * size;
	s->end = s->next + (end - i) * size;
	if (!r->zero)
		memset(s->next, 0, (size_t)(s->end - s->next));
	if (h->marking)
		run_mark(h, s->next, s->end, size);
	/* Last, for who comes here by an arrival: what is taken is zeroed, and marked. */
	bits_fill(bits, i * stride, end * stride, stride);
	count_allocated(h, m, (size_t)(s->end - s->next));
	return true;
}

#define TURN 3u		/* see no_memory() */

static void *wait_turn(void *arg)
{
	struct mutator *m = arg;
	struct ebbgc_heap *h = m->heap;

	mutator_block(m);
	mutator_lend(m);
	while (h->first)
		lock_wait(h, &h->turn);
	mutator_unblock(m);
	return NULL;
}

/* Lock held, dropped meanwhile: a safepoint as long as another thread is to have what is free. */
static void turn_wait(struct ebbgc_heap *h, struct mutator *m)
{
	uint64_t since = now_ns();

	if (!h->first || h->first == m)
		return;
	while (h->first)
		with_stack(m, wait_turn, m);
	h->stats.stalls++;
	h->stats.stall_total_ns += now_ns() - since;
}

/* Lock held. */
static void turn_end(struct ebbgc_heap *h, struct mutator *m)
{
	if (h->first != m)
		return;
	h->first = NULL;
	pthread_cond_broadcast(&h->turn);
}

/*
 * Lock held, dropped meanwhile: until something has been done for memory.  False if nothing is left
 * to do: see no_memory() for `tries`.
 */
static bool memory_wait(struct ebbgc_heap *h, struct mutator *m, unsigned int *tries)
{
	if (h->releasing) {
		/* Free, but on its way through the kernel: shorter than any cycle. */
		lock_wait(h, &h->released);
	} else if (*tries == 0 && h->asked != h->ended) {
		/* A cycle on its way may do; its pauses are shorter. */
		*tries = 1;
		collector_wait(h, m);
	} else if (*tries < 2) {
		*tries = 2;
		collector_wait_full(h, m);
	} else if (*tries == 2 && h->supplied != h->supplied_before) {
		/* They have had what it brought. */
		*tries = TURN;
		while (h->first)
			with_stack(m, wait_turn, m);
		h->first = m;
		collector_wait_full(h, m);
	} else {
		return false;
	}
	return true;
}

/*
 * Lock held, dropped meanwhile: what to do when no region is free.  0 to try again, or -errno.
 * `tries` counts how often this allocation has been here: it is 2 once a full collection has brought
 * nothing, and TURN from when on no other thread comes first.
 */
static int no_memory(struct ebbgc_heap *h, struct mutator *m, size_t bytes, unsigned int *tries)
{
	const unsigned int unbacked = h->unbacked;
	uint64_t since = now_ns();
	enum ebbgc_oom verdict;
	bool waited;

	h->unbacked_waiting += unbacked;
	waited = memory_wait(h, m, tries);
	h->unbacked_waiting -= unbacked;
	if (waited) {
		h->stats.stalls++;
		h->stats.stall_total_ns += now_ns() - since;
		return 0;
	}
	*tries = 0;
	turn_end(h, m);
	pthread_mutex_unlock(&h->lock);
	event_send(h, EBBGC_EVENT_OUT_OF_MEMORY, bytes, NULL);
	verdict = h->options.oom ? h->options.oom(h->options.oom_arg, h, bytes) : EBBGC_OOM_FAIL;
	pthread_mutex_lock(&h->lock);
	return verdict == EBBGC_OOM_RETRY ? 0 : -ENOMEM;
}

static int refill(struct ebbgc_heap *h, struct mutator *m, unsigned int kind)
{
	struct supply *s = &m->supply[kind];
	unsigned int tries = 0;
	bool taken;
	int r = 0;

	pace(h, m);
	if (s->region != REGION_NONE && take_run(h, m, kind))
		return 0;
	if (forked(h))
		return -ECHILD;
	pthread_mutex_lock(&h->lock);
	for (;;) {
		uint32_t region;

		if (s->region != REGION_NONE) {
			list_push(h, &h->full[kind], s->region);
			s->region = REGION_NONE;
		}
		turn_wait(h, m);
		region = sweep_for(h, (uint8_t)kind);
		if (region == REGION_NONE)
			region = regions_take(h, 1, (uint8_t)kind);
		if (region == REGION_NONE) {
			r = no_memory(h, m, h->slot_size[kind], &tries);
			if (r)
				break;
			continue;
		}
		h->supplied++;
		s->region = region;
		region_used(h, region);
		h->regions[region].cursor = 0;
		pthread_mutex_unlock(&h->lock);
		taken = take_run(h, m, kind);
		if (taken && tries < TURN)
			return 0;
		pthread_mutex_lock(&h->lock);
		if (taken) {
			turn_end(h, m);
			break;
		}
	}
	pthread_mutex_unlock(&h->lock);
	return r;
}

/* New objects are in memory (dissertation, algorithm 4). */
static uint64_t epoch_stamp(const struct mutator *m)
{
	return __atomic_load_n(&m->public.stamp, __ATOMIC_RELAXED);
}

static ebbgc_ref_t alloc_small(struct mutator *m, ebbgc_type_t type, unsigned int kind)
{
	struct supply *s = &m->supply[kind];
	char *p;

	if (EBBGC_UNLIKELY(s->next == s->end)) {
		int r = refill(m->heap, m, kind);

		if (r) {
			errno = -r;
			return EBBGC_NULL;
		}
	}
	p = s->next;
	s->next = p + m->heap->slot_size[kind];
	__atomic_store_n((uint64_t *)p, type, __ATOMIC_RELAXED);
	return (ebbgc_ref_t){ (uint64_t)(uintptr_t)(p + HEADER) | epoch_stamp(m) };
}

struct zeroing {
	struct mutator *m;
	uint32_t first, count;
};

/*
 * Lock held, dropped meanwhile.  The regions are on no list and hold no object yet, so the world
 * may stop and cycles may pass: zeroing takes long, with pages that are out longer.
 */
static void *zero_regions(void *arg)
{
	const struct zeroing *z = arg;
	struct ebbgc_heap *h = z->m->heap;
	bool dropping = h->dropping;

	mutator_block(z->m);
	mutator_lend(z->m);
	pthread_mutex_unlock(&h->lock);
	for (uint32_t i = z->first; i < z->first + z->count; i++) {
		char *start = region_start(h, i);

		/* If memory is short the kernel zeroes pages as they are used. */
		if (!h->regions[i].zero &&
		    (!dropping || madvise(start, REGION_SIZE, MADV_DONTNEED)))
			memset(start, 0, REGION_SIZE);
	}
	pthread_mutex_lock(&h->lock);
	mutator_unblock(z->m);
	return NULL;
}

static ebbgc_ref_t alloc_large(struct ebbgc_heap *h, struct mutator *m, ebbgc_type_t type,
			       size_t total)
{
	bool leaf = h->types[type].flags & EBBGC_LEAF;
	uint64_t regions = (total + REGION_SIZE - 1) >> REGION_SHIFT, object;
	struct zeroing z = { .m = m };
	unsigned int tries = 0;
	uint32_t first;
	int r = 0;

	pace(h, m);
	r = forked(h) ? -ECHILD : regions > h->region_count ? -ENOMEM : 0;
	if (r) {
		errno = -r;
		return EBBGC_NULL;
	}
	pthread_mutex_lock(&h->lock);
	for (;;) {
		turn_wait(h, m);
		first = regions_take(h, (uint32_t)regions, leaf ? KIND_LARGE_LEAF : KIND_LARGE);
		if (first != REGION_NONE)
			break;
		r = no_memory(h, m, total, &tries);
		if (r) {
			pthread_mutex_unlock(&h->lock);
			errno = -r;
			return EBBGC_NULL;
		}
	}
	turn_end(h, m);
	h->supplied++;
	z.first = first;
	z.count = (uint32_t)regions;
	with_stack(m, zero_regions, &z);
	pthread_mutex_unlock(&h->lock);

	/* No safepoint from here on, so no cycle sees the object half made. */
	object = (uint64_t)(uintptr_t)region_start(h, first) + HEADER;
	if (h->marking)
		bit_set(h->marks, granule_of(h, object));
	bits_fill(h->allocated, granule_of(h, object), granule_of(h, object) + 1, 64);
	__atomic_store_n(header_of(object), type, __ATOMIC_RELAXED);
	pthread_mutex_lock(&h->lock);
	list_push(h, &h->large, first);
	pthread_mutex_unlock(&h->lock);
	count_allocated(h, m, regions << REGION_SHIFT);
	return (ebbgc_ref_t){ object | epoch_stamp(m) };
}

ebbgc_ref_t ebbgc_alloc(ebbgc_mutator_t *mutator, ebbgc_type_t type)
{
	struct mutator *m = mutator_of(mutator);
	const struct type *t = &m->heap->types[type];

	if (EBBGC_UNLIKELY(type >= TYPES_MAX || !t->size || t->length_width)) {
		errno = EINVAL;
		return EBBGC_NULL;
	}
	if (EBBGC_UNLIKELY(t->kind == KIND_FREE))
		return alloc_large(m->heap, m, type, t->size + HEADER);
	return alloc_small(m, type, t->kind);
}

ebbgc_ref_t ebbgc_alloc_length(ebbgc_mutator_t *mutator, ebbgc_type_t type, size_t length)
{
	struct mutator *m = mutator_of(mutator);
	struct ebbgc_heap *h = m->heap;
	const struct type *t = &h->types[type];
	ebbgc_ref_t ref;
	size_t total;
	char *field;

	if (EBBGC_UNLIKELY(type >= TYPES_MAX || !t->length_width)) {
		errno = EINVAL;
		return EBBGC_NULL;
	}
	if (__builtin_mul_overflow(length, t->element_size, &total) ||
	    __builtin_add_overflow(total, t->size + HEADER, &total) || total > SIZE_MAX / 2 ||
	    (t->length_width == 4 && length > UINT32_MAX)) {
		errno = EOVERFLOW;
		return EBBGC_NULL;
	}
	if (total <= SMALL_MAX)
		ref = alloc_small(m, type, 2 * h->class_of[(total + GRANULE - 1) / GRANULE] +
					   ((t->flags & EBBGC_LEAF) != 0));
	else
		ref = alloc_large(h, m, type, total);
	if (ebbgc_is_null(ref))
		return ref;
	field = (char *)ebbgc_ptr(ref) + t->length_offset;
	if (t->length_width == 4)
		*(uint32_t *)field = (uint32_t)length;
	else
		*(uint64_t *)field = length;
	return ref;
}
