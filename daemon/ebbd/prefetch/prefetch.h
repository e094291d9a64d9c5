/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Carries out requests, in their order: process_madvise(MADV_WILLNEED) and its opposites.
 *
 * For each request it drops what is stale or outstanding already, keeps pages that the pagemap
 * says are in swap, prefetches no more than the cgroup's budget allows, enters the pages in the
 * prefetched set and requests them, at most 64 a call: the target's mmap_lock is held for as
 * long as a call takes.
 *
 * Belongs to one thread, and takes no lock.
 */
#ifndef EBB_PREFETCH_H
#define EBB_PREFETCH_H

#include "budget.h"
#include "settings.h"

struct prefetcher;

/* What it is given outlives it.  NULL without memory. */
struct prefetcher *prefetcher_new(struct plane *plane, struct budget_table *budgets,
				  const struct executor_config *config);
void prefetcher_free(struct prefetcher **p);

/* First thing in its thread: sets its CPU and I/O priority and marks its reads as prefetches. */
void prefetcher_begin(struct prefetcher *p);
/* @r is well-formed: see executor.c. */
void prefetcher_request(struct prefetcher *p, const struct ebb_list_request *r);
/* Twice a second: expires unread pages, closes processes that exited, finds new devices. */
void prefetcher_sweep(struct prefetcher *p, uint64_t now);
/* What it has done; read from any thread, as of about now. */
const struct executor_stats *prefetcher_stats(const struct prefetcher *p);

#endif
