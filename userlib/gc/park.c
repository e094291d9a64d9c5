// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include "location.h"
#include "mark.h"
#include "object.h"
#include "os.h"
#include "park.h"
#include "work_pool.h"

#define PAGE_WORDS (PAGE_BYTES / GRANULE / 64)
#define ARRIVE_NS 50000u
#define ARRIVE_TRIES 40		/* 2 ms, plus the wake-ups */

static size_t object_bytes(const struct ebbgc_heap *h)
{
	return h->bytes / GRANULE / 8;
}

static size_t page_bitmap_bytes(const struct ebbgc_heap *h)
{
	return h->bytes / PAGE_BYTES / 8;
}

int park_create(struct ebbgc_heap *h)
{
	struct park *p = &h->park;

	pthread_mutex_init(&p->lock, NULL);
	if (!(h->options.features & EBBGC_PARK))
		return 0;
	p->objects = os_map(object_bytes(h));
	p->pages = os_map(page_bitmap_bytes(h));
	p->slices = os_map(page_bitmap_bytes(h));
	return p->objects && p->pages && p->slices ? 0 : -ENOMEM;
}

void park_destroy(struct ebbgc_heap *h)
{
	struct park *p = &h->park;

	if (p->objects)
		munmap(p->objects, object_bytes(h));
	if (p->pages)
		munmap(p->pages, page_bitmap_bytes(h));
	if (p->slices)
		munmap(p->slices, page_bitmap_bytes(h));
	p->objects = p->pages = p->slices = NULL;
}

void park_begin(struct ebbgc_heap *h)
{
	struct park *p = &h->park;

	p->idle = 0;
	p->idle_scan = __atomic_load_n(&h->residency.scans, __ATOMIC_RELAXED);
	p->cursor = 0;
	p->asked_count = p->traced_count = 0;
}

bool park_has_work(const struct ebbgc_heap *h)
{
	return h->park.objects && __atomic_load_n(&h->park.count, __ATOMIC_RELAXED);
}

/* Returns true if this call set the bit. */
static bool set_ordered(uint64_t *bits, size_t i)
{
	uint64_t bit = UINT64_C(1) << (i & 63);

	return !(__atomic_fetch_or(&bits[i >> 6], bit, __ATOMIC_SEQ_CST) & bit);
}

static void park(struct tracer *t, uint64_t *bits, size_t i, size_t page)
{
	struct ebbgc_heap *h = t->heap;

	if (!set_ordered(bits, i))
		return;
	t->counts.parked++;
	/* Last: a tracer that clears the page's bit must find the work. */
	if (set_ordered(h->park.pages, page))
		__atomic_fetch_add(&h->park.count, 1, __ATOMIC_RELAXED);
}

void park_object(struct tracer *t, uint64_t object)
{
	struct ebbgc_heap *h = t->heap;

	park(t, h->park.objects, granule_of(h, object), page_of(h, object));
}

void park_slice(struct tracer *t, size_t page)
{
	park(t, t->heap->park.slices, page, page);
}

/* Moves the page's work to the tracer; returns the number of objects and slices. */
static unsigned int take_page(struct tracer *t, size_t page)
{
	struct ebbgc_heap *h = t->heap;
	uint64_t bit = UINT64_C(1) << (page & 63);
	unsigned int n = 0;

	if (!(__atomic_load_n(&h->park.pages[page >> 6], __ATOMIC_RELAXED) & bit))
		return 0;
	if (__atomic_fetch_and(&h->park.pages[page >> 6], ~bit, __ATOMIC_SEQ_CST) & bit)
		__atomic_fetch_sub(&h->park.count, 1, __ATOMIC_RELAXED);
	if (__atomic_fetch_and(&h->park.slices[page >> 6], ~bit, __ATOMIC_SEQ_CST) & bit) {
		work_push(t, ((uint64_t)(uintptr_t)h->base + (page << PAGE_SHIFT)) | WORK_FORCED);
		n++;
	}
	for (size_t w = page * PAGE_WORDS; w < (page + 1) * PAGE_WORDS; w++) {
		uint64_t bits = __atomic_exchange_n(&h->park.objects[w], 0, __ATOMIC_SEQ_CST);

		for (; bits; bits &= bits - 1, n++) {
			size_t granule = 64 * w + (size_t)__builtin_ctzll(bits);
			uint64_t object = (uint64_t)(uintptr_t)h->base +
					  (granule << GRANULE_SHIFT) + HEADER;

			work_push(t, object | WORK_FORCED);
		}
	}
	return n;
}

void park_wake(struct tracer *t, size_t page)
{
	t->counts.woken += take_page(t, page);
}

/* Wakes work of pages that were swapped in since; returns true if there was any. */
static bool wake_all(struct tracer *t)
{
	struct ebbgc_heap *h = t->heap;
	size_t words = (used_bytes(h) >> PAGE_SHIFT) / 64 + 1;
	uint64_t before = t->counts.woken;

	if (words > page_bitmap_bytes(h) / 8)
		words = page_bitmap_bytes(h) / 8;
	for (size_t w = 0; w < words; w++) {
		uint64_t here = __atomic_load_n(&h->park.pages[w], __ATOMIC_RELAXED);

		if (!here)
			continue;
		here &= ~__atomic_load_n(&h->residency.out[w], __ATOMIC_RELAXED);
		for (; here; here &= here - 1)
			park_wake(t, 64 * w + (size_t)__builtin_ctzll(here));
	}
	return t->counts.woken != before;
}

void park_wake_scanned(struct tracer *t)
{
	struct park *p = &t->heap->park;
	uint64_t scan = __atomic_load_n(&t->heap->residency.scans, __ATOMIC_RELAXED);

	if (!p->objects || !__atomic_load_n(&p->count, __ATOMIC_RELAXED) ||
	    __atomic_exchange_n(&p->scan, scan, __ATOMIC_RELAXED) == scan)
		return;
	wake_all(t);
}

/*
 * Collects the next swapped-out pages with parked work from the cursor on; returns their number, 0
 * at the end of the heap.  Wakes work of pages that are in memory: swapped in since the last scan,
 * or prefetched for the program, which scans do not show.
 */
static unsigned int next_batch(struct tracer *t, uint32_t *pages)
{
	struct ebbgc_heap *h = t->heap;
	size_t end = used_bytes(h) >> PAGE_SHIFT;
	size_t page = h->park.cursor;
	unsigned int n = 0, in = 0;

	while (n < ADVICE_PAGES && in < ADVICE_PAGES && page < end) {
		uint64_t word = __atomic_load_n(&h->park.pages[page >> 6], __ATOMIC_RELAXED) >>
				(page & 63);

		if (!word) {
			page = ((page >> 6) + 1) << 6;
			continue;
		}
		page += (size_t)__builtin_ctzll(word);
		if (page >= end)
			break;
		if (residency_is_in(&h->residency, page)) {
			park_wake(t, page);
			in++;
		} else {
			pages[n++] = (uint32_t)page;
		}
		page++;
	}
	h->park.cursor = n || in ? page : 0;
	return n;
}

/* Waits for a batch: sleeping costs less than faults on pages in flight. */
static void await(struct ebbgc_heap *h, uint32_t last)
{
	unsigned char in = 0;

	for (unsigned int i = 0; i < ARRIVE_TRIES; i++) {
		if (mincore(h->base + (size_t)last * PAGE_BYTES, PAGE_BYTES, &in) || (in & 1))
			return;
		os_sleep(ARRIVE_NS);
	}
}

/* Requests a batch, takes the previous batch's work, and deactivates the batch before that. */
static void fetch_step(struct tracer *t)
{
	struct park *p = &t->heap->park;
	uint32_t pages[ADVICE_PAGES];
	unsigned int n = next_batch(t, pages);

	if (n)
		t->counts.fetch_calls += advice_give(&t->heap->advice, t->heap->base, pages, n,
						     MADV_WILLNEED);
	t->counts.fetched += n;
	/* Pages that the program uses become active again before they are reclaimed. */
	if ((t->heap->options.features & EBBGC_COLD) && p->traced_count) {
		advice_give(&t->heap->advice, t->heap->base, p->traced, p->traced_count, MADV_COLD);
		t->counts.cooled += p->traced_count;
	}
	if (p->asked_count)
		await(t->heap, p->asked[p->asked_count - 1]);
	for (unsigned int i = 0; i < p->asked_count; i++)
		take_page(t, p->asked[i]);
	memcpy(p->traced, p->asked, sizeof(p->traced));
	p->traced_count = p->asked_count;
	memcpy(p->asked, pages, n * sizeof(*pages));
	p->asked_count = n;
}

enum park_step park_step(struct tracer *t)
{
	struct ebbgc_heap *h = t->heap;
	struct park *p = &h->park;
	enum park_step done = PARK_MOVED;
	uint64_t scan;

	if (!park_has_work(h))
		return PARK_EMPTY;
	location_update(h);
	scan = __atomic_load_n(&h->residency.scans, __ATOMIC_RELAXED);
	pthread_mutex_lock(&p->lock);
	if (wake_all(t)) {
		p->idle = 0;
		p->idle_scan = scan;
	} else if (p->idle < location_max_delays(h)) {
		/* Only another scan can show that a wait was in vain. */
		p->idle += scan != p->idle_scan;
		p->idle_scan = scan;
		done = PARK_WAIT;
	} else {
		fetch_step(t);
	}
	pthread_mutex_unlock(&p->lock);
	return done;
}

void park_woke(struct ebbgc_heap *h)
{
	pthread_mutex_lock(&h->park.lock);
	h->park.idle -= h->park.idle > 0;
	pthread_mutex_unlock(&h->park.lock);
}
