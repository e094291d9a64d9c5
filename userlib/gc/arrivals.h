/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Page faults of the program on swapped-out pages.  ebbd's BPF programs write them to a ring that
 * is mapped here, at no cost to the program's threads.  They never wait: a slow reader loses the
 * oldest entries, which costs only a hint.
 *
 * An arrival is an address that a thread touched.  The ring is emptied when a cycle begins, with
 * the world stopped: objects that arrivals hit during marking were live in this cycle.
 */
#ifndef EBBGC_ARRIVALS_H
#define EBBGC_ARRIVALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <ebb/share.h>

struct arrivals {
	const struct ebb_arrivals *ring;	/* NULL: not shared */
	uint64_t tail;				/* atomic, like the members below */
	uint64_t taken, lost;
};

struct arrival {
	uint64_t address;		/* in the heap; multiple of 16 */
	bool collectors;		/* from a collector's thread */
};

void arrivals_open(struct arrivals *a, const struct ebb_arrivals *ring);

/* World stopped: drops all arrivals. */
void arrivals_clear(struct arrivals *a);

/*
 * Takes the oldest arrival that was not lost and lies in [@base, @base + @bytes); returns false if
 * there is none.  Any tracer.
 */
bool arrivals_next(struct arrivals *a, const void *base, size_t bytes, struct arrival *arrival);

static inline bool arrivals_pending(const struct arrivals *a)
{
	return a->ring && __atomic_load_n(&a->ring->head, __ATOMIC_RELAXED) !=
			  __atomic_load_n(&a->tail, __ATOMIC_RELAXED);
}

#endif
