/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The memory pool: slabs of one size at places of one reserved piece of address space, each made
 * and dropped by itself.  A slab is zeroed after its release, before it is lent again.
 *
 * A borrower on this machine maps a shared slab.  A mapping cannot be revoked, so the pool replaces
 * the memory of a slab that was handed over.  memfd pages can be swapped out: the pool locks them,
 * and a borrower locks its mapping, so that they stay when the donor dies.
 *
 * The loop's thread calls all functions but pool_work(), which is the pool thread's, because making
 * memory may have to wait for memory.
 */
#ifndef EBB_POOL_H
#define EBB_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "borrower.h"
#include "lib/base/error.h"
#include "slab_memory.h"

/* Limit of loans to all borrowers in a turn, of which at most one needs zeroing first. */
#define POOL_MAPS 16

enum lend_state {
	LEND_ABSENT, /* a place without memory */
	LEND_COMING, /* the pool thread makes or re-creates it */
	LEND_CLEAN,  /* zeroed and free */
	LEND_LENT,
	LEND_DIRTY,  /* released, to be zeroed */
	LEND_GOING,  /* the pool thread drops it */
	LEND_WITHDRAWN, /* its last borrower may still reach it: not lent again */
	LEND_STATES
};

/* Recall of a loan. */
enum lend_asked {
	LEND_NOT_ASKED,
	LEND_TO_ASK,   /* as soon as its borrower can be asked */
	LEND_ASKED,    /* no answer yet */
	LEND_PROMISED, /* its borrower will release it */
	LEND_REFUSED,  /* its borrower cannot move its pages */
	LEND_ASKED_STATES
};

/*
 * Keys for which slabs may have been zeroed at once lately.  Each of them gets 1/16 of the loop's
 * time for that, so all together get a quarter.
 */
#define POOL_ZERO_KEYS 4

struct pool_zero_key {
	char key[KEY_NAME];
	uint64_t until; /* ns: its borrowers wait for a clean slab until then */
};

/* Work for the pool thread. */
struct pool_task {
	void (*run)(struct pool_task *t);  /* pool thread */
	void (*done)(struct pool_task *t); /* loop, afterwards: may reuse or free it */
	struct pool_task *next;            /* in the pool's lists */
};

struct lend_slab {
	struct pool_task work;   /* makes or drops the memory */
	struct pool *pool;
	uint8_t state;       /* enum lend_state */
	uint8_t asked;       /* enum lend_asked, while lent */
	bool handed;         /* another process may have it mapped */
	bool revoked;        /* the donor ended the last loan */
	bool untold;         /* ... and has yet to announce that to its borrower */
	bool overdue;        /* has been logged */
	bool backed;         /* its borrower also has the pages elsewhere */
	bool mapped;         /* revoked, and its last borrower has yet to unmap it */
	bool unclaimed;      /* its reconnecting borrower has not named it yet */
	bool granting;       /* lent, and its export has not granted it yet */
	int fd;              /* its memfd; -1 = private */
	int result;          /* of the pool thread's work */
	struct borrower *owner; /* of the present or last loan; NULL = removed, or none yet */
	char key[KEY_NAME];  /* of that owner, also when it is removed: its quota counts pins */
	uint32_t generation; /* of the present or last loan */
	uint32_t pins;       /* requests in flight that refer to the memory */
	uint64_t dirty_from; /* while dirty: bytes zeroed so far */
	uint64_t asked_at, answered_at; /* ns: first recalled; last answer */
	uint64_t revoked_at; /* ns: end of the last loan, if .revoked */
};

/* Tasks for the pool thread. */
struct pool_queue {
	struct pool_task *put;      /* newest first */
	struct pool_task *taken;    /* owned by the pool thread, in order */
};

struct pool {
	uint8_t *memory;
	uint8_t *reserved; /* the address space around it */
	size_t reserved_size;
	struct lend_slab *slabs;
	uint32_t count;             /* places */
	uint32_t in[LEND_STATES];   /* slabs in each state */
	uint32_t generation;        /* of the last loan */
	uint64_t slab_size;
	enum lend_memory kind;
	struct patience patience;   /* stops the making of memory; unused after pool_init() */
	struct export *exports;     /* pool_add_export() */
	struct borrower *borrowers; /* pool_add() */
	bool draining;              /* lends nothing; written by the loop, read by all threads */
	bool follows;               /* HeadRoom decides how many slabs there may be: */
	uint32_t allowed;           /* so many */
	bool refused;               /* a MAP found no memory; cleared by the code that acts on it */
	uint64_t turn;              /* number of the loop's turn; never 0 */
	uint64_t now;               /* ns: before this turn's events */
	uint32_t maps;              /* loans in this turn */
	uint64_t lent_turns;        /* earlier turns with loans: the next one's order alternates */
	struct pool_zero_key zeroed_for[POOL_ZERO_KEYS];
	struct pool_queue tasks, later, slabs_to_do; /* in order of priority */
	struct pool_task *ran;      /* done, newest first */
	uint32_t tasks_put;         /* so far, in all three */
	int failed;                 /* -errno of the first slab that could not be made, or 0 */
	int done_fd;                /* eventfd: pool_settle() has work; -1 = none */
};

/*
 * Reserves address space for @memory bytes in whole slabs of @slab_size, without memory.
 */
int pool_init(struct pool *p, uint64_t memory, uint64_t slab_size, enum lend_memory kind,
	      struct error *e);
void pool_free(struct pool *p);

/*
 * Makes the first @n slabs in the calling thread, before the pool thread runs.  Returns -EINTR,
 * without an error, when the patience is over.
 */
int pool_fill(struct pool *p, uint32_t n, struct error *e);

/*
 * Start to make up to @n slabs, or to drop up to @n free ones, dirty ones first.  Return how many.
 */
uint32_t pool_grow(struct pool *p, uint32_t n);
uint32_t pool_shrink(struct pool *p, uint32_t n);

/*
 * Does the next piece of work in the pool thread; returns false when there is none.  Tasks come
 * first, also between two pieces of a slab that is being made.
 */
bool pool_work(struct pool *p);
/* Settles what the pool thread has done.  Returns -errno of the first slab that it cannot make. */
int pool_settle(struct pool *p);

/* Add exports before pool_fill(), and remove them after the last pool_work(). */
void pool_add_export(struct pool *p, struct export *x);
void pool_remove_export(struct pool *p, struct export *x);

/* Lets @b borrow until pool_remove(), which ends its loans and returns their number. */
void pool_add(struct pool *p, struct borrower *b);
uint32_t pool_remove(struct pool *p, struct borrower *b);

static inline void pool_turn(struct pool *p, uint64_t now)
{
	p->turn++;
	p->now = now;
	p->lent_turns += p->maps != 0;
	p->maps = 0;
}

/*
 * Returns whether a MAP of @b may be served in this turn.  A refused MAP uses up its borrower's
 * turn, but no loan of the turn.  While no slab is clean, one for which a slab was zeroed at once
 * waits: pool_zero_some() makes one clean meanwhile, between the requests of others.
 */
bool pool_may_lend(const struct pool *p, const struct borrower *b);

/*
 * Lends a slab to @b, zeroing up to 64 MiB now if it must.  WIRE_OK: @request names the loan, and
 * granted() follows or was called.  Else WIRE_NO_SPACE, WIRE_OVER_QUOTA or the export's status.
 */
enum wire_status pool_lend(struct pool *p, struct borrower *b, struct wire_frame *request);
/* Grants a loan of a resumed session again; unless it is stale, it stays if that fails. */
enum wire_status pool_lend_again(struct pool *p, struct borrower *b,
				 const struct wire_frame *request);
/* Exports: completes grant(); @g NULL = it failed. */
void pool_granted(struct pool *p, const struct wire_frame *request, const struct lend_grant *g);
/* Exports: the grant() of pool_lend_again() failed, and the loan stays. */
void pool_not_again(struct pool *p, const struct wire_frame *request);

/* Records whether @b also has the pages of @slab, which is lent to it, elsewhere. */
void pool_back(struct pool *p, uint32_t slab, bool backed);

enum wire_status pool_return(struct pool *p, struct borrower *b, struct wire_loan loan);
/*
 * Passes @from's loans to @to, its reconnecting borrower, which names those that it wants by
 * pool_lend_again(); pool_return_rest() ends the others.  Return how many slabs.
 */
uint32_t pool_take_over(struct pool *p, struct borrower *from, struct borrower *to);
uint32_t pool_return_rest(struct pool *p, struct borrower *b);
/*
 * Ends the loan of @slab; its borrower gets WIRE_STALE.  One that maps the slab reaches its memory,
 * which nothing else uses and which is not free, until it hears of that: pool_unmapped().
 */
void pool_revoke(struct pool *p, uint32_t slab, uint64_t now);
void pool_unmapped(struct pool *p, uint32_t slab);
/* Keeps @slab, which is not lent, unused: its last borrower may still reach it. */
void pool_withdraw(struct pool *p, uint32_t slab);

/* Returns whether a slab is lent, or released and still in use. */
static inline bool pool_holds(const struct lend_slab *s)
{
	return s->state == LEND_LENT || s->pins;
}

/* Returns how many such slabs @b has. */
uint32_t pool_owned(const struct pool *p, const struct borrower *b);
/*
 * Returns how many more slabs the quota of @b's key allows, less those promised to other borrowers
 * with that key; UINT32_MAX without a quota.
 */
uint32_t pool_quota_left(const struct pool *p, const struct borrower *b);

/*
 * Reservations.  A borrower's reservation is a number of slabs in total: lent ones count towards
 * it, and the rest is promised.  Promised slabs are lent to no other borrower.  A promise holds as
 * long as the machine leaves the memory to the donor.
 */

/* Returns how many slabs the donor lends and could lend, those to be made included. */
uint32_t pool_total(const struct pool *p);
/* Returns how many slabs are promised and not lent: to all; to @b. */
uint32_t pool_promised(const struct pool *p);
static inline uint32_t pool_promised_to(const struct borrower *b)
{
	return b->reserved > b->lent ? b->reserved - b->lent : 0;
}
/* Returns how many slabs are neither lent nor promised. */
uint32_t pool_lendable(const struct pool *p);
/* Returns how many more slabs @b can have, now or after they were made, within its quota. */
uint32_t pool_room(const struct pool *p, const struct borrower *b);
/*
 * Sets the reservation of @b to @slabs, or to as many as it can have, but not to fewer than were
 * promised before.
 */
void pool_reserve(struct pool *p, struct borrower *b, uint32_t slabs);

/* Records a step of the recall of @slab at @now. */
void pool_asked(struct pool *p, uint32_t slab, enum lend_asked asked, uint64_t now);

/* Returns WIRE_OK if @loan belongs to @b, else the reason. */
enum wire_status pool_check(const struct pool *p, const struct borrower *b, struct wire_loan loan);
/* Checks an access of @b and sets *@memory to its place. */
enum wire_status pool_access(struct pool *p, const struct borrower *b, const struct wire_frame *f,
			     void **memory);

static inline uint8_t *pool_memory(const struct pool *p, uint32_t slab)
{
	return p->memory + (uint64_t)slab * p->slab_size;
}

/* Has the pool thread run @t; tasks run in the order of these calls. */
void pool_task(struct pool *p, struct pool_task *t);
/* Has the pool thread run @t, in order, whenever no task of pool_task() waits. */
void pool_task_later(struct pool *p, struct pool_task *t);

/* Returns the memfd of a shared @slab for its borrower; it stays the pool's. */
int pool_hand_over(struct pool *p, uint32_t slab);

/*
 * A request refers to @slab's memory: a reply in flight, or a payload that is arriving.  The slab
 * is neither zeroed nor lent nor dropped meanwhile.
 */
void pool_pin(struct pool *p, uint32_t slab);
void pool_unpin(struct pool *p, uint32_t slab);

/* Fate of a released slab that was handed over. */
enum lend_return {
	LEND_RENEW,   /* the pool thread replaces its memory */
	LEND_GIVE_UP, /* its memory returns to the machine */
};

/*
 * While idle: zeroes a piece of a released slab, or has the pool thread replace or drop one that
 * was handed over.  Returns true while there is more.
 */
bool pool_zero_some(struct pool *p, enum lend_return handed);

/* Counts slabs with memory. */
static inline uint32_t pool_present(const struct pool *p)
{
	return p->in[LEND_CLEAN] + p->in[LEND_DIRTY] + p->in[LEND_LENT];
}

/* Counts slabs that take memory from the machine. */
static inline uint32_t pool_allocated(const struct pool *p)
{
	return p->count - p->in[LEND_ABSENT];
}

/* Counts free slabs, zeroed or not. */
static inline uint32_t pool_free_slabs(const struct pool *p)
{
	return p->in[LEND_CLEAN] + p->in[LEND_DIRTY];
}

#endif
