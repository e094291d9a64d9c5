/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Pages in local memory: the one that was accessed longest ago leaves.  Pages are any numbers. */
#ifndef EBB_SIM_HEAP_CACHE_H
#define EBB_SIM_HEAP_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#define HEAP_CACHE_NONE UINT32_MAX

struct heap_cached {
	uint32_t older, newer;
	bool resident, dirty, remote; /* remote: a server has a copy, perhaps an old one */
};

struct heap_cache {
	uint32_t room, resident, oldest, newest;
	uint32_t pages;               /* length of .at */
	struct heap_cached *at;
	uint32_t group, groups;       /* pages of a group; length of .in */
	uint32_t *in;                 /* resident pages of each group */
};

enum heap_hit { HEAP_HIT, HEAP_NEW, HEAP_MISS };

/* @room: pages, at least 1.  @group: pages of a group. */
void heap_cache_init(struct heap_cache *c, uint32_t room, uint32_t group);
void heap_cache_free(struct heap_cache *c);
/*
 * Accesses @page: HEAP_NEW if no server has a copy.  *@evicted is a page that had to be written, or
 * HEAP_CACHE_NONE.
 */
enum heap_hit heap_cache_touch(struct heap_cache *c, uint32_t page, bool write, uint32_t *evicted);
bool heap_cache_has(const struct heap_cache *c, uint32_t page);
/* Returns true if the page had to be written; it stays, or leaves with @evict. */
bool heap_cache_clean(struct heap_cache *c, uint32_t page, bool evict);
/* A server has written the page, which is not resident any more. */
void heap_cache_remote(struct heap_cache *c, uint32_t page);
/* The page's contents are not needed any more. */
void heap_cache_drop(struct heap_cache *c, uint32_t page);

#endif
