/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
#ifndef EBBGC_SWEEP_H
#define EBBGC_SWEEP_H

#include <stdbool.h>
#include <stdint.h>

struct ebbgc_heap;

/* Without the lock: decides whether this cycle's sweep drops pages of garbage. */
void sweep_decide(struct ebbgc_heap *h);

/*
 * World stopped: makes all regions unswept.  @keep: recycled regions are for allocation afterwards,
 * too, even if they are free.
 */
void sweep_begin(struct ebbgc_heap *h, bool keep);

/*
 * World stopped, lock held: frees the young objects that are not old by now, and puts the regions
 * on their lists.  Returns the bytes freed.
 */
uint64_t sweep_young(struct ebbgc_heap *h);

/* Lock held, released meanwhile: returns a swept region with free slots, or REGION_NONE. */
uint32_t sweep_for(struct ebbgc_heap *h, uint8_t kind);

/* Without the lock: returns when all regions are swept. */
void sweep_all(struct ebbgc_heap *h);

/* Bit i: a part of an object lies on page i of the region.  @objects: bitmap of the heap's. */
uint32_t pages_of(const struct ebbgc_heap *h, uint32_t region, uint8_t kind,
		  const uint64_t *objects);

/*
 * Without the lock: objects have moved out of a region, which is on no list of free slots.  Returns
 * its pages without objects to the kernel, and their bytes; overwrites old copies in checking mode.
 */
uint64_t sweep_moved(struct ebbgc_heap *h, uint32_t region);

#endif
