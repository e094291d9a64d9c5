/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Marking an object and tracing its references.  The order in which work is done is the business
 * of a struct order alone.
 */
#ifndef EBBGC_MARK_H
#define EBBGC_MARK_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "heap.h"
#include "vector.h"

#define STACK_ENTRIES 4096
#define MARKERS_MAX 64

/* Of one tracer in one cycle. */
struct order_counts {
	uint64_t red, explored, postponed, parked, woken, fetch_calls, fetched, cooled, arrived;
};

/* One per marking thread; the first is the coordinator's. */
struct tracer {
	struct ebbgc_heap *heap;
	size_t depth;
	uint64_t marked_bytes, marked_objects;
	struct vector weak;		/* marked objects whose references are weak */
	struct vector ephemerons;	/* marked ones whose key was not when they were traced */
	pthread_t thread;
	unsigned int index;
	/* Of the order memliner. */
	struct chunk *later, *later_tail;	/* postponed work, first in first out */
	unsigned int hops;		/* from the noted object that is being explored */
	unsigned int explore_left;	/* objects that may still be; 0 outside of exploring */
	bool hurried;			/* in a pause that does not park any more */
	struct order_counts counts;
	uint64_t stack[STACK_ENTRIES];
};

/*
 * An order of marking.  Work is a reference with its stamp; its lower three bits are the order's.
 * add() takes an object that may hold references and whose mark bit has just been set; or, if the
 * order marks late, is not set: drain() then sets it when it traces the object.  drain() traces
 * until no work is in reach of this tracer or, if deadline is not 0, until the deadline (ns).  It
 * returns true if it ran dry, and returns soon once marking is abandoned.
 */
struct order {
	const char *name;
	bool marks_late;
	bool wants_notes;		/* of what the program touches */
	void (*add)(struct tracer *t, uint64_t work);
	bool (*drain)(struct tracer *t, uint64_t deadline);
};

/* Depth first, with a short queue that hides cache misses; and MemLiner's. */
extern const struct order order_depth, order_memliner;

#define WORK_ADDRESS (EBBGC_ADDRESS_MASK & ~UINT64_C(7))
#define WORK_FORCED UINT64_C(7)	/* in place of the count of delays: no more of them */
#define WORK_OBJECT UINT64_C(8)	/* set in the address of an object; not in a page's, a slice's */

#define PAUSE_CLOCK_EVERY 32	/* objects between reads of the clock in a pause: each may be out */

static inline bool marking_abandoned(const struct ebbgc_heap *h)
{
	return __atomic_load_n(&h->marker.abandoned, __ATOMIC_RELAXED);
}

/* A slot's reference with its stamp: work. */
static inline uint64_t work_load(const ebbgc_ref_t *slot)
{
	return __atomic_load_n(&slot->bits, __ATOMIC_ACQUIRE);
}

/* Sets and counts the mark bit of an object of that kind; returns false if it was set. */
bool mark_now(struct tracer *t, uint64_t object, uint8_t kind);

/* Makes a reference's target work unless it is marked; leaves are marked at once. */
void mark_object(struct tracer *t, uint64_t ref);

/* mark_object() for the target of a slot, if there is one; @tracer is a struct tracer. */
void mark_slot(void *tracer, ebbgc_ref_t *slot);

/* Traces one object: for orders. */
void trace_object(struct tracer *t, uint64_t object);

#endif
