// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <string.h>
#include <sys/mman.h>
#include "object.h"
#include "os.h"
#include "region.h"
#include "supply.h"
#include "trigger.h"

/*
 * Sets bits from, from + stride, ... below `to`.  If stride divides 64, the bits are the same in
 * every word.
 */
static void bits_fill(uint64_t *bits, size_t from, size_t to, size_t stride)
{
	uint64_t pattern;

	if (stride >= 64 || 64 % stride) {
		for (; from < to; from += stride)
			bits_publish(&bits[from >> 6], UINT64_C(1) << (from & 63));
		return;
	}
	pattern = ~UINT64_C(0) / ((UINT64_C(1) << stride) - 1);
	while (from < to) {
		size_t word = from >> 6, next = (word + 1) << 6;
		uint64_t mask = pattern & (~UINT64_C(0) << (from & 63));

		if (next > to)
			mask &= (UINT64_C(1) << (to & 63)) - 1;
		bits_publish(&bits[word], mask);
		from = next;
	}
}

/* Returns the first set bit, or `to`. */
static size_t bits_next(const uint64_t *bits, size_t from, size_t to)
{
	while (from < to) {
		uint64_t word = __atomic_load_n(&bits[from >> 6], __ATOMIC_RELAXED) >> (from & 63);

		if (word)
			return from + (size_t)__builtin_ctzll(word) < to ?
			       from + (size_t)__builtin_ctzll(word) : to;
		from = ((from >> 6) + 1) << 6;
	}
	return to;
}

static void run_mark(struct ebbgc_heap *h, const char *from, const char *to, size_t size)
{
	if (from < to)
		bits_fill(h->marks, granule_of(h, (uint64_t)(uintptr_t)from),
			  granule_of(h, (uint64_t)(uintptr_t)to), size >> GRANULE_SHIFT);
}

void supplies_blacken(struct ebbgc_heap *h, struct mutator *m)
{
	for (unsigned int k = 0; k < SMALL_KINDS; k++)
		run_mark(h, m->supply[k].next, m->supply[k].end, h->slot_size[k]);
}

void supplies_drop_regions(struct ebbgc_heap *h, struct mutator *m)
{
	for (unsigned int k = 0; k < SMALL_KINDS; k++) {
		uint32_t region = m->supply[k].region;

		if (region != REGION_NONE && !h->regions[region].young)
			region_enlist(h, region, false);
		m->supply[k].region = REGION_NONE;
	}
}

uint64_t supplies_drop(struct ebbgc_heap *h, struct mutator *m)
{
	uint64_t dropped = 0;

	supplies_drop_regions(h, m);
	for (unsigned int k = 0; k < SMALL_KINDS; k++) {
		struct supply *s = &m->supply[k];

		dropped += (uint64_t)(s->end - s->next);
		for (; s->next < s->end; s->next += h->slot_size[k]) {
			size_t i = granule_of(h, (uint64_t)(uintptr_t)s->next);

			__atomic_fetch_and(&h->allocated[i >> 6], ~(UINT64_C(1) << (i & 63)),
					   __ATOMIC_RELAXED);
		}
		s->next = s->end = NULL;
	}
	__atomic_fetch_add(&h->allocated_bytes, m->uncounted, __ATOMIC_RELAXED);
	m->uncounted = 0;
	return dropped;
}

uint64_t faults_before(const struct ebbgc_heap *h)
{
	return h->options.features & EBBGC_COUNT_FAULTS ? os_major_faults() : 0;
}

void faults_count(struct ebbgc_heap *h, uint64_t before)
{
	if (h->options.features & EBBGC_COUNT_FAULTS)
		__atomic_fetch_add(&h->allocation_faults, os_major_faults() - before,
				   __ATOMIC_RELAXED);
}

/* Free bytes of a region that has live objects, from its start. */
struct hole {
	size_t begin, end;
};

static bool hole_has_page(const struct hole *hole, size_t page)
{
	return hole->begin <= page << PAGE_SHIFT && hole->end >= (page + 1) << PAGE_SHIFT;
}

/* Would writing to this page of the region read it, as not all of it is free? */
static bool page_costs_read(struct ebbgc_heap *h, uint32_t region, size_t page,
			    const struct hole *hole)
{
	uint64_t start = (uint64_t)(uintptr_t)region_start(h, region);

	return !hole_has_page(hole, page) &&
	       residency_is_out(&h->residency, page_of(h, start) + page);
}

/* Narrows slots [*from, *to) of a hole to the first ones that cost no read; perhaps to none. */
static void run_narrow(struct ebbgc_heap *h, uint32_t region, size_t size, const struct hole *hole,
		       size_t *from, size_t *to)
{
	for (size_t page = *from * size >> PAGE_SHIFT;
	     *from < *to && page <= (*to * size - 1) >> PAGE_SHIFT; page++) {
		size_t begin = page << PAGE_SHIFT;

		if (!page_costs_read(h, region, page, hole))
			continue;
		if (begin >= (*from + 1) * size)
			*to = begin / size;
		else
			*from = (begin + PAGE_BYTES + size - 1) / size;
	}
}

/* Zeroes bytes [from, to) of a hole; does not read swapped-out pages that are free as a whole. */
static void hole_zero(struct ebbgc_heap *h, uint32_t region, const struct hole *hole, size_t from,
		      size_t to)
{
	char *start = region_start(h, region);
	size_t first = page_of(h, (uint64_t)(uintptr_t)start), next;

	for (; from < to; from = next) {
		size_t page = from >> PAGE_SHIFT;

		next = (page + 1) << PAGE_SHIFT;
		if (next > to)
			next = to;
		if (!hole_has_page(hole, page) ||
		    !residency_is_out(&h->residency, first + page) ||
		    madvise(start + (page << PAGE_SHIFT), PAGE_BYTES, MADV_DONTNEED))
			memset(start + from, 0, next - from);
		residency_touched(&h->residency, first + page);
	}
}

void region_zero(struct ebbgc_heap *h, uint32_t region)
{
	const struct hole all = { 0, REGION_SIZE };

	if (residency_counts(h))
		hole_zero(h, region, &all, 0, REGION_SIZE);
	else
		memset(region_start(h, region), 0, REGION_SIZE);
}

bool supply_take(struct mutator *m, unsigned int kind)
{
	struct ebbgc_heap *h = m->heap;
	struct supply *s = &m->supply[kind];
	struct region *r = &h->regions[s->region];
	size_t size = h->slot_size[kind], stride = size >> GRANULE_SHIFT;
	uint64_t *bits = h->allocated + (size_t)s->region * REGION_WORDS;
	size_t slots = REGION_SIZE / size, i = r->cursor, end;
	size_t most = size < RUN_BYTES ? RUN_BYTES / size : 1;
	bool choosy = !r->zero && !s->all_holes && residency_counts(h);
	struct hole hole;
	uint64_t faults;

	for (;; i = end) {
		size_t first;

		while (i < slots && bit_test(bits, i * stride))
			i++;
		r->cursor = (uint32_t)i;
		if (i >= slots)
			return false;
		end = i + most < slots ? i + most : slots;
		end = bits_next(bits, i * stride, end * stride) / stride;
		if (!choosy)
			break;
		first = bits_next(bits, i * stride, slots * stride) / stride;
		hole = (struct hole){ i * size, first < slots ? first * size : REGION_SIZE };
		first = i;
		run_narrow(h, s->region, size, &hole, &i, &end);
		r->skipped |= i != first;
		if (i < end)
			break;
		end = i;
	}
	r->cursor = (uint32_t)end;
	s->next = region_start(h, s->region) + i * size;
	s->end = s->next + (end - i) * size;
	faults = faults_before(h);
	if (choosy)
		hole_zero(h, s->region, &hole, i * size, end * size);
	else if (!r->zero)
		memset(s->next, 0, (size_t)(s->end - s->next));
	faults_count(h, faults);
	if (h->marking)
		run_mark(h, s->next, s->end, size);
	/* Last: a tracer that finds a slot by an arrival must see it zeroed and marked. */
	bits_fill(bits, i * stride, end * stride, stride);
	allocated_count(m, (size_t)(s->end - s->next));
	return true;
}
