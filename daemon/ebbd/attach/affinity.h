/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The CPU affinity of the programs of an attached cgroup, without those of attached ones below it.
 *
 * Only processes that page, which have swapped in 64 pages, are pinned.  A program whose threads
 * have an affinity of their own, one that differs from their cpuset's, is never touched: so the
 * affinity to restore is always "all CPUs", which the kernel cuts to the cpuset.  A record names
 * the pinned cgroups and their CPUs for the next ebbd, should this one crash.
 *
 * A new process inherits the affinity, possibly into another cgroup; affinity_pin() gives those
 * that it finds and that do not page all CPUs again.
 */
#ifndef EBB_AFFINITY_H
#define EBB_AFFINITY_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ebbd/plane/plane.h"

#define AFFINITY_THREADS 64     /* cgroups with more that page are left alone */
#define AFFINITY_NONE (-1)

enum affinity_state {
	AFFINITY_FREE,          /* all threads may use all CPUs of their cpuset, or are pinned */
	AFFINITY_IDLE,          /* no process pages */
	AFFINITY_OWN,           /* a thread has an affinity of its own */
	AFFINITY_MANY,          /* more than AFFINITY_THREADS */
	AFFINITY_SINGLE,        /* fewer than two CPUs allowed */
};

struct affinity_thread {
	pid_t tid, tgid;
	uint64_t running_ns, queued_ns, user_ns; /* since the thread began */
	int cpu;                /* where it ran last */
};

/* A process that was pinned; it may have left the cgroup. */
struct affinity_process {
	pid_t tgid;
	uint64_t start;         /* clock ticks since boot: numbers are used again */
	bool seen;              /* in the present pass */
};

/* One attached cgroup. */
struct affinity {
	const struct plane *plane;
	char *path;             /* its directory in the memory hierarchy */
	cpu_set_t usable;       /* CPUs of the executor */
	int cpu;                /* the processes' CPU, AFFINITY_NONE while they are not pinned */
	struct affinity_thread thread[AFFINITY_THREADS]; /* at the last look */
	uint32_t threads;
	struct affinity_process process[AFFINITY_THREADS];
	uint32_t processes;
	cpu_set_t allowed;      /* CPUs that all of them and the executor may use */
	uint64_t running_ns, queued_ns, user_ns; /* between the last two looks */
	int busiest;            /* CPU of the thread that ran most then */
};

/* Returns -ENOMEM without memory. */
int affinity_init(struct affinity *a, const char *path, const struct plane *plane);
/* Requires that nothing is pinned. */
void affinity_close(struct affinity *a);

/* Finds and measures the threads of the processes that page. */
enum affinity_state affinity_look(struct affinity *a);

/*
 * Pins those processes to a->cpu, which affinity_record() has recorded; if they are, pins new
 * threads and frees processes that inherited the affinity but do not page.  Returns -EBUSY if a
 * thread has or got an affinity of its own.
 */
int affinity_pin(struct affinity *a);
/* Gives all processes that are pinned all CPUs again; a->cpu is then AFFINITY_NONE. */
void affinity_free(struct affinity *a);

/* Replaces the record by one of the @n @a that have a CPU.  Returns 0 or -errno. */
int affinity_record(const struct affinity *const *a, uint32_t n);
/* Frees what the record of a previous ebbd names, and removes the record. */
void affinity_recover(const struct plane *plane);

#endif
