/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Memory for kernel borrowers (kernel_accept.h), in slabs.  One thread owns it; what another
 * may read or say is marked so.
 *
 *	given back  <->  free (clean, or dirty)  <->  lent
 *
 * All of it is there at start.  What the machine wants back (headroom.h) goes as free slabs
 * first; then lent ones are asked for, drawn at random: who reads and writes without the donor
 * leaves it no way to tell which are least active.  One that is refused, or does not come in a
 * minute, rests, and others are drawn.
 */
#ifndef EBB_RDMA_POOL_H
#define EBB_RDMA_POOL_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/error.h"

struct rdma_session;

struct rdma_slab {
	struct rdma_session *owner; /* NULL = not lent */
	struct ibv_mr *key;         /* while lent */
	uint32_t generation;
	bool wanted;                /* the machine wants it back */
	bool asked;                 /* ... and its borrower was asked: unanswered, or promised */
	uint64_t wanted_at;         /* ns: since then; 0 = it was refused */
	uint64_t rests;             /* ns: until then others are wanted instead */
	bool dirty;                 /* to be zeroed before it is lent */
	bool absent;                /* given back: without memory */
	bool stuck;                 /* a key may still reach it: never lent again */
};

struct rdma_pool {
	uint8_t *memory;
	size_t slab_size;           /* bytes */
	struct rdma_slab *slabs;
	uint32_t count;
	uint32_t present, lent;     /* read by other threads, too: rdma_pool_present(), _lent() */
	uint32_t dirty;             /* present ones to be zeroed */
	uint32_t stuck;             /* present ones that are */
	struct rdma_slab *coming;   /* is being made; NULL = none is */
	uint64_t come;              /* bytes of it that are there */
	uint32_t wanted;            /* lent ones that are */
	uint32_t most;              /* to be present; another thread's: rdma_pool_limit() */
	bool draining;              /* another thread's: rdma_pool_drain() */
	bool refused;               /* somebody was: is who has the rest still there? */
	bool failed;                /* a slab could not be made or given back: has been said */
	uint32_t generation;        /* last one given */
	uint64_t seed;
	uint64_t quota;             /* bytes that a borrower may have; 0 = no limit */
};

/* @memory bytes, locked and zeroed, in slabs of @slab_size. */
int rdma_pool_init(struct rdma_pool *p, uint64_t memory, uint64_t slab_size, struct error *e);
void rdma_pool_free(struct rdma_pool *p);

static inline uint32_t rdma_pool_lent(const struct rdma_pool *p)
{
	return __atomic_load_n(&p->lent, __ATOMIC_RELAXED);
}

static inline uint32_t rdma_pool_present(const struct rdma_pool *p)
{
	return __atomic_load_n(&p->present, __ATOMIC_RELAXED);
}

/* How many may be lent now, and in all, those that are and are to come included. */
uint32_t rdma_pool_idle(const struct rdma_pool *p);
uint32_t rdma_pool_room(const struct rdma_pool *p);

/* From any thread: so many slabs may stay, or come back; rdma_pool_turn() sees to it. */
static inline void rdma_pool_limit(struct rdma_pool *p, uint32_t most)
{
	__atomic_store_n(&p->most, most, __ATOMIC_RELAXED);
}

/* From any thread: it lends nothing more, and wants everything back; or lends again. */
static inline void rdma_pool_drain(struct rdma_pool *p, bool drain)
{
	__atomic_store_n(&p->draining, drain, __ATOMIC_RELEASE);
}

static inline bool rdma_pool_draining(const struct rdma_pool *p)
{
	return __atomic_load_n(&p->draining, __ATOMIC_ACQUIRE);
}

static inline uint8_t *rdma_pool_memory(const struct rdma_pool *p, const struct rdma_slab *slab)
{
	return p->memory + (size_t)(slab - p->slabs) * p->slab_size;
}

/*
 * Lends a zeroed slab to @owner, by a key of @pd, with its memory registered.  NULL, with errno:
 * ENOSPC when there is none, or why it cannot be registered.
 */
struct rdma_slab *rdma_pool_lend(struct rdma_pool *p, struct rdma_session *owner,
				 struct ibv_pd *pd);
/*
 * Invalidates the key of @slab, which rdma_pool_turn() zeroes later.  -errno when the device
 * fails: the slab is never lent again, and the caller ends the session, whose queue pairs may
 * still reach it.
 */
int rdma_pool_take_back(struct rdma_pool *p, struct rdma_slab *slab);

/* Its borrower keeps a slab that was wanted: another one is, until it may be asked again. */
void rdma_pool_refused(struct rdma_pool *p, uint32_t slab);

/*
 * A step towards what there is to be: lent slabs become wanted, and a slab is zeroed, given
 * back to the machine or, by pieces, made anew.  Whether there is another step to take now.
 */
bool rdma_pool_turn(struct rdma_pool *p, uint64_t now);

#endif
