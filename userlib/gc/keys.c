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
	k->pairs = calloc(size + count + 1, 2 * sizeof(*k->pairs));
	if (!k->pairs)
		return false;
	k->values = k->pairs + 2 * size;
	k->mask = size - 1;
	return true;
}

/* Returns the key's pair, or the one that ends the search. */
static uint64_t *pair_of(const struct keys *k, uint64_t key)
{
	size_t i = hash(key);

	while (k->pairs[2 * (i & k->mask)] && k->pairs[2 * (i & k->mask)] != key)
		i++;
	return &k->pairs[2 * (i & k->mask)];
}

void keys_add(struct keys *k, uint64_t key, uint64_t value)
{
	uint64_t *pair = pair_of(k, key), *to = &k->values[2 * ++k->count];

	to[0] = value;
	to[1] = pair[1];
	pair[0] = key;
	pair[1] = k->count;
}

uint64_t keys_next(const struct keys *k, uint64_t key, size_t *at)
{
	uint64_t number = 0;

	if (*at)
		number = *at - 1;
	else if (k->pairs)
		number = pair_of(k, key)[1];
	if (!number)
		return 0;
	*at = k->values[2 * number + 1] + 1;
	return k->values[2 * number];
}

void keys_free(struct keys *k)
{
	free(k->pairs);
	*k = (struct keys){ NULL, NULL, 0, 0 };
}
