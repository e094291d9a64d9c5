/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which donor gets a slab: Infiniswap's decentralised placement (NSDI'17,
 * section 4.3).  Two candidates are drawn at random, machines that hold no slab
 * of this device yet (M_new) before those that do (M_old), so that one machine's
 * loss costs little; the one with the lower memory use wins.
 */
#ifndef EBB_PLACE_H
#define EBB_PLACE_H

#include <stdbool.h>
#include <stdint.h>

struct place_donor {
	bool usable;     /* connected and not excluded by the caller */
	uint64_t total;  /* bytes it lends */
	uint64_t free;   /* bytes it has left */
	uint32_t slabs;  /* of this device that it holds: 0 = M_new */
};

/*
 * Index of the donor to ask for @slab_size bytes, or -1 when none has room.
 * @seed is the state of the generator: same seed, same draws; not 0.
 */
int place_choose(const struct place_donor *donors, int count, uint64_t slab_size,
		 uint64_t *seed);

#endif
