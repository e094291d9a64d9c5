// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#include "os.h"
#include "residency.h"

#define BATCH 4096u		/* pages per system call */
#define FEW_PAGES 256		/* memory is scarce if more than one page in this many is out */

int64_t residency_bytes(const void *start, size_t bytes)
{
	unsigned char pages[BATCH];
	const char *p = start;
	int64_t resident = 0;

	while (bytes) {
		size_t part = bytes < (size_t)BATCH * PAGE_BYTES ? bytes :
								   (size_t)BATCH * PAGE_BYTES;

		if (mincore((void *)p, part, pages))
			return -errno;
		for (size_t i = 0; i < part / PAGE_BYTES; i++)
			resident += (pages[i] & 1) * (int64_t)PAGE_BYTES;
		p += part;
		bytes -= part;
	}
	return resident;
}

uint32_t residency_pages(const void *start, unsigned int pages)
{
	unsigned char states[32];
	uint32_t in = 0;

	/* An error says nothing about the pages. */
	if (mincore((void *)start, pages * PAGE_BYTES, states))
		return UINT32_MAX;
	for (unsigned int i = 0; i < pages; i++)
		in |= (states[i] & UINT32_C(1)) << i;
	return in;
}

static void set(uint64_t *bits, size_t page)
{
	bits[page >> 6] |= UINT64_C(1) << (page & 63);
}

/* Returns whether a page is in memory, including the swap cache: no read is needed. */
static bool mincore_in(const struct residency *r, size_t page)
{
	unsigned char in = 1;

	/* An error says nothing about the page. */
	return mincore((void *)(r->base + page * PAGE_BYTES), PAGE_BYTES, &in) || (in & 1);
}

/* --- PAGEMAP_SCAN, as in Linux 6.7's <linux/fs.h> --------------------------------------- */

struct scan_region {
	uint64_t start, end, categories;
};

struct scan_arg {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};

#define SCAN _IOWR('f', 16, struct scan_arg)
#define SCAN_SWAPPED (UINT64_C(1) << 4)
#define SCAN_REGIONS 512

static int pagemap_open(struct residency *r)
{
	r->fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	return r->fd < 0 ? -errno : 0;
}

static int scan_range(struct residency *r, size_t pages, uint64_t *out)
{
	struct scan_region regions[SCAN_REGIONS];
	uint64_t base = (uint64_t)(uintptr_t)r->base;
	struct scan_arg arg = {
		.size = sizeof(arg), .start = base, .end = base + pages * PAGE_BYTES,
		.vec = (uint64_t)(uintptr_t)regions, .vec_len = SCAN_REGIONS,
		.category_mask = SCAN_SWAPPED, .return_mask = SCAN_SWAPPED,
	};

	while (arg.start < arg.end) {
		int n = ioctl(r->fd, SCAN, &arg);

		if (n < 0)
			return -errno;
		for (int i = 0; i < n; i++)
			for (uint64_t a = regions[i].start; a < regions[i].end; a += PAGE_BYTES)
				set(out, (a - base) >> PAGE_SHIFT);
		if (arg.walk_end <= arg.start)
			break;
		arg.start = arg.walk_end;
	}
	return 0;
}

static int scan_open(struct residency *r)
{
	uint64_t ignored[1] = { 0 };
	int e = pagemap_open(r);

	return e ? e : scan_range(r, 1, ignored);
}

/* --- /proc/self/pagemap ----------------------------------------------------------------- */

#define PAGEMAP_SWAPPED (UINT64_C(1) << 62)

static int pagemap_scan(struct residency *r, size_t pages, uint64_t *out)
{
	uint64_t entries[BATCH / 8];
	uint64_t first = (uint64_t)(uintptr_t)r->base >> PAGE_SHIFT;

	for (size_t at = 0; at < pages;) {
		size_t n = pages - at < BATCH / 8 ? pages - at : BATCH / 8;
		ssize_t got = pread(r->fd, entries, n * 8, (off_t)((first + at) * 8));

		if (got < 8)
			return got < 0 ? -errno : -EIO;
		n = (size_t)got / 8;
		for (size_t i = 0; i < n; i++)
			if (entries[i] & PAGEMAP_SWAPPED)
				set(out, at + i);
		at += n;
	}
	return 0;
}

/* Unlike mincore(), pagemap does not report untouched pages as out. */
static bool pagemap_in(const struct residency *r, size_t page)
{
	uint64_t first = (uint64_t)(uintptr_t)r->base >> PAGE_SHIFT, entry;

	if (mincore_in(r, page))
		return true;
	return pread(r->fd, &entry, 8, (off_t)((first + page) * 8)) == 8 &&
	       !(entry & PAGEMAP_SWAPPED);
}

/* --- mincore ---------------------------------------------------------------------------- */

/* Counts untouched pages as swapped out: few objects have such pages. */
static int mincore_scan(struct residency *r, size_t pages, uint64_t *out)
{
	for (size_t at = 0; at < pages; at += BATCH) {
		size_t n = pages - at < BATCH ? pages - at : BATCH;

		if (mincore((void *)(r->base + at * PAGE_BYTES), n * PAGE_BYTES, r->vector))
			return -errno;
		for (size_t i = 0; i < n; i++)
			if (!(r->vector[i] & 1))
				set(out, at + i);
	}
	return 0;
}

static int mincore_open(struct residency *r)
{
	(void)r;
	return 0;
}

/* --- simulated -------------------------------------------------------------------------- */

/* Reports half of the pages as out, different ones in each scan. */
static int simulated_scan(struct residency *r, size_t pages, uint64_t *out)
{
	uint64_t x = r->seed + r->scans + 1;

	for (size_t w = 0; w < pages / 64; w++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		out[w] = x * 0x2545f4914f6cdd1du;
	}
	return 0;
}

static const struct residency_provider providers[] = {
	[EBBGC_RESIDENCY_PAGEMAP_SCAN] = { "pagemap_scan", scan_open, scan_range, pagemap_in },
	[EBBGC_RESIDENCY_PAGEMAP] = { "pagemap", pagemap_open, pagemap_scan, pagemap_in },
	[EBBGC_RESIDENCY_MINCORE] = { "mincore", mincore_open, mincore_scan, mincore_in },
	[EBBGC_RESIDENCY_SIMULATED] = { "simulated", mincore_open, simulated_scan, NULL },
};

static uint64_t *bitmap(size_t pages)
{
	return os_map((pages + 63) / 64 * 8);
}

int residency_open(struct residency *r, enum ebbgc_residency kind, const void *base, size_t bytes)
{
	*r = (struct residency){
		.base = base, .pages = bytes >> PAGE_SHIFT, .fd = -1, .seed = 0x9e3779b97f4a7c15u,
	};
	r->out = bitmap(r->pages);
	r->cached = bitmap(r->pages);
	r->last = bitmap(r->pages);
	r->next = bitmap(r->pages);
	r->seen = os_map(r->pages * sizeof(*r->seen));
	r->vector = os_map(BATCH);
	if (!r->out || !r->cached || !r->last || !r->next || !r->seen || !r->vector) {
		residency_close(r);
		return -ENOMEM;
	}
	/* mincore() always works. */
	for (r->kind = kind; providers[r->kind].open(r); r->kind++) {
		if (r->fd >= 0)
			close(r->fd);
		r->fd = -1;
	}
	r->provider = &providers[r->kind];
	return 0;
}

void residency_close(struct residency *r)
{
	uint64_t *bitmaps[] = { r->out, r->cached, r->last, r->next };

	if (!r->pages)
		return;
	for (size_t i = 0; i < sizeof(bitmaps) / sizeof(bitmaps[0]); i++)
		if (bitmaps[i])
			munmap(bitmaps[i], (r->pages + 63) / 64 * 8);
	if (r->seen)
		munmap(r->seen, r->pages * sizeof(*r->seen));
	if (r->vector)
		munmap(r->vector, BATCH);
	if (r->fd >= 0)
		close(r->fd);
	*r = (struct residency){ .fd = -1 };
}

int64_t residency_scan(struct residency *r, size_t bytes)
{
	size_t pages = ((bytes >> PAGE_SHIFT) + 63) & ~(size_t)63, words = pages / 64;
	uint64_t since = os_now();
	int64_t changed = 0;
	size_t out = 0;
	int e;

	memset(r->next, 0, words * 8);
	e = r->provider->scan(r, pages, r->next);
	if (e) {
		/* A tracer may be waiting for the next scan: count failed ones, too. */
		__atomic_fetch_add(&r->scans, 1, __ATOMIC_RELAXED);
		return e;
	}
	for (size_t w = 0; w < words; w++) {
		/* Requested and not mapped yet. */
		uint64_t cached = r->next[w] & __atomic_load_n(&r->cached[w], __ATOMIC_RELAXED);

		changed += __builtin_popcountll(r->next[w] ^ r->last[w]);
		r->last[w] = r->next[w];
		out += (size_t)__builtin_popcountll(r->next[w]);
		__atomic_store_n(&r->out[w], r->next[w] & ~cached, __ATOMIC_RELAXED);
		__atomic_store_n(&r->cached[w], cached, __ATOMIC_RELAXED);
	}
	__atomic_store_n(&r->scarce, out > pages / FEW_PAGES, __ATOMIC_RELAXED);
	__atomic_fetch_add(&r->scans, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&r->scan_ns, os_now() - since, __ATOMIC_RELAXED);
	return changed;
}

void residency_tick(struct residency *r, uint64_t now)
{
	uint16_t tick = (uint16_t)(now >> RESIDENCY_TICK_SHIFT);

	if (__atomic_load_n(&r->tick, __ATOMIC_RELAXED) != tick)
		__atomic_store_n(&r->tick, tick, __ATOMIC_RELAXED);
}

bool residency_is_in(const struct residency *r, size_t page)
{
	return r->provider->in && r->provider->in(r, page);
}

bool residency_is_out(struct residency *r, size_t page)
{
	uint64_t bit = UINT64_C(1) << (page & 63);
	uint16_t tick = __atomic_load_n(&r->tick, __ATOMIC_RELAXED);

	/* The next scan, or a thread that touches the page, will update this state. */
	if (residency_state(r, page) == PAGE_SWAPPED_OUT)
		return true;
	if (!r->provider->in || __atomic_load_n(&r->seen[page], __ATOMIC_RELAXED) == tick)
		return false;
	if (r->provider->in(r, page)) {
		__atomic_store_n(&r->seen[page], tick, __ATOMIC_RELAXED);
		return false;
	}
	__atomic_fetch_and(&r->cached[page >> 6], ~bit, __ATOMIC_RELAXED);
	__atomic_fetch_or(&r->out[page >> 6], bit, __ATOMIC_RELAXED);
	return true;
}
