// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdlib.h>

#include "lowest.h"

struct lowest {
	uint32_t leaves; /* a power of two */
	uint64_t v[];    /* v[1] the root, the children of v[i] are v[2i] and v[2i + 1] */
};

int lowest_new(struct lowest **out, uint32_t count)
{
	uint32_t leaves = 1;
	struct lowest *l;

	while (leaves < count)
		leaves *= 2;
	l = malloc(sizeof(*l) + 2 * leaves * sizeof(l->v[0]));
	if (!l)
		return -ENOMEM;
	l->leaves = leaves;
	for (uint32_t i = 0; i < 2 * leaves; i++)
		l->v[i] = UINT64_MAX;
	*out = l;
	return 0;
}

void lowest_free(struct lowest **l)
{
	free(*l);
	*l = NULL;
}

void lowest_set(struct lowest *l, uint32_t i, uint64_t value)
{
	i += l->leaves;
	l->v[i] = value;
	for (i /= 2; i; i /= 2) {
		uint64_t best = l->v[2 * i] < l->v[2 * i + 1] ? l->v[2 * i] : l->v[2 * i + 1];

		if (l->v[i] == best)
			return;
		l->v[i] = best;
	}
}

uint32_t lowest_get(const struct lowest *l)
{
	uint32_t i = 1;

	if (l->v[1] == UINT64_MAX)
		return UINT32_MAX;
	while (i < l->leaves)
		i = 2 * i + (l->v[2 * i] > l->v[2 * i + 1]);
	return i - l->leaves;
}
