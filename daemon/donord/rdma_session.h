/* SPDX-License-Identifier: GPL-2.0-or-later */
/* One borrower over RDMA: its queue pairs, what it was lent, what it asks. */
#ifndef EBB_RDMA_SESSION_H
#define EBB_RDMA_SESSION_H

#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>

#include "wire/wire_rdma.h"

struct rdma_session;

struct rdma_slab {
	struct rdma_session *owner; /* NULL = free, and zeroed */
	struct ibv_mr *key;         /* while lent */
	uint32_t generation;
};

struct rdma_pool {
	uint8_t *memory;
	size_t slab_size;
	struct rdma_slab *slabs;
	uint32_t count, free;
	uint32_t generation;        /* last one given */
};

#define RDMA_MESSAGES 8

struct rdma_session {
	struct rdma_session *next;
	struct rdma_pool *pool;
	uint64_t number;
	uint32_t queues;
	struct rdma_cm_id *id[WIRE_RDMA_QUEUES]; /* NULL = not connected */
	struct ibv_context *verbs;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel; /* readable: rdma_session_turn() */
	struct ibv_cq *cq;
	uint8_t *messages;                /* RDMA_MESSAGES of WIRE_RDMA_MESSAGE bytes */
	struct ibv_mr *messages_key;
	bool greeted;
	char name[WIRE_NAME];
	uint32_t lent;                    /* slabs */
};

/* For the borrower whose first connection request @id is; 0 or -errno. */
int rdma_session_new(struct rdma_session **out, struct rdma_pool *pool, struct rdma_cm_id *id,
		     const struct wire_rdma_open *open);
/*
 * Makes the queue pair of @id and accepts it, with at most @reads READs at once.
 * On failure @id has no queue pair and is still the caller's.
 */
int rdma_session_join(struct rdma_session *s, struct rdma_cm_id *id,
		      const struct wire_rdma_open *open, uint8_t reads);
/* Answers what came in.  -errno: the session is to be ended. */
int rdma_session_turn(struct rdma_session *s);
/*
 * Destroys its queue pairs, so that nothing of it can reach the memory any more;
 * then invalidates its keys and zeroes what it was lent.
 */
void rdma_session_free(struct rdma_session *s);

#endif
