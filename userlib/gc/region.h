/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Regions of 64 KiB, their lists and side tables.  With the lock held unless noted. */
#ifndef EBBGC_REGION_H
#define EBBGC_REGION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "heap.h"

#define REGION_PAGES (REGION_SIZE / PAGE_BYTES)

int regions_create(struct ebbgc_heap *h);
void regions_destroy(struct ebbgc_heap *h);

/* Is free memory chosen by residency?  Not if all is in memory. */
static inline bool residency_counts(const struct ebbgc_heap *h)
{
	return (h->options.features & EBBGC_EXACT) && h->residency.provider &&
	       residency_is_scarce(&h->residency);
}

/*
 * Takes @count adjacent free regions; returns the first, or REGION_NONE if the heap is full or the
 * kernel cannot back them.  A single one is in memory if possible, with EBBGC_EXACT.
 */
uint32_t regions_take(struct ebbgc_heap *h, uint32_t count, uint8_t kind);
/* As regions_take(), also of those that a far generation keeps for objects that come back. */
uint32_t regions_take_any(struct ebbgc_heap *h, uint32_t count, uint8_t kind);
void regions_free(struct ebbgc_heap *h, uint32_t first, uint32_t count);

/* Records garbage pages that the kernel may drop (a bitmap, added to earlier ones). */
void region_dropped(struct ebbgc_heap *h, uint32_t region, uint32_t pages);
/* Forgets a region's dropped pages before it is written. */
void region_used(struct ebbgc_heap *h, uint32_t region);

/* Without the lock, the collector: returns memory of free regions to the kernel by the budget. */
void regions_release(struct ebbgc_heap *h);

/* Without the lock: returns the bytes of the regions in use. */
uint64_t regions_bytes(struct ebbgc_heap *h);
/* Without the lock: returns the bytes of side tables per region. */
size_t regions_side_bytes(const struct ebbgc_heap *h);

/*
 * With a nursery: puts a region that a thread takes objects from, or of a new large object, on the
 * list of young ones.  Until the next minor cycle it is on no other list.
 */
void region_make_young(struct ebbgc_heap *h, uint32_t region);
uint32_t region_pop_young(struct ebbgc_heap *h);	/* or REGION_NONE */

/*
 * Puts a region of small objects, which is on no list, on the one of full or partial regions of its
 * kind; takes it off that list.
 */
void region_enlist(struct ebbgc_heap *h, uint32_t region, bool full);
void region_delist(struct ebbgc_heap *h, uint32_t region);

/* A region that was on such a list is on none of them now: it does not leave. */
static inline void region_stays(struct ebbgc_heap *h, uint32_t region)
{
	if (h->far.on)
		oldest_remove(&h->far.oldest, region);
}

void region_list_push(struct ebbgc_heap *h, struct region_list *l, uint32_t region);
uint32_t region_list_pop(struct ebbgc_heap *h, struct region_list *l);	/* or REGION_NONE */
void region_list_append(struct ebbgc_heap *h, struct region_list *to, struct region_list *from);

#endif
