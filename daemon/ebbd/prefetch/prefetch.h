/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The executor's worker: turns requests, in their order, into
 * process_madvise(MADV_WILLNEED).
 *
 * For each request it drops what is stale or already asked for, keeps pages
 * that the pagemap says are in swap, bounds what is outstanding by the cgroup's
 * limit, makes room where the limit would be felt, enters the pages in the
 * prefetched set and asks the kernel for them, at most 64 a call: the target's
 * mmap_lock is held for as long as a call takes.
 *
 * Belongs to one thread.  The attachments' lock is held for what is counted
 * and for the prefetched set with its filter, never across a call that may wait
 * for a device or for reclaim.
 */
#ifndef EBB_WORKER_H
#define EBB_WORKER_H

#include "executor.h"

struct worker;

/* @config outlives it.  NULL without memory. */
struct worker *worker_new(struct attachments *a, const struct executor_config *config);
void worker_free(struct worker **w);

/* First thing in its thread: sets its CPU and I/O priority and marks its reads as prefetches. */
void worker_begin(struct worker *w);
/* @r is well-formed: see executor.c. */
void worker_request(struct worker *w, const struct ebb_list_request *r);
/* Now and then: lets go of processes that have ended, finds devices that are new. */
void worker_tidy(struct worker *w);
/* What it has done; read from any thread, as of about now. */
const struct executor_stats *worker_stats(const struct worker *w);

/* Puts @page in the filter before maps/prefetched. */
void filter_add(uint64_t *filter, const struct ebb_page *page);
bool process_gone(uint32_t tgid);

#endif
