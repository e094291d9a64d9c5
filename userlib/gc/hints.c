// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <sys/mman.h>
#include "forward.h"
#include "heap.h"
#include "hints.h"
#include "object.h"

#define NAP_MIN_NS 100000u	/* about a read from far memory */
#define NAP_MAX_NS 12800000u	/* a power of two times NAP_MIN_NS, while nothing arrives */

void hints_open(struct ebbgc_heap *h)
{
	h->hint_nap_ns = NAP_MAX_NS;
}

/* Adds the page that a word may refer to, if the page is swapped out. */
static void hint(const struct ebbgc_heap *h, struct hints *hints, uint64_t word)
{
	uint64_t object = forward(h, word & EBBGC_ADDRESS_MASK);
	uint64_t offset = object - (uint64_t)(uintptr_t)h->base;
	unsigned int i = hints->count;
	uint32_t page;

	if (offset >= used_bytes(h) ||
	    offset % GRANULE != HEADER)
		return;
	page = (uint32_t)(offset >> PAGE_SHIFT);
	if (residency_state(&h->residency, page) != PAGE_SWAPPED_OUT)
		return;
	while (i && hints->pages[i - 1] > page)
		i--;
	if (i && hints->pages[i - 1] == page)
		return;
	for (unsigned int j = hints->count++; j > i; j--)
		hints->pages[j] = hints->pages[j - 1];
	hints->pages[i] = page;
}

/* Reads a word that the program may be writing: a hint may be wrong. */
static __attribute__((noinline, no_sanitize("address", "thread")))
uint64_t word_at(const char *p)
{
	return *(const volatile uint64_t *)p;
}

/*
 * Examines words, not objects: reads only this page, which is in memory, and assumes nothing about
 * its content.  Allocation bits exclude free slots, region kinds exclude leaves.
 */
void hints_add(const struct ebbgc_heap *h, struct hints *hints, uint64_t address)
{
	uint32_t region = region_of(h, address);
	uint8_t kind = __atomic_load_n(&h->kinds[region_first(h, region)], __ATOMIC_RELAXED);
	size_t size = kind < SMALL_KINDS ? h->slot_size[kind] : 0;
	size_t offset = address & (REGION_SIZE - 1), begin = offset & ~(PAGE_BYTES - 1);
	size_t end = begin + PAGE_BYTES;
	const char *start = region_start(h, region);

	if (kind_is_leaf(kind) || (!size && kind != KIND_LARGE))
		return;
	/* From the object's or the page's beginning, whichever is later. */
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
	__atomic_fetch_add(
		&h->hint_calls,
		advice_give(&h->advice, h->base, hints->pages, hints->count, MADV_WILLNEED),
		__ATOMIC_RELAXED);
	__atomic_fetch_add(&h->hinted_pages, hints->count, __ATOMIC_RELAXED);
	for (unsigned int i = 0; i < hints->count; i++)
		residency_requested(&h->residency, hints->pages[i]);
	hints->count = 0;
}

/* An object may be there that will be swept: it does not move. */
static void heat_at(const struct ebbgc_heap *h, uint64_t address)
{
	uint64_t object = old_object_containing(h, address);

	if (object)
		heat_add(h, object);
}

void hints_between_cycles(struct ebbgc_heap *h)
{
	struct hints hints = { .count = 0 };
	struct arrival a;
	bool any = false;

	if (!hints_wait(h))
		return;
	while (arrivals_next(&h->arrivals, h->base, used_bytes(h), &a)) {
		any = true;
		residency_touched(&h->residency, page_of(h, a.address));
		if (!a.collectors) {
			hints_add(h, &hints, a.address);
			heat_at(h, a.address);
		}
		if (hints.count == HINT_PAGES)
			hints_send(h, &hints);
	}
	hints_send(h, &hints);
	if (any)
		h->hint_nap_ns = NAP_MIN_NS;
	else if (h->hint_nap_ns < NAP_MAX_NS)
		h->hint_nap_ns *= 2;
}

uint64_t hints_wait(const struct ebbgc_heap *h)
{
	return (h->options.features & EBBGC_HINTS) && h->arrivals.ring ? h->hint_nap_ns : 0;
}
