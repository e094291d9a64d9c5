/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * The store of a far generation (ebbgc_far_attach()) in a far pool of libebbfar: for programs that
 * link both libraries, of which neither needs the other.
 *
 *	ebbfar_open(&options, &pool);
 *	ebbgc_far_pool(&store, pool);
 *	ebbgc_far_attach(heap, &store, &far_options);
 *	...
 *	ebbgc_heap_destroy(heap);
 *	ebbfar_close(pool);
 *
 * At a unix socket a read copies from mapped memory, without a system call; over TCP it is one
 * round trip, and reads of several threads wait for each other.  When the pool's handle has failed
 * for good, reads fail with its error.
 */
#ifndef EBBGC_FAR_POOL_H
#define EBBGC_FAR_POOL_H

#include <ebbfar.h>
#include <ebbgc.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline struct ebbfar_extent ebbgc_far_extent(const struct ebbgc_far_place *place)
{
	struct ebbfar_extent extent;

	extent.place = place->words[0];
	extent.size = place->words[1];
	extent.generation = place->words[2];
	return extent;
}

static inline int ebbgc_far_pool_alloc(void *pool, size_t bytes, struct ebbgc_far_place *place)
{
	struct ebbfar_extent extent;
	int r = ebbfar_alloc((ebbfar_t *)pool, bytes, &extent);

	if (r)
		return r;
	place->words[0] = extent.place;
	place->words[1] = extent.size;
	place->words[2] = extent.generation;
	return 0;
}

static inline int ebbgc_far_pool_write(void *pool, const struct ebbgc_far_place *place,
				       const void *from, size_t bytes)
{
	const struct ebbfar_extent extent = ebbgc_far_extent(place);

	return ebbfar_write((ebbfar_t *)pool, &extent, 0, from, bytes);
}

static inline int ebbgc_far_pool_read(void *pool, const struct ebbgc_far_place *place,
				      size_t offset, void *to, size_t bytes)
{
	const struct ebbfar_extent extent = ebbgc_far_extent(place);

	return ebbfar_read((ebbfar_t *)pool, &extent, offset, to, bytes);
}

static inline int ebbgc_far_pool_free(void *pool, const struct ebbgc_far_place *place)
{
	const struct ebbfar_extent extent = ebbgc_far_extent(place);

	return ebbfar_free((ebbfar_t *)pool, &extent);
}

/* Fills in the store; @pool must last as long as the heap. */
static inline void ebbgc_far_pool(struct ebbgc_far_store *store, ebbfar_t *pool)
{
	store->arg = pool;
	store->alloc = ebbgc_far_pool_alloc;
	store->write = ebbgc_far_pool_write;
	store->read = ebbgc_far_pool_read;
	store->free = ebbgc_far_pool_free;
}

#ifdef __cplusplus
}
#endif

#endif
