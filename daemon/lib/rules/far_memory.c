// SPDX-License-Identifier: GPL-2.0-or-later OR BSD-2-Clause
#include "far_memory.h"

#include <endian.h>
#include <string.h>

static uint64_t *word_at(const uint8_t *base, uint64_t at)
{
	return (uint64_t *)(base + at);
}

uint64_t far_load(const uint8_t *base, uint64_t at)
{
	return le64toh(__atomic_load_n(word_at(base, at), __ATOMIC_ACQUIRE));
}

uint64_t far_swap(uint8_t *base, uint64_t at, uint64_t expect, uint64_t desired)
{
	uint64_t old = htole64(expect);

	__atomic_compare_exchange_n(word_at(base, at), &old, htole64(desired), false,
				    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	return le64toh(old);
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

void far_copy_out(void *to, const uint8_t *base, uint64_t at, size_t n)
{
	size_t first = before_words(at, n), words = (n - first) / 8;
	const uint64_t *from = word_at(base, at + first);
	uint8_t *p = to;

	memcpy(p, base + at, first);
	p += first;
	for (size_t i = 0; i < words; i++, p += 8) {
		uint64_t word = __atomic_load_n(&from[i], __ATOMIC_RELAXED);

		memcpy(p, &word, sizeof(word));
	}
	memcpy(p, &from[words], n - first - 8 * words);
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
}

void far_copy_in(uint8_t *base, uint64_t at, const void *from, size_t n)
{
	size_t first = before_words(at, n), words = (n - first) / 8;
	uint64_t *to = word_at(base, at + first);
	const uint8_t *p = from;

	__atomic_thread_fence(__ATOMIC_RELEASE);
	memcpy(base + at, p, first);
	p += first;
	for (size_t i = 0; i < words; i++, p += 8) {
		uint64_t word;

		memcpy(&word, p, sizeof(word));
		__atomic_store_n(&to[i], word, __ATOMIC_RELAXED);
	}
	memcpy(&to[words], p, n - first - 8 * words);
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

	memcpy(base, &header, sizeof(header));
	for (uint32_t s = 0; s < sections; s++) {
		uint64_t hints = 0;

		put(base, ebb_far_section_at(s), far_initial_section(sections, s));
		for (uint32_t line = 0; line < EBB_FAR_LINES; line++) {
			uint32_t free = 0;

			for (uint32_t i = 0; i < EBB_FAR_LINE; i++) {
				uint32_t n = line * EBB_FAR_LINE + i;
				uint64_t word = far_initial_slot(sections, s, n);

				put(base, ebb_far_slot_at(sections, s, n), word);
				free += ebb_far_slot_owner(word) == EBB_FAR_NONE;
			}
			hints |= (uint64_t)far_hint(free) << (8 * line);
		}
		put(base, ebb_far_hint_at(sections, s), hints);
	}
}
