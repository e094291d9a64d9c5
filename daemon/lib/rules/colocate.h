/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Decides whether the programs of a cgroup and the prefetch executor share one CPU.
 *
 * Before the kernel writes a dirty page to swap, it flushes the TLB of every CPU that runs the
 * program (try_to_unmap_flush_dirty()).  If the executor reclaims on another CPU, that is an
 * interrupt per page; on the program's own CPU it is none, but the two no longer run in parallel.
 *
 * Where the interrupts cost more CPU time than is then lacking, a trial decides: pairs of periods,
 * one apart and one together in random order, compared by progress.  Trials that lose grow rare.
 * Pure: no clock and no kernel, so that tests can simulate programs.
 */
#ifndef EBB_COLOCATE_H
#define EBB_COLOCATE_H

#include <stdbool.h>
#include <stdint.h>

#define COLOCATE_PERIOD_NS 250000000ULL
#define COLOCATE_PAIRS 3                /* of periods in a trial */

enum colocate_state {
	COLOCATE_QUIET,         /* few pages out: nothing to gain */
	COLOCATE_PARALLEL,      /* needs more than one CPU */
	COLOCATE_TRIAL,
	COLOCATE_TOGETHER,
	COLOCATE_NO_GAIN,       /* the last trial lost: a pause */
};

/* Measurements of the last period, of the threads that share a CPU or would. */
struct colocate_sample {
	uint64_t wall_ns;       /* its length */
	uint64_t running_ns;    /* CPU time of the threads */
	uint64_t queued_ns;     /* time that they waited for a CPU */
	uint64_t user_ns;       /* CPU time in user mode: progress */
	uint64_t executor_ns;   /* CPU time of the executor for this cgroup */
	uint64_t out;           /* pages swapped out */
	uint64_t used;          /* swapped-out pages that the program used: progress, too */
	uint64_t interrupt_ns;  /* what an interrupt costs the sender */
};

/* Sums of a trial's periods of one kind. */
struct colocate_sum {
	uint64_t wall_ns, user_ns, used;
};

/* State of one cgroup; starts as zeroes but for .seed, which is not 0. */
struct colocate {
	enum colocate_state state;
	bool together;          /* in the present period */
	bool proven;            /* the last trial won */
	uint32_t periods;       /* of a trial to come, 0 = no trial */
	uint32_t streak;        /* periods in sequence that suggest a change */
	uint32_t wins;          /* pairs won */
	double half;            /* progress in the first period of a pair */
	struct colocate_sum sum[2]; /* apart, together */
	uint64_t now_ns;        /* sum of all periods */
	uint64_t next_ns;       /* no trial before */
	uint64_t pause_ns, hold_ns; /* time from a trial that lost, or won, to the next */
	uint64_t seed;          /* of the order of periods */
	uint64_t trials, won;
	double used, user;      /* progress together per progress apart, in the last trial */
};

/* Returns whether they share a CPU in the next period. */
bool colocate_step(struct colocate *c, const struct colocate_sample *s);

/* Returns whether the next step needs all members of the sample, not only wall_ns and out. */
bool colocate_looks(const struct colocate *c, const struct colocate_sample *s);

#endif
