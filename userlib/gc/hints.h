/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* EBBGC_HINTS: reads ahead for the program what a page that it faulted on refers to. */
#ifndef EBBGC_HINTS_H
#define EBBGC_HINTS_H

#include <stdint.h>
#include "advice.h"

struct ebbgc_heap;

#define HINT_PAGES ADVICE_PAGES

/* Pages to be read ahead, in ascending order. */
struct hints {
	uint32_t pages[HINT_PAGES];
	unsigned int count;
};

void hints_open(struct ebbgc_heap *h);

/*
 * Adds the swapped-out pages that the rest of the page at @address refers to, in the order in which
 * the references lie there, as far as @hints has free entries.
 */
void hints_add(const struct ebbgc_heap *h, struct hints *hints, uint64_t address);

/* Requests the pages by one call that does not wait for them, and empties @hints. */
void hints_send(struct ebbgc_heap *h, struct hints *hints);

/* Between cycles: hints by what has arrived.  The collector, without the lock. */
void hints_between_cycles(struct ebbgc_heap *h);

/* ns until hints_between_cycles() is due; 0 if it never is. */
uint64_t hints_wait(const struct ebbgc_heap *h);

#endif
