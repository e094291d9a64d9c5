// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/*
 * Sweeping a region makes its mark bits its allocation bits: it touches 1 KiB of side tables and no
 * page of the heap.  Allocating threads sweep what they need, the collector's thread the rest.
 */
#include <string.h>
#include <sys/mman.h>
#include "object.h"
#include "os.h"
#include "region.h"
#include "sweep.h"

/* Overwrites dead objects in checking mode; no valid type id. */
#define POISON 0xdb

void sweep_decide(struct ebbgc_heap *h)
{
	bool dropping = (h->options.features & EBBGC_DROP) && (h->options.check || os_swapped());

	pthread_mutex_lock(&h->lock);
	h->dropping = dropping;
	pthread_mutex_unlock(&h->lock);
}

void sweep_begin(struct ebbgc_heap *h, bool keep)
{
	for (unsigned int k = 0; k < SMALL_KINDS; k++) {
		region_list_append(h, &h->unswept[k], &h->partial[k]);
		region_list_append(h, &h->unswept[k], &h->full[k]);
		region_list_append(h, &h->unswept[k], &h->skipped[k]);
		for (uint32_t r = h->recycled[k].head; r != REGION_NONE; r = h->regions[r].next)
			h->regions[r].recycled = keep;
		region_list_append(h, &h->unswept[k], &h->recycled[k]);
	}
	h->nursery.recycled = 0;
	region_list_append(h, &h->large_unswept, &h->large);
	region_list_append(h, &h->large_unswept, &h->large_dead);
}

static void poison_dead(struct ebbgc_heap *h, uint32_t region, size_t size,
			const uint64_t *allocated, const uint64_t *marks)
{
	size_t stride = size >> GRANULE_SHIFT;

	for (size_t i = 0; i < REGION_SIZE / size; i++)
		if (bit_test(allocated, i * stride) && !bit_test(marks, i * stride))
			memset(region_start(h, region) + i * size, POISON, size);
}

/* Sweeps a region that is on no list; returns the number of its live slots. */
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
		if (h->nursery.old)
			__atomic_store_n(&h->nursery.old[(size_t)region * REGION_WORDS + i], word,
					 __ATOMIC_RELAXED);
	}
	h->regions[region].cursor = 0;
	h->regions[region].zero = false;
	h->regions[region].skipped = false;
	h->regions[region].swept = true;
	return live;
}

#define WORDS_PER_PAGE (REGION_WORDS / REGION_PAGES)
#define ALL_PAGES ((UINT32_C(1) << REGION_PAGES) - 1)

uint32_t pages_of(const struct ebbgc_heap *h, uint32_t region, uint8_t kind,
		  const uint64_t *objects)
{
	const uint64_t *words = objects + (size_t)region * REGION_WORDS;
	size_t size = h->slot_size[kind];
	uint32_t pages = 0;

	for (size_t w = 0; w < REGION_WORDS; w++) {
		size_t first = w / WORDS_PER_PAGE, last;

		if (!words[w])
			continue;
		/* A word's objects begin on one page; only the last may end on a later page. */
		last = ((64 * w + 63 - (size_t)__builtin_clzll(words[w])) * GRANULE + size - 1) /
		       PAGE_BYTES;
		pages |= (UINT32_C(2) << last) - (UINT32_C(1) << first);
	}
	return pages;
}

static void pages_advise(const struct ebbgc_heap *h, uint32_t region, uint32_t pages, int advice)
{
	while (pages) {
		size_t first = (size_t)__builtin_ctz(pages);
		size_t n = (size_t)__builtin_ctz(~(pages >> first));

		madvise(region_start(h, region) + first * PAGE_BYTES, n * PAGE_BYTES, advice);
		pages &= ~(uint32_t)(((UINT64_C(1) << n) - 1) << first);
	}
}

/*
 * Lets the kernel drop a swept region's pages without objects instead of writing them to swap; no
 * thread may own the region.  Swap of swapped-out pages is freed at once; resident pages stay until
 * the kernel needs them.  Returns a bitmap of the pages.
 */
static uint32_t drop_garbage(struct ebbgc_heap *h, uint32_t region, uint8_t kind)
{
	uint32_t dead = ~pages_of(h, region, kind, h->allocated) & ALL_PAGES;
	uint32_t fresh = dead & ~(uint32_t)h->regions[region].dropped;

	pages_advise(h, region, fresh, MADV_FREE);
	return fresh;
}

uint64_t sweep_moved(struct ebbgc_heap *h, uint32_t region)
{
	const uint64_t *allocated = h->allocated + (size_t)region * REGION_WORDS;
	uint8_t kind = h->kinds[region];
	uint32_t dead = ~pages_of(h, region, kind, h->allocated) & ALL_PAGES;
	size_t size = h->slot_size[kind];

	h->regions[region].zero = false;
	if (!h->options.check) {
		pages_advise(h, region, dead, MADV_DONTNEED);
		return (uint64_t)__builtin_popcount(dead) << PAGE_SHIFT;
	}
	for (size_t i = 0; i < REGION_SIZE / size; i++)
		if (!bit_test(allocated, i * (size >> GRANULE_SHIFT)))
			memset(region_start(h, region) + i * size, POISON, size);
	return 0;
}

/* Lock held: gives a swept region, of which at least half is free, to those that allocate next. */
static bool recycle(struct ebbgc_heap *h, uint32_t region, uint8_t kind, uint32_t live)
{
	struct nursery *n = &h->nursery;

	if (2 * live > REGION_SIZE / h->slot_size[kind] ||
	    n->recycled >= h->options.nursery_bytes >> REGION_SHIFT)
		return false;
	n->recycled++;
	h->regions[region].recycled = true;
	region_stays(h, region);
	region_list_push(h, &h->recycled[kind], region);
	return true;
}

/* Lock held, released meanwhile: sweeps a region and puts it on its list, or into *mine. */
static void sweep_one(struct ebbgc_heap *h, uint32_t region, uint8_t kind, uint32_t *mine)
{
	bool dropping = h->dropping, recycled = h->regions[region].recycled;
	uint32_t live, dropped = 0;

	h->sweeping++;
	h->regions[region].recycled = false;
	pthread_mutex_unlock(&h->lock);
	live = sweep_region(h, region, kind);
	/* What is recycled is about to be used. */
	if (dropping && !mine && !recycled)
		dropped = drop_garbage(h, region, kind);
	pthread_mutex_lock(&h->lock);
	h->stats.dropped_bytes += (uint64_t)__builtin_popcount(dropped) << PAGE_SHIFT;
	region_dropped(h, region, dropped);
	if (mine || !live)
		region_stays(h, region);
	if (live == REGION_SIZE / h->slot_size[kind])
		region_enlist(h, region, true);
	else if (recycled && !mine && recycle(h, region, kind, live))
		;
	else if (live == 0 && !mine)
		regions_free(h, region, 1);
	else if (mine)
		*mine = region;
	else
		region_enlist(h, region, false);
	if (--h->sweeping == 0)
		pthread_cond_broadcast(&h->swept);
}

uint32_t sweep_for(struct ebbgc_heap *h, uint8_t kind)
{
	uint32_t region = region_list_pop(h, &h->recycled[kind]), mine = REGION_NONE;

	if (region != REGION_NONE) {
		h->regions[region].recycled = false;
		h->nursery.recycled--;
		return region;
	}
	region = h->partial[kind].head;
	if (region != REGION_NONE) {
		region_delist(h, region);
		return region;
	}
	while (mine == REGION_NONE) {
		region = region_list_pop(h, &h->unswept[kind]);
		if (region == REGION_NONE)
			break;
		sweep_one(h, region, kind, &mine);
	}
	return mine;
}

static void sweep_large(struct ebbgc_heap *h)
{
	uint32_t region;

	while ((region = region_list_pop(h, &h->large_unswept)) != REGION_NONE) {
		size_t bit = granule_of(h, (uint64_t)(uintptr_t)region_start(h, region));
		uint64_t *mark = &h->marks[bit >> 6], *allocated = &h->allocated[bit >> 6];

		/* No other object's bits share the word.  A minor cycle may have freed it. */
		if (*mark && *allocated) {
			__atomic_store_n(mark, 0, __ATOMIC_RELAXED);
			region_list_push(h, &h->large, region);
			continue;
		}
		__atomic_store_n(mark, 0, __ATOMIC_RELAXED);
		__atomic_store_n(allocated, 0, __ATOMIC_RELAXED);
		if (h->nursery.old)
			__atomic_store_n(&h->nursery.old[bit >> 6], 0, __ATOMIC_RELAXED);
		if (h->options.check)
			memset(region_start(h, region), POISON, REGION_SIZE);
		if (h->dropping) {
			size_t bytes = (size_t)h->regions[region].span << REGION_SHIFT;

			pthread_mutex_unlock(&h->lock);
			madvise(region_start(h, region), bytes, MADV_FREE);
			pthread_mutex_lock(&h->lock);
			h->stats.dropped_bytes += bytes;
			for (uint32_t i = 0; i < h->regions[region].span; i++)
				region_dropped(h, region + i, ALL_PAGES);
		}
		regions_free(h, region, h->regions[region].span);
	}
}

void sweep_all(struct ebbgc_heap *h)
{
	pthread_mutex_lock(&h->lock);
	sweep_large(h);
	for (unsigned int k = 0; k < SMALL_KINDS; k++) {
		uint32_t region;

		while ((region = region_list_pop(h, &h->unswept[k])) != REGION_NONE)
			sweep_one(h, region, (uint8_t)k, NULL);
	}
	/* Threads may be sweeping the last regions. */
	while (h->sweeping)
		pthread_cond_wait(&h->swept, &h->lock);
	pthread_mutex_unlock(&h->lock);
}

/* Frees young small objects of a region that is on no list; returns the bytes freed. */
static uint64_t sweep_young_small(struct ebbgc_heap *h, uint32_t region, uint8_t kind)
{
	uint64_t *allocated = h->allocated + (size_t)region * REGION_WORDS;
	const uint64_t *old = h->nursery.old + (size_t)region * REGION_WORDS;
	size_t slots = REGION_SIZE / h->slot_size[kind];
	/* Nothing but holes on swapped-out pages, perhaps. */
	bool skipped = h->regions[region].skipped;
	uint32_t live = 0, freed = 0;

	if (h->options.check)
		poison_dead(h, region, h->slot_size[kind], allocated, old);
	for (size_t i = 0; i < REGION_WORDS; i++) {
		freed += (uint32_t)__builtin_popcountll(allocated[i] & ~old[i]);
		live += (uint32_t)__builtin_popcountll(old[i]);
		/* Tracers read it.  Mark bits stay. */
		__atomic_store_n(&allocated[i], old[i], __ATOMIC_RELAXED);
	}
	h->regions[region].cursor = 0;
	h->regions[region].zero = false;
	h->regions[region].skipped = false;
	h->regions[region].swept = true;
	if (live == slots)
		region_enlist(h, region, true);
	else if (!skipped && recycle(h, region, kind, live))
		;
	else if (live == 0 && !h->marking)
		regions_free(h, region, 1);
	else
		region_enlist(h, region, false);
	return freed * h->slot_size[kind];
}

/* Frees a young large object, or makes it one of the others; returns the bytes freed. */
static uint64_t sweep_young_large(struct ebbgc_heap *h, uint32_t region)
{
	size_t word = (size_t)region * REGION_WORDS;
	uint32_t span = h->regions[region].span;

	if (h->nursery.old[word]) {
		region_list_push(h, &h->large, region);
		return 0;
	}
	__atomic_store_n(&h->allocated[word], 0, __ATOMIC_RELAXED);
	if (h->options.check)
		memset(region_start(h, region), POISON, REGION_SIZE);
	if (h->marking)
		region_list_push(h, &h->large_dead, region);
	else
		regions_free(h, region, span);
	return (uint64_t)span << REGION_SHIFT;
}

uint64_t sweep_young(struct ebbgc_heap *h)
{
	uint64_t freed = 0;
	uint32_t region;

	while ((region = region_pop_young(h)) != REGION_NONE) {
		uint8_t kind = h->kinds[region];

		freed += is_large(kind) ? sweep_young_large(h, region) :
					  sweep_young_small(h, region, kind);
	}
	return freed;
}
