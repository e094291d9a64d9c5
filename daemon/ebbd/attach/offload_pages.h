/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Pages out idle pages of the processes of a cgroup.
 *
 * Finds idle pages by trial: a stock kernel does not report touched pages, because idle
 * page tracking is usually compiled out, and smaps has totals per mapping only.
 * MADV_PAGEOUT writes a page and unmaps it, but the page stays in the swap cache, charged,
 * until it is reclaimed again.  A program that touches it meanwhile gets it by a minor
 * fault, without I/O.  Of a chunk of 64 pages every eighth is unmapped; if fewer than half
 * of them are mapped again after a second, the rest is unmapped.  A page that is not mapped
 * again another second later (16 s if any of the first were) is mapped by a remote read,
 * which finds it clean in the cache, and paged out again, which frees it.  A chunk with an
 * access is left alone for twice as long as the last time; for a quarter of that if it is
 * used in part only and no other chunk is left.
 *
 * Only private anonymous memory; pages that several processes map are skipped
 * by the kernel.  Huge pages are split.
 */
#ifndef EBB_OFFLOAD_PAGES_H
#define EBB_OFFLOAD_PAGES_H

#include "lib/host/cgroup.h"

struct offload_pages;

struct offload_round {
	uint64_t bytes;         /* in: to begin with in this round */
	uint64_t cached;        /* in: bytes of the cgroup in the swap cache */
	uint64_t out;           /* pages freed */
	uint64_t back;          /* pages the program touched while on trial */
};

struct offload_pages *offload_pages_new(void);
void offload_pages_free(struct offload_pages **p);

/* One round over the processes of @c and its descendants. */
void offload_pages_run(struct offload_pages *p, const struct cgroup_ref *c, uint64_t now_ns,
		       struct offload_round *round);

#endif
