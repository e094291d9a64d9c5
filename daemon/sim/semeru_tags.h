/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Semeru's two tags of a region (OSDI'20, figure 6): dirty, while the CPU server evicts pages into
 * it, and a version.  A memory server that traces the region reads both before and after.
 * tests/unit/test_model_semeru.c tries every interleaving.
 *
 * Pure: no I/O, clock, allocation.
 */
#ifndef EBB_SIM_SEMERU_TAGS_H
#define EBB_SIM_SEMERU_TAGS_H

#include <stdbool.h>
#include <stdint.h>

struct semeru_tags {
	uint16_t dirty, version; /* written and read together */
};

/* Lines 1 and 3: the CPU server writes the result before and after it evicts pages. */
static inline struct semeru_tags semeru_evict(struct semeru_tags t)
{
	return (struct semeru_tags){ 1, (uint16_t)(t.version + 1) };
}

static inline struct semeru_tags semeru_evicted(struct semeru_tags t)
{
	return (struct semeru_tags){ 0, (uint16_t)(t.version + 1) };
}

/* Line 5: may the region be traced? */
static inline bool semeru_may_trace(struct semeru_tags before)
{
	return !before.dirty;
}

/* Line 8: what was traced is used if the tags have not changed. */
static inline bool semeru_traced(struct semeru_tags before, struct semeru_tags after)
{
	return before.version == after.version;
}

#endif
