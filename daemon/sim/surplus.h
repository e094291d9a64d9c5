/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The memory in addition to the recorded one: it holds the pages that the recorded one evicted
 * last.
 *
 * That is exact for LRU, where a larger memory always contains a smaller one (Mattson et al. 1970,
 * section 5), which is why a trace of misses suffices for larger memories (Smith 1977, "stack
 * deletion").  Eviction follows Linux: an inactive and an active list of about equal length, and a
 * page that returns within the length of the active list is active from then on (mm/workingset.c,
 * refault distance).  Two other orders show how much depends on that.
 */
#ifndef EBB_SIM_SURPLUS_H
#define EBB_SIM_SURPLUS_H

#include <stdbool.h>
#include <stdint.h>

enum surplus_order {
	SURPLUS_LINUX,          /* two lists */
	SURPLUS_LRU,            /* one */
	SURPLUS_RANDOM,
	SURPLUS_ORDERS
};

struct surplus_page {
	uint32_t older, newer;  /* in its list */
	uint32_t at;            /* its place among the members */
	uint64_t evicted;       /* count of evictions at its eviction; 0 = never */
	uint8_t list;           /* enum surplus_list */
	bool active;            /* goes to the active list when it comes next */
};

enum surplus_list { SURPLUS_OUT, SURPLUS_INACTIVE, SURPLUS_ACTIVE, SURPLUS_LISTS };

struct surplus {
	struct surplus_page *page;
	enum surplus_order order;
	uint32_t *member, members; /* SURPLUS_RANDOM chooses among them */
	uint64_t seed;
	struct { uint32_t oldest, newest, n; } list[SURPLUS_LISTS];
	uint64_t evictions;
	uint64_t reach;         /* refault distance up to which a page becomes active */
};

/* The caller owns @page (zeroed) and @member, which have room for every page. */
void surplus_init(struct surplus *s, enum surplus_order order, struct surplus_page *page,
		  uint32_t *member, uint64_t reach);
void surplus_add(struct surplus *s, uint32_t page);
/* Removes @page; returns whether it was there. */
bool surplus_take(struct surplus *s, uint32_t page);
/* Handles a fault that reads @page from the device. */
void surplus_refault(struct surplus *s, uint32_t page);
/* Evicts one page and returns it; UINT32_MAX when there is none. */
uint32_t surplus_evict(struct surplus *s);

static inline uint32_t surplus_pages(const struct surplus *s)
{
	return s->list[SURPLUS_INACTIVE].n + s->list[SURPLUS_ACTIVE].n;
}

#endif
