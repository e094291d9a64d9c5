// SPDX-License-Identifier: GPL-2.0-or-later OR BSD-2-Clause
#include "far_memory.h"

#include <endian.h>
#ifdef __x86_64__
#include <emmintrin.h>
#endif
#include <string.h>

#include "far_words.h"

static uint64_t *word_at(const uint8_t *base, uint64_t at)
{
	return (uint64_t *)(base + at);
}

uint64_t far_add(uint8_t *base, uint64_t at, uint64_t addend)
{
	uint64_t old = far_load(base, at), seen;

	while ((seen = far_swap(base, at, old, old + addend)) != old)
		old = seen;
	return old;
}

/* Returns how many of @n bytes at @at are before the first whole word. */
static size_t before_words(uint64_t at, size_t n)
{
	size_t first = -at % 8;

	return first < n ? first : n;
}

static void word_out(uint8_t *to, const uint64_t *from)
{
	uint64_t word = __atomic_load_n(from, __ATOMIC_RELAXED);

	memcpy(to, &word, sizeof(word));
}

static void word_in(uint64_t *to, const uint8_t *from)
{
	uint64_t word;

	memcpy(&word, from, sizeof(word));
	__atomic_store_n(to, word, __ATOMIC_RELAXED);
}

static bool is_pair(const uint64_t *p)
{
	return (uintptr_t)p % 16 == 0;
}

/*
 * Copy words two at a time; @from or @to, in the arena, is a multiple of 16.  Return how many words
 * were copied.  Processors with AVX load and store two such words at once (Intel SDM 3A, "Guaranteed
 * Atomic Operations"; so do AMD's).  Others may take other parts at a time than words.
 */
#ifdef __x86_64__
static size_t pairs_out(uint8_t *to, const uint64_t *from, size_t words)
{
	size_t i = 0, n = __builtin_cpu_supports("avx") ? words & ~(size_t)1 : 0;

	for (; i < n; i += 2) {
		__m128i pair = *(const volatile __m128i *)&from[i];

		memcpy(to + 8 * i, &pair, sizeof(pair));
	}
	return i;
}

static size_t pairs_in(uint64_t *to, const uint8_t *from, size_t words)
{
	size_t i = 0, n = __builtin_cpu_supports("avx") ? words & ~(size_t)1 : 0;

	for (; i < n; i += 2) {
		__m128i pair;

		memcpy(&pair, from + 8 * i, sizeof(pair));
		*(volatile __m128i *)&to[i] = pair;
	}
	return i;
}
#else
static size_t pairs_out(uint8_t *to, const uint64_t *from, size_t words)
{
	return 0;
}

static size_t pairs_in(uint64_t *to, const uint8_t *from, size_t words)
{
	return 0;
}
#endif

void far_copy_out(void *to, const uint8_t *base, uint64_t at, size_t n)
{
	size_t first = before_words(at, n), words = (n - first) / 8, i = 0;
	const uint64_t *from = word_at(base, at + first);
	uint8_t *p = (uint8_t *)to + first;

	memcpy(to, base + at, first);
	for (; i < words && !is_pair(&from[i]); i++)
		word_out(p + 8 * i, &from[i]);
	i += pairs_out(p + 8 * i, &from[i], words - i);
	for (; i < words; i++)
		word_out(p + 8 * i, &from[i]);
	memcpy(p + 8 * words, &from[words], n - first - 8 * words);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
}

void far_copy_in(uint8_t *base, uint64_t at, const void *from, size_t n)
{
	size_t first = before_words(at, n), words = (n - first) / 8, i = 0;
	uint64_t *to = word_at(base, at + first);
	const uint8_t *p = (const uint8_t *)from + first;

	__atomic_thread_fence(__ATOMIC_RELEASE);
	memcpy(base + at, from, first);
	for (; i < words && !is_pair(&to[i]); i++)
		word_in(&to[i], p + 8 * i);
	i += pairs_in(&to[i], p + 8 * i, words - i);
	for (; i < words; i++)
		word_in(&to[i], p + 8 * i);
	memcpy(&to[words], p + 8 * words, n - first - 8 * words);
}

void far_execute(uint8_t *base, const struct far_verb *verb)
{
	if (verb->kind == FAR_POST) {
		uint64_t word = htole64(verb->word);

		far_copy_in(base, verb->at, &word, verb->bytes);
		return;
	}
	for (uint32_t i = 0; i < verb->swaps; i++)
		verb->old[i] = far_swap(base, verb->swap[i].at, verb->swap[i].expect,
					verb->swap[i].desired);
	for (uint32_t i = 0; i < verb->reads; i++)
		for (uint32_t k = 0; k < verb->read[i].words; k++)
			verb->read[i].to[k] = far_load(base, verb->read[i].at + 8ull * k);
}

static void put(uint8_t *base, uint64_t at, uint64_t word)
{
	*word_at(base, at) = htole64(word);
}

void far_format_table(uint8_t *base, uint32_t sections, uint64_t pool, uint32_t arena)
{
	struct ebb_far_header header = {
		.magic = htole64(EBB_FAR_MAGIC), .pool = htole64(pool), .arena = htole32(arena),
		.sections = htole32(sections),
	};
	uint64_t first = far_first_generation(pool);

	memcpy(base, &header, sizeof(header));
	for (uint32_t s = 0; s < sections; s++) {
		uint64_t hints = 0;

		put(base, ebb_far_section_at(s), far_initial_section(sections, s, first));
		for (uint32_t line = 0; line < EBB_FAR_LINES; line++) {
			uint32_t free = 0;

			for (uint32_t i = 0; i < EBB_FAR_LINE; i++) {
				uint32_t n = line * EBB_FAR_LINE + i;
				uint64_t word = far_initial_slot(sections, s, n, first);

				put(base, ebb_far_slot_at(sections, s, n), word);
				free += ebb_far_slot_owner(word) == EBB_FAR_NONE;
			}
			hints |= (uint64_t)far_hint(free) << (8 * line);
		}
		put(base, ebb_far_hint_at(sections, s), hints);
	}
}
