/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The pages of a trace from bottom to top of a picture: processes one above the
 * other, pages in order of address, unused ranges shortened.
 */
#ifndef EBB_PAGE_AXIS_H
#define EBB_PAGE_AXIS_H

#include "trace_load.h"

struct page_axis {
	struct traced_page *page; /* in order */
	uint64_t pages;
	uint64_t *height;       /* of each page, in pages above the lowest */
	uint64_t top;           /* height of the highest, plus 1 */
	uint64_t hole;          /* no hole is plotted higher than this */
};

/* Returns 0 or -ENOMEM; call page_axis_free() in any case. */
int page_axis_init(struct page_axis *a, const struct loaded_trace *t);
void page_axis_free(struct page_axis *a);

/* Returns the height of a record of that trace. */
uint64_t page_axis_height(const struct page_axis *a, const struct trace_record *r);

/* Returns whether a shortened hole lies below page[i]. */
bool page_axis_cut(const struct page_axis *a, uint64_t i);

#endif
