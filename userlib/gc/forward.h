/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Where objects are that have moved.  The old place keeps nothing, so its pages are free at once: a
 * side table of the old place's region has an entry for each slot, the address of the object now,
 * or 0 if no object of the slot has moved.  An object that a root refers to does not move; its
 * entry is its own address.
 *
 * Slots in objects may name the old place until the next cycle has marked.  A load, and the
 * collector, heal such a slot: they replace the old name in it, unless the program stores another
 * reference first.  Threads hold new names only, so stores need no look.  No slot of the old region
 * is reused before the table is dropped, at the end of a cycle that began after the move: then all
 * slots of live objects are healed.  So chains do not exist: nothing moves while there are tables.
 *
 * A far generation has tables of its regions' old places here, too, which last longer: far_step.h
 * has their entries.  There are chains then: an object that was brought may leave again.
 */
#ifndef EBBGC_FORWARD_H
#define EBBGC_FORWARD_H

#include <stdint.h>
#include "far_step.h"
#include "object.h"

/* Lock held, before a type allows moving: returns 0 or -ENOMEM. */
int forwards_create(struct ebbgc_heap *h);
void forwards_destroy(struct ebbgc_heap *h);

/* Makes an empty table for a region of small objects; returns false when out of memory. */
bool forwards_add(struct ebbgc_heap *h, uint32_t region);
void forwards_drop(struct ebbgc_heap *h, uint32_t region);

/* Any thread: returns a region's table, which is made if there is none; NULL: out of memory. */
uint64_t *forwards_get(struct ebbgc_heap *h, uint32_t region);
/* Without a table, or with it. */
static inline uint64_t *forwards_of(const struct ebbgc_heap *h, uint32_t region)
{
	return __atomic_load_n(&h->moving.forwards[region], __ATOMIC_SEQ_CST);
}
/* Returns the number of entries of a region's table; the last is for no slot. */
size_t forwards_count(const struct ebbgc_heap *h, uint32_t region);

/* Returns the entry for an address in a region that has a table. */
uint64_t *forward_entry(const struct ebbgc_heap *h, uint32_t region, uint64_t address);

/* For the functions below only. */
uint64_t forward_slow(const struct ebbgc_heap *h, uint64_t object);
uint64_t slot_heal_slow(const struct ebbgc_heap *h, ebbgc_ref_t *slot, uint64_t bits);

/* Returns where the object is that is, or was, at this address; any other address as it is. */
static inline uint64_t forward(const struct ebbgc_heap *h, uint64_t object)
{
	return EBBGC_UNLIKELY(h->moving.active) ? forward_slow(h, object) : object;
}

/* forward() for a reference with a stamp. */
static inline uint64_t forward_bits(const struct ebbgc_heap *h, uint64_t bits)
{
	return (bits & ~EBBGC_ADDRESS_MASK) | forward(h, bits & EBBGC_ADDRESS_MASK);
}

/* Returns a slot's reference, with its stamp, to where the object is, and heals the slot. */
static inline uint64_t slot_heal(const struct ebbgc_heap *h, ebbgc_ref_t *slot)
{
	uint64_t bits = __atomic_load_n(&slot->bits, __ATOMIC_ACQUIRE);

	return EBBGC_UNLIKELY(h->moving.active) ? slot_heal_slow(h, slot, bits) : bits;
}

/* Records that the program has touched an object.  A thread of the collector. */
static inline void heat_add(const struct ebbgc_heap *h, uint64_t object)
{
	uint64_t *hot = __atomic_load_n(&h->moving.hot, __ATOMIC_RELAXED);

	if (EBBGC_UNLIKELY(hot != NULL))
		bit_set(hot, granule_of(h, object));
}

/* slot_heal() without the stamp. */
static inline uint64_t slot_current(const struct ebbgc_heap *h, ebbgc_ref_t *slot)
{
	return slot_heal(h, slot) & EBBGC_ADDRESS_MASK;
}

#endif
