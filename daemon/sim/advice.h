/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Predicted run time with other memory sizes and policies: one recording, replayed many
 * times.
 *
 * One replay gives the expected values.  Others, with different assumptions, give their
 * range: eviction order of Linux (surplus.h), share of memory that the program gets,
 * reaction time of ebbd, parallelism of the device.  docs/trace.md states the limits and the
 * agreement with measurements.
 */
#ifndef EBB_SIM_ADVICE_H
#define EBB_SIM_ADVICE_H

#include "replay.h"

/* One size under one policy: expected values and their range. */
struct advice {
	const struct ebb_policy *policy;
	uint64_t memory;        /* bytes */
	struct sim_result result;
	uint64_t misses_low, misses_high;
	double slowdown, slowdown_low, slowdown_high; /* run time, as a multiple of that with
						       * all memory */
};

struct advice_plan {
	const uint64_t *memory; /* sizes, bytes; at least what was recorded */
	uint32_t sizes;
	uint64_t headroom;      /* as in struct sim_config */
	/*
	 * Measured run time during the recording, as a multiple of that with all
	 * memory; 0: unknown.
	 */
	double recorded_slowdown;
};

/* Returns the mean latency of a miss in the recording, ns; 0 without misses. */
uint64_t advice_latency(const struct sim_history *h);

/*
 * Fills @advice, which has advice_rows() elements: all policies for each size.  -EINVAL when
 * the recording does not support a size.
 */
int advise(const struct sim_history *h, const struct advice_plan *plan, struct advice *advice,
	   struct error *e);
uint32_t advice_rows(const struct advice_plan *plan);
/* Returns the number of policies, the rows of one size in the order of their names. */
uint32_t advice_policy_count(void);

/*
 * Returns the recommended row of a size: among those at most ADVICE_WORTH slower than the
 * fastest, policy none, else the one that prefetches the fewest pages.
 */
#define ADVICE_WORTH 0.01
const struct advice *advice_best(const struct advice *advice, const struct advice_plan *plan,
				 uint32_t size);

#endif
