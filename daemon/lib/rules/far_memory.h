/* SPDX-License-Identifier: GPL-2.0-or-later OR BSD-2-Clause */
/*
 * Verbs of far memory (far_step.h) on an arena in this process's memory, by the processor's
 * atomics: of the donor, and of members that map the arena.
 */
#ifndef EBB_FAR_MEMORY_H
#define EBB_FAR_MEMORY_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>

#include "far_step.h"

/* Words at @at, a multiple of 8, of the arena at @base. */
static inline uint64_t far_load(const uint8_t *base, uint64_t at)
{
	return le64toh(__atomic_load_n((const uint64_t *)(base + at), __ATOMIC_ACQUIRE));
}

/* Returns the old word: the swap was made if that is @expect. */
static inline uint64_t far_swap(uint8_t *base, uint64_t at, uint64_t expect, uint64_t desired)
{
	uint64_t old = htole64(expect);

	__atomic_compare_exchange_n((uint64_t *)(base + at), &old, htole64(desired), false,
				    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	return le64toh(old);
}

/* Returns the old word. */
uint64_t far_add(uint8_t *base, uint64_t at, uint64_t addend);

/* Copies @n bytes; each aligned word of the arena is read or written at once. */
void far_copy_out(void *to, const uint8_t *base, uint64_t at, size_t n);
void far_copy_in(uint8_t *base, uint64_t at, const void *from, size_t n);

/* Executes @verb, which is not FAR_DONE. */
void far_execute(uint8_t *base, const struct far_verb *verb);

/* Writes a new table for an arena of @sections, whose memory is zero, without members. */
void far_format_table(uint8_t *base, uint32_t sections, uint64_t pool, uint32_t arena);

#endif
