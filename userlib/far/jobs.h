/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Jobs that a donor runs for a heap in far memory: wire_job.h says what they are.  The handle is
 * one that was opened with EBBFAR_JOBS.
 *
 * Not part of the library's interface, of which ebbfar_heap_new() and its like use the most.
 *
 * Functions return 0 or -errno, as ebbfar.h says for all calls; ebbfar_open() also -EOPNOTSUPP: the
 * donor runs no jobs.  Besides: -ENOSPC: its memory for tables is used up; -EINVAL: a layout,
 * region or place that is none; -ESTALE: another version, cycle, batch or generation; -ENXIO: no
 * heap, or another one; -EBUSY: a cycle has not ended: regions that the donor has stay as they are.
 * A call of another thread waits.
 */
#ifndef EBBFAR_JOBS_H
#define EBBFAR_JOBS_H

#include <stdint.h>

#include "client.h"
#include "ebbfar.h"
#include "lib/rules/layout.h"
#include "lib/wire/wire_job.h"

/* A type of the heap. */
struct jobs_type {
	uint32_t type; /* as in the lower half of an object's header */
	struct layout layout;
};

/*
 * Describes the heap: region r is at address @base + r * 64 KiB, a reference's address are its bits
 * in @mask.  May be called again with more types.
 */
int jobs_heap(ebbfar_t *far, uint64_t base, uint64_t mask, uint32_t regions,
	      const struct jobs_type *types, uint32_t n, struct wire_job_limits *limits);

/* Where a region is: its objects, packed by @live, at @base of the extent. */
struct jobs_place {
	uint32_t region, version; /* above the version before, from 1 */
	uint32_t slot_bytes;      /* 0 = it is not there any more; then the rest is not used */
	uint32_t base;
	bool leaf;                /* none of its objects has references */
	struct ebbfar_extent extent;
	const uint64_t *live;
};

struct jobs_call;

/*
 * Fills in the payload of a WIRE_JOB_HEAP with types from *@next on, as many as fit, and raises
 * *@next.  Returns 0 or -EINVAL.
 */
int jobs_put_heap(struct jobs_call *call, uint64_t base, uint64_t mask, uint32_t regions,
		  const struct jobs_type *types, uint32_t n, uint32_t *next);
/* ... of a WIRE_JOB_PLACE. */
void jobs_put_places(struct jobs_call *call, const struct jobs_place *places, uint32_t n,
		     uint32_t *next);

/*
 * @places has a region once.  When it fails, the first ones may be in effect: the call may be
 * repeated.
 */
int jobs_place(ebbfar_t *far, const struct jobs_place *places, uint32_t n);

/* A region to evacuate, with a bit for each slot to copy. */
struct jobs_keep {
	uint32_t region, version, words;
	const uint64_t *keep;
};

/* A copy, the work of one or more requests; .crc is that of all bytes. */
struct jobs_copy {
	uint32_t bytes, crc;
	uint32_t requests;
};

/*
 * Most replies in a row that only say to wait: a donor does the work after the first one, unless
 * another thread asks it meanwhile.
 */
#define JOBS_PAUSES 64u

/*
 * Copies the slots to keep of @n regions to @base of @target, one behind the other.  Waits while
 * the donor's share of its processor is used up; -EAGAIN: for longer than @wait_ms, JOBS_WAITS = as
 * long as it takes.  -EPROTO: the donor says what cannot be.
 */
#define JOBS_WAITS UINT32_MAX
int jobs_evacuate(ebbfar_t *far, uint32_t job, const struct ebbfar_extent *target, uint32_t base,
		  const struct jobs_keep *keep, uint32_t n, uint32_t wait_ms,
		  struct jobs_copy *copy);

/* --- requests that other donors' run beside -------------------------------------------------- */

enum jobs_state { JOBS_UNSENT, JOBS_SENT, JOBS_DONE, JOBS_LEFT };

/* A request.  The caller allocates it by malloc(), and sets .length and .payload. */
struct jobs_call {
	ebbfar_t *far;
	enum wire_job_op op;
	uint32_t length, got;      /* bytes of the payload, of the reply's */
	int state;                 /* enum jobs_state; any thread that uses the handle changes it */
	int result;                /* 0 or -errno, once it is done */
	uint64_t done_at;          /* ns, of now_ns() */
	uint8_t payload[WIRE_JOB_MOST], reply[WIRE_JOB_MOST];
};

/* The request is to be sent, by jobs_settle(). */
void jobs_start(ebbfar_t *far, enum wire_job_op op, struct jobs_call *call);
static inline bool jobs_is_done(const struct jobs_call *call)
{
	return __atomic_load_n(&call->state, __ATOMIC_ACQUIRE) == JOBS_DONE;
}

/* How long to wait. */
struct jobs_wait {
	uint64_t until;            /* ns, of now_ns(): or */
	bool (*late)(void *data);  /* before, once it says so; NULL: not before */
	void *data;
};

#define JOBS_LATE_NS UINT64_C(1000000) /* .late is asked as often */
bool jobs_is_late(const struct jobs_wait *w);
/*
 * Sends up to FAR_CYCLE_DONORS requests, and waits for the replies to all, or as long as @w says.
 * No handle's lock is held meanwhile.
 */
void jobs_settle(struct jobs_call *const *calls, uint32_t n, const struct jobs_wait *w);
/*
 * Frees the call.  If its reply is still to come, that takes place then: a donor executes requests
 * in their order, so what is sent later finds it executed.
 */
void jobs_leave(struct jobs_call *call);
/*
 * Sends an ABORT of the cycle, and does not wait for the reply; waits for other threads that use
 * the handle, up to its time-out after @began (ns).  Returns whether it was sent.
 */
bool jobs_abort(ebbfar_t *far, uint32_t cycle, uint64_t began);
/* Sends one request and waits for its reply; returns call->result. */
int jobs_do(ebbfar_t *far, enum wire_job_op op, struct jobs_call *call);

#endif
