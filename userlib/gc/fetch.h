/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Bringing objects of a far generation to local memory, one by one or all of a region. */
#ifndef EBBGC_FETCH_H
#define EBBGC_FETCH_H

#include "heap.h"

/*
 * m's own thread, in a heap with a far generation: returns where the object is that this name says,
 * in local memory.  Reads it from the store if it must.
 */
uint64_t far_bring(struct mutator *m, uint64_t object);

/*
 * The collector, outside of marking: reads all that is left of an AWAY region of its own.  Returns
 * 0 if no object is left there, or a negative errno.  @buffer: REGION_SIZE bytes.
 */
int far_bring_all(struct ebbgc_heap *h, uint32_t region, char *buffer);

/* Returns when no thread brings an object of the region that it found in an older state. */
void far_settle(struct ebbgc_heap *h, uint32_t region);

/* m's own thread: counts a slot in which it has replaced an old name. */
static inline void far_healed(struct mutator *m)
{
	__atomic_store_n(&m->far.healed, m->far.healed + 1, __ATOMIC_RELAXED);
}

/* World stopped, lock held: ends the use of the regions where objects arrive. */
void arrivals_close(struct ebbgc_heap *h);

#endif
