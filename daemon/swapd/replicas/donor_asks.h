/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What donors ask of the borrower when they need memory (docs/protocol.md). */
#ifndef EBB_DONOR_ASKS_H
#define EBB_DONOR_ASKS_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/wire/wire.h"

struct donor;
struct swapd;

/*
 * What a donor may ask: each question is a walk through the slab table, in which no
 * request is served.  One that follows HeadRoom or drains asks for 64 slabs and one
 * ACTIVITY a second at most; beyond four times that it is answered without a look.
 */
struct asks {
	uint32_t left;    /* EVICTs that it may ask at once; an ACTIVITY counts as several */
	uint64_t at;      /* ns: as of then */
	bool told;        /* that it asks too much, since it last was quiet */
};

/* Loop thread; 0 or -errno. */

/* ACTIVITY: answers with the rates of the slabs named in @payload. */
int donor_asks_activity(struct swapd *s, struct donor *d, const struct wire_frame *f,
		      const uint8_t *payload);

/* EVICT: the copy is marked, and repair moves it away; or why not. */
int donor_asks_back(struct swapd *s, struct donor *d, const struct wire_frame *f);

/* Once a second: closes a period of @seconds of all slabs' activity. */
void donor_asks_tick(struct swapd *s, uint32_t seconds);

#endif
