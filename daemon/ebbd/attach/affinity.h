/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The CPU affinity of the programs of an attached cgroup, without those of attached ones below it.
 *
 * Only processes that page, which have swapped in 64 pages, are measured and pinned.  None is
 * pinned while one of their threads has an affinity of its own, one that differs from its
 * cpuset's, or is a real-time thread.  plane/pins.h records and restores.
 */
#ifndef EBB_AFFINITY_H
#define EBB_AFFINITY_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ebbd/plane/pins.h"
#include "ebbd/plane/plane.h"
#include "lib/rules/colocate.h"

#define AFFINITY_THREADS 64     /* cgroups with more that page are left alone */
#define AFFINITY_PROCESSES 512  /* and those with more processes and cgroups below them */
#define AFFINITY_NONE (-1)

/* The last one that applies. */
enum affinity_state {
	AFFINITY_IDLE,          /* no process pages */
	AFFINITY_FREE,          /* all threads may use all CPUs of their cpuset, or are pinned */
	AFFINITY_SINGLE,        /* fewer than two CPUs allowed */
	AFFINITY_OWN,           /* a thread has an affinity of its own */
	AFFINITY_REALTIME,      /* a thread has a real-time policy */
	AFFINITY_MANY,          /* more than AFFINITY_THREADS or AFFINITY_PROCESSES */
};

struct affinity_thread {
	pid_t tid, tgid;
	uint64_t running_ns;    /* since the thread began */
	int cpu;                /* where it ran last */
};

/* One attached cgroup. */
struct affinity {
	const struct plane *plane;
	uint64_t owner;         /* its id */
	char *path;             /* its directory in the memory hierarchy */
	cpu_set_t usable;       /* CPUs of the executor that are not isolated */
	int cpu;                /* the processes' CPU, AFFINITY_NONE while they are not pinned */
	struct affinity_thread thread[AFFINITY_THREADS]; /* at the last look */
	uint32_t threads;
	cpu_set_t allowed;      /* CPUs that all of them and the executor may use */
	bool moved;             /* a pinned thread is not on .cpu: offline, or not in its cpuset */
	bool overridden;        /* another program set the affinity of a pinned thread */
	int busiest;            /* CPU of the thread that ran most since the last look */
	uint64_t looked_ns;     /* when that was */
	uint64_t pages;         /* pages that its processes had swapped in by then */
	struct colocate_look look; /* activity between the last two looks */
};

/* @owner is the id of the cgroup at @path.  Returns -ENOMEM without memory. */
int affinity_init(struct affinity *a, uint64_t owner, const char *path, const struct plane *plane);
/* Requires that nothing is pinned. */
void affinity_close(struct affinity *a);

/* Finds and judges the threads of the processes that page; @pins, just read, may be NULL. */
enum affinity_state affinity_look(struct affinity *a, const struct pins *pins);

/*
 * Stores the CPUs to which other processes of the cgroup are confined one by one, such as by
 * taskset: their user wants those CPUs for something.
 */
void affinity_confined(const struct affinity *a, const struct pins *pins, cpu_set_t *set);

/*
 * Pins those processes, or threads that appeared since, to a->cpu, and releases processes that
 * have left the cgroup or inherited the affinity.  Returns -EBUSY if a thread has an affinity of
 * its own, -E2BIG if there are more than AFFINITY_PROCESSES or more threads than the cgroup's share
 * of the record, -ENOSPC if the record is full, or another negative errno.
 */
int affinity_pin(struct affinity *a, struct pins *pins);
/*
 * Releases the threads of the cgroup; a->cpu is then AFFINITY_NONE.  Those that cannot be restored,
 * or that start meanwhile, stay in the record.
 */
void affinity_free(struct affinity *a, struct pins *pins);

#endif
