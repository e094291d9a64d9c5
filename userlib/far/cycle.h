/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * A far cycle at the borrower (lib/rules/far_cycle.h): sends donors the objects to mark, passes on
 * what one reaches of another's, each object once, and fetches the marks.
 *
 * Not part of the library's interface, as jobs.h.  One thread at a time; calls wait for donors.
 */
#ifndef EBBFAR_CYCLE_H
#define EBBFAR_CYCLE_H

#include <stdbool.h>
#include <stdint.h>

#include "jobs.h"
#include "lib/rules/far_cycle.h"

/*
 * Upcalls, which do not call the cycle, except cycle_push() in reached().  Regions and granules
 * come from a donor: the region is one of the heap's, and the callee checks the rest.
 */
struct cycle_ops {
	/*
	 * A donor has a live object that refers to the object whose slot begins at @granule of
	 * @region: that is named, by each call.  Returns 0, or -errno, which ends the cycle.
	 */
	int (*named)(void *data, uint32_t region, uint32_t granule);
	/*
	 * An object is reached, by cycle_push() or by a donor, once in the cycle.  Returns the
	 * number of the donor that has it, or -1: the program has it, and the callee marks it, and
	 * sees to it that what it refers to is pushed.
	 */
	int (*reached)(void *data, uint32_t region, uint32_t granule);
	/* Is the program out of time, before @wait_ms?  May be NULL. */
	bool (*late)(void *data);
	/* A message is about to be sent to a donor, or its reply was taken.  May be NULL. */
	void (*message)(void *data, uint32_t donor, enum far_cycle_message m, bool replied);
	/* By cycle_end(): of a region, which slots are marked and named. */
	void (*marks)(void *data, uint32_t donor, const struct wire_job_bits *bits);
};

struct cycle;

struct cycle_counts {
	uint64_t batches, sent, received; /* TRACEs; objects in them and in their replies */
	uint64_t visited;                 /* objects marked at donors */
	uint64_t paused;                  /* us that donors had no share of their processor left */
};

/*
 * Makes cycle @number, above those of all cycles before, with @n handles of jobs_heap(), at most
 * FAR_CYCLE_DONORS, which stay the caller's.  The heap has @regions regions: a donor that names
 * another one, or says for long that it has more to do and gets no further, ends the cycle
 * (-EPROTO).  Returns 0, -ENOMEM, or -EINVAL: more donors.
 */
int cycle_new(struct cycle **out, ebbfar_t *const *donors, uint32_t n, uint32_t number,
	      uint32_t regions, const struct cycle_ops *ops, void *data);
void cycle_free(struct cycle **cycle); /* NULL inside is fine */

/* Before all that follows: the donor has nothing of the cycle, and gets no message. */
void cycle_leave_out(struct cycle *c, uint32_t donor);

/* Before cycle_run(): an object that is placed at @donor lives elsewhere.  0 or -ENOMEM. */
int cycle_ghost(struct cycle *c, uint32_t donor, uint32_t region, uint32_t granule);

/* As cycle_ghost(), for the objects at granules 64 * @word + i of @bits. */
int cycle_ghosts(struct cycle *c, uint32_t donor, uint32_t region, uint32_t word, uint64_t bits);

/* The object is to be marked, as a root or for what the program has logged.  0 or -ENOMEM. */
int cycle_push(struct cycle *c, uint32_t region, uint32_t granule);

/*
 * As cycle_push(), for the objects at granules 64 * @word + i of @bits, which @donor has: they are
 * sent, whether they were before or not, and .reached is not called.
 */
int cycle_push_word(struct cycle *c, uint32_t donor, uint32_t region, uint32_t word, uint64_t bits);

/*
 * Exchanges messages until marking is complete at the donors.  The caller may push more, and run
 * again.  Returns 0, or -errno of a donor: the cycle is abandoned, and nothing may be freed.
 * -EAGAIN: so it is if more is to do after @wait_ms, or once .late says so; replies that are
 * missing are not waited for.
 */
#define CYCLE_WAITS UINT32_MAX /* ... as long as it takes */
int cycle_run(struct cycle *c, uint32_t wait_ms);

/* Ends a cycle that is complete, and fetches all marks.  Returns 0 or -errno, as cycle_run(). */
int cycle_end(struct cycle *c, uint32_t wait_ms);

/*
 * Returns bits of the donors because of which the cycle was abandoned: one that refused, was lost
 * or broke a rule, and after -EAGAIN those that were not done.
 */
uint32_t cycle_faults(const struct cycle *c);
/* Returns bits of the donors that could not be told that it was abandoned. */
uint32_t cycle_running(const struct cycle *c);
/* Returns the donor that the cycle has waited for longest so far. */
uint32_t cycle_slowest(const struct cycle *c);

/* Abandons the cycle, and says so to donors that can be reached. */
void cycle_abandon(struct cycle *c);

enum far_cycle_phase cycle_phase(const struct cycle *c);
struct cycle_counts cycle_counts(const struct cycle *c);

#endif
