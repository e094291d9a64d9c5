// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdlib.h>
#include <string.h>

#include "heap_regions.h"

#define PARTIAL 75 /* per cent: regions with more in use get no new objects */

static uint32_t pages_of(const struct heap_regions *rs)
{
	return rs->bytes / HEAP_PAGE;
}

void heap_regions_init(struct heap_regions *rs, struct heap_world *w)
{
	uint32_t room = (uint32_t)(w->config->local / HEAP_PAGE);

	memset(rs, 0, sizeof(*rs));
	rs->w = w;
	rs->bytes = (uint32_t)w->config->region;
	/* Behind its objects a region has the pages of a table of 8 bytes per object. */
	rs->stride = 2 * pages_of(rs);
	rs->current = HEAP_NO_REGION;
	rs->of = heap_zeroed(w->file->objects, sizeof(*rs->of));
	rs->offset = heap_zeroed(w->file->objects, sizeof(*rs->offset));
	heap_cache_init(&rs->cache, room ? room : 1, rs->stride);
}

void heap_regions_free(struct heap_regions *rs)
{
	for (uint32_t i = 0; i < rs->count; i++)
		heap_list_free(&rs->at[i].objects);
	free(rs->at);
	free(rs->of);
	free(rs->offset);
	heap_list_free(&rs->free);
	heap_list_free(&rs->partial);
	heap_cache_free(&rs->cache);
}

static uint32_t append(struct heap_regions *rs)
{
	rs->at = heap_grow(rs->at, &rs->room, rs->count + 1, sizeof(*rs->at));
	return rs->count++;
}

static uint32_t open_region(struct heap_regions *rs, uint32_t region, uint32_t span)
{
	rs->at[region].span = span;
	rs->in_use += span;
	return region;
}

uint32_t heap_region_new(struct heap_regions *rs, uint32_t server)
{
	uint32_t region;

	for (uint32_t i = rs->free.count; i--;) {
		region = rs->free.at[i];
		if (server != HEAP_NO_REGION && heap_server(rs, region) != server)
			continue;
		rs->free.at[i] = rs->free.at[--rs->free.count];
		return open_region(rs, region, 1);
	}
	while (region = append(rs), server != HEAP_NO_REGION && heap_server(rs, region) != server)
		heap_list_add(&rs->free, region);
	return open_region(rs, region, 1);
}

void heap_region_close(struct heap_regions *rs, uint32_t region)
{
	for (uint32_t i = 0; i < rs->partial.count; i++)
		if (rs->partial.at[i] == region)
			rs->partial.at[i--] = rs->partial.at[--rs->partial.count];
}

void heap_region_release(struct heap_regions *rs, uint32_t region)
{
	uint32_t span = rs->at[region].span;

	heap_region_close(rs, region);
	for (uint32_t i = region; i < region + span; i++) {
		struct heap_region *r = &rs->at[i];

		for (uint32_t p = 0; p < pages_of(rs); p++)
			heap_cache_drop(&rs->cache, i * rs->stride + p);
		heap_list_free(&r->objects);
		memset(r, 0, sizeof(*r));
		heap_list_add(&rs->free, i);
	}
	rs->in_use -= span;
}

bool heap_region_put(struct heap_regions *rs, uint32_t region, uint32_t object)
{
	struct heap_region *r = &rs->at[region];
	uint32_t size = rs->w->file->size[object];

	if (size > (uint64_t)r->span * rs->bytes - r->used)
		return false;
	rs->of[object] = region;
	rs->offset[object] = r->used;
	r->used += size;
	heap_list_add(&r->objects, object);
	return true;
}

void heap_region_allocate(struct heap_regions *rs, uint32_t object, bool *opened)
{
	uint32_t size = rs->w->file->size[object], span = (size + rs->bytes - 1) / rs->bytes, first;

	*opened = false;
	if (span <= 1) {
		while (rs->current == HEAP_NO_REGION || !heap_region_put(rs, rs->current, object)) {
			*opened = !rs->partial.count;
			rs->current = rs->partial.count ? rs->partial.at[--rs->partial.count] :
							  heap_region_new(rs, HEAP_NO_REGION);
		}
		return;
	}
	*opened = true;
	first = append(rs);
	for (uint32_t i = 1; i < span; i++)
		append(rs);
	open_region(rs, first, span);
	heap_region_put(rs, first, object);
}

static uint64_t touch_page(struct heap_regions *rs, uint32_t page, bool write)
{
	struct heap_result *r = &rs->w->r;
	uint32_t out;
	enum heap_hit hit = heap_cache_touch(&rs->cache, page, write, &out);

	heap_local(rs->w, (uint64_t)rs->cache.resident * HEAP_PAGE);
	if (out != HEAP_CACHE_NONE) {
		r->bytes_out += HEAP_PAGE;
		if (rs->evicted)
			rs->evicted(rs->arg, out / rs->stride);
	}
	if (hit != HEAP_MISS)
		return 0;
	r->misses++;
	r->bytes_in += HEAP_PAGE;
	return rs->w->config->page;
}

uint64_t heap_region_touch(struct heap_regions *rs, uint32_t object, uint32_t at, uint32_t bytes,
			   bool write)
{
	uint64_t from = (uint64_t)rs->offset[object] + at, wait = 0;

	for (uint64_t p = from / HEAP_PAGE; p <= (from + bytes - 1) / HEAP_PAGE; p++) {
		uint32_t region = rs->of[object] + (uint32_t)(p / pages_of(rs));

		wait += touch_page(rs, region * rs->stride + (uint32_t)(p % pages_of(rs)), write);
	}
	return wait;
}

uint64_t heap_table_touch(struct heap_regions *rs, uint32_t tablet, uint32_t table, bool write)
{
	uint64_t wait = touch_page(rs, tablet * rs->stride + pages_of(rs) + table, write);

	rs->w->r.table_misses += wait != 0;
	return wait;
}

uint32_t heap_region_cached(const struct heap_regions *rs, uint32_t region)
{
	uint32_t n = 0;

	for (uint32_t i = region; i < region + rs->at[region].span; i++)
		n += i < rs->cache.groups ? rs->cache.in[i] : 0;
	return n;
}

static uint64_t write_pages(struct heap_regions *rs, uint32_t first, uint32_t pages, bool evict)
{
	uint64_t bytes = 0;

	for (uint32_t p = first; p < first + pages; p++)
		if (heap_cache_clean(&rs->cache, p, evict))
			bytes += HEAP_PAGE;
	rs->w->r.bytes_out += bytes;
	return bytes;
}

uint64_t heap_region_write(struct heap_regions *rs, uint32_t region, bool evict)
{
	uint64_t bytes = 0;

	for (uint32_t i = region; i < region + rs->at[region].span; i++)
		bytes += write_pages(rs, i * rs->stride, pages_of(rs), evict);
	return bytes;
}

uint64_t heap_table_write(struct heap_regions *rs, uint32_t tablet, uint32_t pages)
{
	return write_pages(rs, tablet * rs->stride + pages_of(rs), pages, true);
}

void heap_region_remote(struct heap_regions *rs, uint32_t region)
{
	for (uint32_t p = 0; p < (rs->at[region].used + HEAP_PAGE - 1) / HEAP_PAGE; p++)
		heap_cache_remote(&rs->cache, region * rs->stride + p);
	if (rs->at[region].used * 100ull <= (uint64_t)rs->bytes * PARTIAL)
		heap_list_add(&rs->partial, region);
}
