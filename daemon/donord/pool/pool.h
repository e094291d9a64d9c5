/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The memory a donor lends: slabs of one size, each made and given back by
 * itself, at places of one reserved piece of address space.  Nobody sees what a
 * slab held before: it is zeroed after its release, before it is lent again.
 *
 * A borrower on this machine maps a shared slab.  That cannot be taken back, so
 * what was handed over is never lent again: it is given up, for its borrower to let go,
 * and another one made in its place.  memfd pages can be swapped out: ours are locked, and a
 * borrower locks its mapping, so that they stay when we die.
 *
 * Two threads: the loop's, which calls everything but lend_work(), and a worker,
 * which calls that, because making memory may have to wait for memory.
 */
#ifndef EBB_LEND_H
#define EBB_LEND_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/error.h"
#include "lib/wire/wire.h"
#include "slab_memory.h"

enum lend_state {
	LEND_ABSENT, /* a place without memory */
	LEND_COMING, /* the worker's: being made, or made anew */
	LEND_CLEAN,  /* zeroes, to lend */
	LEND_LENT,
	LEND_DIRTY,  /* came back, to be zeroed */
	LEND_GOING,  /* the worker's: being given back to the machine */
	LEND_STATES
};

/* Whether a loan was asked back; a new loan was not. */
enum lend_asked {
	LEND_NOT_ASKED,
	LEND_TO_ASK,   /* as soon as its connection has room */
	LEND_ASKED,    /* no answer yet */
	LEND_PROMISED, /* it will come */
	LEND_REFUSED,  /* its pages could not go elsewhere */
	LEND_ASKED_STATES
};

struct lend_slab {
	uint8_t state;       /* enum lend_state */
	uint8_t asked;       /* enum lend_asked, while lent */
	bool handed;         /* somebody else may have it mapped */
	bool revoked;        /* the last loan did not end by its borrower's will */
	bool overdue;        /* has been reported */
	bool unclaimed;      /* its borrower's successor has not named it yet */
	int fd;              /* its memfd; -1 = private */
	int result;          /* of the worker's */
	uint32_t owner;      /* connection, of the present or last loan */
	uint32_t generation; /* of the present or last loan */
	uint32_t pins;       /* requests under way that refer to the memory */
	uint64_t dirty_from; /* while dirty: bytes zeroed so far */
	uint64_t asked_at, answered_at; /* ns: first asked back; last answer */
};

/*
 * What else memory needs before it can be lent, and when it goes; done by the thread that
 * makes it, or gives it back.
 */
struct lend_care {
	int (*made)(void *data, uint32_t slab); /* 0 or -errno; NULL = nothing */
	void (*goes)(void *data, uint32_t slab);
	void *data;
};

/* Slabs on their way from one thread to the other; none is there twice. */
struct lend_queue {
	uint32_t *slabs;     /* ring of lend_pool.count, owned */
	uint32_t put, taken; /* one producer, one consumer */
};

struct lend_pool {
	uint8_t *memory;
	uint8_t *reserved; /* the address space around it */
	size_t reserved_size;
	struct lend_slab *slabs;
	uint32_t count;             /* places */
	uint32_t in[LEND_STATES];   /* how many are in each state */
	uint32_t generation;        /* last one given */
	uint64_t slab_size;
	enum lend_memory kind;
	struct patience patience;   /* of who makes memory; none after lend_init() */
	struct lend_care care;      /* likewise */
	struct lend_queue to_do, done;
};

/*
 * Room for @memory bytes in slabs of @slab_size, without any memory yet; what does
 * not fill a slab is not used.
 */
int lend_init(struct lend_pool *p, uint64_t memory, uint64_t slab_size, enum lend_memory kind,
	      struct error *e);
void lend_free(struct lend_pool *p);

/*
 * Makes the first @n slabs now, in the calling thread, before any worker.  -EINTR, without
 * an error, when the patience is over.
 */
int lend_fill(struct lend_pool *p, uint32_t n, struct error *e);

/*
 * Starts to make up to @n slabs, or to give up to @n free ones back to the
 * machine, those first that would have to be zeroed.  Return how many.
 */
uint32_t lend_grow(struct lend_pool *p, uint32_t n);
uint32_t lend_shrink(struct lend_pool *p, uint32_t n);

/* The worker: does the next of what grow and shrink started; false = nothing to do. */
bool lend_work(struct lend_pool *p);
/* Takes over what the worker has done.  -errno of the first slab that could not be made. */
int lend_settle(struct lend_pool *p);

/*
 * Lends a zeroed slab to @owner; of a released one that nobody had time to zero
 * up to 64 MiB are zeroed now.  Returns WIRE_OK or WIRE_NO_SPACE.
 */
enum wire_status lend_map(struct lend_pool *p, uint32_t owner, uint32_t *slab,
			  uint32_t *generation);
enum wire_status lend_unmap(struct lend_pool *p, uint32_t owner, uint32_t slab,
			    uint32_t generation);
/* Takes back everything lent to @owner; returns how many slabs. */
uint32_t lend_release_owner(struct lend_pool *p, uint32_t owner);
/* Whether its last owner has it, or requests of that are still under way. */
static inline bool lend_holds(const struct lend_slab *s)
{
	return s->state == LEND_LENT || s->pins;
}

/*
 * What @from has is @to's, who is its successor: it names with lend_again() what it
 * wants, and then lend_release_rest() takes the others back.  Return how many slabs.
 */
uint32_t lend_move(struct lend_pool *p, uint32_t from, uint32_t to);
enum wire_status lend_again(struct lend_pool *p, uint32_t owner, uint32_t slab,
			    uint32_t generation);
uint32_t lend_release_rest(struct lend_pool *p, uint32_t owner);

/* How many slabs @owner has, those included that it gave back and still uses. */
uint32_t lend_owned(const struct lend_pool *p, uint32_t owner);
/* Takes @slab, which is lent and not handed over, from its borrower, who gets WIRE_STALE. */
void lend_revoke(struct lend_pool *p, uint32_t slab);

/* Whether @slab is lent to @owner in @generation: WIRE_OK, or why not. */
enum wire_status lend_check(const struct lend_pool *p, uint32_t owner, uint32_t slab,
			    uint32_t generation);
/*
 * Checks an access of @owner and returns in *@memory where it goes.
 */
enum wire_status lend_access(struct lend_pool *p, uint32_t owner, const struct wire_frame *f,
			     void **memory);

/* The memfd of a shared @slab, to be handed to its borrower; still the pool's. */
int lend_hand_over(struct lend_pool *p, uint32_t slab);

/*
 * A request refers to @slab's memory: a reply on its way, or a payload that is
 * arriving.  It is neither zeroed nor lent nor given back meanwhile.
 */
void lend_pin(struct lend_pool *p, uint32_t slab);
void lend_unpin(struct lend_pool *p, uint32_t slab);

/* What becomes of a slab that comes back and was handed over. */
enum lend_return {
	LEND_RENEW,   /* another one is made in its place at once */
	LEND_GIVE_UP, /* its memory goes to the machine */
};

/*
 * Zeroes a piece of a released slab, or has the worker replace or drop one that was
 * handed over; to be called while nothing else is to be done.  True while there is more.
 */
bool lend_zero_some(struct lend_pool *p, enum lend_return handed);

/* Slabs with memory. */
static inline uint32_t lend_present(const struct lend_pool *p)
{
	return p->in[LEND_CLEAN] + p->in[LEND_DIRTY] + p->in[LEND_LENT];
}

/* Slabs to lend: now, or once zeroed. */
static inline uint32_t lend_free_slabs(const struct lend_pool *p)
{
	return p->in[LEND_CLEAN] + p->in[LEND_DIRTY];
}

#endif
