/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * What is to be traced and by whom.  Each tracer has a stack of its own; what overflows goes to
 * a pool of chunks that idle tracers take from, and that mutators add their logs to.  In which
 * order work is done is the business of a struct order alone.
 */
#ifndef EBBGC_WORK_H
#define EBBGC_WORK_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "ebbgc.h"

struct ebbgc_heap;
struct tracer;

#define CHUNK_ENTRIES 510
#define STACK_ENTRIES 4096
#define MARKERS_MAX 64
#define DEPTH_MAX 64u
#define PAUSE_EVERY 32		/* objects between two looks at the clock in a pause: each may be out */

struct chunk {
	struct chunk *next;
	size_t count;
	uint64_t entries[CHUNK_ENTRIES];
};

struct vector {
	uint64_t *items;
	size_t count, capacity;
};

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
 * An order of marking.  add() is told of an object that may hold references and whose mark bit
 * has just been set; or is not set, if the order marks what it traces, as late as it does so.
 * Work is a reference with its stamp, the lower three bits being the order's.  drain() traces
 * until there is no work in reach of this tracer, or, if deadline is not 0, until then; true if
 * it ran dry.  It soon returns once marking is abandoned.
 */
struct order {
	const char *name;
	bool marks_late;
	void (*add)(struct tracer *t, uint64_t work);
	bool (*drain)(struct tracer *t, uint64_t deadline);
};

extern const struct order order_depth_first, order_memliner;

#define WORK_ADDRESS (EBBGC_ADDRESS_MASK & ~UINT64_C(7))
#define WORK_FORCED UINT64_C(7)	/* in place of the count of delays: no more of them */
#define WORK_OBJECT UINT64_C(8)	/* set in the address of an object; not in a page's, a slice's */

struct marker {
	const struct order *order;
	bool late;			/* order->marks_late */
	struct tracer *tracers;
	unsigned int tracer_count;
	unsigned int started;

	pthread_mutex_t lock;
	pthread_cond_t changed;		/* chunks, phase or the end of one */
	struct chunk *full, *spare;	/* lock */
	unsigned int hungry;		/* tracers waiting for chunks; written under lock */
	unsigned int active;		/* tracers in the phase */
	uint64_t phase;
	bool dry;			/* every tracer of the phase waits: it is over */
	bool quit;
	bool abandoned;			/* the heap is being destroyed: what is left stays undone */
	bool overflow;			/* a chunk could not be had: marked objects are untraced */
};

int marker_create(struct ebbgc_heap *h);
void marker_destroy(struct ebbgc_heap *h);

/* Makes a reference's target work unless it is marked; leaves are marked at once. */
void mark_object(struct tracer *t, uint64_t ref);
/* Sets and counts the mark bit of an object of that kind; false if it was set. */
bool mark_now(struct tracer *t, uint64_t object, uint8_t kind);
/* The same for what a slot refers to, if anything; tracer is a struct tracer. */
void mark_slot(void *tracer, ebbgc_ref_t *slot);
/* Traces one object: for orders. */
void trace_object(struct tracer *t, uint64_t object);

/* All tracers until the work is done, or abandoned: the coordinator calls it. */
void mark_all(struct ebbgc_heap *h);
/* The coordinator alone, until the deadline (ns); true if the work is done. */
bool mark_until(struct ebbgc_heap *h, uint64_t deadline);

/* Adds references as work whose targets may be unmarked; any thread. */
void work_give(struct ebbgc_heap *h, const uint64_t *objects, size_t count);
/* For orders: work to the tracer's stack, or the pool; what finds no memory is found again. */
void work_push(struct tracer *t, uint64_t work);
/* For orders: moves half of the tracer's stack to the pool; false if there is no memory. */
bool work_share(struct tracer *t);
/* For orders: refills the stack from the pool without waiting. */
bool work_take(struct tracer *t);

/* false when out of memory */
bool vector_push(struct vector *v, uint64_t item);
/* Not in a child of fork(): what is written down there may be free, as the vector has moved. */
void vector_free(const struct ebbgc_heap *h, struct vector *v);

#endif
