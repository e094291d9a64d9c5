/* SPDX-License-Identifier: GPL-2.0-or-later OR BSD-2-Clause */
/*
 * A far cycle: donors mark the objects of a heap that are in their memory, from sets of objects
 * that the borrower sends.  Borrower, donor and the model checker run this source.
 *
 *   BEGIN    to each donor: the cycle's number, and which objects of the snapshot are elsewhere;
 *            more than one if it takes more
 *   TRACE    a batch of objects to mark; the reply has the objects that this donor has reached and
 *            does not have.  The donor works for one turn only and says whether it has more to do
 *   COMMIT   the marks; or ABORT
 *
 * A reference from one donor's object to another's passes through the borrower, which sends each
 * object once.  So the borrower alone knows when marking is complete: every donor has begun, no
 * TRACE is without a reply, no donor has more to do, and nothing waits to be sent.  Then it ends
 * the cycle.
 *
 * One message is without a reply at a time for each donor.  So a batch acknowledges the one before,
 * and a donor keeps the reply to the last batch alone, for a borrower that repeats it after a cut
 * connection.  When a donor refuses a message or is lost, the cycle is abandoned: nothing is freed.
 *
 * Rules for the borrower, while marking; tests/unit/test_model_cycle.c finds what each prevents:
 *  - An object that is fetched lives, and is sent to its donor all the same: what the original
 *    refers to is reached by no other way.
 *  - What a store overwrites is sent.
 *  - What leaves lives until the cycle ends, whatever marks its donor has, which may not have begun
 *    yet.  What it refers to is named, and sent.
 *  - Each object in a reply is named, also one that was sent before.
 *  - A region that a donor has stays there, as it is, until the donor's marks are here.
 *
 * Rules for a donor:
 *  - A region that it had before stays until all marks were sent, since objects of it may be marked
 *    and not traced: PLACE of another version is refused.
 *  - Regions that are placed while it has marks survive the cycle: the last COMMIT may be repeated.
 *
 * Pure: no I/O, clock or allocation.
 */
#ifndef EBB_FAR_CYCLE_H
#define EBB_FAR_CYCLE_H

#include <stdbool.h>
#include <stdint.h>

#define FAR_CYCLE_DONORS 16u

/* --- the borrower ------------------------------------------------------------------------- */

enum far_cycle_phase {
	FAR_CYCLE_IDLE,
	FAR_CYCLE_MARKS,
	FAR_CYCLE_ENDS,      /* complete: the marks are being fetched */
	FAR_CYCLE_DONE,      /* all marks are here: what has none may be freed */
	FAR_CYCLE_ABANDONED, /* nothing may be freed */
};

enum far_cycle_message {
	FAR_CYCLE_NONE,
	FAR_CYCLE_BEGIN,
	FAR_CYCLE_TRACE,
	FAR_CYCLE_COMMIT, /* for all regions; or as many messages as that takes */
	FAR_CYCLE_ABORT,
};

struct far_cycle_donor {
	uint32_t batch;                /* number of the last TRACE, from 1 */
	enum far_cycle_message waits;  /* without a reply */
	bool begun, rest;              /* a BEGIN was sent; another one follows */
	bool more, queued, ended;
	bool lost;                     /* no message reaches it */
};

struct far_cycle {
	uint32_t number; /* above those of all cycles before */
	uint32_t donors;
	enum far_cycle_phase phase;
	struct far_cycle_donor donor[FAR_CYCLE_DONORS];
};

/* Begins cycle @number with donors 0 to @donors - 1, at most FAR_CYCLE_DONORS. */
void far_cycle_begin(struct far_cycle *c, uint32_t number, uint32_t donors);

/* Before any message: donor @d has nothing of the cycle, and gets no message. */
void far_cycle_leave_out(struct far_cycle *c, uint32_t d);

/* Objects for donor @d wait to be sent in a TRACE. */
void far_cycle_queue(struct far_cycle *c, uint32_t d);

/* Returns the message to send to donor @d now. */
enum far_cycle_message far_cycle_next(const struct far_cycle *c, uint32_t d);

/*
 * That message is sent.  It has all that waited for a BEGIN or a TRACE, unless @rest: then another
 * one follows.
 */
void far_cycle_sent(struct far_cycle *c, uint32_t d, enum far_cycle_message m, bool rest);

/*
 * Donor @d has replied to @m, for TRACE to @batch; @more: it has more to do or, for COMMIT, more
 * marks to send.  Returns whether the reply is to be used: else it is not that of the message that
 * waits.
 */
bool far_cycle_replied(struct far_cycle *c, uint32_t d, enum far_cycle_message m, uint32_t batch,
		       bool more);

/* A donor refused a message, or is lost for good with @lost: the cycle is abandoned. */
void far_cycle_fail(struct far_cycle *c, uint32_t d, bool lost);

/* Returns whether donor @d has no message or work left. */
bool far_cycle_is_done(const struct far_cycle *c, uint32_t d);

/*
 * Returns whether marking is complete at the donors.  If the borrower has nothing more to send
 * either, such as what its threads have logged, it calls far_cycle_end().
 */
bool far_cycle_is_quiet(const struct far_cycle *c);

/* Ends marking.  Returns false, and does nothing, unless it is quiet. */
bool far_cycle_end(struct far_cycle *c);

/* --- a donor ------------------------------------------------------------------------------ */

enum far_cycle_verdict {
	FAR_CYCLE_NEW,   /* do it */
	FAR_CYCLE_AGAIN, /* it is done: reply as before */
	FAR_CYCLE_STALE, /* refuse it */
};

struct far_cycle_donor_state {
	uint32_t cycle; /* the last one that began */
	uint32_t batch; /* the last one of that */
	bool active;    /* it has not been aborted: COMMIT may be repeated */
	bool committed; /* all its marks were sent */
};

enum far_cycle_verdict far_cycle_begins(struct far_cycle_donor_state *s, uint32_t cycle);
enum far_cycle_verdict far_cycle_traces(struct far_cycle_donor_state *s, uint32_t cycle,
					uint32_t batch);
/* Returns whether COMMIT may be answered; @more: the donor has more to do. */
bool far_cycle_commits(const struct far_cycle_donor_state *s, uint32_t cycle, bool more);
/* The last marks are sent. */
void far_cycle_committed(struct far_cycle_donor_state *s);
/* Returns whether it marks: regions that are here stay. */
bool far_cycle_runs(const struct far_cycle_donor_state *s);
/* Returns whether regions that are placed now survive the cycle. */
bool far_cycle_keeps(const struct far_cycle_donor_state *s);
/* ABORT, also of what has ended: always permitted. */
void far_cycle_aborts(struct far_cycle_donor_state *s, uint32_t cycle);

#endif
