// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdlib.h>
#include <string.h>

#include "heap_grow.h"
#include "semeru_remset.h"

enum { FIRST_ROOM = 1024 };

void remset_init(struct remset *r, uint32_t objects)
{
	r->room = FIRST_ROOM;
	r->count = 0;
	r->pair = heap_zeroed(r->room, sizeof(*r->pair));
	r->targets = heap_zeroed(objects, sizeof(*r->targets));
}

void remset_free(struct remset *r)
{
	free(r->pair);
	free(r->targets);
	memset(r, 0, sizeof(*r));
}

static uint64_t *place_of(const struct remset *r, uint64_t key)
{
	uint64_t x = key * 0x9E3779B97F4A7C15ull;
	uint32_t at = (uint32_t)(x >> 32) & (r->room - 1);

	while (r->pair[at] && r->pair[at] != key)
		at = (at + 1) & (r->room - 1);
	return &r->pair[at];
}

static void rebuild(struct remset *r, uint32_t room,
		    bool (*keep)(void *arg, uint32_t source, uint32_t target), void *arg)
{
	struct remset old = *r;

	r->room = room;
	r->count = 0;
	r->pair = heap_zeroed(room, sizeof(*r->pair));
	for (uint32_t i = 0; i < old.room; i++) {
		uint64_t key = old.pair[i];
		uint32_t target = (uint32_t)(key - 1);

		if (!key)
			continue;
		if (keep && !keep(arg, (uint32_t)((key - 1) >> 32), target)) {
			r->targets[target]--;
			continue;
		}
		*place_of(r, key) = key;
		r->count++;
	}
	free(old.pair);
}

bool remset_add(struct remset *r, uint32_t source, uint32_t target)
{
	uint64_t key = ((uint64_t)source << 32 | target) + 1, *at = place_of(r, key);

	if (*at)
		return false;
	*at = key;
	r->targets[target]++;
	if (++r->count > r->room / 2)
		rebuild(r, r->room * 2, NULL, NULL);
	return true;
}

void remset_clean(struct remset *r, bool (*keep)(void *arg, uint32_t source, uint32_t target),
		  void *arg)
{
	rebuild(r, r->room, keep, arg);
}
