/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The memory a donor lends: slabs of one size, each made and given back by itself, at places
 * of one reserved piece of address space.  A slab is zeroed after its release, before it is
 * lent again.
 *
 * A borrower on this machine maps a shared slab.  A mapping cannot be revoked, so a slab that
 * was handed over is never lent again: its memory is dropped and another is made in its place.
 * memfd pages can be swapped out: ours are locked, and a borrower locks its mapping, so that
 * they stay when we die.
 *
 * Two threads: the loop's, which calls everything but pool_work(), and the pool thread, which
 * calls that, because making memory may have to wait for memory.
 */
#ifndef EBB_POOL_H
#define EBB_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "borrower.h"
#include "lib/base/error.h"
#include "slab_memory.h"

/* Loans of all borrowers in a turn; of these one whose slab has to be zeroed first. */
#define POOL_MAPS 16

enum lend_state {
	LEND_ABSENT, /* a place without memory */
	LEND_COMING, /* the pool thread's: being made, or re-created */
	LEND_CLEAN,  /* zeroes, to lend */
	LEND_LENT,
	LEND_DIRTY,  /* came back, to be zeroed */
	LEND_GOING,  /* the pool thread's: being given back to the machine */
	LEND_WITHDRAWN, /* its last borrower may still reach it: never lent again */
	LEND_STATES
};

/* Whether a loan was recalled; a new loan was not. */
enum lend_asked {
	LEND_NOT_ASKED,
	LEND_TO_ASK,   /* as soon as its borrower can be asked */
	LEND_ASKED,    /* no answer yet */
	LEND_PROMISED, /* it will come */
	LEND_REFUSED,  /* its pages could not go elsewhere */
	LEND_ASKED_STATES
};

struct lend_slab {
	uint8_t state;       /* enum lend_state */
	uint8_t asked;       /* enum lend_asked, while lent */
	bool handed;         /* another process may have it mapped */
	bool revoked;        /* the last loan did not end by its borrower's will */
	bool overdue;        /* has been reported */
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
};

/* Slabs on their way from one thread to the other; none is there twice. */
struct lend_queue {
	uint32_t *slabs;     /* ring of pool.count, owned */
	uint32_t put, taken; /* one producer, one consumer */
};

/* Work of the pool thread. */
struct pool_task {
	void (*run)(struct pool_task *t);  /* pool thread */
	void (*done)(struct pool_task *t); /* then the loop: from here on it is its owner's again */
	struct pool_task *next;            /* the pool's */
};

struct pool {
	uint8_t *memory;
	uint8_t *reserved; /* the address space around it */
	size_t reserved_size;
	struct lend_slab *slabs;
	uint32_t count;             /* places */
	uint32_t in[LEND_STATES];   /* how many are in each state */
	uint32_t generation;        /* last one given */
	uint64_t slab_size;
	enum lend_memory kind;
	struct patience patience;   /* of the thread that makes memory; none after pool_init() */
	struct export *exports;     /* pool_add_export() */
	struct borrower *borrowers; /* pool_add() */
	bool draining;              /* lends nothing; written by the loop, read by others, too */
	bool refused;               /* a MAP found no memory; cleared by the code that acts on it */
	uint64_t turn;              /* number of the loop's turn; never 0 */
	uint32_t maps;              /* loans in this turn */
	bool zeroed;                /* in this turn, for a MAP */
	struct pool_task *tasks;    /* to the pool thread, the last one first */
	struct pool_task *taken;    /* the pool thread's, in order */
	struct pool_task *ran;      /* and back, the last one first */
	uint32_t tasks_put;         /* so far */
	struct lend_queue to_do, done; /* slabs: to the pool thread, behind tasks; and back */
	int done_fd;                /* eventfd: pool_settle() has work; -1 = none */
};

/*
 * Room for @memory bytes in slabs of @slab_size, without any memory yet; what does
 * not fill a slab is not used.
 */
int pool_init(struct pool *p, uint64_t memory, uint64_t slab_size, enum lend_memory kind,
	      struct error *e);
void pool_free(struct pool *p);

/*
 * Makes the first @n slabs now, in the calling thread, before any pool thread.  -EINTR, without
 * an error, when the patience is over.
 */
int pool_fill(struct pool *p, uint32_t n, struct error *e);

/*
 * Starts to make up to @n slabs, or to give up to @n free ones back to the
 * machine, those first that would have to be zeroed.  Return how many.
 */
uint32_t pool_grow(struct pool *p, uint32_t n);
uint32_t pool_shrink(struct pool *p, uint32_t n);

/*
 * The pool thread: does the next of what is queued; false = nothing to do.  Tasks come first, also
 * between two pieces of a slab that is being made.
 */
bool pool_work(struct pool *p);
/* Takes over what the pool thread has done.  -errno of the first slab that could not be made. */
int pool_settle(struct pool *p);

/* Before the pool has memory; @x outlives it, or pool_remove_export() comes after pool_work()'s last. */
void pool_add_export(struct pool *p, struct export *x);
void pool_remove_export(struct pool *p, struct export *x);

/* @b may borrow until pool_remove(), which ends its loans; returns how many. */
void pool_add(struct pool *p, struct borrower *b);
uint32_t pool_remove(struct pool *p, struct borrower *b);

/* A new turn of the loop: pool_may_lend() says whether a MAP of @b is to wait for the next. */
static inline void pool_turn(struct pool *p)
{
	p->turn++;
	p->maps = 0;
	p->zeroed = false;
}

/* A refused MAP takes nothing of the turn from other borrowers: one per borrower and turn. */
static inline bool pool_may_lend(const struct pool *p, const struct borrower *b)
{
	return p->maps < POOL_MAPS && (!p->zeroed || p->in[LEND_CLEAN]) && b->refused != p->turn;
}

/*
 * Lends a zeroed slab to @b; of a released one that is not zeroed yet up to 64 MiB are zeroed
 * now.  WIRE_OK: @request names the loan, and granted() comes, or has come.  Else
 * WIRE_NO_SPACE, WIRE_OVER_QUOTA or what the export says.
 */
enum wire_status pool_lend(struct pool *p, struct borrower *b, struct wire_frame *request);
/* Grants the loan that @request names, of a session that was resumed, again. */
enum wire_status pool_lend_again(struct pool *p, struct borrower *b,
				 const struct wire_frame *request);
/* An export's answer to grant(), with the loan; @g NULL = it failed. */
void pool_granted(struct pool *p, const struct wire_frame *request, const struct lend_grant *g);

enum wire_status pool_return(struct pool *p, struct borrower *b, struct wire_loan loan);
/*
 * What @from has is @to's, its reconnecting borrower, which names what it wants by
 * pool_lend_again(); pool_return_rest() ends the other loans.  Return how many slabs.
 */
uint32_t pool_take_over(struct pool *p, struct borrower *from, struct borrower *to);
uint32_t pool_return_rest(struct pool *p, struct borrower *b);
/* Ends the loan of @slab, which is not handed over; its borrower gets WIRE_STALE. */
void pool_revoke(struct pool *p, uint32_t slab);
/* @slab, which is not lent any more, stays unused: it may still be reached. */
void pool_withdraw(struct pool *p, uint32_t slab);

/* A slab that @b borrows, or gave back and still uses. */
static inline bool pool_holds(const struct lend_slab *s)
{
	return s->state == LEND_LENT || s->pins;
}

/* How many of these @b has. */
uint32_t pool_owned(const struct pool *p, const struct borrower *b);
/* Whole slabs that its quota allows @b besides those of borrowers with its key; or UINT32_MAX. */
uint32_t pool_quota_left(const struct pool *p, const struct borrower *b);

/* Loans that were recalled: what became of it, at @now. */
void pool_asked(struct pool *p, uint32_t slab, enum lend_asked asked, uint64_t now);

/* Whether @loan is one of @b's: WIRE_OK, or why not. */
enum wire_status pool_check(const struct pool *p, const struct borrower *b, struct wire_loan loan);
/* Checks an access of @b and returns in *@memory where it goes. */
enum wire_status pool_access(struct pool *p, const struct borrower *b, const struct wire_frame *f,
			     void **memory);

static inline uint8_t *pool_memory(const struct pool *p, uint32_t slab)
{
	return p->memory + (uint64_t)slab * p->slab_size;
}

/* Has the pool thread run @t; tasks run in the order of these calls. */
void pool_task(struct pool *p, struct pool_task *t);

/* The memfd of a shared @slab, to be handed to its borrower; still the pool's. */
int pool_hand_over(struct pool *p, uint32_t slab);

/*
 * A request refers to @slab's memory: a reply on its way, or a payload that is
 * arriving.  It is neither zeroed nor lent nor given back meanwhile.
 */
void pool_pin(struct pool *p, uint32_t slab);
void pool_unpin(struct pool *p, uint32_t slab);

/* What becomes of a slab that comes back and was handed over. */
enum lend_return {
	LEND_RENEW,   /* another one is made in its place at once */
	LEND_GIVE_UP, /* its memory goes to the machine */
};

/*
 * Zeroes a piece of a released slab, or has the pool thread replace or drop one that was
 * handed over; to be called while nothing else is to be done.  True while there is more.
 */
bool pool_zero_some(struct pool *p, enum lend_return handed);

/* Slabs with memory. */
static inline uint32_t pool_present(const struct pool *p)
{
	return p->in[LEND_CLEAN] + p->in[LEND_DIRTY] + p->in[LEND_LENT];
}

/* Slabs whose memory the machine lacks. */
static inline uint32_t pool_allocated(const struct pool *p)
{
	return p->count - p->in[LEND_ABSENT];
}

/* Slabs to lend: now, or once zeroed. */
static inline uint32_t pool_free_slabs(const struct pool *p)
{
	return p->in[LEND_CLEAN] + p->in[LEND_DIRTY];
}

#endif
