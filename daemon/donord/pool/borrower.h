/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A borrower as the memory pool knows it: name and key, its way to memory (export) and its
 * callbacks (ops).  All functions run in the loop's thread unless marked.
 */
#ifndef EBB_BORROWER_H
#define EBB_BORROWER_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/wire/key.h"
#include "lib/wire/wire.h"

struct borrower;
struct export;

/* Gives a borrower access to a slab. */
struct lend_grant {
	const uint8_t *bytes;   /* payload of the reply */
	uint32_t length;
	int fd;                 /* goes with the reply, still the pool's; -1 = none */
};

struct borrower_ops {
	/*
	 * Completes the loan that @request, a MAP or REMAP, asked for.  @g NULL: it failed; that of
	 * a MAP has ended.
	 */
	void (*granted)(struct borrower *b, const struct wire_frame *request,
			const struct lend_grant *g);
	/*
	 * Queues a request of the donor; @payload stays valid until the reply.  Returns false
	 * when the borrower takes none now.
	 */
	bool (*ask)(struct borrower *b, const struct wire_frame *f, const void *payload);
	/* Ends the borrower, because its export failed. */
	void (*fail)(struct borrower *b, const char *why);
	/*
	 * The loan of @slab has ended: discards payloads that are arriving there, because their
	 * pins keep the memory.  May be NULL.
	 */
	void (*ended)(struct borrower *b, uint32_t slab);
};

struct borrower {
	char name[WIRE_NAME];
	char key[KEY_NAME];     /* name of its key, "" without; equal names share a quota */
	uint64_t quota;         /* bytes; 0 = no limit */
	bool reports_activity;  /* answers ACTIVITY; others are recalled last */
	bool recallable;
	bool in_order;          /* handles each EVICT after the replies that were sent before it */
	bool revocable;         /* keeps its other loans when one is revoked */
	bool hears_revoked;     /* takes REVOKED, and then leaves the slab's memory */
	bool away;              /* disconnected: maps nothing, and replies to REMAP will tell it */
	struct export *export;
	void *priv;             /* the export's */
	const struct borrower_ops *ops;

	struct borrower *next;  /* the pool's list */
	uint32_t lent;          /* slabs */
	uint32_t reserved;      /* slabs promised to it, lent ones included; pool_reserve() */
	uint64_t refused;       /* turn of the loop in which its last MAP was refused */
	/* unanswered EVICTs; loans in the unanswered ACTIVITY, 0 = none (eviction.c) */
	uint32_t evicts, asked;
	uint32_t recalled;      /* loans recalled lately, while the donor drains (eviction.c) */
	uint32_t moving;        /* loans promised lately: eviction_moving() */
	bool broke_promise;     /* ... and has others, promised too long ago */
	uint32_t in_status;     /* its place in the status, from 1; 0 = none (status.c) */
	uint64_t asked_tag;
	uint8_t asking[WIRE_SMALL];
};

/*
 * One way to memory.  After the last pin of a slab on which revoke() was called, its old
 * borrower cannot reach it.
 */
struct export_ops {
	/* Pool thread, for each slab that gets or loses its memory; either may be NULL. */
	int (*slab_added)(struct export *x, uint32_t slab); /* 0 or -errno */
	void (*slab_removed)(struct export *x, uint32_t slab);
	/*
	 * Gives @b access to the slab that @request names.  After WIRE_OK pool_granted()
	 * follows, now or later; after another status it does not.
	 */
	enum wire_status (*grant)(struct export *x, struct borrower *b,
				  const struct wire_frame *request);
	/*
	 * Ends a loan; may pin the slab until nothing reaches it.  If @b has another
	 * export by now, ends what an earlier connection of its session left open.  NULL = nothing
	 * to do.
	 */
	void (*revoke)(struct export *x, struct borrower *b, uint32_t slab);
};

struct pool;

struct export {
	const struct export_ops *ops;
	struct pool *pool;
	struct export *next;    /* the pool's list */
};

#endif
