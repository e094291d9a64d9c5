// SPDX-License-Identifier: GPL-2.0-or-later
#include "lib/base/draw.h"
#include "placement.h"

/* Random guesses before all donors are scanned: with many donors most guesses succeed. */
#define GUESSES 16

struct draw {
	const struct place_donor *donors;
	int count;
	uint64_t slab_size;
	enum { NEW, OLD, ANY } from;
	int *chosen;
	int n;
};

static bool eligible(const struct draw *w, int i)
{
	const struct place_donor *d = &w->donors[i];

	if (!d->usable || d->free < w->slab_size)
		return false;
	if (w->from != ANY && (d->slabs > 0) != (w->from == OLD))
		return false;
	for (int j = 0; j < w->n; j++)
		if (w->chosen[j] == i)
			return false;
	return true;
}

/* Adds one donor, all equally likely; false when there is none. */
static bool draw_one(struct draw *w, uint64_t *seed)
{
	uint32_t seen = 0;
	int pick = -1;

	/* Repeating a failed guess keeps the others equally likely. */
	if (w->count > GUESSES)
		for (int g = 0; g < GUESSES; g++) {
			int i = (int)draw_below(seed, (uint32_t)w->count);

			if (eligible(w, i)) {
				w->chosen[w->n++] = i;
				return true;
			}
		}
	for (int i = 0; i < w->count; i++)
		/* Reservoir sampling of one. */
		if (eligible(w, i) && draw_below(seed, ++seen) == 0)
			pick = i;
	if (pick >= 0)
		w->chosen[w->n++] = pick;
	return pick >= 0;
}

bool place_busier(const struct place_donor *a, const struct place_donor *b)
{
	uint64_t a_used = a->memory ? a->used : a->total - a->free;
	uint64_t b_used = b->memory ? b->used : b->total - b->free;
	uint64_t a_all = a->memory ? a->memory : a->total;
	uint64_t b_all = b->memory ? b->memory : b->total;

	return (unsigned __int128)a_used * b_all > (unsigned __int128)b_used * a_all;
}

int place_draw(const struct place_donor *donors, int count, uint64_t slab_size, int choices,
	       enum place_order order, uint64_t *seed, int chosen[PLACE_CHOICES_MAX])
{
	struct draw w = { .donors = donors, .count = count, .slab_size = slab_size,
			  .chosen = chosen, .from = order == PLACE_ALIKE ? ANY : NEW };

	if (choices > PLACE_CHOICES_MAX)
		choices = PLACE_CHOICES_MAX;
	while (w.n < choices && draw_one(&w, seed))
		;
	if (w.from == ANY)
		return w.n;
	w.from = OLD;
	while (w.n < choices && draw_one(&w, seed))
		;
	return w.n;
}

int place_lowest(const struct place_donor *donors, const int *chosen, int n)
{
	int best = n ? chosen[0] : -1;

	for (int i = 1; i < n; i++)
		if (place_busier(&donors[best], &donors[chosen[i]]))
			best = chosen[i];
	return best;
}

int place_choose_by(const struct place_donor *donors, int count, uint64_t slab_size,
		    const struct place_rule *rule, uint64_t *seed)
{
	int chosen[PLACE_CHOICES_MAX], n;
	uint32_t held = 0;

	for (int i = 0; i < count; i++)
		held += donors[i].slabs > 0;
	n = place_draw(donors, count, slab_size, rule->choices, place_order(rule, held), seed,
		       chosen);
	return place_lowest(donors, chosen, n);
}
