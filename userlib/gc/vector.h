/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* A growing array of words; zeroed memory is an empty one. */
#ifndef EBBGC_VECTOR_H
#define EBBGC_VECTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vector {
	uint64_t *items;
	size_t count, capacity;
};

/* Returns false when out of memory. */
bool vector_push(struct vector *v, uint64_t item);

/* Pushes all @count items or, when out of memory, none; then returns false. */
bool vector_push_all(struct vector *v, const uint64_t *items, size_t count);

/* Not allowed in a child of fork(): a thread of the parent may have been moving the items. */
void vector_free(struct vector *v);

#endif
