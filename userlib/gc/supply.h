/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * A thread's supplies of free slots.  It takes runs of slots from a region that it owns; a run's
 * allocation bits are set when it is taken, and its mark bits if marking is on.  Allocation from a
 * run then costs an addition.  Slots of a run that hold no object yet have a zero header.
 */
#ifndef EBBGC_SUPPLY_H
#define EBBGC_SUPPLY_H

#include <stdbool.h>
#include "heap.h"

/*
 * m's own thread, without the lock: takes the next run of the region that m owns for @kind.
 * Returns false if the region has no free slot left or, unless supply.all_holes is set, only slots
 * on swapped-out pages with other objects, which would be read; then sets region.skipped.  A page
 * that is out and free as a whole is emptied instead.  Needs EBBGC_EXACT.
 */
bool supply_take(struct mutator *m, unsigned int kind);

/*
 * A free region's owner, without the lock: zeroes the region.  Empties swapped-out pages instead of
 * reading them.  Needs EBBGC_EXACT.
 */
void region_zero(struct ebbgc_heap *h, uint32_t region);

/* EBBGC_COUNT_FAULTS: counts the calling thread's major faults between the two calls. */
uint64_t faults_before(const struct ebbgc_heap *h);
void faults_count(struct ebbgc_heap *h, uint64_t before);

/* World stopped, before marking: marks the free slots of m's runs. */
void supplies_blacken(struct ebbgc_heap *h, struct mutator *m);

/* World stopped, or m's own thread with the lock: ends m's ownership of regions. */
void supplies_drop_regions(struct ebbgc_heap *h, struct mutator *m);

/*
 * World stopped, or m's own thread with the lock; with a nursery: ends m's ownership of regions,
 * frees the rest of its runs, and counts all that it has taken.  Returns the bytes of these rests.
 */
uint64_t supplies_drop(struct ebbgc_heap *h, struct mutator *m);

#endif
