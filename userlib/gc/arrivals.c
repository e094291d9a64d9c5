// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <sys/mman.h>
#include "heap.h"

#define NAP_MIN_NS 100000u	/* about a read from far memory */
#define NAP_MAX_NS 12800000u	/* that times a power of two, once nothing arrives */

_Static_assert(HINT_PAGES <= FETCH_PAGES, "pages_advise()");

void arrivals_open(struct arrivals *a, const struct arrival_ring *ring)
{
	*a = (struct arrivals){ .ring = ring, .nap_ns = NAP_MAX_NS };
	arrivals_clear(a);
}

void arrivals_clear(struct arrivals *a)
{
	if (a->ring)
		__atomic_store_n(&a->tail, __atomic_load_n(&a->ring->head, __ATOMIC_ACQUIRE),
				 __ATOMIC_RELAXED);
}

/* Takes the oldest entry; false if there is none.  It is 0 if it was lost. */
static bool take(struct arrivals *a, uint64_t *entry)
{
	uint64_t tail = __atomic_load_n(&a->tail, __ATOMIC_RELAXED), head, from;

	do {
		head = __atomic_load_n(&a->ring->head, __ATOMIC_ACQUIRE);
		if (head == tail)
			return false;
		from = head - tail > ARRIVALS ? head - ARRIVALS : tail;
		*entry = __atomic_load_n(&a->ring->entry[from % ARRIVALS], __ATOMIC_ACQUIRE);
	} while (!__atomic_compare_exchange_n(&a->tail, &tail, from + 1, false, __ATOMIC_ACQ_REL,
					      __ATOMIC_RELAXED));
	if (from != tail)
		__atomic_fetch_add(&a->lost, from - tail, __ATOMIC_RELAXED);
	/* Not yet written, or written over since. */
	if ((*entry >> ARRIVAL_ROUND) != (from / ARRIVALS & 0xff)) {
		__atomic_fetch_add(&a->lost, 1, __ATOMIC_RELAXED);
		*entry = 0;
	}
	return true;
}

bool arrivals_next(struct ebbgc_heap *h, struct arrival *arrival)
{
	uint64_t base = (uint64_t)(uintptr_t)h->base, entry;

	while (h->arrivals.ring && take(&h->arrivals, &entry)) {
		uint64_t top = (uint64_t)__atomic_load_n(&h->top, __ATOMIC_RELAXED) << REGION_SHIFT;

		arrival->address = (entry & (ARRIVAL_COLLECTOR - 1)) << ARRIVAL_SHIFT;
		arrival->collectors = entry & ARRIVAL_COLLECTOR;
		if (arrival->address < base || arrival->address - base >= top)
			continue;
		__atomic_fetch_add(&h->arrivals.taken, 1, __ATOMIC_RELAXED);
		return true;
	}
	return false;
}

/* --- hints ------------------------------------------------------------------------------ */

/* What a word may refer to, if that is out. */
static void hint(const struct ebbgc_heap *h, struct hints *hints, uint64_t word)
{
	uint64_t offset = (word & EBBGC_ADDRESS_MASK) - (uint64_t)(uintptr_t)h->base;
	unsigned int i = hints->count;
	uint32_t page;

	if (offset >= (uint64_t)__atomic_load_n(&h->top, __ATOMIC_RELAXED) << REGION_SHIFT ||
	    offset % GRANULE != HEADER)
		return;
	page = (uint32_t)(offset >> PAGE_SHIFT);
	if (residency_of(&h->residency, page) != PAGE_OUT)
		return;
	while (i && hints->pages[i - 1] > page)
		i--;
	if (i && hints->pages[i - 1] == page)
		return;
	for (unsigned int j = hints->count++; j > i; j--)
		hints->pages[j] = hints->pages[j - 1];
	hints->pages[i] = page;
}

/* The program may be writing it: a hint may be wrong. */
static __attribute__((noinline, no_sanitize("address", "thread")))
uint64_t word_at(const char *p)
{
	return *(const volatile uint64_t *)p;
}

/* That of the whole, for a part of a large object; whatever happens to the region meanwhile. */
static uint8_t kind_of(const struct ebbgc_heap *h, uint32_t region)
{
	uint8_t kind = __atomic_load_n(&h->kinds[region], __ATOMIC_RELAXED);
	uint32_t back;

	if (kind != KIND_TAIL)
		return kind;
	back = h->regions[region].span;
	return back <= region ? __atomic_load_n(&h->kinds[region - back], __ATOMIC_RELAXED) : KIND_FREE;
}

/*
 * Words are looked at, not objects: only what lies on this page is read, which is in, and nothing
 * needs to be true of it.  Allocation bits spare the free slots, regions without references the
 * rest.
 */
void hints_add(const struct ebbgc_heap *h, struct hints *hints, uint64_t address)
{
	uint32_t region = region_of(h, address);
	uint8_t kind = kind_of(h, region);
	size_t size = kind < SMALL_KINDS ? h->slot_size[kind] : 0;
	size_t offset = address & (REGION_SIZE - 1), begin = offset & ~(PAGE_BYTES - 1);
	size_t end = begin + PAGE_BYTES;
	const char *start = region_start(h, region);

	if (kind_is_leaf(kind) || (!size && kind != KIND_LARGE))
		return;
	/* From the beginning of the object, as far as it lies on this page. */
	if (!size)
		begin = offset;
	else if (offset / size * size > begin)
		begin = offset / size * size;
	for (size_t at = begin; at < end && hints->count < HINT_PAGES; at += 8) {
		if (size && at / size >= REGION_SIZE / size)
			break;
		if (size && !bit_test(h->allocated, granule_of(h, (uint64_t)(uintptr_t)start +
							       at / size * size))) {
			at = (at / size + 1) * size - 8;
			continue;
		}
		hint(h, hints, word_at(start + at));
	}
}

void hints_send(struct ebbgc_heap *h, struct hints *hints)
{
	if (!hints->count)
		return;
	__atomic_fetch_add(&h->arrivals.hint_calls,
			   pages_advise(h, hints->pages, hints->count, MADV_WILLNEED),
			   __ATOMIC_RELAXED);
	__atomic_fetch_add(&h->arrivals.hinted, hints->count, __ATOMIC_RELAXED);
	for (unsigned int i = 0; i < hints->count; i++)
		residency_asked(&h->residency, hints->pages[i]);
	hints->count = 0;
}

void hints_between(struct ebbgc_heap *h)
{
	struct hints hints = { .count = 0 };
	struct arrival a;
	bool any = false;

	if (!hints_wait(h))
		return;
	while (arrivals_next(h, &a)) {
		any = true;
		residency_touched(&h->residency, page_of(h, a.address));
		if (!a.collectors)
			hints_add(h, &hints, a.address);
		if (hints.count == HINT_PAGES)
			hints_send(h, &hints);
	}
	hints_send(h, &hints);
	if (any)
		h->arrivals.nap_ns = NAP_MIN_NS;
	else if (h->arrivals.nap_ns < NAP_MAX_NS)
		h->arrivals.nap_ns *= 2;
}

uint64_t hints_wait(const struct ebbgc_heap *h)
{
	return (h->options.features & EBBGC_HINTS) && h->arrivals.ring ? h->arrivals.nap_ns : 0;
}
