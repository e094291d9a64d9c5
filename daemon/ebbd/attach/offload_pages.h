/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Pages out idle pages of the processes of a cgroup.
 *
 * Finds idle pages by trial: a stock kernel does not report touched pages, because idle page
 * tracking is usually compiled out, and smaps has totals per mapping only.  MADV_PAGEOUT writes a
 * page and unmaps it, but the page stays in the swap cache, charged, until it is reclaimed again.
 * A program that touches it meanwhile gets it by a minor fault, without I/O.  A trial unmaps every
 * eighth page of a chunk of 64; if fewer than half of them are mapped again after a second, it
 * unmaps the rest.  A page that is not mapped again another second later (16 s if any of the first
 * were) is mapped by a remote read, which finds it clean in the cache, and paged out again, which
 * frees it.  A chunk with an access is left alone for twice as long as the last time; for a quarter
 * of that if it is only partly used and no other chunk is left.
 *
 * Handles private anonymous memory only; the kernel skips pages that several processes map, and
 * splits huge pages.
 */
#ifndef EBB_OFFLOAD_PAGES_H
#define EBB_OFFLOAD_PAGES_H

#include "ebbd/prefetch/worker.h"
#include "lib/host/cgroup.h"

struct offload_pages;

struct offload_round {
	uint64_t bytes;         /* in: bytes to put on trial in this round */
	uint64_t cached;        /* in: bytes of the cgroup in the swap cache */
	uint64_t out;           /* pages freed */
	uint64_t back;          /* pages touched while on trial */
};

/* @w: the thread of offload_pages_run(); it outlives the result.  NULL without memory. */
struct offload_pages *offload_pages_new(const struct worker *w);
void offload_pages_free(struct offload_pages **p);

/*
 * One round over the processes of @c and its descendants.  The thread may end in it (worker.h);
 * then only offload_pages_free() may follow.
 */
void offload_pages_run(struct offload_pages *p, const struct cgroup_ref *c, uint64_t now_ns,
		       struct offload_round *round);

#endif
