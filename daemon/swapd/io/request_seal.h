/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Seals requests' pages (seal.h).  Donors and the backup get sealed pages only, and repair
 * copies sealed pages.  A page that does not open is not what was written: its donor is
 * blamed.
 */
#ifndef EBB_REQUEST_SEAL_H
#define EBB_REQUEST_SEAL_H

#include <stdbool.h>
#include <stdint.h>

#include <ebb/page.h>
#include "lib/base/error.h"

struct slot;
struct swapd;
struct swapd_options;

/* Whether pages are sealed: with "auto", unless every donor is on this machine. */
bool sealing_wanted(const struct swapd_options *o);

/* Makes the table, if pages are sealed. */
int sealing_init(struct swapd *s, struct error *e);
void sealing_free(struct swapd *s);

/* The rest is the loop thread's. */

/*
 * Seals the pages of the WRITE @slot, except same-filled ones, which stay here.  Returns
 * false when they cannot be sealed, and so must not be sent.
 */
bool sealing_leaves(struct swapd *s, struct slot *slot);

/*
 * A sealed page is copied from here to its slot.  Whenever the server dies, the page is whole
 * in one place: in clear in the slot, or sealed here.
 */
struct sealed_page {
	uint8_t bytes[EBB_PAGE];
	uint32_t slot; /* + 1, from when the page is whole until it is there; 0 = none */
	uint32_t page; /* of the slot */
};

/* For the next server, before it reads a slot: completes a copy to a slot. */
void sealing_take_over(struct swapd *s);

/* The pages are discarded: copies at donors and disks never open again. */
void sealing_forget(struct swapd *s, uint32_t first, uint32_t count);

/*
 * The present run of @slot has come, from @copy or, if that is -1, from the backup.
 * Opens it for a READ, looks at it for a RESYNC.  True when it is good, as far as
 * slot->run then says.  False when its first page is not what was written, to which
 * slot->run is then cut; a donor it came from is going to be quarantined.
 */
bool sealing_came(struct swapd *s, struct slot *slot, int copy);

#endif
