/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The places of a slab's pages.  All functions but init and free need slab->lock unless noted.
 */
#ifndef EBB_SLAB_H
#define EBB_SLAB_H

#include "device.h"

int ebb_slabs_init(struct ebb_device *device);
void ebb_slabs_free(struct ebb_device *device);
/*
 * Returns the place to read @page from, none of @away (BIT(enum ebb_at)), and shortens *@run to the
 * pages from @page on that are there.  WRITTEN = lost, or at a place of @away alone; EBB_BITS =
 * zeros.
 */
enum ebb_at ebb_slab_source(const struct ebb_device *device, u64 page, u32 *run, u32 away);
/* Returns whether a place of @places, BIT(enum ebb_at), has the newest content of @page. */
bool ebb_slab_is_at(const struct ebb_device *device, u64 page, u32 places);
/* Records a write of @class that exactly @places, BIT(enum ebb_at), have. */
void ebb_slab_written(struct ebb_device *device, u64 page, u32 count, u32 class, u32 places);
/* Takes the locks itself. */
void ebb_slab_discard(struct ebb_device *device, u64 page, u64 count);

/* The functions below concern only the slab's pages of @class. */
/* Counts pages that @place has and no place of @others, BIT(enum ebb_at). */
u32 ebb_slab_count_only(const struct ebb_device *device, u32 slab, u32 class, enum ebb_at place,
			u32 others);
/* Counts pages that only @at has; AT_DONORS = 0. */
u32 ebb_slab_count_unique(const struct ebb_device *device, struct ebb_slab *slab, u32 class,
			  enum ebb_at at);
/* Counts pages that the copier has yet to copy to @to; AT_PLACES = to any place. */
u32 ebb_slab_count_lacking(const struct ebb_device *device, u32 slab, u32 class, enum ebb_at to);
/*
 * Finds the first pages from *@page on that the copier has to copy, at most *@count, all to *@to
 * and all from the place that it returns; EBB_BITS = none.
 */
enum ebb_at ebb_slab_wanted(const struct ebb_device *device, u32 slab, u32 class, u64 *page,
			    u32 *count, enum ebb_at *to);
/*
 * Makes @place, which has no pages yet, the slab's @at (AT_DONOR or AT_SECOND); NULL = removes @at.
 * The old place becomes the source: a slab with a source must not be moved.
 */
void ebb_slab_move(struct ebb_device *device, struct ebb_slab *slab, u32 class, enum ebb_at at,
		   const struct ebb_place *place);
/* Removes the slab's place at @s; the source, if any, replaces a lost donor. */
void ebb_slab_detach(struct ebb_device *device, struct ebb_slab *slab,
		     const struct ebb_session *s);
/* Removes the slab's source. */
void ebb_slab_leave(struct ebb_device *device, struct ebb_slab *slab, u32 class);

#endif
