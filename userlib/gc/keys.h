/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * A hash table from keys of ephemerons to values: built by one thread, then read by any number.  A
 * key may have many values.  Zeroed memory is an empty table.
 */
#ifndef EBBGC_KEYS_H
#define EBBGC_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct keys {
	uint64_t *pairs;	/* key, number of its last value; a key of 0 ends a search */
	uint64_t *values;	/* value, number of the key's one before; from 1 on */
	size_t mask;		/* number of pairs, a power of two, less 1 */
	size_t count;		/* of values */
};

/* Empties the table and makes room for @count values; returns false when out of memory. */
bool keys_reset(struct keys *k, size_t count);

/* Adds a value of a key, for which keys_reset() made room.  Neither is 0. */
void keys_add(struct keys *k, uint64_t key, uint64_t value);

/* Returns the next value of a key, or 0.  @at is 0 for the first. */
uint64_t keys_next(const struct keys *k, uint64_t key, size_t *at);

/* Not in a child of fork(). */
void keys_free(struct keys *k);

#endif
