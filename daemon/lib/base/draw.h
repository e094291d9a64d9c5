/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Random numbers for decisions that a seed repeats; not for secrets. */
#ifndef EBB_DRAW_H
#define EBB_DRAW_H

#include <stdint.h>

/* xorshift64*, Vigna 2016.  @seed is the state, never 0. */
static inline uint32_t draw32(uint64_t *seed)
{
	uint64_t x = *seed;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	*seed = x;
	return (uint32_t)(x * 0x2545F4914F6CDD1Dull >> 32);
}

/*
 * Returns the state of stream @n of @seed: neighbouring seeds and streams have unrelated numbers.
 * The last steps are those of SplitMix64, Steele et al. 2014.
 */
static inline uint64_t draw_stream(uint64_t seed, uint64_t n)
{
	uint64_t x = seed * 0x9E3779B97F4A7C15ull + (n + 1) * 0xD1B54A32D192ED03ull;

	x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
	x = (x ^ x >> 27) * 0x94D049BB133111EBull;
	x ^= x >> 31;
	return x ? x : 1;
}

/* Returns one of 0 .. @below - 1; @below is not 0.  The bias is at most below / 2^32. */
static inline uint32_t draw_below(uint64_t *seed, uint32_t below)
{
	return (uint32_t)((uint64_t)draw32(seed) * below >> 32);
}

/* Returns a time from half of @most on, below @most: peers that fail together return apart. */
static inline uint64_t draw_back_off(uint64_t *seed, uint64_t most)
{
	return most - most / 2 + (uint64_t)((unsigned __int128)(most / 2) * draw32(seed) >> 32);
}

#endif
