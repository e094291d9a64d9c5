/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Executes requests: process_madvise(MADV_WILLNEED), or page-out.  Those of a cgroup are executed
 * in sequence; cgroups take turns of one call each (fair_queue.h).  One whose device has enough to
 * read waits (pacing.h).
 *
 * For each request it drops stale and outstanding pages, pages that may belong to a file
 * (target_learn(), target_drop_files()) and, by the pagemap or shared.h, pages that are not in
 * swap, that zswap holds (zswap.h) or whose device may wait for a donor (absence.h), cuts the rest
 * to the cgroup's budget, enters the pages in the prefetched set and requests them, at most 64 per
 * call: a call holds the target's mmap_lock.
 *
 * Belongs to one thread, and takes no lock.
 */
#ifndef EBB_PREFETCH_H
#define EBB_PREFETCH_H

#include "absence.h"
#include "budget.h"
#include "settings.h"
#include "worker.h"

struct prefetcher;

/* The arguments must outlive it.  NULL without memory. */
struct prefetcher *prefetcher_new(struct plane *plane, struct budget_table *budgets,
				  const struct executor_config *config,
				  const struct absence *absence);
void prefetcher_free(struct prefetcher **p);

/*
 * Call first in each thread of the executor's worker @w: sets its CPU and I/O priority and marks
 * its reads as prefetches.
 */
void prefetcher_begin(struct prefetcher *p, const struct worker *w);
/* Queues @r, which is well-formed: see executor.c. */
void prefetcher_request(struct prefetcher *p, const struct ebb_list_request *r);
/*
 * Executes a part of a request, or pauses for some microseconds if the devices have enough to read.
 * Returns whether there is more to execute.  Call it twice a second or more often.
 */
bool prefetcher_run(struct prefetcher *p);
/* A process faulted in a mapping of memory.  Requests of one that did not lately are dropped. */
void prefetcher_learn(struct prefetcher *p, const struct ebb_memory *m);
/* Twice a second: expires unread pages, forgets processes (targets.h), finds new devices. */
void prefetcher_sweep(struct prefetcher *p, uint64_t now);
/*
 * The thread hangs in a call on process @tgid of the attached cgroup @owner, and another one is to
 * continue: forgets the processes of that cgroup.  Their requests are dropped until worker.h no
 * longer excludes it.
 */
void prefetcher_leave(struct prefetcher *p, uint32_t tgid, uint64_t owner);
/* Counters, approximate; any thread may read them. */
const struct executor_stats *prefetcher_stats(const struct prefetcher *p);
const struct pace_view *prefetcher_paces(const struct prefetcher *p);

#endif
