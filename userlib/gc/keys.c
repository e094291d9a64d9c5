// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <stdlib.h>
#include "keys.h"

static size_t hash(uint64_t key)
{
	return (size_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 20);
}

bool keys_reset(struct keys *k, size_t count)
{
	size_t size = 64;

	keys_free(k);
	/* At most half full, so that searches end. */
	while (size < 2 * count)
		size *= 2;
	k->pairs = calloc(size, 2 * sizeof(*k->pairs));
	k->mask = size - 1;
	return k->pairs;
}

void keys_add(struct keys *k, uint64_t key, uint64_t value)
{
	size_t i = hash(key);

	while (k->pairs[2 * (i & k->mask)])
		i++;
	k->pairs[2 * (i & k->mask)] = key;
	k->pairs[2 * (i & k->mask) + 1] = value;
}

uint64_t keys_next(const struct keys *k, uint64_t key, size_t *at)
{
	while (k->pairs) {
		const uint64_t *pair = &k->pairs[2 * ((hash(key) + *at) & k->mask)];

		if (!pair[0])
			break;
		++*at;
		if (pair[0] == key)
			return pair[1];
	}
	return 0;
}

void keys_free(struct keys *k)
{
	free(k->pairs);
	*k = (struct keys){ NULL, 0 };
}
