/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* EBBGC_HINTS: prefetches for the program the pages that a faulted page refers to. */
#ifndef EBBGC_HINTS_H
#define EBBGC_HINTS_H

#include <stdint.h>
#include "advice.h"

struct ebbgc_heap;

#define HINT_PAGES ADVICE_PAGES

/* Ascending pages to prefetch. */
struct hints {
	uint32_t pages[HINT_PAGES];
	unsigned int count;
};

void hints_open(struct ebbgc_heap *h);

/*
 * Adds the swapped-out pages to which the page at @address refers from there on, in the sequence of
 * the references, as far as @hints has free entries.
 */
void hints_add(const struct ebbgc_heap *h, struct hints *hints, uint64_t address);

/* Requests the pages by one call that does not wait, and empties @hints. */
void hints_send(struct ebbgc_heap *h, struct hints *hints);

/* Sends hints for new arrivals between cycles.  The collector, without the lock. */
void hints_between_cycles(struct ebbgc_heap *h);

/* Returns ns until hints_between_cycles() is due; 0 if it never is. */
uint64_t hints_wait(const struct ebbgc_heap *h);

#endif
