/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Cells: words at their maker's home that other processes change by compare-and-swap alone.
 *
 * A word is stored as itself plus a number that its name, index and kind alone give, which other
 * memory does not hold: a swap that comes late, when the memory is another object's, fails, and so
 * does one by the name of a cell of another kind.  The size in the header says in its upper half
 * what kind of cell it is.
 */
#ifndef EBBDSM_CELL_H
#define EBBDSM_CELL_H

#include "dsm.h"
#include "sync_step.h"

enum cell_kind {
	CELL_WORDS = 1,
	CELL_MUTEX, /* this one and the next ones begin with SYNC_CONTENT words */
	CELL_CHANNEL,
	CELL_COUNTS,
};

struct cell_waiter;

/* What one thread of this process has at a time. */
struct cell_turn {
	bool taken;
	struct cell_waiter *first; /* of those that wait for it, the longest first */
};

/* A cell that this process uses. */
struct cell {
	struct queue_entry entry; /* its key is .at */
	uint64_t at, stamp;
	struct link *link;
	enum cell_kind kind;
	uint32_t space;    /* words of the place */
	uint32_t words;    /* of the cell, as the header says; 0 = not known yet */
	uint32_t calls;    /* that are in it */
	uint32_t references; /* of counts: in this process */
	uint32_t sleeps[2]; /* of a channel: calls that wait to receive, to send */
	uint32_t user;     /* its entry, if it has joined */
	uint64_t me;       /* ... and the word in it */
	bool joined, entered; /* ... and, of a channel, has put down that it has */
	struct cell_turn work;     /* a thread executes an operation */
	struct cell_turn sides[2]; /* of a channel: it waits to receive, to send */
	bool locked, damaged, repaired; /* mutexes */
	bool forgotten;    /* of counts: their maker's references have ended */
	uint64_t value_at; /* of counts: the maker's object; 0 = another's */
	uint64_t state;    /* as it was last */
	uint64_t *before;  /* the content, as it is in the cell */
	uint64_t *content; /* as the caller changes it; aligned to 16 */
	struct ebbfar_request *requests; /* room for those of any verb, once it has joined */
};

struct cells;
/* Makes what threads wait with.  NULL is fine. */
void cells_begin(struct cells *cells);
/* Ends what ebbdsm_close() finds.  NULL is fine. */
void cells_end(struct cells *cells);

/* --- with the lock of the handle held: --- */

/* Makes a cell with @words words, and sets its name.  May give the lock up meanwhile. */
int cell_make(ebbdsm_t *dsm, enum cell_kind kind, const uint64_t *words, uint32_t n, uint64_t *at,
	      uint64_t *stamp);

/* Frees a cell of this process.  -ESTALE; -EBUSY: a call is in it, or it is locked here. */
int cell_drop(ebbdsm_t *dsm, uint64_t at, uint64_t stamp);

/* Returns the cell if this process uses it, or NULL. */
struct cell *cell_find(ebbdsm_t *dsm, uint64_t at, uint64_t stamp);

/* Begins a call with a cell: sets *@cell.  -EINVAL: no such name; -ENOMEM. */
int cell_begin(ebbdsm_t *dsm, enum cell_kind kind, uint64_t at, uint64_t stamp,
	       struct cell **cell);

/* Ends it. */
void cell_end(ebbdsm_t *dsm, struct cell *c);

/* Returns a cell of counts whose maker's references have ended, once in each @turn, or NULL. */
struct cell *cell_next_forgotten(ebbdsm_t *dsm, uint32_t turn);

/* Sets *@entry to this process's word in entries at a donor.  Gives the lock up. */
int cell_own_entry(ebbdsm_t *dsm, struct link *l, uint64_t *entry);

/* Ends this process's roles in a channel.  With the turn.  Gives the lock up. */
int channel_leave(ebbdsm_t *dsm, struct cell *c);

/*
 * Takes a turn of a cell, until @until: -EAGAIN.  A thread that has waited for a ms gets it next;
 * before that, one that comes and does not have to wait may: each handing over takes a wake-up.
 */
int cell_turn(ebbdsm_t *dsm, struct cell_turn *t, int64_t until);
void cell_pass(ebbdsm_t *dsm, struct cell_turn *t);

/* A call has ended with @r: a cell that cannot be used again is forgotten after the last call. */
void cell_ended(struct cell *c, int r);

/* Makes this process a user, unless it is one.  With the turn.  Gives the lock up. */
int cell_join(ebbdsm_t *dsm, struct cell *c);

/* --- without the lock: --- */

/* Returns the time until which a call with @timeout_ms may wait. */
int64_t cell_until(int timeout_ms);

/*
 * Executes @op to its end; it waits until @until.  Returns op->result, or -ESTALE: the cell is
 * dropped; -ENOTRECOVERABLE: its maker is dead; -EINVAL: it is of another kind; -EIO and others of
 * link_run().
 */
int cell_run(struct cell *c, struct sync_op *op, int64_t until);

/* Returns 0 if the cell's maker has its memory, or -ESTALE, -ENOTRECOVERABLE. */
int cell_check(const struct cell *c);

/* Returns whether the member of that entry word is alive, or a negative errno. */
int cell_is_alive(struct link *l, uint64_t entry);

/* Wakes what waits in the process of that entry word. */
int cell_ring(struct link *l, uint64_t entry);

/* One word. */
struct word_op {
	enum { WORD_LOAD, WORD_SWAP, WORD_ADD } kind;
	uint64_t expect, desired; /* or what is added */
	uint64_t old;             /* set */
};

/* Executes @op on word @i of a cell of @kind, in one round trip.  Adds only to own cells. */
int cell_word(ebbdsm_t *dsm, enum cell_kind kind, uint64_t at, uint64_t stamp, uint32_t i,
	      struct word_op *op);

#endif
