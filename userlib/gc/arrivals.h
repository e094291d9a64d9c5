/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Where the program faults on pages that were out: red objects from the fault stream itself, and
 * what to read ahead.  ebbd's BPF programs write a ring that is mapped here; they never wait, so
 * who reads slowly loses the oldest, which costs a hint and nothing else.  The program's threads do
 * nothing for it.
 *
 * An arrival is an address that a thread touched.  The ring is emptied when a cycle begins, with
 * the world stopped, so during marking what the program touched was live in this cycle.
 */
#ifndef EBBGC_ARRIVALS_H
#define EBBGC_ARRIVALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ebbgc_heap;

/* As struct ebb_arrivals and ebb_arrival() in ebb's include/ebb/abi.h; see ebb-stats(7). */
#define ARRIVALS 256u
#define ARRIVAL_ROUND 56
#define ARRIVAL_COLLECTOR (UINT64_C(1) << 53)
#define ARRIVAL_SHIFT 4

struct arrival_ring {
	uint64_t head;
	uint64_t entry[ARRIVALS];
	uint64_t unused[255];
};

struct arrivals {
	const struct arrival_ring *ring;	/* NULL: nobody tells */
	uint64_t tail;				/* atomic, like what follows */
	uint64_t taken, lost;
	uint64_t hint_calls, hinted;
	uint64_t nap_ns;	/* between two looks at it when there is no cycle; the collector's */
};

struct arrival {
	uint64_t address;		/* in the heap; multiple of 16 */
	bool collectors;		/* a thread of a collector touched it */
};

#define HINT_PAGES 64u			/* in one call */

/* Pages to be read ahead, in ascending order. */
struct hints {
	uint32_t pages[HINT_PAGES];
	unsigned int count;
};

void arrivals_open(struct arrivals *a, const struct arrival_ring *ring);
/* World stopped: nothing that has arrived so far is of interest. */
void arrivals_clear(struct arrivals *a);

/* The oldest one that is in the heap and not lost; false if there is none.  Any tracer. */
bool arrivals_next(struct ebbgc_heap *h, struct arrival *arrival);

static inline bool arrivals_waiting(const struct arrivals *a)
{
	return a->ring && __atomic_load_n(&a->ring->head, __ATOMIC_RELAXED) !=
			  __atomic_load_n(&a->tail, __ATOMIC_RELAXED);
}

/*
 * Adds the pages that are out and referred to from the rest of the page that was touched at
 * `address`, in the order in which references lie there, as far as there is room.
 */
void hints_add(const struct ebbgc_heap *h, struct hints *hints, uint64_t address);
/* Has them read by one call that does not wait for it, and forgets them. */
void hints_send(struct ebbgc_heap *h, struct hints *hints);

/* Between cycles: hints by what has arrived.  The collector, without the lock. */
void hints_between(struct ebbgc_heap *h);
/* ns until hints_between() is due; 0 if it never is. */
uint64_t hints_wait(const struct ebbgc_heap *h);

#endif
