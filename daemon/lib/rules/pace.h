/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Limits the prefetched pages in flight on a device while misses of another cgroup wait there.
 *
 * A device serves reads roughly in the order of arrival, so a miss may wait behind all earlier
 * prefetches.  Among programs that rarely miss that costs little.  While one cgroup mostly misses
 * and another one prefetches, the limit follows the latency of the misses, by additive increase and
 * multiplicative decrease: the median may grow to PACE_MEDIAN percent of its idle value (without
 * prefetches), the 99th percentile to PACE_TAIL percent.  The first limit is Little's law: the rate
 * of prefetches times the latency that a read may have.
 *
 * The 99th percentile of few misses may double by chance.  So the limit shrinks only if more misses
 * are slow than chance explains, and grows only if no more are slow than may be.
 *
 * Misses may also be slow for other reasons, such as a lack of CPU time or a device that has become
 * slower.  So every PACE_PROBE judgements the limit drops to its minimum for one judgement: if
 * misses are hardly faster then, prefetches are not the cause, and the limit grows.
 *
 * All functions are pure.  Times are in ns, the rest in pages.
 */
#ifndef EBB_PACE_H
#define EBB_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include <ebb/abi.h>

#define NEIGHBOUR_MISSES 16            /* misses in a tick of 0.1 s that count, */
#define NEIGHBOUR_WAIT_NS 20000000ULL  /* or time of fewer, slower ones */
#define NEIGHBOUR_TICKS 10             /* for which a cgroup mostly misses, after such a one */

/* Whether a cgroup mostly misses. */
struct neighbour {
	uint64_t misses, hits, miss_ns; /* totals at the last tick */
	uint32_t left;                  /* ticks for which it mostly misses */
};

/* All three are totals; late prefetches are hits. */
static inline void neighbour_tick(struct neighbour *n, uint64_t misses, uint64_t hits,
				  uint64_t miss_ns)
{
	uint64_t m = misses - n->misses, h = hits - n->hits, ns = miss_ns - n->miss_ns;

	if ((m >= NEIGHBOUR_MISSES || ns >= NEIGHBOUR_WAIT_NS) && m > h)
		n->left = NEIGHBOUR_TICKS;
	else if (n->left)
		n->left--;
	*n = (struct neighbour){ misses, hits, miss_ns, n->left };
}

/* As neighbour_tick(), for a tick whose misses do not count. */
static inline void neighbour_pass(struct neighbour *n, uint64_t misses, uint64_t hits,
				  uint64_t miss_ns)
{
	*n = (struct neighbour){ misses, hits, miss_ns, n->left ? n->left - 1 : 0 };
}

static inline bool neighbour_waits(const struct neighbour *n)
{
	return n->left;
}

#define PACE_NONE UINT32_MAX    /* no limit */
#define PACE_ENOUGH 300         /* misses after which they are judged, */
#define PACE_PATIENCE 10        /* or steps, */
#define PACE_LEAST_MISSES 16    /* with at least these misses; */
#define PACE_FORGET 50          /* steps after which fewer are discarded */
#define PACE_PROBE 50           /* judgements between two probes at the least limit */
#define PACE_STEP 8             /* growth of the limit per judgement */
/* Latency of misses that a limit may cause, median and 99th percentile, in percent of idle. */
#define PACE_MEDIAN 130
#define PACE_TAIL 210
/* In percent of the latency at the least limit: where that is higher, there is another cause. */
#define PACE_MEDIAN_LEAST 110
#define PACE_TAIL_LEAST 125

/* Bounds of the limit. */
struct pace_range {
	uint32_t least, most;
};

/* What happened on a device in an interval. */
struct pace_seen {
	uint64_t ns;                /* its length */
	uint64_t pages;             /* prefetched */
	bool waiting;               /* another cgroup than the prefetching one mostly misses */
	bool held;                  /* the limit delayed a prefetch, or made a call shorter */
	uint32_t misses[EBB_WAITS]; /* that ended, by ebb_wait_bucket() */
};

/* Latency of misses: median and 99th percentile; 0 = unknown. */
struct pace_times {
	uint64_t median, tail;
};

struct pace {
	uint32_t limit;             /* of pages in flight, or PACE_NONE */
	struct pace_times now;      /* at the last judgement */
	struct pace_times idle;     /* without prefetches, lower if misses have been faster since */
	struct pace_times least;    /* at the least limit, since limiting began */
	uint32_t left;              /* steps for which misses count as waiting */
	uint32_t after_probe;       /* limit to return to after the current probe; 0 = no probe */
	uint32_t judgements;        /* since limiting began */
	/* since the last judgement */
	struct pace_seen sum;
	uint32_t misses, steps;
};

void pace_init(struct pace *p);
/* Call about every 0.1 s. */
void pace_step(struct pace *p, struct pace_range range, const struct pace_seen *seen);

/* Returns the latency that @percent of the @sum misses do not exceed. */
uint64_t pace_quantile(const uint32_t misses[EBB_WAITS], uint32_t sum, uint32_t percent);

#endif
