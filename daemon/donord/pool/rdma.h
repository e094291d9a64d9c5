/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Borrowers with a key that read and write what they are lent by RDMA, themselves.
 * Their control connections are those of session.h; here is what such a one has
 * beside it: one queue pair, which belongs to whom the JOIN in its request names and proves.
 *
 * A slab is registered when its memory is made, for nobody.  A loan is a memory window of
 * type 2 on it, bound to the queue pair of its borrower: no other queue pair can use its
 * key, and it is taken back at once, by itself, however large the slab.
 *
 * All but the registering is the loop thread's.  READs and WRITEs take it nothing.
 */
#ifndef EBB_RDMA_QUEUE_H
#define EBB_RDMA_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/error.h"
#include "lib/wire/address.h"
#include "lib/wire/wire.h"
#include "lib/wire/wire_rdma.h"

struct connection;
struct lender;
struct rdma_cm_id;
struct rdma_place;

/* Windows of a queue that are being bound at a time. */
#define RDMA_BINDS 32

/* Of a connection. */
struct rdma_queue {
	struct rdma_cm_id *id; /* NULL = there is none */
	uint32_t binding;      /* windows: replies that wait for that */
};

/*
 * Listens at @a for the borrowers of @l, whose pool has its places but no memory yet;
 * *@out is untouched on failure.  When one of its two descriptors is readable,
 * rdma_place_event() has something to do.
 */
int rdma_place_open(struct rdma_place **out, struct lender *l, const struct address *a,
		    struct error *e);
/* After the last connection, before the pool's memory goes; NULL is fine. */
void rdma_place_close(struct rdma_place **p);
void rdma_place_fds(const struct rdma_place *p, int fds[static 2]);
uint16_t rdma_place_port(const struct rdma_place *p);
void rdma_place_event(struct lender *l);

/* Whether a window more may be bound. */
static inline bool rdma_queue_has_room(const struct rdma_queue *q)
{
	return q->binding < RDMA_BINDS;
}

/*
 * Lets @c reach the slab that @reply names, which it was lent; connection_granted() comes
 * when it can.  WIRE_OK, or why not, and then it does not come.
 */
enum wire_status rdma_queue_grant(struct connection *c, const struct wire_frame *reply);
/*
 * The loan of @slab has ended, or ends now.  When this returns nobody reaches it by RDMA.
 * What its borrower sends there nevertheless ends its queue.
 */
void rdma_queue_forget(struct lender *l, uint32_t slab);
/* When this returns, nothing of @c's reaches any memory any more. */
void rdma_queue_end(struct connection *c);

#endif
