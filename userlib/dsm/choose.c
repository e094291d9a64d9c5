// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "choose.h"

/* Returns how good @w is, the less the better; 0 is the best. */
static uint32_t rank(const struct choose_worker *w, uint32_t donor)
{
	bool full = w->cpu > CHOOSE_FULL || w->memory > CHOOSE_FULL;
	bool there = donor == CHOOSE_ANY || w->donor == donor;

	return 2 * full + !there;
}

static bool is_better(const struct choose_worker *a, const struct choose_worker *b, uint32_t donor)
{
	uint32_t of_a = rank(a, donor), of_b = rank(b, donor);

	if (of_a != of_b)
		return of_a < of_b;
	return a->tasks != b->tasks ? a->tasks < b->tasks : a->cpu < b->cpu;
}

int choose_worker(const struct choose_worker *w, uint32_t n, uint32_t donor)
{
	int best = -1;

	for (uint32_t i = 0; i < n; i++)
		if (w[i].has_room && (best < 0 || is_better(&w[i], &w[best], donor)))
			best = (int)i;
	return best;
}

bool choose_is_full(const struct choose_donor *d)
{
	return d->used > d->total / 1000 * CHOOSE_FULL;
}

static uint64_t free_of(const struct choose_donor *d)
{
	return d->total > d->used ? d->total - d->used : 0;
}

int choose_donor(const struct choose_donor *d, uint32_t n, uint32_t tried)
{
	int best = -1;

	for (uint32_t i = 0; i < n; i++)
		if (!(tried >> i & 1) && d[i].total &&
		    (best < 0 || free_of(&d[i]) > free_of(&d[best])))
			best = (int)i;
	return best;
}
