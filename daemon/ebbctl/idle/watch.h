/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Idle memory of a cgroup, found without limiting it or reclaiming from it. */
#ifndef EBB_IDLE_WATCH_H
#define EBB_IDLE_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "source.h"

#define IDLE_TIMES_MAX 8

/* What could be swapped out. */
struct idle_row {
	uint64_t asked_ns;  /* time of the plan; 0: the watch ended before the first of them */
	uint64_t idle_ns;   /* no access for this long */
	uint64_t bytes;
	/* Bytes of these that were accessed or freed in the @window_ns until the next reading. */
	uint64_t returned, window_ns; /* 0: no later reading */
};

struct idle_plan {
	uint64_t times[IDLE_TIMES_MAX]; /* ns after the first reading, ascending */
	uint32_t n;
	uint64_t duration;              /* ns */
	/* Called after every reading; the first has @ns and @idle 0. */
	void (*progress)(void *data, uint64_t ns, uint64_t idle, uint64_t total);
	void *data;
	/* Waits until @ns after the first reading, which was at @begin; false: interrupted. */
	bool (*wait)(uint64_t begin, uint64_t ns);
};

struct idle_report {
	struct idle_row row[IDLE_TIMES_MAX];
	uint32_t n;
	uint32_t reached;   /* number of times of the plan that were reached */
	uint64_t seen;      /* bytes that the source saw at the last reading */
	uint64_t watched;   /* ns */
};

/*
 * Watches with @source until the plan's duration or an interruption.  If a reading fails, returns
 * the failure, with a @report of the readings before it; report->n is then 0 if there is no row.
 */
int idle_watch(const struct idle_source *source, void *state, const struct idle_plan *plan,
	       struct idle_report *report, struct error *e);

#endif
