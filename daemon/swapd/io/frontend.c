// SPDX-License-Identifier: GPL-2.0-or-later
#include <string.h>

#include "engine.h"
#include "frontend.h"
#include "swapd/page/shared.h"
#include "swapd/swapd.h"

const struct frontend *frontend_find(const char *name)
{
	static const struct frontend *const all[] = { &fuse_frontend, &ublk_frontend };

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (!strcmp(name, all[i]->name))
			return all[i];
	return NULL;
}

void frontend_start(struct swapd *s, struct slot *slot, enum slot_kind kind, uint64_t unique,
		    uint64_t first, uint64_t count)
{
	slot->unique = unique;
	slot->first = (uint32_t)first;
	slot->count = (uint32_t)count;
	slot->order = ++s->shared->arrivals;
	/* A successor believes the rest by the kind. */
	shared_order();
	slot->kind = (uint8_t)kind;
	engine_start(s, slot);
}
