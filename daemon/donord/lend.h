/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The memory a donor lends: slabs of one size in one locked mapping, made at
 * start.  Nobody sees what a slab held before: it is zeroed after its release,
 * before it is lent again.
 *
 * Shared slabs are memfds, which borrowers on this machine map.  Such a mapping
 * cannot be taken back, so what was handed over is never lent again: a fresh
 * memfd takes its place, and the old one goes when its borrower lets go.  memfd
 * pages can be swapped out: ours are locked, and a borrower locks its mapping,
 * so that they stay when we die.  They are made of huge pages as long as the
 * machine has some set aside (vm.nr_hugepages).
 */
#ifndef EBB_LEND_H
#define EBB_LEND_H

#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "wire/wire.h"

enum lend_memory { LEND_PRIVATE, LEND_SHARED };

/* GONE: no memory could be had in the place of what was handed over. */
enum lend_state { LEND_CLEAN, LEND_LENT, LEND_DIRTY, LEND_GONE };

struct lend_slab {
	enum lend_state state;
	uint32_t owner;      /* connection, while lent */
	uint32_t generation; /* of the present or last loan */
	uint32_t pins;       /* replies under way that refer to the memory */
	uint64_t dirty_from; /* while dirty: bytes zeroed so far */
	int fd;              /* its memfd; -1 = private */
	bool handed;         /* somebody else may have it mapped */
};

struct lend_pool {
	uint8_t *memory;
	uint8_t *reserved; /* the address space around it */
	size_t reserved_size;
	struct lend_slab *slabs;
	uint32_t count, clean, dirty;
	uint32_t generation; /* last one given */
	uint64_t slab_size;
	enum lend_memory kind;
};

/*
 * Maps, locks and touches @memory bytes as slabs of @slab_size; what does not
 * fill a slab is not used.
 */
int lend_init(struct lend_pool *p, uint64_t memory, uint64_t slab_size, enum lend_memory kind,
	      struct error *e);
void lend_free(struct lend_pool *p);

/*
 * Lends a zeroed slab to @owner; a released one that nobody had time to zero is
 * zeroed now.  Returns WIRE_OK or WIRE_NO_SPACE.
 */
enum wire_status lend_map(struct lend_pool *p, uint32_t owner, uint32_t *slab,
			  uint32_t *generation);
enum wire_status lend_unmap(struct lend_pool *p, uint32_t owner, uint32_t slab,
			    uint32_t generation);
/* Takes back everything lent to @owner; returns how many slabs. */
uint32_t lend_release_owner(struct lend_pool *p, uint32_t owner);

/*
 * Checks an access of @owner and returns in *@memory where it goes.
 */
enum wire_status lend_access(struct lend_pool *p, uint32_t owner, const struct wire_frame *f,
			     void **memory);

/* The memfd of a shared @slab, to be handed to its borrower; still the pool's. */
int lend_hand_over(struct lend_pool *p, uint32_t slab);

/* A reply refers to @slab's memory: it is neither zeroed nor lent meanwhile. */
void lend_pin(struct lend_pool *p, uint32_t slab);
void lend_unpin(struct lend_pool *p, uint32_t slab);

/*
 * Zeroes a piece of a released slab, to be called while nothing else is to be
 * done.  True while there is more.
 */
bool lend_zero_some(struct lend_pool *p);

/* Bytes lent or to lend. */
uint64_t lend_total_bytes(const struct lend_pool *p);

static inline uint64_t lend_free_bytes(const struct lend_pool *p)
{
	return (uint64_t)(p->clean + p->dirty) * p->slab_size;
}

#endif
