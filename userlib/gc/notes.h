/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Objects that mutators have just touched, for the tracers: the paper's producer-consumer queues
 * (PQ), one ring per mutator.  A mutator stores and never waits: a slow tracer loses the oldest
 * entries, which costs only their priority.  Tracers take entries by compare-and-swap.
 *
 * A mutator notes a burst of accesses, then none until the tracers request more: its working set
 * changes far more slowly than it accesses objects, and a noted load costs as much as ten others.
 *
 * An entry is an object that was live in this cycle, and nothing is freed before its end: rings
 * are emptied when the next cycle begins, with the world stopped.
 */
#ifndef EBBGC_NOTES_H
#define EBBGC_NOTES_H

#include <stdbool.h>
#include <stdint.h>

struct ebbgc_heap;
struct mutator;

#define RING_ENTRIES 1024u	/* the paper's choice; a power of two */
#define NOTES_BURST 128u	/* accesses per mutator */
#define NOTES_EVERY_NS 50000u	/* between bursts: about a read from far memory */

struct ring {
	struct ring *next;		/* rings are only freed with the heap */
	bool taken;			/* by a mutator; heap's lock */
	unsigned int left;		/* accesses left in this burst; the mutator's */
	uint64_t last, last_leaf;	/* what the mutator touched last */
	uint64_t entries[RING_ENTRIES];
	/* On cache lines of their own. */
	_Alignas(128) uint64_t head;
	_Alignas(128) uint64_t tail;
	uint64_t lost;			/* the tracers' */
};

/* Heap's lock held. */
struct ring *ring_take(struct ebbgc_heap *h);
void ring_leave(struct ring *r);

/*
 * Notes that m touches an object, unless it is marked or m's last note; m's own thread.
 * Clears EBBGC_NOTING in m's flags at the end of a burst.
 */
void notes_add(struct mutator *m, uint64_t object);

/*
 * Notes a target that m has loaded a reference to, if it is a leaf: it is about to be touched, and
 * is never the holder of a slot.  Not counted in a burst.
 */
void notes_add_target(struct mutator *m, uint64_t target);

/* Takes the oldest entry of any ring, or returns 0.  Any tracer. */
uint64_t notes_next(struct ebbgc_heap *h);
/* Lets the next burst begin.  Any tracer. */
void notes_request(struct ebbgc_heap *h);
/* World stopped. */
void notes_clear(struct ebbgc_heap *h);
void notes_destroy(struct ebbgc_heap *h);
/* Lock held: sums up the counts of all rings. */
void notes_count(struct ebbgc_heap *h, uint64_t *noted, uint64_t *lost);

#endif
