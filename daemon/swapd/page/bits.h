/* SPDX-License-Identifier: GPL-2.0-or-later */
/* One bit per page. */
#ifndef EBB_BITS_H
#define EBB_BITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 64-bit words that hold @bits. */
static inline size_t bits_words(uint32_t bits)
{
	return ((size_t)bits + 63) / 64;
}

static inline bool bits_test(const uint64_t *map, uint32_t bit)
{
	return map[bit / 64] >> (bit % 64) & 1;
}

void bits_set(uint64_t *map, uint32_t first, uint32_t count);
void bits_clear(uint64_t *map, uint32_t first, uint32_t count);

/* Returns how many of the @count (> 0) bits from @first on equal the first of them. */
uint32_t bits_run(const uint64_t *map, uint32_t first, uint32_t count);

/* Counts bits among @count from @first that are set in @map and not in @other. */
uint32_t bits_count_without(const uint64_t *map, const uint64_t *other, uint32_t first,
			    uint32_t count);

/* Counts set bits among @count from @first. */
uint32_t bits_count(const uint64_t *map, uint32_t first, uint32_t count);

#endif
