/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Operations on extents with the handle's lock held.  They return 0 or -errno as ebbfar.h says. */
#ifndef EBBFAR_EXTENT_H
#define EBBFAR_EXTENT_H

#include "member.h"

int extent_allocate(ebbfar_t *far, size_t size, struct ebbfar_extent *x);
int extent_free(ebbfar_t *far, const struct ebbfar_extent *x);
/*
 * Checks an access.  Sets slab and offset of *@f to its place, and *@base to the arena's memory if
 * it is mapped, else to NULL.
 */
int extent_find(ebbfar_t *far, const struct ebbfar_extent *x, uint64_t offset, size_t size,
		struct wire_frame *f, uint8_t **base);

#endif
