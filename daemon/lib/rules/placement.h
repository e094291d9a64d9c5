/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which donor gets a slab: Infiniswap's decentralised placement (NSDI'17,
 * section 4.3).  Samples a few candidates at random, machines that hold no slab
 * of this device yet (M_new) before those that do (M_old), so that one machine's
 * loss costs little; the one with the lowest memory use wins.
 *
 * Pure functions over plain structs; `ebb-sim cluster` runs the same ones.
 */
#ifndef EBB_PLACE_H
#define EBB_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#define PLACE_CHOICES 2 /* the paper's */
#define PLACE_CHOICES_MAX 8
#define PLACE_SPREAD 8 /* ours; the paper's is 0 */

struct place_donor {
	bool usable;     /* connected and not excluded by the caller */
	uint64_t total;  /* bytes it lends */
	uint64_t free;   /* bytes it has left */
	uint32_t slabs;  /* of this device that it holds: 0 = M_new */
	/*
	 * The machine's memory, and what is in use of it: its own programs and
	 * the slabs mapped there, in bytes.  0 where the donor does not tell:
	 * then its use is what it has lent of what it lends.
	 */
	uint64_t memory, used;
};

/*
 * The paper's order spreads a device as far as it can, and pays with balance: a
 * device that holds slabs nearly everywhere draws from the few donors that are
 * left.  Ours is the paper's until the loss of one donor is an eighth of the device
 * at most, and from then on draws from all alike (docs/placement.md has figures).
 */
struct place_rule {
	int choices;     /* 1 to PLACE_CHOICES_MAX */
	uint32_t spread; /* donors a device is on from which all are alike; 0 = never */
};

enum place_order { PLACE_NEW_FIRST, PLACE_ALIKE };

/* Of the next slab of a device that is on @held donors. */
static inline enum place_order place_order(const struct place_rule *rule, uint32_t held)
{
	return rule->spread && held >= rule->spread ? PLACE_ALIKE : PLACE_NEW_FIRST;
}

/* Whether a larger part of @a's memory than of @b's is in use. */
bool place_busier(const struct place_donor *a, const struct place_donor *b);

/*
 * Draws up to @choices different donors with room for @slab_size bytes in @order and
 * returns how many; *@chosen holds their indices.  @seed is the state of the
 * generator: same seed, same draws; not 0.
 */
int place_draw(const struct place_donor *donors, int count, uint64_t slab_size, int choices,
	       enum place_order order, uint64_t *seed, int chosen[PLACE_CHOICES_MAX]);

/* The one with the lowest use of those place_draw() drew; of equals the first; -1 of none. */
int place_lowest(const struct place_donor *donors, const int *chosen, int n);

/* Both: the donor to ask for @slab_size bytes, -1 when none has room. */
int place_choose_by(const struct place_donor *donors, int count, uint64_t slab_size,
		    const struct place_rule *rule, uint64_t *seed);

/* By the rule that ebb has unless told otherwise. */
static inline int place_choose(const struct place_donor *donors, int count, uint64_t slab_size,
			       uint64_t *seed)
{
	const struct place_rule rule = { PLACE_CHOICES, PLACE_SPREAD };

	return place_choose_by(donors, count, slab_size, &rule, seed);
}

#endif
