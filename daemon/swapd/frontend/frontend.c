// SPDX-License-Identifier: GPL-2.0-or-later
#include "frontend.h"
#include "swapd/page/shared.h"

void frontend_start(struct frontend_host *h, struct slot *slot, enum slot_kind kind,
		    uint64_t unique, uint64_t first, uint64_t count)
{
	slot->unique = unique;
	slot->first = (uint32_t)first;
	slot->count = (uint32_t)count;
	slot->order = ++h->shared->arrivals;
	/* Last: a successor trusts the slot according to its kind. */
	shared_order();
	slot->kind = (uint8_t)kind;
	h->start(h->engine, slot);
}
