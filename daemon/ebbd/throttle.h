/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Throttling by accuracy, after feedback directed prefetching (Srinath et al.,
 * "Feedback Directed Prefetching", HPCA 2007): where few of the pages that came
 * in ahead were used, a cgroup's policy gets a sample of what it asks for until
 * that is used again.  Whatever the policy is, it then costs little to be wrong.
 */
#ifndef EBB_THROTTLE_H
#define EBB_THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

#define THROTTLE_SETTLED 256    /* pages used or wasted between two judgements */
#define THROTTLE_SHARE 3        /* throttled when less than 1 / this was used */
#define THROTTLE_SAMPLE 16      /* then one request in so many is acted on */

struct throttle {
	uint64_t used, wasted;  /* totals at the last judgement */
	bool on;
	uint32_t turn;
};

/* @used and @wasted are totals, in pages; neither ever falls. */
static inline void throttle_judge(struct throttle *t, uint64_t used, uint64_t wasted)
{
	uint64_t u = used - t->used, w = wasted - t->wasted;

	if (u + w < THROTTLE_SETTLED)
		return;
	t->on = THROTTLE_SHARE * u < u + w;
	t->used = used;
	t->wasted = wasted;
}

/* Whether the next request is acted on. */
static inline bool throttle_passes(struct throttle *t)
{
	return !t->on || t->turn++ % THROTTLE_SAMPLE == 0;
}

#endif
