/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Counts what a program's touches of pages cost in a cgroup with a limit: swap-ins and swap-outs.
 * Nothing is timed, nothing is prefetched: each swap-in is either a miss or would be a hit of a
 * prefetcher.  One thread.
 */
#ifndef EBB_HEAP_PAGES_H
#define EBB_HEAP_PAGES_H

#include <stdbool.h>
#include <stdint.h>

/* Which page leaves. */
enum heap_lru {
	HEAP_LRU_EXACT,		/* the one that was touched longest ago */
	/*
	 * An inactive and an active list, as the kernel's (mm/vmscan.c, mm/workingset.c; 6.1 to
	 * 6.18 without MGLRU, less than 1 GiB): pages come to the inactive list; one that is found
	 * touched at its end waits again, the second time it becomes active; the lists are kept
	 * equally long; a page that is swapped in after as many evictions and activations as the
	 * active list has pages, or fewer, becomes active at once.
	 */
	HEAP_LRU_KERNEL,
};

struct heap_page_counts {
	uint64_t swapped_in, swapped_out, zeroed;
	uint64_t born_in;	/* swapped in for a new object; part of swapped_in */
};

struct heap_pages;

/* @pages are numbered from 0; @room of them may be resident, at least 2.  NULL without memory. */
struct heap_pages *heap_pages_new(uint64_t pages, uint64_t room, enum heap_lru lru);
void heap_pages_free(struct heap_pages *p);

/* Touches a page; @born: to make an object, else to access one. */
void heap_pages_touch(struct heap_pages *p, uint64_t page, bool write, bool born);

/* The page's contents are not needed any more: it leaves unwritten, and comes back as zeroes. */
void heap_pages_drop(struct heap_pages *p, uint64_t page);

uint64_t heap_pages_resident(const struct heap_pages *p);
struct heap_page_counts heap_pages_counts(const struct heap_pages *p);

#endif
