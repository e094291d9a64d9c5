/* SPDX-License-Identifier: GPL-2.0-or-later OR BSD-2-Clause */
/*
 * Counts the extents that members of a pool have, from the words of a table (ebb/far.h), which may
 * hold anything.  Extents that a member has freed and keeps for itself count as its own.
 *
 * Pure functions on the caller's memory.
 */
#ifndef EBB_FAR_COUNT_H
#define EBB_FAR_COUNT_H

#include <stdint.h>

#include "ebb/far.h"

struct far_count {
	uint64_t extents[EBB_FAR_WHOLE_CLASS + 1]; /* by class */
};

/* Returns how many slot words, from the section's first one on, belong to slots: 0 if none do. */
uint32_t far_count_slots(uint64_t section);

/*
 * Adds the extents of the section with word @section to @members[number]; @slots are its first
 * far_count_slots() slot words.  Words of the donor and of numbers that cannot be do not count.
 */
void far_count_section(struct far_count members[static EBB_FAR_MEMBERS + 1], uint64_t section,
		       const uint64_t *slots);

/* Adds the extents of @c to @sum. */
void far_count_add(struct far_count *sum, const struct far_count *c);
uint64_t far_count_extents(const struct far_count *c);
uint64_t far_count_bytes(const struct far_count *c);

#endif
