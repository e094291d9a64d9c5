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
#include "swapd/page/seal.h"

struct notes;
struct slot;
struct slots;

/*
 * A sealed page is copied from here to its slot.  Whenever the server dies, the page is whole
 * in one place: in clear in the slot, or sealed here.
 */
struct sealed_page {
	uint8_t bytes[EBB_PAGE];
	uint32_t slot; /* + 1, from when the page is whole until it is copied; 0 = none */
	uint32_t page; /* index in the slot */
};

struct sealing {
	bool on;
	struct seal_table seals;
	struct sealer sealer;     /* the loop thread's */
	struct sealed_page *page; /* in shared memory */
	struct slots *slots;
	struct notes *notes;
};

/* Makes the table for @pages pages and seals from now on; 0 or -errno. */
int sealing_init(struct sealing *s, uint32_t pages, struct error *e);
void sealing_free(struct sealing *s);

/* Loop thread only, from here on; does nothing unless pages are sealed. */

/*
 * Seals the pages of the WRITE @slot, except same-filled ones, which stay here.  Returns false when
 * they cannot be sealed, and so must not be sent.
 */
bool sealing_leaves(struct sealing *s, struct slot *slot);

/* For the next server, before it reads a slot: completes a copy to a slot. */
void sealing_take_over(struct sealing *s);

/* The pages are discarded: copies at donors and disks never open again. */
void sealing_forget(struct sealing *s, uint32_t first, uint32_t count);

/*
 * Opens the present run of @slot for a READ, or checks it for a RESYNC.  Returns true when
 * slot->run, as it is then, is good.  Returns false when its first page is not what was written;
 * slot->run is then that page.
 */
bool sealing_came(struct sealing *s, struct slot *slot);

#endif
