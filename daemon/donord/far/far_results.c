// SPDX-License-Identifier: GPL-2.0-or-later
#include <string.h>

#include "far_results.h"

void far_results_add(struct far_results *r, const struct wire_frame *f, uint16_t st,
		     const uint64_t *old, uint32_t words)
{
	struct far_result *to = &r->ring[r->oldest];

	r->oldest = (r->oldest + 1) % WIRE_FAR_WINDOW;
	to->tag = f->tag;
	to->op = f->op;
	to->status = st;
	to->words = st == WIRE_OK ? (uint8_t)words : 0;
	if (to->words)
		memcpy(to->old, old, to->words * sizeof(*old));
}

const struct far_result *far_results_find(const struct far_results *r, const struct wire_frame *f)
{
	for (uint32_t i = 0; i < WIRE_FAR_WINDOW; i++)
		if (r->ring[i].op == f->op && r->ring[i].tag == f->tag)
			return &r->ring[i];
	return NULL;
}
