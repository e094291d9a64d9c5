/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * How active a slab is, and when it is hot: Infiniswap (NSDI'17, section 4.2).
 * Once a second
 *
 *	A_current = alpha * A_measured + (1 - alpha) * A_old,	alpha = 0.2
 *
 * where A_measured is the page I/O of the last second, reads and writes weighted.
 * A slab with A_current > HotSlab is to be mapped; a donor that needs memory
 * takes the least active back.  The weights sum to 2 at most, so that A stays a
 * rate of pages: the released code, which never divides by its weights, lets an
 * idle slab's activity grow twentyfold a second.
 */
#ifndef EBB_ACTIVITY_H
#define EBB_ACTIVITY_H

#include <stdbool.h>
#include <stdint.h>

#define ACTIVITY_ALPHA 0.2
#define ACTIVITY_HOT_SLAB 20.0 /* page I/O a second */

struct activity_rule {
	double alpha;                      /* 0 to 1 */
	double read_weight, write_weight;  /* of a page; 1 each counts page I/O */
	double hot_slab;                   /* HotSlab; 0 = map on first use */
};

#define ACTIVITY_RULE_DEFAULT \
	{ .alpha = ACTIVITY_ALPHA, .read_weight = 1, .write_weight = 1, \
	  .hot_slab = ACTIVITY_HOT_SLAB }

struct activity {
	uint32_t reads, writes; /* pages since the last tick */
	double rate;            /* A_current, weighted pages a second */
};

/* Neither wraps. */
void activity_read(struct activity *a, uint32_t pages);
void activity_write(struct activity *a, uint32_t pages);

/*
 * Closes a period of @seconds (1 if the timer is on time; one that was late
 * counts as that many periods of the same measurement).  0 does nothing.
 */
void activity_tick(struct activity *a, const struct activity_rule *rule, uint32_t seconds);

/*
 * Whether the slab is to be mapped.  With a HotSlab of 0 the first page is
 * enough and no tick is waited for.
 */
bool activity_hot(const struct activity *a, const struct activity_rule *rule);

#endif
