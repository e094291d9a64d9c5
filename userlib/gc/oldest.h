/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * With a far generation: the regions that may leave, by age.  Those are the regions on lists of
 * full and partial ones of types that allow moving, and while a cycle sweeps those that it has
 * taken from there and not swept yet.  Lock held.
 *
 * Two binary heaps, of regions that a sweep has cleaned and of others: a choice looks at the first
 * only.  A sweep that puts a region back on a list moves nothing here, unless it is the first one.
 */
#ifndef EBBGC_OLDEST_H
#define EBBGC_OLDEST_H

#include <stdbool.h>
#include <stdint.h>

struct aged {
	uint64_t arrived;		/* as of struct region: constant while it is here */
	uint32_t region;
};

struct oldest {
	struct aged *items[2];		/* by whether they were swept when they were added */
	uint32_t count[2];
	uint32_t *places;		/* by region: where it is, if it is, in one of the arrays */
};

/* Adds a region, or notes that it is swept now. */
void oldest_add(struct oldest *o, uint32_t region, bool swept, uint64_t arrived);

/* Removes a region, if it is there. */
void oldest_remove(struct oldest *o, uint32_t region);

/*
 * Removes and returns the oldest region that is swept, or the oldest of the others if there is
 * none, of those that arrived before @before; UINT32_MAX: there is none.
 */
uint32_t oldest_take(struct oldest *o, uint64_t before);

#endif
