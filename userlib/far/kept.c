// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <string.h>

#include "kept.h"
#include "lib/rules/far_memory.h"
#include "lib/rules/far_words.h"

static bool has_room(const struct kept *k, const uint8_t *base, const struct ebb_far_name *n)
{
	return !k->count || (k->count < KEPT_MOST >> n->class && k->base == base &&
			     k->section == n->section);
}

bool kept_has(const struct kept *k, const struct ebbfar_extent *x)
{
	for (uint32_t i = 0; i < k->count; i++)
		if (k->extents[i].x.place == x->place &&
		    k->extents[i].x.generation == x->generation)
			return true;
	return false;
}

int kept_add(struct kept *k, uint8_t *base, uint32_t sections, uint32_t member,
	     const struct ebbfar_extent *x, const struct ebb_far_name *n)
{
	uint64_t at = ebb_far_slot_at(sections, n->section, n->word);
	uint64_t word = far_owned_word(n, member, n->generation), renamed;

	if (k->section == n->section && kept_has(k, x))
		return -ESTALE;
	/* An extent with the last generation is freed, and its memory not used again. */
	if (n->generation + 1 >= far_generation_last(n) || !has_room(k, base, n))
		return 1;
	renamed = far_owned_word(n, member, n->generation + 1);
	if (far_swap(base, at, word, renamed) != word)
		return -ESTALE;
	k->base = base;
	k->section = n->section;
	k->extents[k->count].x = *x;
	k->extents[k->count].x.generation++;
	k->extents[k->count].at = at;
	k->extents[k->count++].word = renamed;
	return 0;
}

bool kept_take(struct kept *k, struct ebbfar_extent *x)
{
	while (k->count) {
		k->count--;
		/* Another member that guessed the name could have taken it. */
		if (far_load(k->base, k->extents[k->count].at) != k->extents[k->count].word)
			continue;
		*x = k->extents[k->count].x;
		return true;
	}
	return false;
}

uint32_t kept_evict(struct kept *k, struct ebbfar_extent *x)
{
	uint32_t n = (k->count + 1) / 2;

	for (uint32_t i = 0; i < n; i++)
		x[i] = k->extents[i].x;
	k->count -= n;
	memmove(k->extents, k->extents + n, k->count * sizeof(*k->extents));
	return n;
}
