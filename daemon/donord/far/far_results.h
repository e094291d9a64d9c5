/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Results of a member's latest requests that changed something.  A member that lost its connection
 * repeats what had no reply, and gets these results: each request takes effect once.
 */
#ifndef EBB_FAR_RESULTS_H
#define EBB_FAR_RESULTS_H

#include <stdint.h>

#include "lib/wire/wire_far.h"

struct far_result {
	uint64_t tag;
	uint16_t status;
	uint8_t op;    /* 0 = unused */
	uint8_t words; /* of .old, with WIRE_OK */
	uint64_t old[WIRE_FAR_SWAPS];
};

struct far_results {
	struct far_results *next; /* unused ones */
	uint32_t oldest;
	struct far_result ring[WIRE_FAR_WINDOW];
};

/* Adds the result of @f, in place of the oldest one. */
void far_results_add(struct far_results *r, const struct wire_frame *f, uint16_t st,
		     const uint64_t *old, uint32_t words);
/* Returns the result of @f, or NULL: it has not been executed. */
const struct far_result *far_results_find(const struct far_results *r, const struct wire_frame *f);

#endif
