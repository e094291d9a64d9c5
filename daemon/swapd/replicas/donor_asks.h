/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Requests of donors to the borrower when they need memory (docs/protocol.md). */
#ifndef EBB_DONOR_ASKS_H
#define EBB_DONOR_ASKS_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/wire/wire.h"

struct donor;
struct replicas;

/* Loop thread; 0 or -errno. */

/* ACTIVITY: answers with the rates of the slabs named in @payload. */
int donor_asks_activity(struct replicas *rs, struct donor *d, const struct wire_frame *f,
		      const uint8_t *payload);

/*
 * REVOKED: gives up the copy.  Beyond the limit of requests it is ignored, unless slabs of @d are
 * mapped here: the reply to the next transfer tells.
 */
void donor_tells_revoked(struct replicas *rs, struct donor *d, const struct wire_frame *f);

/* EVICT: marks the copy, which repair then migrates, or answers why not. */
int donor_asks_back(struct replicas *rs, struct donor *d, const struct wire_frame *f);

/* Once a second: closes a period of @seconds of all slabs' activity. */
void donor_asks_tick(struct replicas *rs, uint32_t seconds);

#endif
