/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Far cycles (lib/rules/far_cycle.h) at the donor: marks the objects of a heap's regions that are
 * here, from sets of objects, in turns.
 *
 * The marks are the queue: an object that is marked and not traced is work, a region with such
 * objects is in the heap's queue.  So no stack can overflow, and nothing is traced twice.  A turn
 * ends after a number of units, also in the midst of an object, or when the reply is full: what is
 * left is done by the next TRACE.
 *
 * A reference to an object that is not here, or that the borrower has named as a ghost, is part of
 * the reply: once in a batch, the borrower sees to it that each is passed on once in a cycle.
 * A word that cannot be a reference to an object, an object of an unknown type, and a region whose
 * extent the member has freed count as odd: then the borrower must abandon the cycle.
 */
#ifndef EBB_JOB_TRACE_H
#define EBB_JOB_TRACE_H

#include "job_heap.h"

/* BEGIN.  Returns -EPROTO if it is no payload, else sets the reply's status. */
int job_begin(struct job_heap *h, const uint8_t *payload, uint32_t length, uint16_t *status);

enum job_work { JOB_MARK_ONLY, JOB_WORK };

/*
 * TRACE.  With JOB_MARK_ONLY marks the sets and traces nothing; the reply says that the borrower
 * should wait @pause us.  Builds the reply at @reply, of *@size bytes.
 */
int job_trace(struct job_heap *h, const uint8_t *payload, uint32_t length, enum job_work work,
	      uint32_t pause, uint8_t reply[static WIRE_JOB_MOST], uint32_t *size,
	      uint16_t *status);

/* END.  As job_trace(). */
int job_end(struct job_heap *h, const uint8_t *payload, uint32_t length,
	    uint8_t reply[static WIRE_JOB_MOST], uint32_t *size, uint16_t *status);

#endif
