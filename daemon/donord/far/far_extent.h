/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Whole extents of a member, by name: for jobs, which read and write them without the member. */
#ifndef EBB_FAR_EXTENT_H
#define EBB_FAR_EXTENT_H

#include "far_pools.h"

/* Name of an extent of up to a section. */
struct far_extent {
	uint32_t arena, class; /* EBB_PAGE << class bytes */
	uint64_t at;           /* in the arena */
	uint64_t generation;   /* of its word */
};

/*
 * Sets *@memory to the extent's EBB_PAGE << class bytes if @m has it under this name now, also in a
 * shared pool.  WIRE_BAD_RANGE: it is no extent; WIRE_NOT_OWNER: another member's, or free;
 * WIRE_STALE: another generation.  The member may free it at any time, and another one get it: no
 * more than the pool's own data is at stake.
 */
uint16_t far_extent_memory(const struct far_member *m, const struct far_extent *e,
			   uint8_t **memory);

#endif
