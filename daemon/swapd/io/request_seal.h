/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where requests meet seals (seal.h), on a device that has them.  Donors and the
 * backup get, and repair moves, sealed pages only; a page that does not open is not
 * what was written, and its donor is blamed.
 */
#ifndef EBB_SEALING_H
#define EBB_SEALING_H

#include <stdbool.h>
#include <stdint.h>

#include <ebb/page.h>
#include "lib/base/error.h"

struct slot;
struct swapd;
struct swapd_options;

/* Whether @o wants seals: "auto" does unless every donor is on this machine. */
bool sealing_wanted(const struct swapd_options *o);

/* Makes the table for s->map->pages pages, when they are wanted. */
int sealing_init(struct swapd *s, struct error *e);
void sealing_free(struct swapd *s);

/* The rest is the loop thread's. */

/*
 * Seals the pages of the WRITE @slot that are to leave: those that are not one word
 * over and over.  False when they cannot be sealed, and so must not leave.
 */
bool sealing_leaves(struct swapd *s, struct slot *slot);

/*
 * A page that a server has sealed goes from here to its slot, so that whenever the
 * server dies it is somewhere whole: in clear in the slot, or sealed here.
 */
struct sealed_page {
	uint8_t bytes[EBB_PAGE];
	uint32_t slot; /* + 1, from when the page is whole until it is there; 0 = none */
	uint32_t page; /* of the slot */
};

/* For a successor, before it looks at a slot: the page that was on its way gets there. */
void sealing_take_over(struct swapd *s);

/* The pages are discarded: what donors and disks still hold of them never opens again. */
void sealing_forget(struct swapd *s, uint32_t first, uint32_t count);

/*
 * The present run of @slot has come, from @copy or, if that is -1, from the backup.
 * Opens it for a READ, looks at it for a FILL.  True when it is good, as far as
 * slot->run then says.  False when its first page is not what was written, to which
 * slot->run is then cut; a donor it came from is going to be quarantined.
 */
bool sealing_came(struct swapd *s, struct slot *slot, int copy);

#endif
