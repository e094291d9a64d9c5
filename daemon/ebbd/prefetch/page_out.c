// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdlib.h>
#include <sys/mman.h>

#include "page_out.h"
#include "settings.h"

/* Distance in pages between the fault and the drop-behind: pages there may be in use. */
#define BEHIND_LAG 64
/* Streams shorter than limit / this are left to the kernel's LRU. */
#define BEHIND_SHARE 8

int page_compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static uint64_t advise(const struct target *t, const uint64_t *vpn, uint32_t n, int advice)
{
	int taken = target_advise(t, vpn, n, advice);

	return taken > 0 ? (uint64_t)taken : 0;
}

/* Pages first, first + stride, ... */
static uint64_t advise_range(const struct target *t, uint64_t first, int64_t stride, uint64_t count,
			     int advice)
{
	uint64_t vpn[PREFETCH_BATCH_MAX], reached = 0;
	uint32_t n = 0;

	for (uint64_t i = 0; i < count; i++) {
		vpn[n++] = first + (uint64_t)stride * i;
		if (n < PREFETCH_BATCH_MAX && i + 1 < count)
			continue;
		reached += advise(t, vpn, n, advice);
		n = 0;
	}
	return reached;
}

uint64_t page_out_range(const struct target *t, const struct ebb_request *r, int advice)
{
	return advise_range(t, r->first, r->stride, r->count, advice);
}

uint64_t page_out_cold_list(const struct target *t, const struct ebb_list_request *list)
{
	uint64_t vpn[EBB_LIST_MAX];

	for (uint32_t i = 0; i < list->head.count; i++)
		vpn[i] = list->vpn[i];
	qsort(vpn, list->head.count, sizeof(*vpn), page_compare);
	return advise(t, vpn, list->head.count, MADV_COLD);
}

uint32_t page_out_due(const struct ebb_request *r, uint64_t limit, uint64_t *first)
{
	uint64_t back = (uint64_t)BEHIND_LAG + r->passed;

	if (!r->passed || limit == UINT64_MAX ||
	    r->run < (limit >> EBB_PAGE_SHIFT) / BEHIND_SHARE || r->run < back)
		return 0;
	*first = r->at - (uint64_t)r->stride * back;
	return r->passed;
}

uint64_t page_out_pages(const struct target *t, uint64_t first, int64_t stride, uint64_t count)
{
	return advise_range(t, first, stride, count, MADV_PAGEOUT);
}
