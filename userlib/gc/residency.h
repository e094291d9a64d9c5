/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Which pages of a heap are in memory, behind one interface so that there can be several sources.
 * Two bits a page are kept from one scan to the next; in between, who touches a page says so, and
 * who is about to touch one that was in looks again if nobody did lately: far more pages leave
 * between two scans than are worth a read each.
 */
#ifndef EBBGC_RESIDENCY_H
#define EBBGC_RESIDENCY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "ebbgc.h"

#define PAGE_SHIFT 12
#define PAGE_BYTES ((size_t)1 << PAGE_SHIFT)

enum page_state {
	PAGE_HERE,		/* mapped, or never touched */
	PAGE_CACHED,		/* asked for, so in the swap cache or on its way: no read */
	PAGE_OUT,		/* touching it waits for a read, unless it has been read ahead */
};

struct residency;

struct residency_provider {
	const char *name;
	/* -errno when this kernel lacks it; the next provider is tried then. */
	int (*open)(struct residency *r);
	/*
	 * Sets the bits of the first `pages` pages that are not mapped in a bitmap that is zero;
	 * a multiple of 64 pages.  0 or -errno.
	 */
	int (*scan)(struct residency *r, size_t pages, uint64_t *out);
	/* Would touching this page now do without a read?  NULL: as the last scan said. */
	bool (*in)(const struct residency *r, size_t page);
};

/* ns for which a page that was touched or looked at is taken to stay: a power of two. */
#define RESIDENCY_TICK_SHIFT 25

struct residency {
	const struct residency_provider *provider;
	enum ebbgc_residency kind;
	const char *base;
	size_t pages;
	uint64_t *out, *cached;		/* atomic; of what is kept */
	uint64_t *last, *next;		/* not mapped, as the last scan said; scratch */
	uint16_t *seen;			/* tick in which a page was last touched or looked at; atomic */
	uint16_t tick;			/* atomic */
	unsigned char *vector;		/* mincore's */
	int fd;
	uint64_t seed;			/* simulated */
	uint64_t scans, scan_ns;	/* atomic */
	bool scarce;			/* atomic; as the last scan said */
};

/* For [base, base + bytes), bytes a multiple of 64 pages.  0, -ENOMEM. */
int residency_open(struct residency *r, enum ebbgc_residency kind, const void *base, size_t bytes);
void residency_close(struct residency *r);

/* Looks at the first `bytes`; returns how many pages went or came since the scan before, or -errno. */
int64_t residency_scan(struct residency *r, size_t bytes);

/* Bytes resident of the first `bytes`, by mincore(2); or -errno.  Needs no residency_open(). */
int64_t residency_bytes(const void *start, size_t bytes);

/* It is `now`, ns: from time to time, by whoever looks at the clock. */
void residency_tick(struct residency *r, uint64_t now);

/* Asks whether touching the page would do without a read; false where nobody can tell. */
bool residency_in(const struct residency *r, size_t page);

/* Is the page PAGE_OUT, as far as can be known for a system call each tick? */
bool residency_out(struct residency *r, size_t page);

/* Did the last scan find more than a few pages out? */
static inline bool residency_scarce(const struct residency *r)
{
	return __atomic_load_n(&r->scarce, __ATOMIC_RELAXED);
}

static inline enum page_state residency_of(const struct residency *r, size_t page)
{
	if (__atomic_load_n(&r->out[page >> 6], __ATOMIC_RELAXED) >> (page & 63) & 1)
		return PAGE_OUT;
	return __atomic_load_n(&r->cached[page >> 6], __ATOMIC_RELAXED) >> (page & 63) & 1 ?
	       PAGE_CACHED : PAGE_HERE;
}

/* Somebody has just touched the page. */
static inline void residency_touched(struct residency *r, size_t page)
{
	uint64_t bit = UINT64_C(1) << (page & 63);
	uint16_t tick = __atomic_load_n(&r->tick, __ATOMIC_RELAXED);

	if (__atomic_load_n(&r->out[page >> 6], __ATOMIC_RELAXED) & bit)
		__atomic_fetch_and(&r->out[page >> 6], ~bit, __ATOMIC_RELAXED);
	if (__atomic_load_n(&r->seen[page], __ATOMIC_RELAXED) != tick)
		__atomic_store_n(&r->seen[page], tick, __ATOMIC_RELAXED);
}

/* Somebody has asked for the page to be read: it is on its way. */
static inline void residency_asked(struct residency *r, size_t page)
{
	uint64_t bit = UINT64_C(1) << (page & 63);

	if (__atomic_fetch_and(&r->out[page >> 6], ~bit, __ATOMIC_RELAXED) & bit)
		__atomic_fetch_or(&r->cached[page >> 6], bit, __ATOMIC_RELAXED);
}

#endif
