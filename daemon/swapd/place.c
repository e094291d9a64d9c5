// SPDX-License-Identifier: GPL-2.0-or-later
#include "place.h"

#define CHOICES 2

/* xorshift64*, Vigna 2016. */
static uint64_t draw(uint64_t *seed, uint64_t below)
{
	uint64_t x = *seed;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	*seed = x;
	return (x * 0x2545F4914F6CDD1Dull >> 32) % below;
}

static bool eligible(const struct place_donor *d, uint64_t slab_size, bool old)
{
	return d->usable && d->free >= slab_size && (d->slabs > 0) == old;
}

/* Adds one donor at random from M_old or M_new to @chosen; false when there is none. */
static bool draw_one(const struct place_donor *donors, int count, uint64_t slab_size, bool old,
		     int chosen[CHOICES], int *n, uint64_t *seed)
{
	uint64_t seen = 0;
	int pick = -1;

	for (int i = 0; i < count; i++) {
		if (!eligible(&donors[i], slab_size, old) || (*n && chosen[0] == i))
			continue;
		/* Reservoir of one: every candidate is as likely as the others. */
		if (draw(seed, ++seen) == 0)
			pick = i;
	}
	if (pick >= 0)
		chosen[(*n)++] = pick;
	return pick >= 0;
}

/* Whether a larger part of @a than of @b is in use. */
static bool busier(const struct place_donor *a, const struct place_donor *b)
{
	return (unsigned __int128)(a->total - a->free) * b->total >
	       (unsigned __int128)(b->total - b->free) * a->total;
}

int place_choose(const struct place_donor *donors, int count, uint64_t slab_size, uint64_t *seed)
{
	int chosen[CHOICES], n = 0;

	while (n < CHOICES && draw_one(donors, count, slab_size, false, chosen, &n, seed))
		;
	while (n < CHOICES && draw_one(donors, count, slab_size, true, chosen, &n, seed))
		;
	if (!n)
		return -1;
	return n > 1 && busier(&donors[chosen[0]], &donors[chosen[1]]) ? chosen[1] : chosen[0];
}
