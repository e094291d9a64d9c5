/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The threads with a CPU affinity that ebbd has changed, recorded in a pinned BPF map.
 *
 * bpf/place keeps the record true: threads that a pinned one starts enter it, also in other
 * cgroups, those that exit leave it, and from Linux 6.2 on it shows whether another program has set
 * an affinity since.  Such a thread is never touched again.  The record outlives ebbd, and an entry
 * remains until the affinity is restored, and for forks that had begun then,
 * EBB_PINNED_FORK_NS longer.
 *
 * Each owner, a cgroup, has a share of the entries: of EBB_MAX_PINNED, 1 in 8, or less where more
 * owners have entries, but at least 1 in 32.  Threads that inherit an affinity beyond the share
 * are recorded only while half of the record is unused: their cgroup is to be unpinned before, when
 * pins_crowded().
 *
 * Not thread-safe: belongs to the placement thread.
 */
#ifndef EBB_PINS_H
#define EBB_PINS_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <ebb/abi.h>
#include "lib/base/error.h"

struct pins;

/*
 * Loads bpf/place and creates an empty record, after pins_recover().  Returns -EBUSY while the
 * affinity of threads in a previous record cannot be restored.
 */
int pins_open(struct pins **p, struct error *e);
/* Removes the record if it is empty; otherwise leaves it to pins_recover(). */
void pins_close(struct pins **p);

/* Readable when a thread has inherited an affinity, until pins_born() has received all of them. */
int pins_fd(const struct pins *p);
/* Receives such threads, at most 256.  If very many start, some are only seen by pins_read(). */
void pins_born(struct pins *p);
/*
 * Stores the next thread of them that is still in the record; false after the last one.  Leaves out
 * .now and .mask, which pins_look() reads.
 */
bool pins_next_born(struct pins *p, struct ebb_pin *t);
/* Reads the thread @t->tid alone.  Returns false if it is not in the record any more. */
bool pins_look(struct pins *p, struct ebb_pin *t);
/* Returns whether @owner has more than half its share of the entries. */
bool pins_crowded(const struct pins *p, uint64_t owner);

/*
 * Refreshes what the functions below return: a walk over all tasks of the machine.  Returns 0 or
 * -errno.
 */
int pins_read(struct pins *p);
/* Return how many such walks there were, and how long the last one took. */
uint64_t pins_walks(const struct pins *p);
uint64_t pins_walk_ns(const struct pins *p);
/* Reads; returns whether nothing is recorded, and no fork by a released thread is awaited. */
bool pins_empty(struct pins *p);
/* The @i-th thread, or NULL after the last one; until the next pins_read(). */
const struct ebb_pin *pins_at(const struct pins *p, uint32_t i);
/* Returns NULL for a thread that was not in the record then. */
const struct ebb_pin *pins_find(const struct pins *p, pid_t tid);
/* Returns whether @tid is in the record now; @p may be NULL. */
bool pins_has(const struct pins *p, pid_t tid);
/*
 * Returns whether the affinity of the thread is still the one that ebbd set or it inherited.  One
 * for the same CPU that another program set may be taken for it, as may any such one before 6.2.
 */
bool pins_ours(const struct ebb_pin *t);

/*
 * Records that @tid will be pinned.  Returns -ESRCH for one that has exited or is the kernel's,
 * -E2BIG if @owner has its share of the entries, -ENOSPC if the record is full, or another negative
 * errno.
 */
int pins_plan(struct pins *p, uint64_t owner, pid_t tgid, pid_t tid, int cpu);
/* Pins the planned threads of @owner, and reads.  Returns how many, or -errno. */
int pins_apply(struct pins *p, uint64_t owner);
/*
 * Restores the affinity of the thread if it is ours, and takes it out of the record.  If it cannot
 * be restored, as while its cpuset has none of those CPUs, the thread stays in the record, and the
 * result is false.
 */
bool pins_release(struct pins *p, const struct ebb_pin *t);
/*
 * Releases all threads, and those that they create meanwhile: waits EBB_PINNED_FORK_NS for forks
 * that have begun, and twice as long for threads that never stop creating others.  Returns 0 or
 * -errno.
 */
int pins_release_all(struct pins *p);

/* Returns field @n of the @text of /proc/PID/stat; from 3 on, after the name. */
uint64_t stat_field(const char *text, int n);
/* Returns whether @set contains @cpu and no other. */
bool cpus_only(const cpu_set_t *set, int cpu);

/*
 * Restores all affinities in the record of an ebbd that crashed, and removes the record unless
 * @kept threads could not be restored.  Returns the number of the others, or -errno: -ENOENT
 * without a record.
 */
int pins_recover(uint32_t *kept);

#endif
