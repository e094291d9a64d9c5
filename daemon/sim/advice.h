/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a program would pay with other sizes of memory and other policies: one
 * recording, replayed many times.
 *
 * What is expected comes from one replay; how far off it may be from others that
 * assume something else about what nobody knows: the order in which Linux evicts
 * (surplus.h), how much of the memory is the program's, how soon the daemon
 * looks at a request, and how many pages at a time the device can send.  docs/trace.md says what
 * that leaves out and how well it agrees with what was measured.
 */
#ifndef EBB_SIM_ADVICE_H
#define EBB_SIM_ADVICE_H

#include "replay.h"

/* One size under one policy.  Expected, and between what. */
struct advice {
	const struct ebb_policy *policy;
	uint64_t memory;        /* bytes */
	struct sim_result result;
	uint64_t misses_low, misses_high;
	double slowdown, slowdown_low, slowdown_high; /* its time, as a multiple of that with all
						       * the memory it wants */
};

struct advice_plan {
	const uint64_t *memory; /* sizes, bytes; at least what was recorded */
	uint32_t sizes;
	uint64_t headroom;      /* as in struct sim_config */
	/*
	 * What was measured: the time of the whole program when it was recorded,
	 * as a multiple of that with all the memory; 0 = not known.
	 */
	double recorded_slowdown;
};

/* What a miss took on average in the recording, ns; 0 = it says nothing of it. */
uint64_t advice_latency(const struct sim_history *h);

/*
 * Fills @advice: for each size all policies, so that there have to be as many as
 * advice_rows() says.  -EINVAL when the trace does not support a size.
 */
int advise(const struct sim_history *h, const struct advice_plan *plan, struct advice *advice,
	   struct error *e);
uint32_t advice_rows(const struct advice_plan *plan);
/* How many policies are compared: rows of one size, in the order of the policies' names. */
uint32_t advice_policy_count(void);

/*
 * Of the rows of one size the one to choose: of those that take at most ADVICE_WORTH longer
 * than the fastest, none if it is one, or else the one that brings in the fewest pages.
 */
#define ADVICE_WORTH 0.01
const struct advice *advice_best(const struct advice *advice, const struct advice_plan *plan,
				 uint32_t size);

#endif
