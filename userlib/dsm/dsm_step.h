/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * The ownership protocol of libebbdsm, one verb at a time.  An operation is a struct dsm_op;
 * dsm_next() says which verb to execute next, the caller executes it and calls again.  The library
 * and the model checker run this source.  After DRust (chapter 5 of Ma, UCLA 2024), with names in
 * place of colours, and with borrowers that may be killed.
 *
 * Places and stamps.  A place is memory of one member for one object: a header and the content.  A
 * stamp is the generation of the place's extent, which libebbfar raises whenever memory changes
 * hands, and a number that the extent's owner counts up; so (place, stamp) names one value for
 * ever. Only the owner of a place writes it, except that another member may compare-and-swap its
 * hold word from a value that no other place and no other time has.  So no member can damage memory
 * that was another's, whichever member has it now.
 *
 *   change    stamp 0; the content; a new stamp: a reader that misses finds another stamp than it
 *             wants, before and after the change
 *   read      the object, then its header again: valid if the stamp is the one wanted in both
 *   offer     hold 0 -> ticket, OFFERED (a move) or LENT (a mutable borrow); a ticket is a stamp
 *   take      the receiver writes its claim {ticket}; hold ticket -> claim, TAKEN; reads the object
 *             to a place of its own, checks the header again
 *   finish    hold claim, TAKEN -> DONE: the giver may free the old place
 *   return    the borrower offers its place with a ticket of its own, and writes it in the claim;
 *             hold claim, TAKEN -> RETURNED.  The owner takes the new place, then frees the old
 *             one, which no member has changed
 *   reclaim   hold ticket -> 0 if it is not taken.  If the member of the claim is dead: hold -> 0,
 *             and the object is as it was before the borrow
 *
 * Twins.  A twin is memory of the owner at another donor, for a place: a copy of its header, with
 * the place's name, and of its content.  Its hold word is not used.
 *
 *   copy      into the twin: stamp 0; the content; the stamp.  A new value is in the twin before
 *             any other member knows its stamp
 *   read      by a member that cannot reach the place's donor: as above.  What the twin has is the
 *             value of that name, or it has another stamp
 *   reclaim   by an owner that cannot: a loan ends as if the borrower had died, since a return is
 *             nothing before the owner has taken it.  A parcel is not the owner's again: another
 *             member may have accepted it
 *
 * No member takes anything at a twin: whether a loan or parcel is taken is decided at its place.
 *
 * Rules for the caller:
 *  - Memory that a member has just allocated is zeroed before anything else is written to it, twins
 *    and lists of twins too; of a list, as much as a header has.  The header of a twin is zeroed
 *    when the place is freed.
 *  - A member that has lost a donor reads at twins, not in mapped memory.
 *  - A member that has lost a donor does not use it again.
 *  - Parts of a verb take effect in their order.  A member executes one operation of a place at a
 *    time.  Parts without effect, because the member was fenced or the donor exited, end the
 *    operation: the caller does not call again.
 *  - The donor fences a member before it frees its extents: DSM_ALIVE tells 0 only after that.
 *  - A claim stays as it is until the hold word has left TAKEN and, when the object was returned,
 *    until the owner has taken it or is dead.
 *  - A place is not freed, and its extent is not either, while its hold word is not 0, except when
 *    an operation says so.
 *
 * Pure: no I/O, clock, allocation.
 */
#ifndef EBBDSM_STEP_H
#define EBBDSM_STEP_H

#include <stdbool.h>
#include <stdint.h>

/* A stamp: generation 44 | number 16 | 0000. */
#define DSM_NUMBER_SHIFT 4
#define DSM_GENERATION_SHIFT 20
#define DSM_NUMBERS (1u << (DSM_GENERATION_SHIFT - DSM_NUMBER_SHIFT))

static inline uint64_t dsm_stamp(uint64_t generation, uint32_t number)
{
	return generation << DSM_GENERATION_SHIFT | (uint64_t)number << DSM_NUMBER_SHIFT;
}

static inline uint64_t dsm_generation(uint64_t stamp)
{
	return stamp >> DSM_GENERATION_SHIFT;
}

/* A hold word: 0, or a ticket or claim and, in its lowest bits, a state. */
enum dsm_hold {
	DSM_HOLD_NONE,
	DSM_HOLD_OFFERED,  /* ticket */
	DSM_HOLD_LENT,     /* ticket */
	DSM_HOLD_TAKEN,    /* claim */
	DSM_HOLD_RETURNED, /* claim */
	DSM_HOLD_DONE,     /* claim */
};

#define DSM_HOLD_BITS 15ull

static inline uint32_t dsm_hold_state(uint64_t hold)
{
	return hold & DSM_HOLD_BITS;
}

static inline uint64_t dsm_hold_rest(uint64_t hold)
{
	return hold & ~DSM_HOLD_BITS;
}

/* The header of a place, words. */
struct dsm_head {
	uint64_t stamp; /* of the content; 0 while it changes, and while there is none */
	uint64_t check; /* dsm_check() */
	uint64_t size;  /* bytes of the content */
	uint64_t hold;
};

#define DSM_HEAD sizeof(struct dsm_head)

/* Returns the check word: a name within an object's content cannot pass for a header. */
uint64_t dsm_check(uint64_t at, uint64_t stamp);

/* What a member that takes writes to memory of its own at the giver's donor; words. */
struct dsm_record {
	uint64_t ticket;     /* 0 = unused */
	uint64_t generation; /* of the record's extent */
	uint64_t at, back;   /* of what is returned: the place, and the ticket of its offer */
};

enum dsm_part_kind {
	DSM_READ,   /* READ the object at .at: header to op->head, content to the caller's memory */
	DSM_HEADER, /* READ its header to op->after */
	DSM_SWAP,   /* compare-and-swap its hold word, .expect to .desired; the old to op->old */
	DSM_CLAIM,  /* WRITE op->mine to the record of claim .at, which is the member's own */
	DSM_RECORD, /* READ the record of claim .at to op->other */
	DSM_STAMP,  /* WRITE stamp .desired, and its check word, of the member's own place .at */
	DSM_FILL,   /* WRITE the content there from the caller's memory */
	DSM_WHOLE,  /* ... and the size and hold words before it */
};

struct dsm_part {
	enum dsm_part_kind kind;
	uint64_t at, expect, desired;
};

enum dsm_verb_kind {
	DSM_ENDED,       /* op->result */
	DSM_EXECUTE,     /* parts in their order, all at one donor; then call with 0 */
	/*
	 * Call with 1 if the member of place .at is alive, or has its extent as .generation, or 0.
	 */
	DSM_ALIVE,
	/* Call with 1 if the member of claim .at has its extent as .generation, or 0. */
	DSM_ALIVE_CLAIM,
};

enum { DSM_PARTS = 4 };

struct dsm_verb {
	enum dsm_verb_kind kind;
	uint32_t parts;
	struct dsm_part part[DSM_PARTS];
	uint64_t at, generation;
};

/*
 * A result: the owner takes op->other.at with the ticket op->other.back, then frees the old place.
 */
enum { DSM_RETURNED = 1 };

struct dsm_op {
	uint8_t phase;
	uint64_t at, stamp;      /* the name; of offers, stamp is the ticket */
	enum dsm_hold state;     /* of the offer: OFFERED or LENT */
	bool withdraws;
	uint64_t claim;          /* the member's own */
	struct dsm_record mine, other;
	struct dsm_head head, after;
	uint64_t old;
	int result;
};

/* Reads the value named @at, @stamp.  0; -ESTALE: the place has another; -EOWNERDEAD. */
void dsm_read(struct dsm_op *op, uint64_t at, uint64_t stamp);

/*
 * Reads that value at a twin of the place.  0; -ESTALE: the object has changed since, or has ended;
 * -EIO: it is not there.
 */
void dsm_read_twin(struct dsm_op *op, uint64_t at, uint64_t stamp);

/*
 * Returns whether a read that ended with -ESTALE found no later value: the owner may have lost the
 * place's donor, or it is changing the object, and the value is not over before that has ended.
 */
bool dsm_was_left(const struct dsm_op *op);

/* Writes the value named @at, @stamp to a twin of the member's own place. */
void dsm_copy(struct dsm_op *op, uint64_t at, uint64_t stamp);

/* Gives the content of the member's own place @at the stamp @stamp. */
void dsm_change(struct dsm_op *op, uint64_t at, uint64_t stamp);

/* Offers the member's own place @at with @ticket, as @state.  0. */
void dsm_offer(struct dsm_op *op, uint64_t at, uint64_t ticket, enum dsm_hold state);

/*
 * Takes what is offered under @ticket, with the claim @claim of an extent of @generation.  0:
 * op->after is the header; -ESTALE: withdrawn, or taken by another; -EOWNERDEAD.
 */
void dsm_take(struct dsm_op *op, uint64_t at, uint64_t ticket, enum dsm_hold state, uint64_t claim,
	      uint64_t generation);

/* After a take of a move: the content is copied.  0. */
void dsm_finish(struct dsm_op *op, uint64_t at, uint64_t claim);

/*
 * Returns what was taken from @at: it is at @back_at, where it is offered with @back_ticket.  0;
 * -EOWNERDEAD.
 */
void dsm_give_back(struct dsm_op *op, uint64_t at, uint64_t ticket, uint64_t claim,
		   uint64_t generation, uint64_t back_at, uint64_t back_ticket);

/*
 * Asks what has become of the offer of the member's own place @at.  With @withdraws, withdraws it.
 *
 * 0: withdrawn; -EAGAIN: not taken; -EBUSY: another member has it; -ESTALE: moved, the place is
 * free; DSM_RETURNED; -EOWNERDEAD: a borrower that has it, or had it, is dead: it is withdrawn.
 */
void dsm_reclaim(struct dsm_op *op, uint64_t at, uint64_t ticket, enum dsm_hold state,
		 bool withdraws);

/*
 * Returns what a reclaim ends with whose result is @result, or -EIO, where the member has lost the
 * donor of the place, but not the content.  -EOWNERDEAD: the object is as it was before the loan.
 */
int dsm_reclaim_lost(enum dsm_hold state, int result);

/*
 * The offer of what an operation returned could not be taken: the place is the owner's as it was.
 */
void dsm_restore(struct dsm_op *op, uint64_t at, uint64_t hold);

/* @status is that of the last verb, 0 at first. */
struct dsm_verb dsm_next(struct dsm_op *op, int status);

#endif
