/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Operations on extents with the handle's lock held.  They return 0 or -errno as ebbfar.h says. */
#ifndef EBBFAR_EXTENT_H
#define EBBFAR_EXTENT_H

#include "member.h"

/*
 * Returns a copy: a name may be in memory that other members change, and is not to change between
 * its check and its use.
 */
static inline struct ebbfar_extent extent_copy(const struct ebbfar_extent *x)
{
	return (struct ebbfar_extent){
		.place = __atomic_load_n(&x->place, __ATOMIC_RELAXED),
		.size = __atomic_load_n(&x->size, __ATOMIC_RELAXED),
		.generation = __atomic_load_n(&x->generation, __ATOMIC_RELAXED),
	};
}

int extent_allocate(ebbfar_t *far, size_t size, struct ebbfar_extent *x);
int extent_free(ebbfar_t *far, const struct ebbfar_extent *x);
/*
 * Checks an access.  Sets slab and offset of *@f to its place, and *@base to the arena's memory if
 * it is mapped, else to NULL.
 */
int extent_find(ebbfar_t *far, const struct ebbfar_extent *x, uint64_t offset, size_t size,
		struct wire_frame *f, uint8_t **base);

#endif
