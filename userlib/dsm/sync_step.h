/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Mutexes and counts of libebbdsm, one verb at a time, as dsm_step.h.  The library and the model
 * checker run this source.
 *
 * A cell is a place with words that other members than its owner change: a state word, an entry for
 * each user, and content.
 *
 *   state   of a mutex: which user has it, which users wait, whether the last one died with it
 *           (damaged), whether it can be used no more (lost).  Of counts: which users have
 *           references, and whether there was a last one (lost).  And a version
 *   entry   0, or the word of a member, which no other member has had or will have
 *
 *   join    entry 0 -> member; the version + 1.  An entry of a dead member is freed before, if
 *           the state does not name it: read again after it is known to be dead
 *   lock    state free -> user; or the user's bit in the state, then sleep until the state names
 *           the user.  One that finds the holder dead takes its place, damaged
 *   unlock  content; state user -> the next user of those that wait, or free; ring that
 *   hold    the user's bit in the state, unless it is lost
 *   unhold  the bit's end; the last one makes it lost
 *   sweep   bits of dead users end
 *
 * The state names a user by its entry's number.  A member that finds entry's member dead has read
 * the state before the entry, and swaps that state alone: since each join changes the version, no
 * later member has the entry then.
 *
 * Rules for the caller:
 *  - A cell's words are stored so that no other memory and no other cell has one of the same value
 *    at that place.  So swaps have no effect on what has become other memory.
 *  - Parts of a verb take effect in their order.  Each word is read and changed at once, and
 *    nothing larger is.  After the parts the caller looks whether the cell is still there; if it is
 *    not, the status is a negative errno, and ends the operation.
 *  - The donor fences a member before its entry counts as dead.  A cell is dropped when no member
 *    uses it.
 *  - A member executes one operation of a cell at a time.
 *  - A ring may come late or not at all, if the member that rings is killed, and more often than
 *    rung: a sleeper looks at intervals.
 *
 * Pure: no I/O, clock, allocation.
 */
#ifndef EBBDSM_SYNC_STEP_H
#define EBBDSM_SYNC_STEP_H

#include <stdbool.h>
#include <stdint.h>

/* A model checker overrides it. */
#ifndef SYNC_USERS
#define SYNC_USERS 32u
#endif

/* Words of a cell. */
enum { SYNC_STATE, SYNC_ENTRY, SYNC_CONTENT = SYNC_ENTRY + SYNC_USERS };

/* A state: version 24 | lost 1 | damaged 1 | holder's entry + 1, 6 | bits 32. */
#define SYNC_BITS 0xffffffffull
#define SYNC_HOLDER_SHIFT 32
#define SYNC_DAMAGED (1ull << 38)
#define SYNC_LOST (1ull << 39)
#define SYNC_VERSION_SHIFT 40

/* Returns the entry of the holder, or -1. */
static inline int sync_holder(uint64_t state)
{
	return (int)(state >> SYNC_HOLDER_SHIFT & 63) - 1;
}

enum sync_part_kind {
	SYNC_SWAP,    /* compare-and-swap word .word, .expect to .desired; the old to op->old */
	SYNC_READ,    /* READ .count words from .word on to op->seen, in their order */
	SYNC_FETCH,   /* READ the content to the caller's memory */
	SYNC_STORE,   /* write what the caller has changed of the content, in ascending order */
};

struct sync_part {
	enum sync_part_kind kind;
	uint32_t word, count;
	uint64_t expect, desired;
};

enum sync_verb_kind {
	SYNC_ENDED,   /* op->result */
	SYNC_EXECUTE, /* parts in their order, then call with 0 */
	SYNC_ALIVE,   /* call with 1 if the member of .entry is alive, else 0 */
	SYNC_RING,    /* wake the member of .entry, then call with 0 */
	SYNC_SLEEP,   /* call with an enum sync_wake */
};

enum sync_wake {
	SYNC_RANG,    /* this member was rung, perhaps for another reason */
	SYNC_LOOK,    /* ... or an interval has passed */
	SYNC_TIMEOUT, /* ... or the call shall not wait any longer */
};

enum { SYNC_PARTS = 3 };

struct sync_verb {
	enum sync_verb_kind kind;
	uint32_t parts;
	struct sync_part part[SYNC_PARTS];
	uint64_t entry;
};

struct sync_op {
	uint8_t phase, user;
	bool tries;   /* does not wait, or not any longer */
	bool slept;   /* a try that has waited */
	bool looks;   /* asks whether the holder is alive */
	bool fresh;   /* .seen has the entries from after .word */
	bool repaired; /* of an unlock */
	int8_t asked; /* which entry */
	uint32_t dead, rings; /* bits */
	int result;
	uint64_t me;          /* the member's entry word */
	uint64_t word, swapped; /* the state, as it was last; as the swap makes it */
	uint64_t old;
	uint64_t seen[SYNC_CONTENT]; /* state, entries */
};

/* Makes the member with the entry word @me a user: 0, op->user and op->word; -EUSERS. */
void sync_join(struct sync_op *op, uint64_t me);

/* Ends that; the state does not name the user.  0. */
void sync_leave(struct sync_op *op, uint64_t me, uint32_t user);

/*
 * Locks; @state is a guess.  0; -EOWNERDEAD: damaged; the content is fetched, and op->word is the
 * state.  -ENOTRECOVERABLE; -EAGAIN: @tries, and a live member has it; -ETIMEDOUT.
 */
void sync_lock(struct sync_op *op, uint64_t me, uint32_t user, uint64_t state, bool tries);

/*
 * Unlocks; @state is as the lock left it.  @repaired: what was damaged is in order.  0; -EPERM: the
 * member does not have it.
 */
void sync_unlock(struct sync_op *op, uint64_t me, uint32_t user, uint64_t state, bool repaired);

/* Takes a reference.  0; -ESTALE: there was a last one. */
void sync_hold(struct sync_op *op, uint64_t me, uint32_t user, uint64_t state);

/* Ends a reference.  0, or 1: it was the last one. */
void sync_unhold(struct sync_op *op, uint64_t me, uint32_t user, uint64_t state);

/* Ends the references of dead members.  0, or 1: there is none. */
void sync_sweep(struct sync_op *op);

/* @status is that of the last verb, 0 at first. */
struct sync_verb sync_next(struct sync_op *op, int status);

#endif
