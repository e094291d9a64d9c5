/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Residency of a heap's pages: one interface, several sources.  Two bits per page hold the state
 * between scans.  In between, threads report the pages that they touch, and a tracer rechecks a
 * resident page before it touches it, unless one did recently: many pages leave between two scans,
 * and touching each would cost a read.
 */
#ifndef EBBGC_RESIDENCY_H
#define EBBGC_RESIDENCY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <ebb/page.h>
#include "ebbgc.h"

#define PAGE_SHIFT EBB_PAGE_SHIFT
#define PAGE_BYTES ((size_t)EBB_PAGE)

enum page_state {
	PAGE_RESIDENT,	  /* mapped, or never touched */
	PAGE_CACHED,	  /* requested: in the swap cache, or in flight */
	PAGE_SWAPPED_OUT, /* swapped out: touching it waits for a read, unless prefetched */
};

struct residency;

struct residency_provider {
	const char *name;
	/* Returns -errno if the kernel lacks this source; then the next provider is tried. */
	int (*open)(struct residency *r);
	/*
	 * Sets the bits of unmapped pages among the first `pages` (a multiple of 64) in a bitmap
	 * that is zero.  Returns 0 or -errno.
	 */
	int (*scan)(struct residency *r, size_t pages, uint64_t *out);
	/* Is the page in memory now?  NULL: unknown. */
	bool (*in)(const struct residency *r, size_t page);
};

/* log2 of the ns for which a page that was touched or checked counts as in memory. */
#define RESIDENCY_TICK_SHIFT 25

struct residency {
	const struct residency_provider *provider;
	enum ebbgc_residency kind;
	const char *base;
	size_t pages;
	uint64_t *out, *cached;		/* states of pages; atomic */
	uint64_t *last, *next;		/* unmapped pages of the last scan; scratch */
	uint16_t *seen;			/* tick of a page's last touch or check; atomic */
	uint16_t tick;			/* atomic */
	unsigned char *vector;		/* mincore's */
	int fd;
	uint64_t seed;			/* of the simulated source */
	uint64_t scans, scan_ns;	/* atomic */
	bool scarce;			/* memory was scarce at the last scan; atomic */
};

/* Opens [base, base + bytes), bytes a multiple of 64 pages.  Returns 0 or -ENOMEM. */
int residency_open(struct residency *r, enum ebbgc_residency kind, const void *base, size_t bytes);
void residency_close(struct residency *r);

/* Scans the first `bytes`; returns how many pages changed since the last scan, or -errno. */
int64_t residency_scan(struct residency *r, size_t bytes);

/* Returns the resident bytes of the first `bytes`, by mincore(2), or -errno.  Stateless. */
int64_t residency_bytes(const void *start, size_t bytes);

/* Returns a bitmap of the first @pages (<= 32) that are in memory, by mincore(2).  Stateless. */
uint32_t residency_pages(const void *start, unsigned int pages);

/* Sets the time (ns): ticks pass only by calls. */
void residency_tick(struct residency *r, uint64_t now);

/* Is the page in memory now?  false if the source cannot tell. */
bool residency_is_in(const struct residency *r, size_t page);

/* Is the page PAGE_SWAPPED_OUT?  Checks again at most once a tick. */
bool residency_is_out(struct residency *r, size_t page);

/* Did the last scan find more than a few pages swapped out? */
static inline bool residency_is_scarce(const struct residency *r)
{
	return __atomic_load_n(&r->scarce, __ATOMIC_RELAXED);
}

static inline enum page_state residency_state(const struct residency *r, size_t page)
{
	if (__atomic_load_n(&r->out[page >> 6], __ATOMIC_RELAXED) >> (page & 63) & 1)
		return PAGE_SWAPPED_OUT;
	return __atomic_load_n(&r->cached[page >> 6], __ATOMIC_RELAXED) >> (page & 63) & 1 ?
	       PAGE_CACHED : PAGE_RESIDENT;
}

/* Records that a thread has just touched the page. */
static inline void residency_touched(struct residency *r, size_t page)
{
	uint64_t bit = UINT64_C(1) << (page & 63);
	uint16_t tick = __atomic_load_n(&r->tick, __ATOMIC_RELAXED);

	if (__atomic_load_n(&r->out[page >> 6], __ATOMIC_RELAXED) & bit)
		__atomic_fetch_and(&r->out[page >> 6], ~bit, __ATOMIC_RELAXED);
	if (__atomic_load_n(&r->seen[page], __ATOMIC_RELAXED) != tick)
		__atomic_store_n(&r->seen[page], tick, __ATOMIC_RELAXED);
}

/* Records that the page was requested: it is in flight. */
static inline void residency_requested(struct residency *r, size_t page)
{
	uint64_t bit = UINT64_C(1) << (page & 63);

	if (__atomic_fetch_and(&r->out[page >> 6], ~bit, __ATOMIC_RELAXED) & bit)
		__atomic_fetch_or(&r->cached[page >> 6], bit, __ATOMIC_RELAXED);
}

#endif
