/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Limits prefetches in flight while a co-located cgroup misses.
 *
 * A device serves reads in the order of arrival, so a miss waits for all earlier
 * prefetches.  That costs little while only programs with a policy use the device,
 * because they rarely miss.  A program that mostly misses suffers: while one
 * exists, the other cgroups get a smaller in-flight limit.
 */
#ifndef EBB_NEIGHBOUR_H
#define EBB_NEIGHBOUR_H

#include <stdbool.h>
#include <stdint.h>

#define NEIGHBOUR_MISSES 16     /* per tick of 0.1 s: fewer are ignored */
#define NEIGHBOUR_TICKS 10      /* ticks for which a cgroup counts as missing after misses */

struct neighbour {
	uint64_t misses, hits;  /* totals at the last tick */
	uint32_t left;          /* ticks for which it counts as missing */
};

/* @misses and @hits are totals; late prefetches are hits. */
static inline void neighbour_tick(struct neighbour *n, uint64_t misses, uint64_t hits)
{
	uint64_t m = misses - n->misses, h = hits - n->hits;

	if (m >= NEIGHBOUR_MISSES && m > h)
		n->left = NEIGHBOUR_TICKS;
	else if (n->left)
		n->left--;
	n->misses = misses;
	n->hits = hits;
}

static inline bool neighbour_waits(const struct neighbour *n)
{
	return n->left;
}

/* Limits of a call, in pages. */
struct pace {
	uint32_t batch;         /* in a call */
	uint32_t before;        /* in flight before the call */
};

/*
 * Alone, up to @inflight pages may be in flight before the next batch, so that the devices
 * stay busy.  With @others that miss, @beside limits all pages, the batch included.
 */
static inline struct pace pace_of(uint32_t batch, uint32_t inflight, uint32_t beside,
				  uint32_t others)
{
	struct pace p = { batch, inflight };

	if (others && beside < inflight) {
		p.batch = beside < batch ? beside : batch;
		p.before = beside - p.batch;
	}
	return p;
}

#endif
