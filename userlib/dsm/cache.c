// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_LEAST 256u

static uint32_t bucket_of(const struct cache *c, uint64_t at, uint64_t stamp)
{
	return (uint32_t)((at ^ stamp << 7) * 0x9e3779b97f4a7c15ull >> 32) & (c->size - 1);
}

struct copy *copy_new(uint32_t bytes)
{
	size_t whole = sizeof(struct copy) + bytes;
	struct copy *copy = aligned_alloc(_Alignof(struct copy), (whole + 15) & ~(size_t)15);

	if (copy)
		memset(copy, 0, sizeof(*copy));
	if (copy)
		copy->bytes = whole;
	return copy;
}

static int grow_table(struct cache *c)
{
	struct cache old = *c;

	if (c->copies < c->size)
		return 0;
	c->size = c->size ? 2 * c->size : TABLE_LEAST;
	c->table = calloc(c->size, sizeof(struct copy *));
	if (!c->table) {
		*c = old;
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < old.size; i++)
		while (old.table[i]) {
			struct copy *copy = old.table[i];
			struct copy **at = &c->table[bucket_of(c, copy->at, copy->stamp)];

			old.table[i] = copy->chain;
			copy->chain = *at;
			*at = copy;
		}
	free(old.table);
	return 0;
}

static void unlist(struct cache *c, struct copy *copy)
{
	if (copy->older)
		copy->older->newer = copy->newer;
	else
		c->oldest = copy->newer;
	if (copy->newer)
		copy->newer->older = copy->older;
	else
		c->newest = copy->older;
	copy->older = copy->newer = NULL;
}

static void remove_copy(struct cache *c, struct copy *copy)
{
	struct copy **at = &c->table[bucket_of(c, copy->at, copy->stamp)];

	while (*at != copy)
		at = &(*at)->chain;
	*at = copy->chain;
	copy->chain = NULL;
	c->copies--;
	c->bytes -= copy->bytes;
}

void cache_end(struct cache *c)
{
	for (uint32_t i = 0; i < c->size; i++)
		while (c->table[i]) {
			struct copy *copy = c->table[i];

			c->table[i] = copy->chain;
			free(copy);
		}
	free(c->table);
	*c = (struct cache){ .budget = c->budget };
}

struct copy *cache_find(const struct cache *c, uint64_t at, uint64_t stamp)
{
	struct copy *copy = c->size ? c->table[bucket_of(c, at, stamp)] : NULL;

	while (copy && (copy->at != at || copy->stamp != stamp))
		copy = copy->chain;
	return copy;
}

struct copy *cache_borrow(struct cache *c, uint64_t at, uint64_t stamp)
{
	struct copy *copy = cache_find(c, at, stamp);

	if (copy && !copy->borrows++)
		unlist(c, copy);
	return copy;
}

void cache_return(struct cache *c, struct copy *copy)
{
	if (--copy->borrows)
		return;
	copy->older = c->newest;
	if (c->newest)
		c->newest->newer = copy;
	else
		c->oldest = copy;
	c->newest = copy;
}

int cache_add(struct cache *c, struct copy *copy)
{
	struct copy **at;
	int r = grow_table(c);

	while (!r && c->bytes + copy->bytes > c->budget) {
		struct copy *evicted = c->oldest;

		if (!evicted)
			return -ENOBUFS;
		unlist(c, evicted);
		remove_copy(c, evicted);
		free(evicted);
	}
	if (r)
		return r;
	at = &c->table[bucket_of(c, copy->at, copy->stamp)];
	copy->chain = *at;
	*at = copy;
	copy->borrows = 1;
	c->copies++;
	c->bytes += copy->bytes;
	return 0;
}

void cache_take(struct cache *c, struct copy *copy)
{
	remove_copy(c, copy);
	copy->borrows = 0;
}
