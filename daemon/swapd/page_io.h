/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What becomes of a READ and a WRITE.
 *
 * A request goes through its pages leg by leg: a leg is a run of pages that
 * come from, or go to, one place.  Nearly all requests have one leg.
 *
 * A page's newest content is where its bits say:
 *	not written            zeroes, without I/O
 *	valid                  at the donor of its slab
 *	neither, not spoilt    in the backup file, or queued for it
 *	neither, spoilt        nowhere: an I/O error, never an old content
 *
 * A write is answered when the donor has it and it is queued for the backup;
 * without a donor, when the backup file has it.  Overlapping requests of which
 * one writes are done one after the other, in the order they came.
 */
#ifndef EBB_PAGE_IO_H
#define EBB_PAGE_IO_H

#include "slot.h"

struct swapd;

/* All of the loop thread. */

/* Starts @slot, whose kind, first, count and unique are set. */
void page_io_start(struct swapd *s, struct slot *slot);

/* The donor did @slot's leg; what a READ asked for is in its payload. */
void page_io_donor_reply(struct swapd *s, struct slot *slot);

/* The donor will never answer @slot's leg: its slabs are lost already. */
void page_io_donor_gone(struct swapd *s, struct slot *slot);

/* The slab at @index is no longer MAPPING: those who waited for that go on. */
void page_io_slab_settled(struct swapd *s, uint32_t index);

/* The backup thread is through with @slot. */
void page_io_backed(struct swapd *s, struct slot *slot);

#endif
