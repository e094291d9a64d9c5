// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <stdlib.h>
#include "vector.h"

bool vector_push(struct vector *v, uint64_t item)
{
	if (v->count == v->capacity) {
		size_t capacity = v->capacity ? 2 * v->capacity : 64;
		uint64_t *items = realloc(v->items, capacity * sizeof(*items));

		if (!items)
			return false;
		v->items = items;
		v->capacity = capacity;
	}
	v->items[v->count++] = item;
	return true;
}

void vector_free(struct vector *v)
{
	free(v->items);
}
