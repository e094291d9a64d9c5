/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Finds an object's header, granule, region and page by its address. */
#ifndef EBBGC_OBJECT_H
#define EBBGC_OBJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "bits.h"
#include "far_queue.h"
#include "heap.h"

static inline uint64_t *header_of(uint64_t object)
{
	return (uint64_t *)(uintptr_t)(object - HEADER);
}

static inline uint32_t type_id(uint64_t object)
{
	return (uint32_t)__atomic_load_n(header_of(object), __ATOMIC_RELAXED);
}

static inline size_t granule_of(const struct ebbgc_heap *h, uint64_t object)
{
	return (object - (uint64_t)(uintptr_t)h->base) >> GRANULE_SHIFT;
}

static inline uint32_t region_of(const struct ebbgc_heap *h, uint64_t object)
{
	return (uint32_t)((object - (uint64_t)(uintptr_t)h->base) >> REGION_SHIFT);
}

/*
 * Returns the region where the object begins that lies in this one.  Without the lock, a region may
 * be changing hands: then any region of the heap.
 */
static inline uint32_t region_first(const struct ebbgc_heap *h, uint32_t region)
{
	uint32_t back = 0;

	if (__atomic_load_n(&h->kinds[region], __ATOMIC_RELAXED) == KIND_TAIL)
		back = __atomic_load_n(&h->regions[region].span, __ATOMIC_RELAXED);
	return back <= region ? region - back : region;
}

static inline char *region_start(const struct ebbgc_heap *h, uint32_t region)
{
	return h->base + ((size_t)region << REGION_SHIFT);
}

static inline size_t page_of(const struct ebbgc_heap *h, uint64_t object)
{
	return (object - (uint64_t)(uintptr_t)h->base) >> PAGE_SHIFT;
}

/* Returns the bytes from the heap's base on that were ever used. */
static inline size_t used_bytes(const struct ebbgc_heap *h)
{
	return (size_t)__atomic_load_n(&h->top, __ATOMIC_RELAXED) << REGION_SHIFT;
}

/* Returns a region's state; FAR_LOCAL if nothing in the heap may move. */
static inline enum far_state region_state(const struct ebbgc_heap *h, uint32_t region)
{
	return h->moving.states ?
	       (enum far_state)__atomic_load_n(&h->moving.states[region], __ATOMIC_SEQ_CST) :
	       FAR_LOCAL;
}

/* Does the region leave, or has it left?  The collector never accesses its objects. */
static inline bool region_is_out(const struct ebbgc_heap *h, uint32_t region)
{
	return EBBGC_UNLIKELY(h->far.on) && far_is_out(region_state(h, region));
}

/* Returns what the store has of the region: to be read again after each claim of an object. */
static inline const struct far_stored *far_stored_of(const struct far_region *r)
{
	return &r->stored[__atomic_load_n(&r->now, __ATOMIC_SEQ_CST)];
}

/* Returns why nothing in the region's place of the store is read again; 0: it is. */
static inline int region_lost(const struct ebbgc_heap *h, uint32_t region)
{
	return __atomic_load_n(&h->far.regions[region].lost, __ATOMIC_SEQ_CST);
}

/* May something in the store of a far generation hold this name?  See named.h. */
static inline bool is_named(const struct ebbgc_heap *h, uint64_t name)
{
	return h->far.named && bit_test(h->far.named, granule_of(h, name));
}

/* Does the address lie in the heap?  The null reference does not. */
static inline bool in_heap(const struct ebbgc_heap *h, uint64_t address)
{
	return address - (uint64_t)(uintptr_t)h->base < h->bytes;
}

/* Does the object survive this cycle?  What lies outside of the heap always does. */
static inline bool object_marked(const struct ebbgc_heap *h, uint64_t object)
{
	return !in_heap(h, object) || bit_test(h->marks, granule_of(h, object));
}

/*
 * Marks an object in the store of a far generation, by its name there: a far cycle is to read it,
 * unless it is a leaf.  Returns true if this call has marked it.  Any thread, while marking.
 */
static inline bool far_reach(struct ebbgc_heap *h, uint64_t object)
{
	uint32_t region = (uint32_t)((object - (uint64_t)(uintptr_t)h->base) >> REGION_SHIFT);

	if (!bit_set(h->marks, granule_of(h, object)))
		return false;
	if (!(h->kinds[region] & 1)) {
		/* After the mark, in this order: far_mark.c resets them in the other one. */
		__atomic_store_n(&h->far.regions[region].waits, true, __ATOMIC_SEQ_CST);
		far_queue_add(h, region);
		if (!__atomic_load_n(&h->far.reached, __ATOMIC_SEQ_CST))
			__atomic_store_n(&h->far.reached, true, __ATOMIC_SEQ_CST);
	}
	return true;
}

/* Do references of EBBGC_CLEAR_FIRST to unmarked objects read as null?  A mutator's thread. */
static inline bool weak_are_null(const struct ebbgc_heap *h)
{
	return h->settled && (h->settled_last || !__atomic_load_n(&h->found, __ATOMIC_RELAXED));
}

/* Is all that the program can reach marked?  World stopped, or a mutator's thread. */
static inline bool all_marked(const struct ebbgc_heap *h)
{
	return h->settled_last ||
	       (h->settled && !__atomic_load_n(&h->has_last, __ATOMIC_RELAXED) &&
		!__atomic_load_n(&h->found, __ATOMIC_RELAXED));
}

/*
 * Of the granules in a word of the mark bits, returns those of objects that may be traced: minor
 * cycles free no old ones before the next sweep.
 */
static inline uint64_t marks_old(const struct ebbgc_heap *h, size_t word, uint64_t marks)
{
	return h->nursery.old ? marks & __atomic_load_n(&h->nursery.old[word], __ATOMIC_RELAXED) :
				marks;
}

static inline bool kind_is_leaf(uint8_t kind)
{
	return kind & 1;
}

static inline bool is_large(uint8_t kind)
{
	return kind == KIND_LARGE || kind == KIND_LARGE_LEAF;
}

/* Returns the bytes of the heap that an object of this kind occupies. */
static inline size_t taken_bytes(const struct ebbgc_heap *h, uint64_t object, uint8_t kind)
{
	return kind < SMALL_KINDS ? h->slot_size[kind] :
	       (size_t)h->regions[region_of(h, object)].span << REGION_SHIFT;
}

/* Returns a reference without its stamp. */
static inline uint64_t ref_load(const ebbgc_ref_t *slot)
{
	return __atomic_load_n(&slot->bits, __ATOMIC_ACQUIRE) & EBBGC_ADDRESS_MASK;
}

/* Does an object of a known type begin at this address?  Accepts any word.  World stopped. */
bool is_object(const struct ebbgc_heap *h, uint64_t address);

/*
 * Returns the address if an object, or a slot of a thread's supply that is to become one, begins
 * there, else 0.  Accepts any word while tracers run.
 */
static inline uint64_t object_at(const struct ebbgc_heap *h, uint64_t address)
{
	return in_heap(h, address) && address % GRANULE == HEADER &&
	       bit_published(h->allocated, granule_of(h, address)) ? address : 0;
}

/* Returns the object that an arbitrary word points into, or 0.  World stopped. */
uint64_t object_containing(const struct ebbgc_heap *h, uint64_t word);
/* A tracer: as object_containing(); 0 for a young object, which may be freed at any time. */
uint64_t old_object_containing(const struct ebbgc_heap *h, uint64_t word);

#endif
