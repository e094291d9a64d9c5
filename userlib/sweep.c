// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/*
 * Sweeping makes the mark bits of a region its allocation bits: 1 KiB of side tables, no page of
 * the heap.  Allocating threads sweep what they need, the collector's thread the rest.
 */
#include <string.h>
#include "heap.h"

/* What a dead object is overwritten with in checking mode; no valid type id. */
#define POISON 0xdb

void sweep_begin(struct ebbgc_heap *h)
{
	for (unsigned int k = 0; k < SMALL_KINDS; k++) {
		list_append(h, &h->unswept[k], &h->partial[k]);
		list_append(h, &h->unswept[k], &h->full[k]);
	}
	list_append(h, &h->large_unswept, &h->large);
}

static void poison_dead(struct ebbgc_heap *h, uint32_t region, size_t size,
			const uint64_t *allocated, const uint64_t *marks)
{
	size_t stride = size >> GRANULE_SHIFT;

	for (size_t i = 0; i < REGION_SIZE / size; i++)
		if (bit_test(allocated, i * stride) && !bit_test(marks, i * stride))
			memset(region_start(h, region) + i * size, POISON, size);
}

/* Sweeps a region that is on no list; returns its live slots. */
static uint32_t sweep_region(struct ebbgc_heap *h, uint32_t region, uint8_t kind)
{
	uint64_t *allocated = h->allocated + (size_t)region * REGION_WORDS;
	uint64_t *marks = h->marks + (size_t)region * REGION_WORDS;
	uint32_t live = 0;

	if (h->options.check)
		poison_dead(h, region, h->slot_size[kind], allocated, marks);
	for (size_t i = 0; i < REGION_WORDS; i++) {
		uint64_t word = allocated[i] & marks[i];

		live += (uint32_t)__builtin_popcountll(word);
		if (word != allocated[i])
			__atomic_store_n(&allocated[i], word, __ATOMIC_RELAXED);
		if (marks[i])
			__atomic_store_n(&marks[i], 0, __ATOMIC_RELAXED);
	}
	h->regions[region].cursor = 0;
	h->regions[region].zero = false;
	return live;
}

/* Lock held; dropped while the region is swept.  Puts it where it belongs, or gives it to `mine`. */
static void sweep_one(struct ebbgc_heap *h, uint32_t region, uint8_t kind, uint32_t *mine)
{
	uint32_t live;

	h->sweeping++;
	pthread_mutex_unlock(&h->lock);
	live = sweep_region(h, region, kind);
	pthread_mutex_lock(&h->lock);
	if (live == REGION_SIZE / h->slot_size[kind])
		list_push(h, &h->full[kind], region);
	else if (live == 0 && !mine)
		regions_free(h, region, 1);
	else if (mine)
		*mine = region;
	else
		list_push(h, &h->partial[kind], region);
	if (--h->sweeping == 0)
		pthread_cond_broadcast(&h->swept);
}

uint32_t sweep_for(struct ebbgc_heap *h, uint8_t kind)
{
	uint32_t region = list_pop(h, &h->partial[kind]), mine = REGION_NONE;

	if (region != REGION_NONE)
		return region;
	while (mine == REGION_NONE) {
		region = list_pop(h, &h->unswept[kind]);
		if (region == REGION_NONE)
			break;
		sweep_one(h, region, kind, &mine);
	}
	return mine;
}

static void sweep_large(struct ebbgc_heap *h)
{
	uint32_t region;

	while ((region = list_pop(h, &h->large_unswept)) != REGION_NONE) {
		size_t bit = granule_of(h, (uint64_t)(uintptr_t)region_start(h, region));
		uint64_t *mark = &h->marks[bit >> 6], *allocated = &h->allocated[bit >> 6];

		/* A large object's bits share their word with no other object. */
		if (*mark) {
			__atomic_store_n(mark, 0, __ATOMIC_RELAXED);
			list_push(h, &h->large, region);
			continue;
		}
		__atomic_store_n(allocated, 0, __ATOMIC_RELAXED);
		if (h->options.check)
			memset(region_start(h, region), POISON, REGION_SIZE);
		regions_free(h, region, h->regions[region].span);
	}
}

void sweep_all(struct ebbgc_heap *h)
{
	pthread_mutex_lock(&h->lock);
	sweep_large(h);
	for (unsigned int k = 0; k < SMALL_KINDS; k++) {
		uint32_t region;

		while ((region = list_pop(h, &h->unswept[k])) != REGION_NONE)
			sweep_one(h, region, (uint8_t)k, NULL);
	}
	/* Threads may hold the last ones. */
	while (h->sweeping)
		pthread_cond_wait(&h->swept, &h->lock);
	pthread_mutex_unlock(&h->lock);
}
