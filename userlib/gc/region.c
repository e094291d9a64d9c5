// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <string.h>
#include <sys/mman.h>
#include "far_room.h"
#include "object.h"
#include "os.h"
#include "region.h"

#define SIDE_LOCK_STEP 64u	/* regions per mlock() of side tables: 4 MiB of heap */
#define SIDES 23
#define RELEASE_MOST 64u	/* regions per madvise() */
#define LOOK_MOST 4096u		/* regions examined while the lock is held */

static char *map_aligned(size_t bytes)
{
	char *p = os_map(bytes + REGION_SIZE), *aligned, *end;

	if (!p)
		return NULL;
	aligned = (char *)(((uintptr_t)p + REGION_SIZE - 1) & -REGION_SIZE);
	end = p + bytes + REGION_SIZE;
	if (aligned != p)
		munmap(p, (size_t)(aligned - p));
	if (aligned + bytes != end)
		munmap(aligned + bytes, (size_t)(end - (aligned + bytes)));
	return aligned;
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
	/* Four classes per doubling: at most a fifth of a slot is wasted. */
	for (size_t base = 8 * GRANULE; base < SMALL_MAX; base *= 2)
		for (size_t i = 1; i <= 4; i++)
			sizes[n++] = base + base / 4 * i;
	for (size_t c = 0, granules = 0; c < CLASSES; c++) {
		for (size_t k = 2 * c; k < SMALL_KINDS; k += KIND_MOVABLE)
			h->slot_size[k] = h->slot_size[k + 1] = sizes[c];
		for (; granules * GRANULE <= sizes[c]; granules++) {
			h->class_of[granules] = (uint8_t)c;
			for (uint32_t k = 0; k < 4; k++)
				h->slot_sizes[k][granules] = (struct ebbgc_slot_size){
					(uint32_t)(2 * c) + k / 2 * KIND_MOVABLE + k % 2,
					(uint32_t)sizes[c]
				};
		}
	}
}

int regions_create(struct ebbgc_heap *h)
{
	static const struct region_list empty = { REGION_NONE, REGION_NONE };

	classes_fill(h);
	h->region_count = (uint32_t)(h->bytes >> REGION_SHIFT);
	h->base = map_aligned(h->bytes);
	h->marks = os_map(bitmap_bytes(h));
	h->allocated = os_map(bitmap_bytes(h));
	h->kinds = os_map(h->region_count);
	h->regions = os_map(h->region_count * sizeof(*h->regions));
	if (h->options.nursery_bytes) {
		h->nursery.old = os_map(bitmap_bytes(h));
		h->nursery.remembered = os_map(bitmap_bytes(h));
	}
	if (!h->base || !h->marks || !h->allocated || !h->kinds || !h->regions ||
	    (h->options.nursery_bytes && (!h->nursery.old || !h->nursery.remembered))) {
		regions_destroy(h);
		return -1;
	}
	for (unsigned int k = 0; k < SMALL_KINDS; k++)
		h->partial[k] = h->full[k] = h->unswept[k] = h->skipped[k] = h->recycled[k] = empty;
	h->large = h->large_unswept = h->large_dead = h->moving.regions = empty;
	h->nursery.young = REGION_NONE;
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
	if (h->nursery.old)
		munmap(h->nursery.old, bitmap_bytes(h));
	if (h->nursery.remembered)
		munmap(h->nursery.remembered, bitmap_bytes(h));
	if (!os_forked(h->pid))
		vector_free(&h->nursery.log);
	h->base = NULL;
	h->marks = h->allocated = h->nursery.old = h->nursery.remembered = NULL;
	h->kinds = NULL;
	h->regions = NULL;
}

struct side {
	void *start;
	size_t bytes;		/* per region */
};

/* Lists the side tables that barriers, sweeps and tracers read; returns their number. */
static unsigned int sides(const struct ebbgc_heap *h, struct side side[SIDES])
{
	const size_t granules = REGION_WORDS * sizeof(uint64_t), pages = REGION_SIZE / PAGE_BYTES;
	const struct residency *r = &h->residency;
	const struct side all[SIDES] = {
		{ h->marks, granules }, { h->allocated, granules }, { h->kinds, 1 },
		{ h->regions, sizeof(*h->regions) },
		{ h->nursery.old, granules }, { h->nursery.remembered, granules },
		{ h->moving.states, 1 }, { h->moving.forwards, sizeof(*h->moving.forwards) },
		{ h->moving.hot, granules },
		{ h->far.named, granules }, { h->far.holders, sizeof(*h->far.holders) },
		{ h->far.regions, sizeof(*h->far.regions) },
		{ h->far.oldest.items[0], sizeof(struct aged) },
		{ h->far.oldest.items[1], sizeof(struct aged) },
		{ h->far.oldest.places, sizeof(*h->far.oldest.places) },
		{ h->park.objects, granules }, { h->park.pages, pages / 8 },
		{ h->park.slices, pages / 8 },
		{ r->out, pages / 8 }, { r->cached, pages / 8 }, { r->last, pages / 8 },
		{ r->next, pages / 8 }, { r->seen, pages * sizeof(*r->seen) },
	};
	unsigned int count = 0;

	for (unsigned int i = 0; i < SIDES; i++)
		if (all[i].start)
			side[count++] = all[i];
	return count;
}

size_t regions_side_bytes(const struct ebbgc_heap *h)
{
	struct side side[SIDES];
	unsigned int count = sides(h, side);
	size_t bytes = 0;

	for (unsigned int i = 0; i < count; i++)
		bytes += side[i].bytes;
	return bytes;
}

/* Locks the used part of the side tables in memory: they must never fault. */
static void side_lock(struct ebbgc_heap *h)
{
	uint32_t from = h->side_locked, to = h->top + SIDE_LOCK_STEP - 1;
	struct side side[SIDES];
	unsigned int count;

	to -= to % SIDE_LOCK_STEP;
	if (!h->options.lock_side || to <= from)
		return;
	if (to > h->region_count)
		to = h->region_count;
	count = sides(h, side);
	for (unsigned int i = 0; i < count; i++) {
		if (mlock((char *)side[i].start + from * side[i].bytes,
			  (to - from) * side[i].bytes)) {
			/* RLIMIT_MEMLOCK; stats.side_locked shows it.  Not tried again. */
			h->options.lock_side = false;
			return;
		}
	}
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
		/* A free run at the end may extend into regions that were never used. */
		if (i + n == h->top)
			break;
		i += n;
	}
	if (i >= h->top || h->kinds[i] != KIND_FREE)
		i = h->top;
	return count <= h->region_count - i ? i : REGION_NONE;
}

/* Returns the first free region that is committed, which must exist. */
static uint32_t find_committed(const struct ebbgc_heap *h)
{
	uint32_t i = h->free_hint;

	while (h->kinds[i] != KIND_FREE || !h->regions[i].committed)
		i++;
	return i;
}

/* Returns the first of the next LOOK_MOST regions that is free and in memory, or REGION_NONE. */
static uint32_t find_resident(const struct ebbgc_heap *h)
{
	uint32_t end = h->top - h->free_hint > LOOK_MOST ? h->free_hint + LOOK_MOST : h->top;

	for (uint32_t i = h->free_hint; i < end; i++) {
		size_t page = i * REGION_PAGES;
		uint64_t out;

		if (h->kinds[i] != KIND_FREE || !h->regions[i].committed)
			continue;
		out = __atomic_load_n(&h->residency.out[page >> 6], __ATOMIC_RELAXED);
		if (!(out >> (page & 63) & ((UINT64_C(1) << REGION_PAGES) - 1)))
			return i;
	}
	return REGION_NONE;
}

void region_dropped(struct ebbgc_heap *h, uint32_t region, uint32_t pages)
{
	struct region *r = &h->regions[region];

	pages &= ~(uint32_t)r->dropped;
	r->dropped |= (uint16_t)pages;
	h->backing.dropped += (uint64_t)__builtin_popcount(pages) << PAGE_SHIFT;
}

void region_used(struct ebbgc_heap *h, uint32_t region)
{
	struct region *r = &h->regions[region];

	h->backing.dropped -= (uint64_t)__builtin_popcount(r->dropped) << PAGE_SHIFT;
	r->dropped = 0;
}

/* Some threads read kinds and spans without the lock. */
static void kind_set(struct ebbgc_heap *h, uint32_t region, uint8_t kind)
{
	__atomic_store_n(&h->kinds[region], kind, __ATOMIC_RELAXED);
}

uint32_t regions_take(struct ebbgc_heap *h, uint32_t count, uint8_t kind)
{
	/* Also of addresses there is a reserve. */
	if (h->far.on && count + h->far.addresses > h->region_count - h->used)
		return REGION_NONE;
	return regions_take_any(h, count, kind);
}

uint32_t regions_take_any(struct ebbgc_heap *h, uint32_t count, uint8_t kind)
{
	uint32_t first = REGION_NONE, old_top = h->top, fresh_count = 0;
	bool lowest = false;

	h->unbacked = false;
	if (count == 1 && h->committed_free && residency_counts(h))
		first = find_resident(h);
	if (first == REGION_NONE) {
		first = find_free(h, count);
		lowest = count == 1;
	}
	if (first == REGION_NONE)
		return REGION_NONE;
	for (uint32_t i = first; i < first + count; i++)
		fresh_count += !h->regions[i].committed;
	if (!backing_take(&h->backing, (uint64_t)fresh_count << REGION_SHIFT)) {
		h->unbacked = count > 1;
		if (count > 1 || !h->committed_free)
			return REGION_NONE;
		first = find_committed(h);
		lowest = false;
	}
	if (first + count > h->top)
		__atomic_store_n(&h->top, first + count, __ATOMIC_RELAXED);
	side_lock(h);
	for (uint32_t i = first; i < first + count; i++) {
		struct region *r = &h->regions[i];
		bool fresh = i >= old_top;

		if (r->committed)
			h->committed_free--;
		region_used(h, i);
		r->next = r->prev = REGION_NONE;
		r->cursor = 0;
		r->zero = fresh || !r->committed;
		r->committed = r->skipped = r->recycled = r->swept = false;
		r->arrived = h->far.clock++;
		__atomic_store_n(&r->span, i == first ? count : i - first, __ATOMIC_RELAXED);
		kind_set(h, i, i == first ? kind : KIND_TAIL);
	}
	h->used += count;
	/* What lies below, and is being released, lowers it again. */
	if (lowest || first == h->free_hint)
		h->free_hint = first + count;
	if (h->far.on)
		far_grown(h);
	return first;
}

void regions_free(struct ebbgc_heap *h, uint32_t first, uint32_t count)
{
	for (uint32_t i = first; i < first + count; i++) {
		kind_set(h, i, KIND_FREE);
		h->regions[i].committed = true;
	}
	h->committed_free += count;
	h->used -= count;
	if (first < h->free_hint)
		h->free_hint = first;
}

/* Returns the resident bytes of the heap; 0 without a budget, or if unknown. */
static uint64_t resident_look(struct ebbgc_heap *h)
{
	int64_t resident;

	if (!h->options.resident_budget)
		return 0;
	resident = residency_bytes(h->base, used_bytes(h));
	return resident > 0 ? (uint64_t)resident : 0;
}

/* Returns how many free regions keep their memory: without a budget, as many as a cycle uses. */
static uint64_t free_to_keep(struct ebbgc_heap *h, uint64_t resident)
{
	uint64_t budget = h->options.resident_budget, excess;

	if (resident)
		h->stats.resident_bytes = resident;
	/* Scattered regions hold no large object, but the memory behind them can back one. */
	if (h->unbacked_waiting)
		return 0;
	if (h->far.on)
		return far_spare(h);
	if (!budget)
		return h->used / 2 + (h->options.min_bytes >> REGION_SHIFT);
	excess = resident > budget ? (resident - budget) >> REGION_SHIFT : 0;
	return h->committed_free > excess ? h->committed_free - excess : 0;
}

/*
 * Takes a batch of adjacent free regions below *at, and lowers *at to the end of the search.
 * Returns their number, 0 if none were within LOOK_MOST regions.
 */
static uint32_t release_begin(struct ebbgc_heap *h, uint32_t *at, uint64_t keep)
{
	uint32_t count = 0, end = *at > LOOK_MOST ? *at - LOOK_MOST : 0;

	while (*at > end && count < RELEASE_MOST && h->committed_free > keep) {
		uint32_t i = *at - 1;

		if (h->kinds[i] == KIND_FREE && h->regions[i].committed) {
			kind_set(h, i, KIND_RELEASED);
			h->regions[i].committed = false;
			region_used(h, i);
			h->committed_free--;
			count++;
		} else if (count) {
			break;
		}
		*at = i;
	}
	h->releasing = count;
	return count;
}

static void release_end(struct ebbgc_heap *h, uint32_t first, uint32_t count, bool released)
{
	for (uint32_t i = first; i < first + count; i++)
		kind_set(h, i, KIND_FREE);
	if (count && first < h->free_hint)
		h->free_hint = first;
	if (released) {
		h->stats.released_bytes += (uint64_t)count << REGION_SHIFT;
	} else {
		for (uint32_t i = first; i < first + count; i++)
			h->regions[i].committed = true;
		h->committed_free += count;
	}
	h->releasing = 0;
	pthread_cond_broadcast(&h->released);
}

/*
 * Kept memory saves a fault and the kernel's zeroing; returned memory is never written to swap.
 * madvise() takes long, in particular for swapped-out pages, so threads can take regions during it.
 */
void regions_release(struct ebbgc_heap *h)
{
	uint64_t resident = resident_look(h), keep;
	bool released = true;
	uint32_t at, count;

	pthread_mutex_lock(&h->lock);
	keep = free_to_keep(h, resident);
	/* From the top, to keep the heap compact. */
	for (at = h->top; at && released && h->committed_free > keep;) {
		count = release_begin(h, &at, keep);
		pthread_mutex_unlock(&h->lock);
		/* Fails for locked memory (mlockall()), which then is not zero. */
		if (count)
			released = !madvise(region_start(h, at), (size_t)count << REGION_SHIFT,
					    MADV_DONTNEED);
		pthread_mutex_lock(&h->lock);
		if (count)
			release_end(h, at, count, released);
	}
	pthread_mutex_unlock(&h->lock);
}

uint64_t regions_bytes(struct ebbgc_heap *h)
{
	uint64_t bytes;

	pthread_mutex_lock(&h->lock);
	bytes = (uint64_t)h->used << REGION_SHIFT;
	pthread_mutex_unlock(&h->lock);
	return bytes;
}

void region_make_young(struct ebbgc_heap *h, uint32_t region)
{
	struct region *r = &h->regions[region];

	if (!h->nursery.old || r->young)
		return;
	r->young = true;
	r->young_next = h->nursery.young;
	h->nursery.young = region;
}

uint32_t region_pop_young(struct ebbgc_heap *h)
{
	uint32_t region = h->nursery.young;

	if (region != REGION_NONE) {
		h->nursery.young = h->regions[region].young_next;
		h->regions[region].young = false;
	}
	return region;
}

void region_list_push(struct ebbgc_heap *h, struct region_list *l, uint32_t region)
{
	h->regions[region].next = l->head;
	h->regions[region].prev = REGION_NONE;
	if (l->head == REGION_NONE)
		l->tail = region;
	else
		h->regions[l->head].prev = region;
	l->head = region;
}

static void list_remove(struct ebbgc_heap *h, struct region_list *l, uint32_t region)
{
	struct region *r = &h->regions[region];

	if (r->prev == REGION_NONE)
		l->head = r->next;
	else
		h->regions[r->prev].next = r->next;
	if (r->next == REGION_NONE)
		l->tail = r->prev;
	else
		h->regions[r->next].prev = r->prev;
	r->next = r->prev = REGION_NONE;
}

uint32_t region_list_pop(struct ebbgc_heap *h, struct region_list *l)
{
	uint32_t region = l->head;

	if (region != REGION_NONE)
		list_remove(h, l, region);
	return region;
}

void region_list_append(struct ebbgc_heap *h, struct region_list *to, struct region_list *from)
{
	if (from->head == REGION_NONE)
		return;
	if (to->head == REGION_NONE) {
		to->head = from->head;
	} else {
		h->regions[to->tail].next = from->head;
		h->regions[from->head].prev = to->tail;
	}
	to->tail = from->tail;
	from->head = from->tail = REGION_NONE;
}

void region_enlist(struct ebbgc_heap *h, uint32_t region, bool full)
{
	const struct region *r = &h->regions[region];
	uint8_t kind = h->kinds[region];

	region_list_push(h, full ? &h->full[kind] : &h->partial[kind], region);
	if (h->far.on && kind >= KIND_MOVABLE)
		oldest_add(&h->far.oldest, region, r->swept, r->arrived);
}

void region_delist(struct ebbgc_heap *h, uint32_t region)
{
	struct region_list *l = &h->full[h->kinds[region]];

	/* Only the ends of a list know that it is theirs. */
	if (l->head != region && l->tail != region)
		l = &h->partial[h->kinds[region]];
	list_remove(h, l, region);
	region_stays(h, region);
}
