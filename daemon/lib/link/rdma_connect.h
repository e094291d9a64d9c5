/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Queue pairs to donors that are reached by RDMA, made and taken apart by a thread of
 * their own, because that allocates and waits; the loop posts to them and polls them.
 * The memory that pages travel to and from is registered ahead, on each RDMA device of
 * the machine.
 *
 * A link changes hands:
 *
 *	NONE --want--> WANTED ---> READY --use--> UP --close--> OVER ---> NONE
 *	                 |  +----> FAILED --close--> NONE
 *	                 +--close--> CANCELLED ---> NONE
 *
 * It is the thread's in WANTED, CANCELLED and OVER, else the loop's.
 */
#ifndef EBB_RDMA_LINKS_H
#define EBB_RDMA_LINKS_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "lib/base/error.h"
#include "lib/wire/wire_rdma.h"

/* What epoll knows its descriptors by: channel of the donor's, above its index (donor_table.h). */
#define RDMA_CHANNEL 1ull
/* Work requests that are posted at once, at most. */
#define RDMA_BATCH 16

enum rdma_link_state {
	RDMA_NONE, RDMA_WANTED, RDMA_READY, RDMA_FAILED, RDMA_UP, RDMA_CANCELLED, RDMA_OVER,
};

struct rdma_link {
	uint32_t state;   /* enum rdma_link_state */
	int wake_fd;      /* eventfd, in epoll by its edges: nobody has to read it */
	uint32_t notice;  /* the thread has something to tell: state or ended has changed */
	const char *ended; /* UP: the connection is over, and why; NULL = it is not */
	char why[96];     /* FAILED */

	/* What is wanted. */
	struct sockaddr_storage place;
	uint8_t join[WIRE_RDMA_JOIN_SIZE];

	/* The thread makes it, and takes it apart. */
	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	struct ibv_comp_channel *channel; /* its fd is readable when the loop has to poll */
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	uint32_t lkey;    /* of the registered memory */

	/* The loop's: to be posted. */
	uint32_t queued;
	bool broken;      /* it could not be */
	struct ibv_send_wr work[RDMA_BATCH];
	struct ibv_sge piece[RDMA_BATCH];
};

struct rdma_links;

/*
 * Registers the memory, which takes a while, and starts the thread, for links 0 to @count - 1 that have up to @depth work requests each
 * under way, in the @size bytes at @memory.  wake_fds are added to @epoll_fd under the
 * number of their link.  0, or -errno with the error.
 */
int rdma_links_start(struct rdma_links **out, int count, uint32_t depth, void *memory, size_t size,
		     int epoll_fd, struct error *e);
/* At the end of the process, which ends the connections; NULL is fine. */
void rdma_links_stop(struct rdma_links **l);

struct rdma_link *rdma_link_at(struct rdma_links *l, int i);

/* The rest is the loop thread's. */

/* Has link @i connected to @place, with @j.  -EBUSY while it is still taken apart. */
int rdma_link_want(struct rdma_links *l, int i, const struct sockaddr_storage *place,
		   const struct wire_join *j);
/* A READY link is UP from now on.  0 or -errno. */
int rdma_link_use(struct rdma_links *l, int i);
/* When this returns, nothing of it touches the memory any more. */
void rdma_link_close(struct rdma_links *l, int i);

#endif
