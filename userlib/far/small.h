/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Which places of a member's extents are in use by small objects.  All of it is in this process:
 * allocating and freeing an object accesses no donor, and when the member is lost, the donor frees
 * its extents as all others.
 *
 * A block is an extent of 64 KiB with slots of one size.  A slot has a stamp of 16 bits, odd while
 * an object is there, which each allocation and each free raises; a block has an epoch of 16 bits,
 * raised when it is divided again.  Both are in the names of objects, with the extent's name: so no
 * two objects ever have the same name.  A slot at its last stamp is not used again before its
 * extent is.
 */
#ifndef EBBFAR_SMALL_H
#define EBBFAR_SMALL_H

#include <stdbool.h>
#include <stdint.h>

#include "ebbfar.h"

#define SMALL_EXTENT 65536u
/* 16 to 64 bytes in steps of 16, then four sizes from each power of two to the next. */
#define SMALL_CLASSES 28u
#define SMALL_ARENAS 4096u

struct small_block;

/* Zero it to begin. */
struct small {
	struct {
		struct small_block *first, *last;
	} free[SMALL_CLASSES];       /* blocks with free slots */
	struct small_block *spare;   /* the one block without objects */
	uint32_t per_arena;          /* extents in an arena */
	struct small_block **arenas[SMALL_ARENAS]; /* blocks by place; NULL = an arena without */
};

/* Returns the smallest class of slots of @size bytes, 1 to EBBFAR_SMALL_MOST. */
uint32_t small_class(size_t size);

/* Allocates an object in a block of @class.  False: all are full. */
bool small_take(struct small *s, uint32_t class, struct ebbfar_object *o);

/*
 * Divides extent @x, which is the member's, for objects of @class; an arena has @per_arena such
 * extents.  Returns 0 or -ENOMEM.
 */
int small_add(struct small *s, uint32_t per_arena, uint32_t class, const struct ebbfar_extent *x);

/* Divides the spare block for objects of @class.  Returns 0, -ENOENT without one, or -ENOMEM. */
int small_reuse(struct small *s, uint32_t class);

/*
 * Frees object @o.  Returns 0; -ESTALE, there is no such object; -EINVAL, there can be none; or 1:
 * *@x is an extent without objects, which is to be freed.
 */
int small_give(struct small *s, const struct ebbfar_object *o, struct ebbfar_extent *x);

/* Takes the spare block out: *@x is an extent to be freed.  False without one. */
bool small_evict(struct small *s, struct ebbfar_extent *x);

/* Returns whether extent @x is a block. */
bool small_has(const struct small *s, const struct ebbfar_extent *x);

/* Forgets all blocks. */
void small_end(struct small *s);

#endif
