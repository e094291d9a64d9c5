/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Replays a history under a policy, a memory size and a device.
 *
 * Simulated time and order depend on the arguments alone: equal arguments give equal results on
 * every machine.
 */
#ifndef EBB_SIM_REPLAY_H
#define EBB_SIM_REPLAY_H

#include <ebb/policy.h>
#include "history.h"
#include "surplus.h"

struct sim_config {
	const struct ebb_policy *policy;
	struct ebb_params params;
	uint64_t memory;        /* bytes; at least what the trace was recorded with */
	uint64_t latency_ns;    /* of the device, one page */
	uint64_t bandwidth;     /* of the device, bytes a second; 0 = no bound */
	uint64_t busy_ns;       /* time for which a page occupies the device; 0 = no bound */
	uint64_t wakeup_ns;     /* from a request to its first read */
	enum surplus_order order; /* eviction order of the additional memory */
	uint64_t headroom;      /* pages in flight stay below memory / headroom */
};

/* Named as in `ebbctl stats`. */
struct sim_result {
	uint64_t misses, hits, late, wasted, prefetched, outstanding;
	uint64_t requests, request_pages;
	uint64_t gc_misses, gc_hits;
	uint64_t miss_ns, late_ns;
	uint64_t readahead;     /* touches of pages that the kernel read with a miss */
	uint64_t throttled;     /* requests dropped by the throttle */
	uint64_t spared; /* touches that faulted in the recording but not now: larger memory */
	uint64_t dropped;       /* pages requested while enough were in flight */
	uint64_t not_swapped;   /* requested pages that were resident or unknown */
	uint64_t cold_pages, paged_out;
	uint64_t span_ns;       /* from the first access to the last thread's end */
};

/* Returns 0 when the trace supports this size, or -EINVAL with the reason. */
int sim_memory_check(const struct sim_history *h, uint64_t memory, struct error *e);

int sim_replay(const struct sim_history *h, const struct sim_config *config,
	       struct sim_result *result, struct error *e);

#endif
