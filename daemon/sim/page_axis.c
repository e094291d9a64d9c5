// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdlib.h>

#include "page_axis.h"

/* A hole between two pages is plotted no higher than 1 / this of all pages, and a few pages. */
#define HOLE_SHARE 64
#define HOLE_MIN 4

int page_axis_init(struct page_axis *a, const struct loaded_trace *t)
{
	uint64_t at = 0;

	*a = (struct page_axis){ .page = trace_pages(t), .pages = t->pages,
				 .hole = t->pages / HOLE_SHARE + HOLE_MIN };
	a->height = malloc((a->pages + 1) * sizeof(*a->height));
	if (!a->page || !a->height)
		return -ENOMEM;
	for (uint64_t i = 0; i < a->pages; i++) {
		if (page_axis_cut(a, i))
			at += a->hole;
		else if (i)
			at += a->page[i].vpn - a->page[i - 1].vpn;
		a->height[i] = at;
	}
	a->top = at + 1;
	return 0;
}

void page_axis_free(struct page_axis *a)
{
	free(a->page);
	free(a->height);
}

uint64_t page_axis_height(const struct page_axis *a, const struct trace_record *r)
{
	struct traced_page key = { r->tgid, r->vpn }, *found;

	found = bsearch(&key, a->page, a->pages, sizeof(key), traced_page_compare);
	return a->height[found - a->page];
}

bool page_axis_cut(const struct page_axis *a, uint64_t i)
{
	return i && (a->page[i].tgid != a->page[i - 1].tgid ||
		     a->page[i].vpn - a->page[i - 1].vpn >= a->hole);
}
