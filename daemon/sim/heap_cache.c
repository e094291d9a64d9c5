// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdlib.h>
#include <string.h>

#include "heap_cache.h"
#include "heap_grow.h"

void heap_cache_init(struct heap_cache *c, uint32_t room, uint32_t group)
{
	memset(c, 0, sizeof(*c));
	c->room = room;
	c->group = group;
	c->oldest = c->newest = HEAP_CACHE_NONE;
}

void heap_cache_free(struct heap_cache *c)
{
	free(c->at);
	free(c->in);
	memset(c, 0, sizeof(*c));
}

static void take_out(struct heap_cache *c, uint32_t page)
{
	struct heap_cached *p = &c->at[page];

	*(p->older == HEAP_CACHE_NONE ? &c->oldest : &c->at[p->older].newer) = p->newer;
	*(p->newer == HEAP_CACHE_NONE ? &c->newest : &c->at[p->newer].older) = p->older;
}

static void put_in(struct heap_cache *c, uint32_t page)
{
	struct heap_cached *p = &c->at[page];

	p->older = c->newest;
	p->newer = HEAP_CACHE_NONE;
	*(c->newest == HEAP_CACHE_NONE ? &c->oldest : &c->at[c->newest].newer) = page;
	c->newest = page;
}

static void leave(struct heap_cache *c, uint32_t page)
{
	take_out(c, page);
	c->at[page].resident = false;
	c->resident--;
	c->in[page / c->group]--;
}

static void reach(struct heap_cache *c, uint32_t page)
{
	if (page < c->pages)
		return;
	c->at = heap_grow(c->at, &c->pages, page + 1, sizeof(*c->at));
	c->in = heap_grow(c->in, &c->groups, c->pages / c->group + 1, sizeof(*c->in));
}

enum heap_hit heap_cache_touch(struct heap_cache *c, uint32_t page, bool write, uint32_t *evicted)
{
	enum heap_hit hit = HEAP_HIT;

	*evicted = HEAP_CACHE_NONE;
	reach(c, page);
	if (c->at[page].resident) {
		take_out(c, page);
	} else {
		hit = c->at[page].remote ? HEAP_MISS : HEAP_NEW;
		if (c->resident == c->room) {
			uint32_t old = c->oldest;

			if (heap_cache_clean(c, old, true))
				*evicted = old;
		}
		c->at[page].resident = true;
		c->at[page].dirty = hit == HEAP_NEW;
		c->resident++;
		c->in[page / c->group]++;
	}
	put_in(c, page);
	c->at[page].dirty |= write;
	return hit;
}

bool heap_cache_has(const struct heap_cache *c, uint32_t page)
{
	return page < c->pages && c->at[page].resident;
}

bool heap_cache_clean(struct heap_cache *c, uint32_t page, bool evict)
{
	bool dirty;

	if (!heap_cache_has(c, page))
		return false;
	dirty = c->at[page].dirty;
	c->at[page].dirty = false;
	c->at[page].remote |= dirty;
	if (evict)
		leave(c, page);
	return dirty;
}

void heap_cache_remote(struct heap_cache *c, uint32_t page)
{
	reach(c, page);
	if (c->at[page].resident)
		leave(c, page);
	c->at[page].dirty = false;
	c->at[page].remote = true;
}

void heap_cache_drop(struct heap_cache *c, uint32_t page)
{
	if (page >= c->pages)
		return;
	if (c->at[page].resident)
		leave(c, page);
	c->at[page].dirty = c->at[page].remote = false;
}
