// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "oldest.h"

static bool is_in(const struct oldest *o, unsigned int swept, uint32_t region)
{
	uint32_t i = o->places[region];

	return i < o->count[swept] && o->items[swept][i].region == region;
}

static void put(struct oldest *o, unsigned int swept, uint32_t i, struct aged a)
{
	o->items[swept][i] = a;
	o->places[a.region] = i;
}

/* Puts a region into a free place, or near it. */
static void settle(struct oldest *o, unsigned int swept, uint32_t i, struct aged a)
{
	const struct aged *items = o->items[swept];
	uint32_t count = o->count[swept];

	for (; i && items[(i - 1) / 2].arrived > a.arrived; i = (i - 1) / 2)
		put(o, swept, i, items[(i - 1) / 2]);
	for (uint32_t child = 2 * i + 1; child < count; child = 2 * i + 1) {
		if (child + 1 < count && items[child + 1].arrived < items[child].arrived)
			child++;
		if (items[child].arrived >= a.arrived)
			break;
		put(o, swept, i, items[child]);
		i = child;
	}
	put(o, swept, i, a);
}

static void drop(struct oldest *o, unsigned int swept, uint32_t i)
{
	uint32_t last = --o->count[swept];

	if (i != last)
		settle(o, swept, i, o->items[swept][last]);
}

void oldest_add(struct oldest *o, uint32_t region, bool swept, uint64_t arrived)
{
	uint32_t i;

	if (is_in(o, !swept, region))
		drop(o, !swept, o->places[region]);
	i = is_in(o, swept, region) ? o->places[region] : o->count[swept]++;
	settle(o, swept, i, (struct aged){ arrived, region });
}

void oldest_remove(struct oldest *o, uint32_t region)
{
	for (unsigned int swept = 0; swept < 2; swept++)
		if (is_in(o, swept, region))
			drop(o, swept, o->places[region]);
}

uint32_t oldest_take(struct oldest *o, uint64_t before)
{
	for (unsigned int swept = 2; swept--;) {
		struct aged first = o->items[swept][0];

		if (!o->count[swept] || first.arrived >= before)
			continue;
		drop(o, swept, 0);
		return first.region;
	}
	return UINT32_MAX;
}
