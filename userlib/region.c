// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* Regions of 64 KiB, their lists and side tables. */
#include <string.h>
#include <sys/mman.h>
#include "heap.h"

#define SIDE_LOCK_STEP 64u	/* regions whose side tables are locked at a time: 4 MiB of heap */

void *map_pages(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static size_t bitmap_bytes(const struct ebbgc_heap *h)
{
	return (size_t)h->region_count * REGION_WORDS * sizeof(uint64_t);
}

static void classes_fill(struct ebbgc_heap *h)
{
	size_t sizes[CLASSES], n = 0;

	for (size_t s = GRANULE; s <= 8 * GRANULE; s += GRANULE)
		sizes[n++] = s;
	/* Four to a doubling: at most a fifth of a slot is wasted. */
	for (size_t base = 8 * GRANULE; base < SMALL_MAX; base *= 2)
		for (size_t i = 1; i <= 4; i++)
			sizes[n++] = base + base / 4 * i;
	for (size_t c = 0, granules = 0; c < CLASSES; c++) {
		h->slot_size[2 * c] = h->slot_size[2 * c + 1] = sizes[c];
		for (; granules * GRANULE <= sizes[c]; granules++)
			h->class_of[granules] = (uint8_t)c;
	}
}

int regions_create(struct ebbgc_heap *h)
{
	static const struct region_list empty = { REGION_NONE, REGION_NONE };

	classes_fill(h);
	h->region_count = (uint32_t)(h->bytes >> REGION_SHIFT);
	/* One region more, to align. */
	h->base = map_pages(h->bytes + REGION_SIZE);
	h->marks = map_pages(bitmap_bytes(h));
	h->allocated = map_pages(bitmap_bytes(h));
	h->kinds = map_pages(h->region_count);
	h->regions = map_pages(h->region_count * sizeof(*h->regions));
	if (!h->base || !h->marks || !h->allocated || !h->kinds || !h->regions) {
		regions_destroy(h);
		return -1;
	}
	{
		/* Trimmed, so that unmapping needs no more than base and bytes. */
		char *aligned = (char *)(((uintptr_t)h->base + REGION_SIZE - 1) & -REGION_SIZE);
		char *end = h->base + h->bytes + REGION_SIZE;

		if (aligned != h->base)
			munmap(h->base, (size_t)(aligned - h->base));
		if (aligned + h->bytes != end)
			munmap(aligned + h->bytes, (size_t)(end - (aligned + h->bytes)));
		h->base = aligned;
	}
	for (unsigned int k = 0; k < SMALL_KINDS; k++)
		h->partial[k] = h->full[k] = h->unswept[k] = empty;
	h->large = h->large_unswept = empty;
	return 0;
}

void regions_destroy(struct ebbgc_heap *h)
{
	if (h->base)
		munmap(h->base, h->bytes);
	if (h->marks)
		munmap(h->marks, bitmap_bytes(h));
	if (h->allocated)
		munmap(h->allocated, bitmap_bytes(h));
	if (h->kinds)
		munmap(h->kinds, h->region_count);
	if (h->regions)
		munmap(h->regions, h->region_count * sizeof(*h->regions));
	h->base = NULL;
	h->marks = h->allocated = NULL;
	h->kinds = NULL;
	h->regions = NULL;
}

/* A barrier or a sweep must never fault: what side tables are in use stays in memory. */
static void side_lock(struct ebbgc_heap *h)
{
	uint32_t from = h->side_locked, to = (h->top + SIDE_LOCK_STEP - 1) / SIDE_LOCK_STEP * SIDE_LOCK_STEP;
	size_t words;

	if (!h->options.lock_side || to <= from)
		return;
	if (to > h->region_count)
		to = h->region_count;
	words = (size_t)(to - from) * REGION_WORDS * sizeof(uint64_t);
	if (mlock(h->marks + (size_t)from * REGION_WORDS, words) ||
	    mlock(h->allocated + (size_t)from * REGION_WORDS, words) ||
	    mlock(h->kinds + from, to - from) ||
	    mlock(h->regions + from, (to - from) * sizeof(*h->regions)))
		/* RLIMIT_MEMLOCK: told by stats.side_locked; not tried again. */
		h->options.lock_side = false;
	else
		h->side_locked = to;
}

static uint32_t find_free(struct ebbgc_heap *h, uint32_t count)
{
	uint32_t i = h->free_hint;

	while (i < h->top) {
		const uint8_t *p = memchr(h->kinds + i, KIND_FREE, h->top - i);
		uint32_t n = 1;

		if (!p)
			break;
		i = (uint32_t)(p - h->kinds);
		while (n < count && i + n < h->top && h->kinds[i + n] == KIND_FREE)
			n++;
		if (n == count)
			return i;
		/* A free run at the end may grow into what was never used. */
		if (i + n == h->top)
			break;
		i += n;
	}
	if (i >= h->top || h->kinds[i] != KIND_FREE)
		i = h->top;
	return count <= h->region_count - i ? i : REGION_NONE;
}

uint32_t regions_take(struct ebbgc_heap *h, uint32_t count, uint8_t kind)
{
	uint32_t first = find_free(h, count), old_top = h->top;

	if (first == REGION_NONE)
		return REGION_NONE;
	if (first + count > h->top)
		__atomic_store_n(&h->top, first + count, __ATOMIC_RELAXED);
	side_lock(h);
	for (uint32_t i = first; i < first + count; i++) {
		struct region *r = &h->regions[i];
		bool fresh = i >= old_top;

		if (r->committed)
			h->committed_free--;
		*r = (struct region){
			.next = REGION_NONE, .span = i - first, .zero = fresh || !r->committed,
		};
		h->kinds[i] = i == first ? kind : KIND_TAIL;
	}
	h->regions[first].span = count;
	h->used += count;
	if (first == h->free_hint)
		h->free_hint = first + count;
	return first;
}

void regions_free(struct ebbgc_heap *h, uint32_t first, uint32_t count)
{
	for (uint32_t i = first; i < first + count; i++) {
		h->kinds[i] = KIND_FREE;
		h->regions[i].committed = true;
	}
	h->committed_free += count;
	h->used -= count;
	if (first < h->free_hint)
		h->free_hint = first;
}

/*
 * Free memory that is kept spares the kernel's zeroing and a fault; what goes back is never
 * written to swap.  Without a budget as much is kept as a cycle may use up.
 */
void regions_release(struct ebbgc_heap *h)
{
	uint64_t keep = h->used / 2 + (h->options.min_bytes >> REGION_SHIFT);
	uint32_t i = h->top;

	if (h->options.resident_budget) {
		int64_t resident = residency_bytes(h->base, (size_t)h->top << REGION_SHIFT);
		uint64_t excess = 0;

		if (resident >= 0) {
			h->stats.resident_bytes = (uint64_t)resident;
			if ((uint64_t)resident > h->options.resident_budget)
				excess = ((uint64_t)resident - h->options.resident_budget) >> REGION_SHIFT;
		}
		keep = h->committed_free > excess ? h->committed_free - excess : 0;
	}
	/* From the top, so that the heap stays low. */
	while (i && h->committed_free > keep) {
		uint32_t end = i;

		while (i && h->kinds[i - 1] == KIND_FREE && h->regions[i - 1].committed &&
		       h->committed_free > keep) {
			h->regions[--i].committed = false;
			h->committed_free--;
		}
		if (i == end) {
			i--;
			continue;
		}
		if (madvise(region_start(h, i), (size_t)(end - i) << REGION_SHIFT, MADV_DONTNEED)) {
			/* Locked, by mlockall() say: it is not zero. */
			for (uint32_t j = i; j < end; j++)
				h->regions[j].committed = true;
			h->committed_free += end - i;
			break;
		}
		h->stats.released_bytes += (uint64_t)(end - i) << REGION_SHIFT;
	}
}

void list_push(struct ebbgc_heap *h, struct region_list *l, uint32_t region)
{
	h->regions[region].next = l->head;
	if (l->head == REGION_NONE)
		l->tail = region;
	l->head = region;
}

uint32_t list_pop(struct ebbgc_heap *h, struct region_list *l)
{
	uint32_t region = l->head;

	if (region != REGION_NONE) {
		l->head = h->regions[region].next;
		h->regions[region].next = REGION_NONE;
	}
	return region;
}

void list_append(struct ebbgc_heap *h, struct region_list *to, struct region_list *from)
{
	if (from->head == REGION_NONE)
		return;
	if (to->head == REGION_NONE)
		to->head = from->head;
	else
		h->regions[to->tail].next = from->head;
	to->tail = from->tail;
	from->head = from->tail = REGION_NONE;
}
