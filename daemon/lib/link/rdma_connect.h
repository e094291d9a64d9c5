/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Queue pairs to donors that are reached by RDMA.  A thread creates and destroys them, because
 * that allocates and waits; the loop posts to them and polls them.  The thread connects one link
 * at a time, in turn.  The memory of payloads is registered at startup on the first RDMA devices
 * of the machine, on others when they are used.
 *
 * A link changes hands:
 *
 *	NONE --want--> WANTED ---> READY --use--> UP --close--> OVER ---> NONE
 *	                 |  +----> FAILED --close--> NONE
 *	                 +--close--> CANCELLED ---> NONE
 *
 * The link is the thread's in WANTED, CANCELLED and OVER, else the loop's.
 */
#ifndef EBB_RDMA_LINKS_H
#define EBB_RDMA_LINKS_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "lib/base/error.h"
#include "lib/wire/wire_rdma.h"

/* Channel of the descriptors in their keys (link_key()). */
#define RDMA_CHANNEL 1ull
/* Limit of work requests posted at once. */
#define RDMA_BATCH 16

enum rdma_link_state {
	RDMA_NONE, RDMA_WANTED, RDMA_READY, RDMA_FAILED, RDMA_UP, RDMA_CANCELLED, RDMA_OVER,
};

struct rdma_link {
	uint32_t state;   /* enum rdma_link_state */
	int wake_fd;      /* eventfd, edge-triggered in epoll, so that it need not be read */
	uint32_t notice;  /* set by the thread: state or ended has changed */
	const char *ended; /* UP: why the connection ended; NULL = it has not */
	char why[96];     /* FAILED */

	/* Peer address. */
	struct sockaddr_storage place;
	uint8_t join[WIRE_RDMA_JOIN_SIZE];

	/* Created and destroyed by the thread. */
	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	struct ibv_comp_channel *channel; /* its fd is readable when the loop has to poll */
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	uint32_t lkey;    /* of the registered payload memory */

	/* The loop's: work requests to post. */
	uint32_t queued;
	bool broken;      /* posting failed */
	struct ibv_send_wr work[RDMA_BATCH];
	struct ibv_sge piece[RDMA_BATCH];
};

struct rdma_links;

/*
 * Registers the @size bytes at @memory, which may take seconds, and starts the thread, for links 0
 * to @count - 1 with up to @depth work requests in flight each.  epoll_ctl(2) adds the wake_fds to
 * @epoll_fd under the keys of their links.  0, or -errno with the error.
 */
int rdma_links_start(struct rdma_links **out, int count, uint32_t depth, void *memory, size_t size,
		     int epoll_fd, struct error *e);
/* Ends all connections, at the end of the process; NULL is fine. */
void rdma_links_stop(struct rdma_links **l);

struct rdma_link *rdma_link_at(struct rdma_links *l, int i);

/* Loop thread only, from here on. */

/* Connects link @i to @place, with @j.  -EBUSY while its last queue pair is being destroyed. */
int rdma_link_want(struct rdma_links *l, int i, const struct sockaddr_storage *place,
		   const struct wire_join *j);
/* Makes a READY link UP.  Returns 0 or -errno. */
int rdma_link_use(struct rdma_links *l, int i);
/* Closes the link, which on return no longer accesses the memory. */
void rdma_link_close(struct rdma_links *l, int i);

#endif
