/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Heaps of members for which this donor runs jobs: types, and which regions are in which extents.
 *
 * Everything comes from a borrower: layouts are validated, tablets checked against the extent, and
 * each use of a region checks that the member still has the extent under its generation.  What the
 * extents hold may be anything.  A heap belongs to a connection's member; it ends with the member.
 *
 * The loop's thread calls all functions.  Each does a bounded piece of work.
 */
#ifndef EBB_JOB_HEAP_H
#define EBB_JOB_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#include "donord/far/far_extent.h"
#include "job_memory.h"
#include "lib/rules/far_cycle.h"
#include "lib/rules/layout.h"
#include "lib/wire/wire_job.h"

/*
 * The most that a turn does, as it delays others: the objects and references that it traces or
 * looks for, and marks of sets; the bytes that it copies.  Each is below 1 ms (docs/protocol.md).
 */
#define JOB_UNITS 8192u
/*
 * Parts of a unit: one marks an object of a set, passes a place of the table of outs, or clears
 * as many words of a region that is reached first in a cycle.
 */
#define JOB_PARTS 8u
#define JOB_BYTES (512u << 10)
/* ns: a heap that is postponed asks again within this time. */
#define JOB_WINDOW (WIRE_JOB_PAUSE_MOST * UINT64_C(1000))
/* ns: a heap may owe as much before its other requests wait. */
#define JOB_BURST (JOB_WINDOW / 10)
#define JOB_LEAF_SHIFT 12
#define JOB_LEAF (1u << JOB_LEAF_SHIFT)   /* regions of a leaf of the table */
#define JOB_TYPES_SHIFT 8
#define JOB_TYPES (1u << JOB_TYPES_SHIFT) /* types of a leaf of theirs */

struct job_region {
	struct job_region *next, *previous; /* in the queue */
	uint32_t number, version;
	uint32_t slot_bytes, slots, words;
	/* .queued, .ready, .marks, .traced and .named are of this one; 0 = of none. */
	uint32_t cycle;
	bool leaf;               /* its objects have no references */
	bool queued;
	struct far_extent extent;
	uint32_t base;
	uint64_t ready;          /* bit i: word i may have objects that are marked, not traced */
	uint64_t *live, *marks;  /* .words words each, by slot */
	uint64_t *traced;        /* traced, or not marked and elsewhere: a ghost */
	uint64_t *named;         /* a reference to it was traced here */
	uint16_t *before;        /* index of .live */
	uint64_t tables[];
};

/*
 * Objects that are not here and that references have named: a word of granules of a region.  They
 * are often scattered, so a table of regions would be full when it has few.
 */
struct job_out {
	uint32_t key; /* region * TABLET_WORDS + word + 1; 0 = unused */
	uint64_t bits;
};

/* A hash table in a block of JOB_CHUNK, and as many entries as keep it short of full. */
#define JOB_OUT_PLACES 4096u
#define JOB_OUTS 3000u

struct jobs;

struct job_heap {
	struct jobs *jobs;
	const struct far_member *member; /* NULL once it has left */
	struct job_heap *next;           /* of those that end */
	struct job_share share;          /* of the memory: all of its tables, and this */
	uint64_t base, mask;
	uint32_t regions;
	uint32_t placed;
	struct job_region ***leaves;     /* WIRE_JOB_REGIONS / JOB_LEAF of them; NULL = empty */
	struct layout ***types;          /* WIRE_JOB_TYPES / JOB_TYPES of them */
	struct job_out *outs;            /* JOB_OUT_PLACES of them */
	uint32_t out_count;
	struct far_cycle_donor_state cycle;
	struct job_region *first, *last; /* queue of regions with work, of this cycle */
	uint32_t queued;                 /* of these */
	uint32_t work;                   /* that this turn may still do: parts of units */
	/* The region of object .part_slot, traced up to .part_reference; NULL = none. */
	struct job_region *part;
	uint32_t part_slot, part_reference;
	struct wire_job_traced traced;   /* of the last batch */
	uint32_t end_leaf, end_type;     /* while it ends: what is next */
	/* ns, CLOCK_MONOTONIC: when its share allows more work; when it was told to ask again. */
	uint64_t next_at, told_at;
	uint64_t served_at;              /* ns: the last request */
	uint64_t window;                 /* in which it has last worked, from 1 */
	uint64_t used;                   /* ns that it has worked in that */
	bool is_user;                    /* that was enough to count as one */
};

/* Since the start. */
struct job_counts {
	uint64_t requests[WIRE_JOB_OPS - WIRE_JOB_HEAP];
	uint64_t cycles, abandoned; /* begun; aborted, or ended by another or by the member's end */
	uint64_t marked, references; /* objects; references traced */
	uint64_t evacuated;         /* bytes */
	uint64_t busy;              /* ns of processor time */
	uint64_t postponed;         /* requests that found the share of the processor used up */
};

struct jobs {
	struct job_memory memory;
	uint32_t percent;           /* of one processor that jobs may use, 1 to 100 */
	/*
	 * Of JOB_WINDOW ns: the present one; heaps that use at least half of an equal part of it,
	 * and of the one before.
	 */
	uint64_t window;
	uint32_t users, users_before;
	uint64_t worked;            /* turn of the loop of the last request */
	uint32_t heaps, regions;
	struct job_heap *ending;
	struct job_counts counts;
	uint64_t references[LAYOUT_REFERENCES]; /* of the object that is traced */
};

/* Tables take up to @bytes.  Returns 0 or -ENOMEM; *@out is untouched on failure. */
int jobs_new(struct jobs **out, uint64_t bytes, uint32_t percent);
/* No heap is in use. */
void jobs_free(struct jobs **jobs);

/*
 * A request of @h was served from @begun to @now.  The share of the processor is divided among the
 * heaps that have lately used theirs: many that hardly work leave it to others.  Each owes its own
 * work alone, so that one that sends many requests that are not postponed does not stop the others.
 */
void job_heap_charge(struct job_heap *h, uint64_t begun, uint64_t now);
/*
 * Returns for how many us, at most WIRE_JOB_PAUSE_MOST, the heap's TRACE or EVACUATE is postponed.
 * After that time one is not.
 */
uint32_t job_heap_pause(struct job_heap *h, uint64_t now);

/* Returns whether the request is postponed by its reply. */
static inline bool job_may_pause(enum wire_job_op op)
{
	return op == WIRE_JOB_TRACE || op == WIRE_JOB_EVACUATE;
}

/*
 * Returns for how many ns request @op of the heap is not to be served yet: another one than a TRACE
 * or EVACUATE, while more than JOB_BURST of work is owed; one of these, before the heap was told to
 * ask again, too.  At most JOB_WINDOW after the request before.
 */
uint64_t job_heap_wait(const struct job_heap *h, enum wire_job_op op, uint64_t now);

/* Returns whether heaps that have ended have more to free. */
bool jobs_turn(struct jobs *jobs);

/*
 * HEAP: describes the heap of @m, or adds types to *@heap.  WIRE_OVER_QUOTA: no memory is left;
 * then what came before the type stays.  -EPROTO: not a payload.
 */
int job_heap_describe(struct jobs *jobs, struct job_heap **heap, const struct far_member *m,
		      const uint8_t *payload, uint32_t length, uint16_t *status);
/* The member has left: ends the heap, in pieces. */
void job_heap_end(struct job_heap **heap);

/*
 * PLACE.  All records are checked before the first one takes effect; WIRE_OVER_QUOTA: those that
 * memory was left for are in effect; WIRE_OLD_VERSION for a region's second record: those before.
 */
int job_heap_place(struct job_heap *h, const uint8_t *payload, uint32_t length, uint16_t *status);

/* Returns region @number, or NULL: it is not here. */
struct job_region *job_region_find(const struct job_heap *h, uint32_t number);
/* Returns the layout of @type, or NULL. */
const struct layout *job_type_find(const struct job_heap *h, uint32_t type);
/* Returns the region's bytes, or NULL: the member does not have the extent any more. */
uint8_t *job_region_memory(const struct job_heap *h, const struct job_region *r);
/* Adds a region of this cycle to the queue, unless it is there. */
void job_region_queue(struct job_heap *h, struct job_region *r);
/* Takes the region out of the queue, if it is there. */
void job_region_unqueue(struct job_heap *h, struct job_region *r);
/* Empties the queue, since a cycle has begun that no region is of. */
void job_region_unqueue_all(struct job_heap *h);

#endif
