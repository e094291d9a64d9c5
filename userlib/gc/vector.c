// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <stdlib.h>
#include "vector.h"

bool vector_push(struct vector *v, uint64_t item)
{
	return vector_push_all(v, &item, 1);
}

bool vector_push_all(struct vector *v, const uint64_t *new, size_t count)
{
	/* At most a few items: doubling makes room for them. */
	if (v->count + count > v->capacity) {
		size_t capacity = v->capacity ? 2 * v->capacity : 64;
		uint64_t *items = realloc(v->items, capacity * sizeof(*items));

		if (!items)
			return false;
		v->items = items;
		v->capacity = capacity;
	}
	for (size_t i = 0; i < count; i++)
		v->items[v->count++] = new[i];
	return true;
}

void vector_free(struct vector *v)
{
	free(v->items);
}
