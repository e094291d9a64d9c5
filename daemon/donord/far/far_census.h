/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Counts the extents of all pools for the status.  Members that map an arena allocate without the
 * donor, so the count reads the tables: on request, and in pieces, so that no borrower
 * waits.  Words change meanwhile: the result is exact for memory that is not being allocated.
 *
 * The loop's thread calls all functions.
 */
#ifndef EBB_FAR_CENSUS_H
#define EBB_FAR_CENSUS_H

#include "far_pools.h"

/* Returns whether .extents of the pools are counted; begins to count if they are not. */
bool far_counted(struct far *far);

/*
 * Counts a piece, if a count is running.  Returns whether it has just ended: far_counted() is true
 * from then to far_count_end().
 */
bool far_census_turn(struct far *far);
void far_count_end(struct far *far);

#endif
