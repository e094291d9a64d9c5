/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The heap of Mako and of Semeru: regions that servers hold by their number, allocation by a bump
 * pointer, and pages in local memory.  An object that is larger than a region has several in a row.
 */
#ifndef EBB_SIM_HEAP_REGIONS_H
#define EBB_SIM_HEAP_REGIONS_H

#include "heap_cache.h"
#include "heap_world.h"

#define HEAP_NO_REGION UINT32_MAX

struct heap_region {
	struct heap_list objects; /* those that moved away or died, too, until it is emptied */
	uint32_t used, span;      /* bytes allocated; regions of a large object, 0 = free */
	uint32_t tablet;          /* of Mako */
	uint32_t state, trace;    /* the scheme's */
	uint32_t age, fresh;      /* of Semeru: evacuations survived; objects not new */
	uint64_t live;            /* bytes, as last traced */
};

struct heap_regions {
	struct heap_world *w;
	uint32_t bytes, stride;     /* of a region; page numbers from one region to the next */
	uint32_t count, room, in_use;
	struct heap_region *at;
	struct heap_list free;
	struct heap_list partial;   /* with space behind evacuated objects */
	uint32_t current;           /* allocation */
	uint32_t *of, *offset;      /* of each object: region and place in it */
	struct heap_cache cache;
	void (*evicted)(void *arg, uint32_t region); /* a written page has left; or NULL */
	void *arg;
};

void heap_regions_init(struct heap_regions *rs, struct heap_world *w);
void heap_regions_free(struct heap_regions *rs);

static inline uint32_t heap_server(const struct heap_regions *rs, uint32_t region)
{
	return region % rs->w->config->servers;
}

/* Returns a free region of @server; HEAP_NO_REGION: of any. */
uint32_t heap_region_new(struct heap_regions *rs, uint32_t server);
/* The region's objects are elsewhere or dead: it is free, with those of a large object's. */
void heap_region_release(struct heap_regions *rs, uint32_t region);
/* No new objects are placed in the region. */
void heap_region_close(struct heap_regions *rs, uint32_t region);
/* Puts @object at the end of @region; returns false without space. */
bool heap_region_put(struct heap_regions *rs, uint32_t region, uint32_t object);
/* Places a new object; sets *@opened if a region was opened for it. */
void heap_region_allocate(struct heap_regions *rs, uint32_t object, bool *opened);

/*
 * Accesses bytes of an object, or @table'th page of a region's table; returns the time to wait for
 * pages.
 */
uint64_t heap_region_touch(struct heap_regions *rs, uint32_t object, uint32_t at, uint32_t bytes,
			   bool write);
uint64_t heap_table_touch(struct heap_regions *rs, uint32_t tablet, uint32_t table, bool write);
/* Returns the pages of the region, and of its table, that are in local memory. */
uint32_t heap_region_cached(const struct heap_regions *rs, uint32_t region);
/* Writes the region's dirty pages, and evicts all with @evict; returns the bytes written. */
uint64_t heap_region_write(struct heap_regions *rs, uint32_t region, bool evict);
/* ... those of the table's first @pages. */
uint64_t heap_table_write(struct heap_regions *rs, uint32_t tablet, uint32_t pages);
/* A server has written the region. */
void heap_region_remote(struct heap_regions *rs, uint32_t region);

static inline bool heap_in(const struct heap_regions *rs, uint32_t region, uint32_t object)
{
	return rs->of[object] == region && !rs->w->freed[object];
}

#endif
