// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* Allocation: small objects from the thread's supplies, large ones in regions of their own. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include "object.h"
#include "os.h"
#include "region.h"
#include "safepoint.h"
#include "shortage.h"
#include "supply.h"
#include "sweep.h"
#include "trigger.h"
#include "type.h"

/* Beyond a quarter more than its target size, a heap that avoids reads would grow too much. */
static bool is_overgrown(const struct ebbgc_heap *h)
{
	return (uint64_t)h->used << REGION_SHIFT > h->target + h->target / 4;
}

/* Lock held, released meanwhile: returns a region with free slots, or REGION_NONE. */
static uint32_t region_find(struct ebbgc_heap *h, struct supply *s, unsigned int kind)
{
	uint32_t region = sweep_for(h, (uint8_t)kind);

	s->all_holes = is_overgrown(h);
	if (region == REGION_NONE && s->all_holes)
		region = region_list_pop(h, &h->skipped[kind]);
	if (region == REGION_NONE)
		region = regions_take(h, 1, (uint8_t)kind);
	if (region == REGION_NONE) {
		region = region_list_pop(h, &h->skipped[kind]);
		s->all_holes = true;
	}
	return region;
}

static int refill(struct ebbgc_heap *h, struct mutator *m, unsigned int kind)
{
	struct supply *s = &m->supply[kind];
	unsigned int tries = 0;
	bool taken;
	int r = 0;

	allocation_pace(m);
	if (s->region != REGION_NONE && supply_take(m, kind))
		return 0;
	if (os_forked(h->pid))
		return -ECHILD;
	pthread_mutex_lock(&h->lock);
	for (;;) {
		uint32_t region;

		if (s->region != REGION_NONE) {
			const struct region *old = &h->regions[s->region];

			if (!old->young && old->skipped)
				region_list_push(h, &h->skipped[kind], s->region);
			else if (!old->young)
				region_enlist(h, s->region, true);
			s->region = REGION_NONE;
		}
		shortage_turn_wait(h, m);
		region = region_find(h, s, kind);
		if (region == REGION_NONE) {
			r = shortage_wait(h, m, h->slot_size[kind], &tries);
			if (r == -ECHILD)
				return r;
			if (r)
				break;
			continue;
		}
		h->supplied++;
		s->region = region;
		region_used(h, region);
		region_make_young(h, region);
		h->regions[region].cursor = 0;
		h->regions[region].skipped = false;
		pthread_mutex_unlock(&h->lock);
		taken = supply_take(m, kind);
		if (taken && tries < SHORTAGE_TURN)
			return 0;
		pthread_mutex_lock(&h->lock);
		if (taken) {
			shortage_turn_end(h, m);
			break;
		}
	}
	pthread_mutex_unlock(&h->lock);
	return r;
}

/* Returns the stamp for a new object, which is in memory (dissertation, algorithm 4). */
static uint64_t epoch_stamp(const struct mutator *m)
{
	return __atomic_load_n(&m->public.stamp, __ATOMIC_RELAXED);
}

/* Takes a slot of a nonempty supply. */
static inline ebbgc_ref_t cut(struct mutator *m, ebbgc_type_t type, unsigned int kind)
{
	char *p = m->supply[kind].next;

	m->supply[kind].next = p + m->heap->slot_size[kind];
	__atomic_store_n((uint64_t *)p, type, __ATOMIC_RELAXED);
	return (ebbgc_ref_t){ (uint64_t)(uintptr_t)(p + HEADER) | epoch_stamp(m) };
}

/* Not inline: alloc_small() would have to save registers that it does not need. */
static __attribute__((noinline)) ebbgc_ref_t refill_and_cut(struct mutator *m, ebbgc_type_t type,
							    unsigned int kind)
{
	int r = refill(m->heap, m, kind);

	if (r) {
		errno = -r;
		return EBBGC_NULL;
	}
	return cut(m, type, kind);
}

static ebbgc_ref_t alloc_small(struct mutator *m, ebbgc_type_t type, unsigned int kind)
{
	if (EBBGC_UNLIKELY(m->supply[kind].next == m->supply[kind].end))
		return refill_and_cut(m, type, kind);
	return cut(m, type, kind);
}

struct zeroing {
	struct mutator *m;
	uint32_t first, count;
};

/*
 * Lock held, released while zeroing, which takes long for swapped-out pages.  Cycles may pass: the
 * regions are on no list and hold no object yet.
 */
static void *zero_regions(void *arg)
{
	const struct zeroing *z = arg;
	struct ebbgc_heap *h = z->m->heap;
	bool dropping = h->dropping;
	uint64_t faults;

	mutator_block(z->m);
	mutator_lend(z->m);
	pthread_mutex_unlock(&h->lock);
	faults = faults_before(h);
	for (uint32_t i = z->first; i < z->first + z->count; i++) {
		char *start = region_start(h, i);

		/* When memory is short, the kernel zeroes pages on first use. */
		if (!h->regions[i].zero &&
		    (!dropping || madvise(start, REGION_SIZE, MADV_DONTNEED)))
			region_zero(h, i);
	}
	faults_count(h, faults);
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
	size_t granule;
	uint32_t first;
	int r = 0;

	allocation_pace(m);
	r = os_forked(h->pid) ? -ECHILD : regions > h->region_count ? -ENOMEM : 0;
	if (r) {
		errno = -r;
		return EBBGC_NULL;
	}
	pthread_mutex_lock(&h->lock);
	for (;;) {
		shortage_turn_wait(h, m);
		first = regions_take(h, (uint32_t)regions, leaf ? KIND_LARGE_LEAF : KIND_LARGE);
		if (first != REGION_NONE)
			break;
		r = shortage_wait(h, m, total, &tries);
		if (r) {
			if (r != -ECHILD)
				pthread_mutex_unlock(&h->lock);
			errno = -r;
			return EBBGC_NULL;
		}
	}
	shortage_turn_end(h, m);
	h->supplied++;
	z.first = first;
	z.count = (uint32_t)regions;
	with_stack(m, zero_regions, &z);
	pthread_mutex_unlock(&h->lock);

	/* No safepoint from here on: no cycle sees the incomplete object. */
	object = (uint64_t)(uintptr_t)region_start(h, first) + HEADER;
	if (h->marking)
		bit_set(h->marks, granule_of(h, object));
	granule = granule_of(h, object);
	bits_publish(&h->allocated[granule >> 6], UINT64_C(1) << (granule & 63));
	__atomic_store_n(header_of(object), type, __ATOMIC_RELAXED);
	pthread_mutex_lock(&h->lock);
	if (h->nursery.old)
		region_make_young(h, first);
	else
		region_list_push(h, &h->large, first);
	pthread_mutex_unlock(&h->lock);
	allocated_count(m, regions << REGION_SHIFT);
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

_Static_assert(sizeof(struct ebbgc_supply) == sizeof(struct supply) &&
	       offsetof(struct ebbgc_supply, end) == offsetof(struct supply, end) && HEADER == 8,
	       "ebbgc_alloc_site() of programs takes slots");
_Static_assert(GRANULE == 16, "ebbgc_alloc_length_site() of programs counts granules");

int ebbgc_site_init(ebbgc_heap_t *h, ebbgc_type_t type, struct ebbgc_site *site)
{
	const struct type *t = &h->types[type];

	if (type >= TYPES_MAX || !t->size || t->length_width || t->kind == KIND_FREE)
		return -EINVAL;
	*site = (struct ebbgc_site){ type, t->kind, (uint32_t)h->slot_size[t->kind] };
	return 0;
}

int ebbgc_length_site_init(ebbgc_heap_t *h, ebbgc_type_t type, struct ebbgc_length_site *site)
{
	const struct type *t = &h->types[type];

	if (type >= TYPES_MAX || !t->length_width || t->size + HEADER > SMALL_MAX)
		return -EINVAL;
	*site = (struct ebbgc_length_site){
		.type = type, .length_offset = t->length_offset, .length_width = t->length_width,
		.fixed = t->size + HEADER + GRANULE - 1, .element_size = t->element_size,
		.most = (SMALL_MAX - HEADER - t->size) / t->element_size,
		.sizes = h->slot_sizes[t->kinds / KIND_MOVABLE * 2 + t->kinds % 2],
	};
	return 0;
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
		ref = alloc_small(m, type,
				  2 * h->class_of[(total + GRANULE - 1) / GRANULE] + t->kinds);
	else
		ref = alloc_large(h, m, type, total);
	if (ebbgc_is_null(ref))
		return ref;
	field = (char *)ebbgc_ptr(ref) + t->length_offset;
	if (t->length_width == 4)
		__atomic_store_n((uint32_t *)field, (uint32_t)length, __ATOMIC_RELAXED);
	else
		__atomic_store_n((uint64_t *)field, length, __ATOMIC_RELAXED);
	return ref;
}
