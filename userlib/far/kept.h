/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Extents of mapped memory that a program has freed and its next allocations get, without a search:
 * a free is then one compare-and-swap, and an allocation one load.
 *
 * A kept extent's word is still the member's, under a name that was never given out: it was
 * withdrawn (far_step.h).  So an old name is stale, another member cannot allocate the extent, and
 * when this one is lost, the donor frees the word as all others.
 *
 * A slot that is kept keeps its section from becoming empty.  Hence what is kept of a class is
 * small, and of one section; and all of it is freed before memory is used up.
 */
#ifndef EBBFAR_KEPT_H
#define EBBFAR_KEPT_H

#include <stdbool.h>
#include <stdint.h>

#include "ebbfar.h"
#include "ebb/far.h"

/* Of each class: 16 extents of 4 KiB, 1 of 64 KiB; larger ones are not kept. */
#define KEPT_CLASSES 5u
#define KEPT_MOST 16u

/* The last one in is the first one out. */
struct kept {
	uint8_t *base; /* of the arena */
	uint32_t section, count;
	struct {
		struct ebbfar_extent x; /* its name when it is allocated again */
		uint64_t at, word;      /* the word, and where it is in the arena */
	} extents[KEPT_MOST];
};

/*
 * Frees extent @x of @member, which is named @n, by keeping it.  Returns 0; -ESTALE, it is not
 * @member's; or 1, it cannot be kept.
 */
int kept_add(struct kept *k, uint8_t *base, uint32_t sections, uint32_t member,
	     const struct ebbfar_extent *x, const struct ebb_far_name *n);

/* Takes an extent out: it is the member's, named *@x.  False without any. */
bool kept_take(struct kept *k, struct ebbfar_extent *x);

/* Takes out the older half, to be freed.  Returns how many they are: 0 only if none is kept. */
uint32_t kept_evict(struct kept *k, struct ebbfar_extent *x);

/* Returns whether @x is kept, so that the program cannot have that name. */
bool kept_has(const struct kept *k, const struct ebbfar_extent *x);

#endif
