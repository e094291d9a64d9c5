/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which donor gets a slab: Infiniswap's decentralised placement (NSDI'17,
 * section 4.3).  A few candidates are drawn at random, machines that hold no slab
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
 * device that holds slabs nearly everywhere draws from the few machines that are
 * left.  A caller may want it until the device is on so many machines that the loss
 * of one is bearable, and then all machines alike (docs/placement.md has figures).
 */
enum place_order { PLACE_NEW_FIRST, PLACE_ALIKE };

struct place_rule {
	int choices; /* 1 to PLACE_CHOICES_MAX */
	enum place_order order;
};

/* Whether a larger part of @a's memory than of @b's is in use. */
bool place_busier(const struct place_donor *a, const struct place_donor *b);

/*
 * Draws up to @rule->choices different donors with room for @slab_size bytes in
 * @rule->order and returns how many; *@chosen holds
 * their indices.  @seed is the state of the generator: same seed, same draws;
 * not 0.
 */
int place_draw(const struct place_donor *donors, int count, uint64_t slab_size,
	       const struct place_rule *rule, uint64_t *seed, int chosen[PLACE_CHOICES_MAX]);

/* The one with the lowest use of those place_draw() drew; of equals the first; -1 of none. */
int place_lowest(const struct place_donor *donors, const int *chosen, int n);

/* Both: the donor to ask for @slab_size bytes, -1 when none has room. */
int place_choose_by(const struct place_donor *donors, int count, uint64_t slab_size,
		    const struct place_rule *rule, uint64_t *seed);

/* By the paper's rule. */
static inline int place_choose(const struct place_donor *donors, int count, uint64_t slab_size,
			       uint64_t *seed)
{
	const struct place_rule paper = { PLACE_CHOICES, PLACE_NEW_FIRST };

	return place_choose_by(donors, count, slab_size, &paper, seed);
}

#endif
