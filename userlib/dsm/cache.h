/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Copies of values by their names.  A name is one value for ever, so that a copy is never wrong: it
 * is evicted to make room, and for no other reason.
 */
#ifndef EBBDSM_CACHE_H
#define EBBDSM_CACHE_H

#include "link.h"

struct copy {
	struct copy *chain, *older, *newer;
	uint64_t at, stamp;
	size_t bytes;    /* that it takes of the budget */
	uint32_t borrows;
	bool loading;    /* a call is reading it */
	_Alignas(16) struct content content;
};

struct cache {
	size_t budget, bytes;
	struct copy **table;
	uint32_t size, copies;
	struct copy *oldest, *newest; /* without borrows */
};

/* Returns a copy for @bytes, header included, that no cache has, or NULL. */
struct copy *copy_new(uint32_t bytes);

void cache_end(struct cache *c);
/* Returns the copy, borrowed once more, or NULL. */
struct copy *cache_borrow(struct cache *c, uint64_t at, uint64_t stamp);
void cache_return(struct cache *c, struct copy *copy);
/* Returns a copy that is borrowed, without another borrow, or NULL. */
struct copy *cache_find(const struct cache *c, uint64_t at, uint64_t stamp);
/* Adds a copy, borrowed once, that the cache has not.  -ENOBUFS, -ENOMEM: it is the caller's. */
int cache_add(struct cache *c, struct copy *copy);
/* Takes a copy out that has no other borrow than the caller's: it is the caller's. */
void cache_take(struct cache *c, struct copy *copy);

#endif
