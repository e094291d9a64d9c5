/* SPDX-License-Identifier: GPL-2.0-or-later OR BSD-2-Clause */
/* Words and names of far memory (include/ebb/far.h) as far_step.c changes and checks them. */
#ifndef EBB_FAR_WORDS_H
#define EBB_FAR_WORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "ebb/far.h"

/*
 * The first generation of a pool's words, of 38 bits of its identity: a pool that a donor makes
 * after its restart, or after another of that name was destroyed, does not use names of that one.
 */
static inline uint64_t far_first_generation(uint64_t identity)
{
	return identity >> (64 - (EBB_FAR_SECTION_BITS - 2));
}

/* The generation after the next change.  The last one stays: a free word with it is retired. */
static inline uint64_t far_raise_slot(uint64_t generation)
{
	return generation < EBB_FAR_SLOT_LAST ? generation + 1 : generation;
}

static inline uint64_t far_raise_section(uint64_t generation)
{
	return generation < EBB_FAR_SECTION_LAST ? generation + 1 : generation;
}

static inline bool far_is_whole(const struct ebb_far_name *n)
{
	return n->class == EBB_FAR_WHOLE_CLASS;
}

static inline uint64_t far_generation_last(const struct ebb_far_name *n)
{
	return far_is_whole(n) ? EBB_FAR_SECTION_LAST : EBB_FAR_SLOT_LAST;
}

/* The word of @n while @owner has it. */
static inline uint64_t far_owned_word(const struct ebb_far_name *n, uint32_t owner,
				      uint64_t generation)
{
	return far_is_whole(n) ?
		       ebb_far_section(EBB_FAR_WHOLE, EBB_FAR_WHOLE_CLASS, owner, generation) :
		       ebb_far_slot(owner, n->class, generation);
}

/* The word of @n after it is freed. */
static inline uint64_t far_freed_word(const struct ebb_far_name *n)
{
	return far_is_whole(n) ?
		       ebb_far_section(EBB_FAR_FREE, 0, 0, far_raise_section(n->generation)) :
		       ebb_far_slot(EBB_FAR_NONE, n->class, far_raise_slot(n->generation));
}

static inline bool far_is_name(const struct ebb_far_name *n, uint32_t sections)
{
	return n->section < sections && n->class <= EBB_FAR_WHOLE_CLASS &&
	       n->word < ebb_far_slots(n->class) && n->generation <= far_generation_last(n);
}

static inline bool far_is_member(uint32_t number)
{
	return (number > EBB_FAR_NONE && number <= EBB_FAR_MEMBERS) || number == EBB_FAR_DONOR;
}

#endif
