/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Chooses the CPU that the programs of a cgroup and the prefetch executor share.
 *
 * Before the kernel writes a dirty page to swap, it flushes the TLB of every CPU that runs the
 * program (try_to_unmap_flush_dirty()).  If the executor reclaims on another CPU, that is an
 * interrupt per page; on the program's own CPU it is none, but the two no longer run in parallel.
 *
 * That pays while one thread at a time runs, whatever it does between two faults, and costs where
 * several do (threads that dirty twice their memory, two CPUs: 1 thread 1.33 to 0.96 s with 1 us of
 * work a page and 3.03 to 2.90 s with 20 us; 2 threads 1.95 to 1.28 s, but 2.90 to 3.33 s).
 *
 * Pure: no clock and no kernel.
 */
#ifndef EBB_COLOCATE_H
#define EBB_COLOCATE_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

/* What is known when a CPU is chosen. */
struct colocate_cpus {
	cpu_set_t allowed;      /* to all its threads and to the executor */
	cpu_set_t confined;     /* to which a user has confined other processes of the cgroup */
	const uint32_t *sharers; /* of each CPU below CPU_SETSIZE: other cgroups that share it */
	int busiest;            /* where its busiest thread runs; -1 = not known */
};

/* Returns the CPU with the fewest sharers, if possible the busiest thread's, or -1 without any. */
int colocate_choose(const struct colocate_cpus *c);

/* What the threads of the programs that swap did since the last look, four times a second. */
struct colocate_look {
	uint64_t wall_ns;
	uint64_t busiest_ns;    /* CPU time of the thread that ran most */
	uint64_t others_ns;     /* of the others together */
	uint64_t pages;         /* that they swapped in, prefetched ones included */
	uint64_t prefetched;    /* pages that the executor requested for the cgroup */
};

/* Pages that programs swapped in, and in which time. */
struct colocate_rate {
	uint64_t pages, ns;
};

/* placement=auto; starts as zeroes. */
struct colocate_auto {
	bool together;
	uint32_t streak;        /* looks in a row that speak for a change */
	uint32_t pause;         /* looks until the next attempt */
	uint32_t losses;        /* attempts that failed: doublings of the pause */
	uint32_t kept;          /* looks since the present attempt began */
	struct colocate_rate apart, trial; /* before the attempt, and in its first looks */
};

/* Returns whether programs and executor are to share a CPU until the next look. */
bool colocate_auto_step(struct colocate_auto *a, const struct colocate_look *l);

#endif
