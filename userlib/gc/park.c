// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include "heap.h"

#define PAGE_WORDS (PAGE_BYTES / GRANULE / 64)
#define NAP_MIN_NS 1000000u
#define NAP_MAX_NS 20000000u
#define NAP_ARRIVALS_NS 200000u	/* between two looks at what has arrived */
#define ARRIVE_NS 50000u
#define ARRIVE_TRIES 40		/* 2 ms, and what waking up takes */

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
	if (h->options.features & (EBBGC_PARK | EBBGC_HINTS))
		p->pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	if (!(h->options.features & EBBGC_PARK))
		return 0;
	p->objects = map_pages(object_bytes(h));
	p->pages = map_pages(page_bitmap_bytes(h));
	p->slices = map_pages(page_bitmap_bytes(h));
	if (!p->objects || !p->pages || !p->slices)
		return -ENOMEM;
	return 0;
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
	if (p->pidfd >= 0)
		close(p->pidfd);
	p->pidfd = -1;
	p->objects = p->pages = p->slices = NULL;
}

/* True if this call has set it. */
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
	/* After the work's bit: who clears the page's then finds the work. */
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

/* How many objects and slices that were. */
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

/* Pages that came in since they were parked. */
static bool wake_all(struct tracer *t)
{
	struct ebbgc_heap *h = t->heap;
	size_t words = ((size_t)__atomic_load_n(&h->top, __ATOMIC_RELAXED) << REGION_SHIFT >> PAGE_SHIFT) / 64 + 1;
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

void park_look(struct tracer *t)
{
	struct park *p = &t->heap->park;
	uint64_t scan = __atomic_load_n(&t->heap->residency.scans, __ATOMIC_RELAXED);

	if (!p->objects || !__atomic_load_n(&p->count, __ATOMIC_RELAXED) ||
	    __atomic_exchange_n(&p->scan, scan, __ATOMIC_RELAXED) == scan)
		return;
	wake_all(t);
}

/* False if there is something to do before the time is up: what has arrived. */
static bool nap(struct tracer *t)
{
	struct ebbgc_heap *h = t->heap;
	uint64_t ns = location_wait(h), slice;
	struct timespec time = { 0 };

	ns = ns < NAP_MIN_NS ? NAP_MIN_NS : ns > NAP_MAX_NS ? NAP_MAX_NS : ns;
	slice = h->arrivals.ring ? NAP_ARRIVALS_NS : ns;
	for (; ns; ns -= slice) {
		if (slice > ns)
			slice = ns;
		time.tv_nsec = (long)slice;
		nanosleep(&time, NULL);
		if (arrivals_waiting(&h->arrivals))
			memliner_arrivals(t);
		if (t->depth)
			return false;
	}
	return true;
}

size_t pages_advise(struct ebbgc_heap *h, const uint32_t *pages, unsigned int n, int advice)
{
	struct park *p = &h->park;
	struct iovec runs[FETCH_PAGES];
	size_t count = 0;

	for (unsigned int i = 0; i < n; i++) {
		char *at = h->base + (size_t)pages[i] * PAGE_BYTES;

		if (count && (char *)runs[count - 1].iov_base + runs[count - 1].iov_len == at)
			runs[count - 1].iov_len += PAGE_BYTES;
		else
			runs[count++] = (struct iovec){ at, PAGE_BYTES };
	}
	if (p->pidfd >= 0 && !__atomic_load_n(&p->one_by_one, __ATOMIC_RELAXED)) {
		if (syscall(SYS_process_madvise, p->pidfd, runs, count, advice, 0) >= 0)
			return 1;
		__atomic_store_n(&p->one_by_one, true, __ATOMIC_RELAXED);
	}
	for (size_t i = 0; i < count; i++)
		madvise(runs[i].iov_base, runs[i].iov_len, advice);
	return count;
}

/*
 * The next pages with parked work from the cursor on; 0 at the end of the heap.  What has come in
 * since the last scan, or has been read ahead for the program, which scans do not tell, is woken.
 */
static unsigned int next_batch(struct tracer *t, uint32_t *pages)
{
	struct ebbgc_heap *h = t->heap;
	size_t end = (size_t)__atomic_load_n(&h->top, __ATOMIC_RELAXED) <<
		     REGION_SHIFT >> PAGE_SHIFT;
	size_t page = h->park.cursor;
	unsigned int n = 0, in = 0;

	while (n < FETCH_PAGES && in < FETCH_PAGES && page < end) {
		uint64_t word = __atomic_load_n(&h->park.pages[page >> 6], __ATOMIC_RELAXED) >>
				(page & 63);

		if (!word) {
			page = ((page >> 6) + 1) << 6;
			continue;
		}
		page += (size_t)__builtin_ctzll(word);
		if (page >= end)
			break;
		if (residency_in(&h->residency, page)) {
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

/* Until a batch has been read: sleeping costs less than faults that wait for the same pages. */
static void await(struct ebbgc_heap *h, uint32_t last)
{
	const struct timespec time = { 0, ARRIVE_NS };
	unsigned char in = 0;

	for (unsigned int i = 0; i < ARRIVE_TRIES; i++) {
		if (mincore(h->base + (size_t)last * PAGE_BYTES, PAGE_BYTES, &in) || (in & 1))
			return;
		nanosleep(&time, NULL);
	}
}

/* Asks for a batch, traces the one before, and has done with the one before that. */
static void fetch_step(struct tracer *t)
{
	struct park *p = &t->heap->park;
	uint32_t pages[FETCH_PAGES];
	unsigned int n = next_batch(t, pages);

	if (n)
		t->counts.fetch_calls += pages_advise(t->heap, pages, n, MADV_WILLNEED);
	t->counts.fetched += n;
	/* What the program uses of it is used again before it is reclaimed. */
	if ((t->heap->options.features & EBBGC_COLD) && p->traced_count) {
		pages_advise(t->heap, p->traced, p->traced_count, MADV_COLD);
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

bool park_step(struct tracer *t)
{
	struct ebbgc_heap *h = t->heap;
	struct park *p = &h->park;
	bool sleepy = false;
	uint64_t scan;

	if (!p->objects || !__atomic_load_n(&p->count, __ATOMIC_RELAXED))
		return false;
	location_look(h);
	scan = __atomic_load_n(&h->residency.scans, __ATOMIC_RELAXED);
	pthread_mutex_lock(&p->lock);
	if (wake_all(t)) {
		p->idle = 0;
		p->idle_scan = scan;
	} else if (p->idle < location_delays(h)) {
		/* That a wait was in vain only another scan can tell. */
		p->idle += scan != p->idle_scan;
		p->idle_scan = scan;
		sleepy = true;
	} else {
		fetch_step(t);
	}
	pthread_mutex_unlock(&p->lock);
	/* A page that came in ends the wait, which then was not in vain. */
	if (sleepy && !nap(t)) {
		pthread_mutex_lock(&p->lock);
		p->idle -= p->idle > 0;
		pthread_mutex_unlock(&p->lock);
	}
	return true;
}
