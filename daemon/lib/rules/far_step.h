/* SPDX-License-Identifier: GPL-2.0-or-later OR BSD-2-Clause */
/*
 * The protocol of far memory (include/ebb/far.h), one verb at a time.  An operation is a struct
 * far_op; extent_next() says which verb to execute next, the caller executes it and calls again.
 * Members, the donor, the simulator and the model checker run this source.
 *
 * Operations by word; each arrow is one compare-and-swap:
 *
 *   allocate   slot {free,c,g} -> {me,c,g}; section FREE,g -> WHOLE(me),g, ascending
 *   free       {me,c,g} -> {free,c,g+1}; WHOLE(me),g -> FREE,g+1
 *   take       {giver,c,g} -> {me,c,g+1}, by the receiver of an offer
 *   withdraw   {me,c,g} -> {me,c,g+1}: an offer of the old name cannot be taken any more
 *   format     FREE,g -> OPENING(me),g+1; each slot {closed,g} -> {free,c,g+1}; -> OPEN
 *   trim       OPEN,g -> CLOSING(me),g; each slot {free,c,g} -> {closed,c,g}; -> FREE,g+1;
 *              with a busy slot, reopen: each slot {closed,g} -> {free,c,g+1}; -> OPEN,g
 *   recover    by the donor, for a fenced member: WHOLE(dead),g -> FREE,g+1; each slot
 *              {dead,c,g} -> {free,c,g+1}; OPENING(dead) and CLOSING(dead) are reopened
 *
 * Hand-over: the giver sends the names in a message, the offer.  It keeps the names, but does not
 * access the extent, until the receiver has confirmed or the offer is withdrawn.  The receiver
 * takes; the first word decides between take, withdraw and free.  A receiver that fails frees what
 * it took.  When the receiver reports failure or is dead, the giver frees all names: words that are
 * not its own any more refuse.
 *
 * Progress: every operation ends after a bounded number of verbs.  Members that allocate runs of
 * sections that overlap may undo each other's until one gets -EBUSY: it tries again later.
 *
 * Rules for the caller:
 *  - At most one verb of a member that is in flight changes a word: a library compares the words
 *    of verbs (.swap[].at), or executes one operation per arena at a time.  Different views do not
 *    keep operations apart.
 *  - A member's READs and WRITEs of an extent's bytes are complete before it offers or frees the
 *    extent.
 *  - The donor recovers a member only after its fence: none of its verbs and WRITEs can take effect
 *    any more.  The number is reused only after recovery.
 *  - A verb whose outcome is unknown is executed again with all its parts, and only when nothing of
 *    the first try can take effect any more: a late OPEN,g -> CLOSING(me),g would close a section
 *    that no operation opens again.
 *  - A word that is then as desired was set by the first try, or the member has that name already
 *    (an old image, a duplicate of an offer): op->holds() tells which.
 *
 * Pure: no I/O, clock, allocation; random choices come from the view's seed.
 */
#ifndef EBB_FAR_STEP_H
#define EBB_FAR_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "far_view.h"

/* A part of a verb: a compare-and-swap of the word at byte offset @at of the arena. */
struct far_swap {
	uint64_t at, expect, desired;
};

/* A part of a verb: a READ of @words words from @at on. */
struct far_read {
	uint64_t at, *to;
	uint32_t words;
};

enum far_verb_kind {
	FAR_DONE,    /* the operation has ended: op->result */
	FAR_EXECUTE, /* swaps in their order, then reads; call again when all are complete */
	FAR_POST,    /* WRITE the lowest .bytes bytes of .word at .at; call again at once */
};

enum { FAR_READS = 4 };

/*
 * Memory at .swap, .old and .read[].to belongs to the operation or its view.  On TCP and RDMA all
 * parts of a verb are sent together: a verb is one round trip.
 */
struct far_verb {
	enum far_verb_kind kind;
	uint32_t swaps, reads;
	const struct far_swap *swap;
	uint64_t *old; /* the words as the swaps found them, by swap */
	struct far_read read[FAR_READS];
	uint64_t at, word; /* of FAR_POST */
	uint32_t bytes;
};

/* Of a verb; other errors are -errno and end the operation (-ESHUTDOWN: fenced, -EIO: lost). */
enum { FAR_OK = 0, FAR_UNKNOWN = 1 };

enum far_kind { FAR_ALLOCATE, FAR_FREE, FAR_TAKE, FAR_WITHDRAW, FAR_FORMAT, FAR_TRIM, FAR_RECOVER };

struct far_op {
	enum far_kind kind;
	uint8_t phase;
	uint8_t class;
	bool again;			  /* the last verb had an unknown outcome */
	bool may_format;		  /* FAR_ALLOCATE: true at first */
	bool window_read;		  /* in this operation */
	bool freed;			  /* slots: in .line by FAR_FREE, in .section by recovery */
	uint32_t sections, member, other; /* other: giver, or the member to recover */
	struct far_view *view;
	/*
	 * Set by the caller after the start, for outcomes that are unknown: returns whether the
	 * member has this name already, by another operation, ended or not.  A name that is being
	 * freed counts until that free has ended.  NULL: such words count as lost, which leaks
	 * them until the member's recovery.
	 */
	bool (*holds)(const void *context, const struct ebb_far_name *name);
	const void *context;
	struct ebb_far_name *names;
	uint32_t n, next;
	uint32_t misses, hops, windows,
		probes; /* on this line; lines or runs tried; windows read */
	uint32_t section, line, word;
	uint64_t state, hints;	/* words of .section */
	int result;		/* when done */
	uint32_t swaps, rounds; /* so far, for statistics */
	struct far_verb last;
	struct far_swap swap[EBB_FAR_LINE];
	uint64_t old[EBB_FAR_LINE];
	uint64_t words[EBB_FAR_LINE];
};

/*
 * Begins to allocate for @member (1 to EBB_FAR_MEMBERS, or EBB_FAR_DONOR) an extent of @class below
 * EBB_FAR_WHOLE_CLASS (@n is 1), or @n consecutive sections (class EBB_FAR_WHOLE_CLASS, at most
 * EBB_FAR_EXTENT_SECTIONS) within one window.  Results: 0; -ENOSPC, no free extent was found: one
 * that no hint shows may exist, and empty open sections can be trimmed; -EBUSY, others were faster
 * on FAR_HOPS lines or runs; -EINVAL.  @names has room for @n names, valid after result 0.
 */
void far_allocate(struct far_op *op, struct far_view *view, uint32_t member, uint32_t class,
		  struct ebb_far_name *names, uint32_t n);

/*
 * Begins to free @names of @member.  Results: 0; -ESTALE, some were not @member's any more, the
 * others are free.  After an unknown outcome, 0 does not tell that all were @member's: whether an
 * offer was taken, only its receiver or far_withdraw() tells.  The hint of the last name's line
 * alone is corrected: free slots of one line together.  @view may be NULL, else it learns what is
 * free.
 */
void far_free(struct far_op *op, struct far_view *view, uint32_t sections, uint32_t member,
	      struct ebb_far_name *names, uint32_t n);

/*
 * Begins to take @names, which @giver has offered to @member.  Result 0: names have the new
 * generations; -ESTALE: withdrawn, freed, the giver is dead, or a name occurs twice; nothing is
 * taken, and the names are not valid any more.
 */
void far_take(struct far_op *op, uint32_t sections, uint32_t member, uint32_t giver,
	      struct ebb_far_name *names, uint32_t n);

/*
 * Begins to withdraw an offer.  Result 0: @names have new generations; -ESTALE: it is taken, or was
 * and is undone: free @names if the receiver reports failure or is dead.
 */
void far_withdraw(struct far_op *op, uint32_t sections, uint32_t member, struct ebb_far_name *names,
		  uint32_t n);

/* Begins to divide a free section into slots of @class.  Results: 0; -EBUSY, it is not free. */
void far_format(struct far_op *op, uint32_t sections, uint32_t member, uint32_t section,
		uint32_t class);

/* Begins to make an open section free.  Results: 0; -EBUSY, a slot is in use, or it is not open. */
void far_trim(struct far_op *op, uint32_t sections, uint32_t member, uint32_t section);

/*
 * Begins to free all that member @dead has, for the donor, after the fence.  Result 0; op->next is
 * the number of words that were freed (fewer after unknown outcomes).
 */
void far_recover(struct far_op *op, uint32_t sections, uint32_t dead);

/* Returns the next verb of @op; @status is that of the last verb, FAR_OK at first. */
struct far_verb extent_next(struct far_op *op, int status);

/*
 * Returns the initial section word and slot word @word of a table of @sections sections, with
 * @generation.
 */
uint64_t far_initial_section(uint32_t sections, uint32_t section, uint64_t generation);
uint64_t far_initial_slot(uint32_t sections, uint32_t section, uint32_t word, uint64_t generation);

#endif
