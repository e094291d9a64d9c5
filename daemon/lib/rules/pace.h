/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Limits the prefetches in flight on a device while programs wait for it.
 *
 * A device serves reads in the order of arrival, so a miss may wait for all earlier prefetches.
 * Among programs with a policy that costs little, because they rarely miss.  While a cgroup mostly
 * misses, the limit follows what its misses take, by additive increase and multiplicative decrease:
 * they may take PACE_MEDIAN of their time without prefetches at the median, and PACE_TAIL at the
 * 99th percentile.  The first limit is Little's law: the rate of prefetches times the delay that
 * misses may have.
 *
 * What misses take may also grow for other causes, such as a lack of processors.  So from time to
 * time the limit is at its least for a moment: if misses are hardly faster then, prefetches are not
 * the cause, and the limit grows.
 *
 * All functions are pure.  Times are in ns, the rest in pages.
 */
#ifndef EBB_PACE_H
#define EBB_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include <ebb/abi.h>

#define NEIGHBOUR_MISSES 16     /* per tick of 0.1 s: fewer are ignored */
#define NEIGHBOUR_TICKS 10      /* ticks for which a cgroup counts as missing after misses */

/* Whether a cgroup mostly misses. */
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

#define PACE_NONE UINT32_MAX    /* no limit */
#define PACE_ENOUGH 300         /* misses that a judgement needs, */
#define PACE_PATIENCE 10        /* or the steps after which fewer will do */
#define PACE_PROBE 50           /* judgements from one at the least limit to the next */
#define PACE_STEP 8             /* growth of the limit at a judgement */
/* Growth of the median and the 99th percentile of a miss that a limit may cause, in percent. */
#define PACE_MEDIAN 130
#define PACE_TAIL 210
/* Growth over what misses take at the least limit: another cause has the rest. */
#define PACE_MEDIAN_LEAST 110
#define PACE_TAIL_LEAST 125

/* Limits of the limit. */
struct pace_range {
	uint32_t least, most;
};

/* What happened on a device in an interval. */
struct pace_seen {
	uint64_t ns;                /* its length */
	uint64_t pages;             /* prefetched */
	bool waiting;               /* a cgroup mostly misses */
	bool held;                  /* the limit delayed a prefetch */
	uint32_t misses[EBB_WAITS]; /* that ended, by ebb_wait_bucket() */
};

/* What misses take. */
struct pace_times {
	uint64_t median, tail;      /* 0 = not known */
};

struct pace {
	uint32_t limit;             /* of pages in flight, or PACE_NONE */
	struct pace_times now;      /* of the last judgement */
	struct pace_times idle;     /* without prefetches, or the lowest at the least limit */
	struct pace_times least;    /* at the least limit */
	uint32_t left;              /* steps for which programs count as waiting */
	uint32_t after_probe;       /* the limit after the present probe; 0 = there is none */
	uint32_t judgements;        /* since it began to limit */
	/* since the last judgement */
	struct pace_seen sum;
	uint32_t misses, steps;
};

void pace_init(struct pace *p);
/* After about each 0.1 s. */
void pace_step(struct pace *p, struct pace_range range, const struct pace_seen *seen);

/* Returns the time that @percent of the misses, @sum in all, do not exceed. */
uint64_t pace_quantile(const uint32_t misses[EBB_WAITS], uint32_t sum, uint32_t percent);

#endif
