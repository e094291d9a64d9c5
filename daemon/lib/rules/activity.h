/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * How active a slab is: Infiniswap (NSDI'17, section 4.2).  Once a second
 *
 *	A_current = alpha * A_measured + (1 - alpha) * A_old,	alpha = 0.2
 *
 * where A_measured is the page I/O of the last second, reads and writes weighted.
 * A donor that needs memory recalls the least active slabs.  The weights sum to 2 at
 * most, so that A stays a rate of pages: the released code, which never divides by its
 * weights, lets an idle slab's activity grow twentyfold per second.
 */
#ifndef EBB_ACTIVITY_H
#define EBB_ACTIVITY_H

#include <stdint.h>

#define ACTIVITY_ALPHA 0.2

struct activity_rule {
	double alpha;                      /* 0 to 1 */
	double read_weight, write_weight;  /* of a page; 1 each counts page I/O */
};

#define ACTIVITY_RULE_DEFAULT \
	{ .alpha = ACTIVITY_ALPHA, .read_weight = 1, .write_weight = 1 }

struct activity {
	uint32_t reads, writes; /* pages since the last tick */
	double rate;            /* A_current, weighted pages a second */
};

/* Neither wraps. */
void activity_read(struct activity *a, uint32_t pages);
void activity_write(struct activity *a, uint32_t pages);

/*
 * Closes a period of @seconds: 1 normally; after a late timer, that many periods with equal
 * measurements; 0 does nothing.
 */
void activity_tick(struct activity *a, const struct activity_rule *rule, uint32_t seconds);
#endif
