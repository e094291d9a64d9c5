/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Export for borrowers with a key that read and write their slabs by RDMA.  Such a borrower has a
 * control connection and one queue pair, whose connection request contains a JOIN that proves the
 * session.
 *
 * A slab is registered when its memory is made, without access for any borrower.  A loan is a
 * memory window of type 2 on it, bound to the queue pair of its borrower: no other queue pair can
 * use its key, and it is closed at once, however large the slab.
 *
 * The pool thread registers; all else is the loop's.  READs and WRITEs bypass the donor.
 */
#ifndef EBB_RDMA_QUEUE_H
#define EBB_RDMA_QUEUE_H

#include "donor_log.h"
#include "lib/wire/address.h"
#include "pool.h"

struct rdma_cm_id;
struct rdma_place;

/* Windows of a queue being bound at a time. */
#define RDMA_BINDS 32

/* RDMA state of a borrower. */
struct rdma_queue {
	struct rdma_cm_id *id; /* may be NULL */
	uint32_t binding;      /* windows being bound, whose replies wait */
};

/* Callbacks of the sessions. */
struct rdma_host {
	void *data;
	/* Returns the borrower without a queue whose session @j proves, or NULL. */
	struct borrower *(*prove)(void *data, const struct wire_join *j);
	/* @b has a queue. */
	void (*joined)(void *data, struct borrower *b);
};

/*
 * Listens at @a for borrowers of @pool, which has no memory yet; *@out is untouched on failure.
 * Call rdma_place_event() when one of its two descriptors is readable.
 */
int rdma_place_open(struct rdma_place **out, struct pool *pool, struct donor_log *log,
		    const struct rdma_host *host, const struct address *a, struct error *e);
/* After the last borrower was removed, before pool_free(); NULL is fine. */
void rdma_place_close(struct rdma_place **p);
void rdma_place_fds(const struct rdma_place *p, int fds[static 2]);
uint16_t rdma_place_port(const struct rdma_place *p);
/* The export of borrowers with a queue. */
struct export *rdma_place_export(struct rdma_place *p);
/*
 * Handles events of the descriptors.  Returns 0, or -errno when the network device was removed:
 * then the second descriptor stays readable, and the caller no longer waits for it.
 */
int rdma_place_event(struct rdma_place *p);

/* Returns whether one more window may be bound. */
static inline bool rdma_queue_has_room(const struct rdma_queue *q)
{
	return q->binding < RDMA_BINDS;
}

/*
 * Ends the queue.  On return @q's borrower reaches no memory except slabs that the device could not
 * revoke; these are withdrawn when their loan ends.  @p may be NULL: no queue.
 */
void rdma_queue_end(struct rdma_place *p, struct rdma_queue *q);

#endif
