/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Chooses the CPU that the programs of a cgroup and the prefetch executor share.
 *
 * Before the kernel writes a dirty page to swap, it flushes the TLB of every CPU that runs the
 * program (try_to_unmap_flush_dirty()).  If the executor reclaims on another CPU, that is an
 * interrupt per page; on the program's own CPU it is none, but the two no longer run in parallel.
 *
 * Pure: no clock and no kernel.
 */
#ifndef EBB_COLOCATE_H
#define EBB_COLOCATE_H

#include <sched.h>
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

#endif
