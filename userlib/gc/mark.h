/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Marking an object and tracing its references.  Only a struct order decides the order of work.
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

/* Counts of one tracer in one cycle. */
struct order_counts {
	uint64_t red, explored, postponed, parked, woken, fetch_calls, fetched, cooled, arrived;
};

/* One per marking thread; the first is the coordinator's. */
struct tracer {
	struct ebbgc_heap *heap;
	size_t depth;
	uint64_t marked_bytes, marked_objects;
	/*
	 * Copies, so that no one reads the pages again: weak slots and their unmarked targets
	 * (pairs), by enum ebbgc_clear; of traced ephemerons with unmarked keys the slots of key
	 * and value, key and value (quads; EPHEMERON_* are set in the first).  Whatever the
	 * program stores in such a slot later survives this cycle.
	 */
	struct vector weak[2], ephemerons;
	struct vector values;		/* hints: of ephemerons whose keys were marked since */
	pthread_t thread;
	unsigned int index;
	/* State of order_memliner. */
	struct chunk *later, *later_tail;	/* postponed work, first in first out */
	unsigned int hops;		/* distance from the noted object that is being explored */
	unsigned int explore_left;	/* objects that may still be explored; 0: not exploring */
	bool hurried;			/* in a pause that must not park any more */
	struct order_counts counts;
	/* State of order_address: the region that it examines, or REGION_NONE, and where. */
	uint32_t region;
	size_t granule;
	uint64_t stack[STACK_ENTRIES];
};

#define EPHEMERON_LAST UINT64_C(1)	/* EBBGC_CLEAR_LAST */
#define EPHEMERON_OWN UINT64_C(2)	/* of ebbgc_ephemeron_new(): no program changes it */
#define EPHEMERON_FLAGS (EPHEMERON_LAST | EPHEMERON_OWN)

/*
 * An order of marking.  Work is a reference with its stamp; its lower three bits belong to the
 * order.  add() takes an object that may hold references.  Its mark bit has just been set or, if
 * the order marks late, is set by drain() when that traces the object.  drain() traces until this
 * tracer can reach no work or, if deadline is not 0, until the first object past the deadline (ns):
 * each may be on a swapped-out page.  It returns true if it ran dry, and returns soon once marking
 * is abandoned.
 */
struct order {
	const char *name;
	bool marks_late;
	bool wants_notes;		/* mutators note the objects that they touch */
	void (*add)(struct tracer *t, uint64_t work);
	bool (*drain)(struct tracer *t, uint64_t deadline);
};

/* Depth first, with a short queue that hides cache misses; in address order; and MemLiner's. */
extern const struct order order_depth, order_address, order_memliner;

#define WORK_ADDRESS (EBBGC_ADDRESS_MASK & ~UINT64_C(7))
#define WORK_FORCED UINT64_C(7)	/* count of delays: not to be postponed again */
#define WORK_OBJECT UINT64_C(8)	/* set in the address of an object, not in that of a slice */

static inline bool marking_abandoned(const struct ebbgc_heap *h)
{
	return __atomic_load_n(&h->marker.abandoned, __ATOMIC_RELAXED);
}

/* Marks and counts an object of that kind; returns false if it was marked before. */
bool mark_now(struct tracer *t, uint64_t object, uint8_t kind);

/*
 * Marks an object in the store of a far generation, which is not to be read; returns false if it
 * was marked before.
 */
bool mark_far(struct tracer *t, uint64_t object);

/* Adds a reference's target as work unless it is marked; marks leaves at once. */
void mark_object(struct tracer *t, uint64_t ref);

/* mark_object() for the target of a slot, if there is one; heals it.  @tracer: a struct tracer. */
void mark_slot(void *tracer, ebbgc_ref_t *slot);

/* Marks values of ephemerons whose keys this tracer has marked; returns whether there were any. */
bool values_mark(struct tracer *t);

/* Marks what the object's tagged and ambiguous slots in bytes [@from, @to) refer to. */
void trace_slots(struct tracer *t, const struct type *type, uint64_t object, uint64_t from,
		 uint64_t to);

/* Traces a fibre, unless it is or was traced in this cycle. */
void trace_fibre(struct tracer *t, const struct type *type, uint64_t object);

/* Traces one object: for orders. */
void trace_object(struct tracer *t, uint64_t object);

#endif
