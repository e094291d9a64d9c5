/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Compacting regions of a far generation in the store, by the store: what is left of a region's
 * objects is copied there to a smaller place, and nothing is read.  Names stay; the region has a
 * new place and tablet:
 *
 *	1. What is left now is to be kept.  Threads may bring some of it meanwhile, nothing more
 *	   leaves; what they bring is as dead in the new place as in the old one.
 *	2. The store copies that to a new place, or fails: then the region is as before.
 *	3. The new place and tablet are published at once.  A thread reads which they are after it
 *	   has claimed an object.
 *	4. When no entry of the region is BUSY, no thread reads the old place, which is freed.
 *
 * No answer of the store says where an object is: that is a function of the tablet.
 */
#ifndef EBBGC_FAR_COMPACT_H
#define EBBGC_FAR_COMPACT_H

#include <stdbool.h>
#include <stdint.h>

struct ebbgc_heap;
struct far_stored;

/* Can the store compact? */
bool far_compacts(const struct ebbgc_heap *h);

/*
 * The collector, in no cycle's marking: compacts an AWAY region of its own that has objects left.
 * Returns 0 or an error: the region is as before.  The call takes at most @wait_ms, but for a
 * message.
 */
int far_compact(struct ebbgc_heap *h, uint32_t region, unsigned int wait_ms);

/* Makes an empty tablet; returns false without memory. */
bool far_stored_make(struct ebbgc_heap *h, uint32_t region, struct far_stored *s);
/* Frees what that and the caller made. */
void far_stored_drop(struct ebbgc_heap *h, uint32_t region, struct far_stored *s);

#endif
