/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Pools of far memory (include/ebb/far.h): names, arenas and member records.
 *
 * A pool belongs to the key of the connection that created it, or to no key where there is
 * none, and lives until it is destroyed.  Its arenas are slabs of the memory pool, lent to the far
 * pool: they are not recallable, so HeadRoom counts them as pinned.
 *
 * Members that map an arena can write anything anywhere in it, the table included: nothing here
 * relies on what a word says beyond the pool's own memory.
 *
 * All is allocated at start.  The loop's thread calls all functions.
 */
#ifndef EBB_FAR_POOLS_H
#define EBB_FAR_POOLS_H

#include <stdbool.h>
#include <stdint.h>

#include "donord/pool/donor_log.h"
#include "donord/pool/exports.h"
#include "lib/rules/far_count.h"
#include "lib/rules/far_step.h"
#include "lib/wire/wire_far.h"

/*
 * Of a donor.  A key has up to WIRE_FAR_POOLS, so that no key can use up all places, which outlive
 * connections.
 */
#define FAR_POOLS (4 * WIRE_FAR_POOLS)

struct far_pool;

struct far_member {
	struct far_pool *pool;
	uint32_t number;      /* from 1 */
	uint32_t incarnation; /* raised each time that the number is given to a member */
	uint8_t state;        /* enum ebb_far_member_state */
	bool maps;            /* may have mapped an arena: only its process's exit fences it */
	bool recovering;      /* dead and fenced */
	bool notified;        /* a word waits for it: .word, from .notifier */
	int pidfd;            /* of the process at a unix socket; -1 = none */
	int32_t pid;
	uint32_t notifier;
	uint64_t word;
	uint64_t words;       /* how many it has been sent: the number of .word */
	uint64_t touched;     /* bit i: may have extents in arenas of number i modulo 64 */
	uint64_t fenced_at;   /* ns, CLOCK_MONOTONIC; with .recovering */
	void *connection;     /* the session's; NULL once the member is dead */
};

/* Recovery of one member at a time. */
struct far_recovery {
	uint32_t member; /* 0 = none */
	uint32_t arena;
	bool begun;      /* .op is that of .arena */
	uint64_t freed;  /* words */
	struct far_op op;
};

struct far_pool {
	struct far *far;
	char name[WIRE_FAR_NAME]; /* "" = unused */
	uint64_t identity;
	uint32_t flags;           /* enum wire_far_pool_flags */
	struct borrower borrower; /* has the arenas' slabs, and the key */
	uint32_t *slabs;          /* by arena, far->most of them */
	uint32_t arenas;
	uint32_t in[EBB_FAR_DEAD + 1]; /* members by state; in[EBB_FAR_VACANT] is unused */
	uint32_t fenced;          /* members to recover */
	uint32_t notices;         /* members with .notified */
	struct far_count extents; /* of all members, when far_census.h has counted them */
	struct far_member members[EBB_FAR_MEMBERS];
	struct far_recovery recovery;
};

/* Count of the extents of all pools (far_census.h). */
struct far_census {
	bool running, done;
	uint32_t pool, arena, section; /* next one */
	uint64_t identity;             /* of the pool */
	struct far_count members[EBB_FAR_MEMBERS + 1]; /* of the pool, by number */
};

/* Since the start. */
struct far_counts {
	uint64_t requests[WIRE_FAR_OPS - WIRE_FAR_POOL]; /* served, by enum wire_far_op */
	uint64_t fences;    /* members that have left or died */
	uint64_t recovered; /* of these, members with all extents freed */
	uint64_t freed;     /* words of their extents */
};

/* Upcalls, with the member's connection. */
struct far_ops {
	/* Ends the connection, and with it the member. */
	void (*end)(void *connection, const char *why);
	/* Queues NOTIFIED; returns false when there is no room now. */
	bool (*notify)(void *connection, const struct wire_far_word *w);
};

struct far {
	struct pool *pool;
	struct donor_log *log;
	const struct far_ops *ops;
	uint64_t key_quota; /* bytes a key may borrow, arenas included; 0 = no limit */
	uint32_t most;      /* arenas of all pools */
	uint32_t used;
	uint32_t sections;  /* of an arena */
	uint64_t changed;   /* turn of the last POOL request */
	uint32_t fenced, notices; /* of all pools */
	bool words_due;     /* a member may have become able to take its word */
	uint32_t recovers;  /* pool that may recover first in the next turn */
	int epoll_fd;       /* readable when a process of a member exits */
	struct export export;
	struct far_counts counts;
	struct far_census census;
	struct far_pool pools[FAR_POOLS];
};

/*
 * Lends up to @bytes of @pool, in slabs of at least one section.  Returns 0 or -errno; *@out is
 * untouched on failure.
 */
int far_pools_new(struct far **out, struct pool *pool, struct donor_log *log,
		  const struct far_ops *ops, uint64_t bytes, uint64_t key_quota);
/* Ends all pools; no member has a connection. */
void far_pools_free(struct far **far);

/*
 * Returns whether a POOL request may be served in this turn of the loop: one, because the end of a
 * pool looks at all slabs.
 */
static inline bool far_may_change(const struct far *far)
{
	return far->changed != far->pool->turn;
}
/* Records that one is served. */
static inline void far_changes(struct far *far)
{
	far->changed = far->pool->turn;
}

/* Pools of @key.  CREATE and DESTROY of @p; their results are statuses of the reply. */
uint16_t far_create(struct far *far, const char *key, const struct wire_far_pool *p);
uint16_t far_destroy(struct far *far, const char *key, const struct wire_far_pool *p);
/* Returns the pool, or NULL. */
struct far_pool *far_find(struct far *far, const char *key, const char *name);
/* Stores the pools of @key; returns their number. */
uint32_t far_list(const struct far *far, const char *key,
		  struct wire_far_listed list[static WIRE_FAR_POOLS]);
void far_describe(const struct far_pool *fp, struct wire_far_listed *l);
/* Reduces *@d, of a donor, to what it lends as far memory. */
void far_tell(const struct far *far, struct wire_donor *d);
/* Returns the bytes that describe the pool: its arenas' tables, and its record outside of them. */
uint64_t far_metadata(const struct far_pool *fp);

/* Returns whether an arena can be added in this turn of the loop. */
bool far_may_grow(const struct far_pool *fp);
/*
 * Makes sure that the pool has arena @index, adding it if it is the next one.  Returns WIRE_OK,
 * WIRE_NO_SLAB beyond that, or why there is no memory.
 */
uint16_t far_arena(struct far_pool *fp, uint32_t index);

/* Returns the memory of arena @index, which exists. */
static inline uint8_t *far_base(const struct far_pool *fp, uint32_t index)
{
	return pool_memory(fp->far->pool, fp->slabs[index]);
}

/* Sets the member's state, in its record too: one, however many arenas the pool has. */
void far_set_state(struct far_member *m, enum ebb_far_member_state state);
/* Writes the last word for the member into its record. */
void far_put_word(const struct far_member *m);

#endif
