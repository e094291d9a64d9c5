// SPDX-License-Identifier: GPL-2.0-or-later
#include "bits.h"

/* The bits of word @word that lie in [@first, @first + @count). */
static uint64_t mask(uint32_t word, uint32_t first, uint32_t count)
{
	uint64_t begin = (uint64_t)word * 64, end = (uint64_t)first + count, m = ~0ull;

	if (first > begin)
		m &= ~0ull << (first - begin);
	if (end < begin + 64)
		m &= ~0ull >> (begin + 64 - end);
	return m;
}

void bits_set(uint64_t *map, uint32_t first, uint32_t count)
{
	for (uint32_t w = first / 64; count && w <= (first + count - 1) / 64; w++)
		map[w] |= mask(w, first, count);
}

void bits_clear(uint64_t *map, uint32_t first, uint32_t count)
{
	for (uint32_t w = first / 64; count && w <= (first + count - 1) / 64; w++)
		map[w] &= ~mask(w, first, count);
}

uint32_t bits_run(const uint64_t *map, uint32_t first, uint32_t count)
{
	uint64_t flip = bits_test(map, first) ? ~0ull : 0;

	for (uint32_t w = first / 64; w <= (first + count - 1) / 64; w++) {
		/* Bits that differ from the first one. */
		uint64_t other = (map[w] ^ flip) & mask(w, first, count);

		if (other)
			return w * 64 + (uint32_t)__builtin_ctzll(other) - first;
	}
	return count;
}

uint32_t bits_count(const uint64_t *map, uint32_t first, uint32_t count)
{
	uint32_t n = 0;

	for (uint32_t w = first / 64; count && w <= (first + count - 1) / 64; w++)
		n += (uint32_t)__builtin_popcountll(map[w] & mask(w, first, count));
	return n;
}

uint32_t bits_count_without(const uint64_t *map, const uint64_t *other, uint32_t first,
			    uint32_t count)
{
	uint32_t n = 0;

	for (uint32_t w = first / 64; count && w <= (first + count - 1) / 64; w++)
		n += (uint32_t)__builtin_popcountll(map[w] & ~other[w] & mask(w, first, count));
	return n;
}
