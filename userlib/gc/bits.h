/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Bits of bitmaps that several threads read and set at the same time. */
#ifndef EBBGC_BITMAP_H
#define EBBGC_BITMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool bit_test(const uint64_t *bits, size_t i)
{
	return __atomic_load_n(&bits[i >> 6], __ATOMIC_RELAXED) >> (i & 63) & 1;
}

/* Returns true if this call set the bit.  Sequentially consistent: see order_address. */
static inline bool bit_set(uint64_t *bits, size_t i)
{
	uint64_t bit = UINT64_C(1) << (i & 63);

	if (__atomic_load_n(&bits[i >> 6], __ATOMIC_RELAXED) & bit)
		return false;
	return !(__atomic_fetch_or(&bits[i >> 6], bit, __ATOMIC_SEQ_CST) & bit);
}

/* Sets @bits of a word.  A thread that sees one by bit_published() sees all earlier writes. */
static inline void bits_publish(uint64_t *word, uint64_t bits)
{
	__atomic_fetch_or(word, bits, __ATOMIC_RELEASE);
}

static inline bool bit_published(const uint64_t *bits, size_t i)
{
	return __atomic_load_n(&bits[i >> 6], __ATOMIC_ACQUIRE) >> (i & 63) & 1;
}

#endif
