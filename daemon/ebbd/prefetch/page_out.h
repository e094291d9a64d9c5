/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Pages that a program has passed: deactivated or paged out. */
#ifndef EBB_PAGE_OUT_H
#define EBB_PAGE_OUT_H

#include <ebb/abi.h>

#include "target.h"

/* Deactivates (MADV_COLD) or pages out (MADV_PAGEOUT) the pages of @r; returns their number. */
uint64_t page_out_range(const struct target *t, const struct ebb_request *r, int advice);
/* Deactivates the pages of a list; returns their number. */
uint64_t page_out_cold_list(const struct target *t, const struct ebb_list_request *list);

/*
 * Drop-behind: as many pages leave behind a long stream as are prefetched ahead of it.  @limit:
 * bytes of the cgroup.  Returns the number of pages due, from *@first on in steps of r->stride.
 *
 * A stream longer than the memory it may use needs a page again only after LRU would have evicted
 * it, and meanwhile LRU evicts pages ahead of the stream; so the newest pages go first.  It keeps
 * reclaim out of the faults; clean pages of a call share one TLB flush, each dirty one has its
 * own.  (Leap evicts consumed pages eagerly; a stock kernel pages out only mapped ones.)
 */
uint32_t page_out_due(const struct ebb_request *r, uint64_t limit, uint64_t *first);
/* Pages out @count pages @first, @first + @stride, ...; returns their number. */
uint64_t page_out_pages(const struct target *t, uint64_t first, int64_t stride, uint64_t count);

/* For qsort() of page numbers. */
int page_compare(const void *a, const void *b);

#endif
