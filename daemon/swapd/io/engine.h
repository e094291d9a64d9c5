/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What becomes of a READ, a WRITE and a DISCARD, and of repair's FILL.
 *
 * A request goes through its pages run by run: a run is a number of pages that come
 * from, or go to, the same places; nearly all requests have one.  page_map.h says
 * where a page is.  A run of a READ is one leg, to one donor; a run of a WRITE has a
 * leg for each copy of its slab, and is done when all have ended: acknowledged, or
 * with their donor lost.
 *
 * A write is answered when every live copy has it and it is queued for the backup;
 * if no copy took a page, when the backup file has it; without one it fails.
 * Overlapping requests of which one excludes others (all but READ and FILL) are done
 * one after the other, in the order they came.
 */
#ifndef EBB_PAGE_IO_H
#define EBB_PAGE_IO_H

#include <stdbool.h>

#include "request.h"

struct swapd;

/* What the engine has to say to repair and placement; wiring.c fills it in. */
struct engine_events {
	/* A page of the slab needs a copy: true when one is being asked for. */
	bool (*wanted)(void *owner, uint32_t slab);
	/* Of repair's requests: a FILL is through; an ALONE has its slab; its turn at the backup. */
	void (*filled)(void *owner, struct slot *slot);
	void (*alone)(void *owner, struct slot *slot);
	void (*alone_backed)(void *owner, struct slot *slot);
};

/* All of the loop thread. */

/*
 * Takes requests off the ready list, where the others below put those that can go on: none
 * of them goes on inside another.  True when there are more, so that the loop is not to sleep.
 */
bool engine_run(struct swapd *s);

/* Starts @slot, whose kind, first, count and unique are set. */
void engine_start(struct swapd *s, struct slot *slot);

/* The same for what nobody outside waits for: FILL and ALONE. */
void engine_start_own(struct swapd *s, struct slot *slot);

/* An ALONE is through: requests that it held up are ready. */
void engine_end_alone(struct swapd *s, struct slot *slot);

/* A donor did leg number @leg; what a READ asked for is in the payload. */
void engine_donor_reply(struct swapd *s, struct slot *slot, int leg);

/* The donor of leg number @leg will never answer: its copies are lost already. */
void engine_donor_gone(struct swapd *s, struct slot *slot, int leg);

/* A copy of the slab at @index is no longer MAPPING, or a FILL has ended: requests that waited are ready. */
void engine_slab_settled(struct swapd *s, uint32_t index);

/* The backup thread is through with @slot. */
void engine_backed(struct swapd *s, struct slot *slot);

#endif
