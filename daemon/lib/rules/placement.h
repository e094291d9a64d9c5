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
#define PLACE_SPREAD 8 /* the paper uses 0 */

struct place_donor {
	bool usable;     /* connected and not excluded by the caller */
	uint64_t total;  /* bytes it lends */
	uint64_t free;   /* bytes it has left */
	uint32_t slabs;  /* slabs of this device at the donor: 0 = M_new */
	/*
	 * The machine's memory, and the part in use by its own programs and by
	 * mapped slabs, in bytes.  0 if the donor does not report them: its use
	 * is then the lent share of its lendable memory.
	 */
	uint64_t memory, used;
};

/*
 * The paper's rule spreads a device as far as possible, at the cost of balance: a
 * device with slabs on nearly all donors samples from the few that are left.  ebb
 * follows it until the loss of one donor costs at most an eighth of the device, and
 * then samples from all donors alike (docs/placement.md has figures).
 */
struct place_rule {
	int choices;     /* 1 to PLACE_CHOICES_MAX */
	uint32_t spread; /* number of donors from which on all are sampled alike; 0 = never */
};

enum place_order { PLACE_NEW_FIRST, PLACE_ALIKE };

/* Returns the order for the next slab of a device on @held donors. */
static inline enum place_order place_order(const struct place_rule *rule, uint32_t held)
{
	return rule->spread && held >= rule->spread ? PLACE_ALIKE : PLACE_NEW_FIRST;
}

/* Returns whether a larger share of @a's memory than of @b's is in use. */
bool place_busier(const struct place_donor *a, const struct place_donor *b);

/*
 * Samples up to @choices different donors with @slab_size bytes free, in @order, stores
 * their indices in *@chosen and returns their number.  @seed is the state of the
 * generator, not 0: equal seeds give equal samples.
 */
int place_draw(const struct place_donor *donors, int count, uint64_t slab_size, int choices,
	       enum place_order order, uint64_t *seed, int chosen[PLACE_CHOICES_MAX]);

/* Returns the sampled donor with the lowest use, the first of equals; -1 without any. */
int place_lowest(const struct place_donor *donors, const int *chosen, int n);

/* Samples and chooses: returns the donor for @slab_size bytes, -1 if none has them free. */
int place_choose_by(const struct place_donor *donors, int count, uint64_t slab_size,
		    const struct place_rule *rule, uint64_t *seed);

/* By ebb's default rule. */
static inline int place_choose(const struct place_donor *donors, int count, uint64_t slab_size,
			       uint64_t *seed)
{
	const struct place_rule rule = { PLACE_CHOICES, PLACE_SPREAD };

	return place_choose_by(donors, count, slab_size, &rule, seed);
}

#endif
