/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Decides how much of a cgroup to page out next, so that its slowdown reaches a
 * target and stays there.  Pure: no clock and no kernel, so that tests can simulate
 * programs.
 *
 * In the manner of Senpai (Weiner et al., "TMO: Transparent Memory Offloading
 * in Datacenters", ASPLOS 2022, section 3.3), which reclaims a little each
 * period, less as pressure approaches its target.  Here the step adapts, too: it
 * grows while almost no time is lost and halves when the target is exceeded; after a
 * period above the target, the next one pages out nothing.
 */
#ifndef EBB_OFFLOAD_CONTROL_H
#define EBB_OFFLOAD_CONTROL_H

#include <stdint.h>

#include "lib/base/size.h"

#define OFFLOAD_TARGET_MAX SLOWDOWN_MAX
#define OFFLOAD_RESIDENT_MIN (8u << 20) /* bytes no cgroup is driven below */
#define OFFLOAD_STEP_SHARE 16           /* 1 / this of resident memory, at most, per period */
#define OFFLOAD_STEP_MIN (64u << 10)
#define OFFLOAD_STEP_MAX (64u << 20)    /* bytes: bounds the time of a round */

enum offload_state {
	OFFLOAD_OFF,
	OFFLOAD_RECLAIMS,       /* below the target */
	OFFLOAD_AT_TARGET,      /* near the target: one period without page-out */
	OFFLOAD_BACKS_OFF,      /* far above the target: a pause */
	OFFLOAD_AT_FLOOR,       /* smaller sizes exceeded the target before, or are never allowed */
	OFFLOAD_NO_ROOM,        /* no ebb device with free capacity; see offload.h */
	OFFLOAD_DONOR_LOST,     /* a donor was lost; see offload.h */
};

/* State of one cgroup; starts as zeroes. */
struct offload_control {
	uint64_t step;          /* bytes per period */
	uint64_t floor;         /* bytes; decays, for programs change */
	uint32_t decay;         /* the floor decays by 1 / this per period */
	uint32_t pause;         /* periods without page-out to come */
	uint32_t penalty;       /* periods of the last pause */
	double slowdown;        /* smoothed, 0.02 = 2 % */
	enum offload_state state;
};

/* Measurements of the last period. */
struct offload_sample {
	uint64_t wall_ns;       /* its length */
	uint64_t lost_ns;       /* thread time waiting for pages */
	uint64_t running_ns;    /* thread time on a CPU */
	uint64_t resident;      /* bytes, at its end */
	uint32_t target;        /* tenths of a percent */
};

/*
 * Returns time lost per time run.  A program that mostly waits is measured against a
 * tenth of a thread: small delays then matter little to its peers.
 */
double offload_slowdown(const struct offload_sample *s);

/* Returns the bytes to page out in the next period. */
uint64_t offload_next(struct offload_control *c, const struct offload_sample *s);

/* Returns "reclaiming", "at target", ..., as in reports. */
const char *offload_state_name(enum offload_state state);

/* Status of one attachment; the thread writes it with the attachments' lock held. */
struct offload_report {
	enum offload_state state;
	double slowdown;        /* smoothed over some 3 s; 0.02 = 2 % */
	uint64_t resident;      /* bytes of anonymous memory */
	uint64_t at_start;      /* bytes at ebbd's start, including swapped-out ones */
	uint64_t swapped;       /* bytes swapped out now */
	uint64_t reclaimed;     /* pages, in all */
	uint64_t back;          /* pages touched while on trial: in use, so kept */
};

#endif
