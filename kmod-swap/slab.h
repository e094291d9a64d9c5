/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where the pages of a slab are.  All but init and free want slab->lock held, if not said
 * otherwise.
 */
#ifndef EBB_SLAB_H
#define EBB_SLAB_H

#include "device.h"

int ebb_slabs_init(struct ebb_device *device);
void ebb_slabs_free(struct ebb_device *device);
/*
 * The place to read @page from; of *@run pages from there on, *@run becomes how many are there.
 * WRITTEN = they are lost; EBB_BITS = they are zeros.
 */
enum ebb_at ebb_slab_source(const struct ebb_device *device, u64 page, u32 *run);
/* A write of @class has ended; exactly @places, BIT(enum ebb_at), have it. */
void ebb_slab_written(struct ebb_device *device, u64 page, u32 count, u32 class, u32 places);
/* Takes the locks itself. */
void ebb_slab_discard(struct ebb_device *device, u64 page, u64 count);

/* The following are about the slab's pages of @class alone. */
/* Pages that @place has and no place of @others, BIT(enum ebb_at). */
u32 ebb_slab_count_only(const struct ebb_device *device, u32 slab, u32 class, enum ebb_at place,
			u32 others);
/* Pages that no other place than @at has; AT_DONORS = none. */
u32 ebb_slab_count_unique(const struct ebb_device *device, struct ebb_slab *slab, u32 class,
			  enum ebb_at at);
/* Pages that the copier has yet to copy to @to; AT_PLACES = to any place. */
u32 ebb_slab_count_lacking(const struct ebb_device *device, u32 slab, u32 class, enum ebb_at to);
/*
 * The first pages from *@page on that the copier has to copy, at most *@count, all to *@to and
 * all from one place, which is returned; EBB_BITS = none.
 */
enum ebb_at ebb_slab_wanted(const struct ebb_device *device, u32 slab, u32 class, u64 *page,
			    u32 *count, enum ebb_at *to);
/*
 * @place becomes the slab's @at (AT_DONOR or AT_SECOND), with nothing there yet; NULL = the slab
 * has none any more.  The old one becomes the source: a slab with a source must not be moved.
 */
void ebb_slab_move(struct ebb_device *device, struct ebb_slab *slab, u32 class, enum ebb_at at,
		   const struct ebb_place *place);
/* The slab loses its place at @s; the source, if there is one, takes that place again. */
void ebb_slab_detach(struct ebb_device *device, struct ebb_slab *slab,
		     const struct ebb_session *s);
/* The slab loses its source. */
void ebb_slab_leave(struct ebb_device *device, struct ebb_slab *slab, u32 class);

#endif
