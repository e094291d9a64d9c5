/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Borrowers with a key that read and write what they are lent by RDMA, themselves.
 * Their control connections are those of session.h; here is what such a connection has
 * beside it: one queue pair, of the borrower that the JOIN in its request names and proves.
 *
 * A slab is registered when its memory is made, without access for any borrower.  A loan is a memory window of
 * type 2 on it, bound to the queue pair of its borrower: no other queue pair can use its
 * key, and it is taken back at once, by itself, however large the slab.
 *
 * All but the registering is the loop thread's.  READs and WRITEs take it nothing.
 */
#ifndef EBB_RDMA_QUEUE_H
#define EBB_RDMA_QUEUE_H

#include "donor_log.h"
#include "lib/wire/address.h"
#include "pool.h"

struct rdma_cm_id;
struct rdma_place;

/* Windows of a queue that are being bound at a time. */
#define RDMA_BINDS 32

/* Of a borrower; its priv. */
struct rdma_queue {
	struct rdma_cm_id *id; /* may be NULL */
	uint32_t binding;      /* windows: replies that wait for that */
};

/* What the borrowers' sessions do for it. */
struct rdma_host {
	void *data;
	/* The borrower that @j proves to come from and that has no queue; or NULL. */
	struct borrower *(*prove)(void *data, const struct wire_join *j);
	/* @b can use its queue. */
	void (*joined)(void *data, struct borrower *b);
};

/*
 * Listens at @a for borrowers of @pool, which has its places but no memory yet; *@out is
 * untouched on failure.  When one of its two descriptors is readable, rdma_place_event() has
 * something to do.
 */
int rdma_place_open(struct rdma_place **out, struct pool *pool, struct donor_log *log,
		    const struct rdma_host *host, const struct address *a, struct error *e);
/* After the last borrower is gone, before the pool's memory goes; NULL is fine. */
void rdma_place_close(struct rdma_place **p);
void rdma_place_fds(const struct rdma_place *p, int fds[static 2]);
uint16_t rdma_place_port(const struct rdma_place *p);
/* The export of borrowers with a queue. */
struct export *rdma_place_export(struct rdma_place *p);
void rdma_place_event(struct rdma_place *p);

/* Whether a window more may be bound. */
static inline bool rdma_queue_has_room(const struct rdma_queue *q)
{
	return q->binding < RDMA_BINDS;
}

/* When this returns, nothing of @q's borrower reaches any memory any more.  @p NULL: no queue. */
void rdma_queue_end(struct rdma_place *p, struct rdma_queue *q);

#endif
