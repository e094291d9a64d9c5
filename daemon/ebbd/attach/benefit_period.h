/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Turns what is read of a cgroup ten times a second into the periods of trials that
 * lib/rules/governor.h judges.
 *
 * Progress is the CPU time that threads spend in user mode, per time.  It falls if they wait for
 * pages, also for pages that a prefetch evicted, if the kernel reclaims on their behalf, and if
 * ebbd and ebb-swapd take CPU time from them.  Faults or pages swapped in would not do: useless
 * prefetches evict pages that are then faulted in again.
 *
 * The kernel counts user mode by timer ticks, so a period's progress is known to some 10 %; the
 * rule takes as many trials as that requires.  Of programs that are in user mode for few ticks too
 * little is known: a source without effect would back off in a third of the runs of five minutes
 * if they had one tick in a period.
 *
 * Pure: no clock and no kernel.
 */
#ifndef EBB_BENEFIT_PERIOD_H
#define EBB_BENEFIT_PERIOD_H

#include <stdbool.h>
#include <stdint.h>

#include <ebb/abi.h>

#include "lib/rules/governor.h"

#define BENEFIT_PERIOD_NS 100000000ULL
/* After a change: requests and pages from before it do not count. */
#define BENEFIT_SETTLE_NS 20000000ULL

/* Ticks of a period in user mode, all threads together, for which programs are judged. */
#define BENEFIT_TICKS_LEAST 3

/* Totals at a time. */
struct benefit_reading {
	uint64_t now_ns;
	uint64_t user_us;       /* CPU time in user mode */
	uint64_t misses;
	uint64_t pages[EBB_SOURCES]; /* requested from the kernel, by source */
	uint64_t used[EBB_SOURCES]; /* those of them that faulted */
};

struct benefit_period {
	struct governor rule;
	struct benefit_reading first; /* where the period began */
	bool begun;
	bool judges;            /* the last period counted */
	uint32_t paused;        /* sources, one bit each */
	double least;           /* time in user mode for which programs are judged, 1 = one CPU */
	double user;            /* mean of the periods without a trial */
	uint32_t periods;       /* that it covers */
};

/* Starts afresh; @seed is any number, @tick_ns the time between two ticks. */
void benefit_init(struct benefit_period *p, uint64_t seed, uint64_t tick_ns);
/* Begins a period: BENEFIT_SETTLE_NS after the last one ended if that changed .paused. */
void benefit_begin(struct benefit_period *p, const struct benefit_reading *r);
/*
 * Ends the period and decides which sources pause in the next one: .paused.  NULL: the programs
 * rest, or cannot be measured; ends a trial.
 */
void benefit_end(struct benefit_period *p, const struct benefit_reading *r);

#endif
