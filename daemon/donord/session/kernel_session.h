/* SPDX-License-Identifier: GPL-2.0-or-later */
/* One borrower over RDMA: its queue pairs, what it was lent, what it asks. */
#ifndef EBB_RDMA_SESSION_H
#define EBB_RDMA_SESSION_H

#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>

#include "donord/pool/rdma_pool.h"
#include "lib/wire/hmac.h"
#include "lib/wire/wire_proof.h"
#include "lib/wire/wire_rdma.h"

#define RDMA_MESSAGES 8
#define RDMA_ASKED 4                /* EVICTs unanswered at a time */

/* A connection request, of the kind that the donor takes. */
struct rdma_request {
	struct wire_rdma_open open;
	uint8_t reads;              /* most READs at once */
	const struct key *key;      /* the one that it says */
	uint8_t bytes[WIRE_PROOF_REQUEST_SIZE], proof[WIRE_PROOF];
	uint32_t borrower;          /* number of its queue pair */
};

struct rdma_session {
	struct rdma_session *next;
	struct rdma_pool *pool;
	uint64_t number;
	char key[KEY_NAME], fingerprint[KEY_FINGERPRINT];
	struct wire_hmac secret;
	uint64_t sent, received;          /* frames */
	bool proven;                      /* one that came was its borrower's */
	uint64_t since;                   /* ns: it began */
	uint32_t queues;
	struct rdma_cm_id *id[WIRE_RDMA_QUEUES]; /* NULL = not connected */
	struct ibv_context *verbs;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel; /* readable: rdma_session_turn() */
	struct ibv_cq *cq;
	/* Of WIRE_RDMA_MESSAGE bytes: RDMA_MESSAGES to receive in and to answer from,
	 * then RDMA_ASKED to ask from. */
	uint8_t *messages;
	struct ibv_mr *messages_key;
	bool greeted;
	char name[WIRE_NAME];
	uint32_t lent;                    /* slabs */
	uint32_t asking;                  /* EVICTs unanswered: a bit each message of theirs */
	uint32_t leaving;                 /* messages of theirs that have not left yet; then the probe */
};

/* For the borrower whose first connection request @id is; 0 or -errno. */
int rdma_session_new(struct rdma_session **out, struct rdma_pool *pool, struct rdma_cm_id *id,
		     const struct rdma_request *request);
/* Whether the request, by @id, is for a connection that the session lacks, and its borrower's. */
bool rdma_session_lacks(const struct rdma_session *s, const struct rdma_cm_id *id,
			const struct rdma_request *request);
/*
 * Makes the queue pair of @id, which the session lacks, and accepts it.  On failure @id has
 * no queue pair and is still the caller's.
 */
int rdma_session_join(struct rdma_session *s, struct rdma_cm_id *id,
		      const struct rdma_request *request);
/* Connections of all proven sessions of @list that have a key named as that of @s. */
uint64_t rdma_session_connections(const struct rdma_session *list, const struct rdma_session *s);
/* Answers what came in.  -errno: the session is to be ended. */
int rdma_session_turn(struct rdma_session *s);
/* Asks back as much of what is wanted as may be asked now; 0 or -errno. */
int rdma_session_ask(struct rdma_session *s);
/* What was refused, or lent as it was asked for, is to be asked for again. */
void rdma_session_ask_again(struct rdma_session *s);
/*
 * Asks whether its borrower's machine is there: a turn says so if it is not, in about a second.  A
 * borrower reads and writes without us, and one whose machine or link ended does not say so.
 */
int rdma_session_probe(struct rdma_session *s);
/*
 * Destroys its queue pairs, so that nothing of it can reach the memory any more; then
 * invalidates its keys.  What it was lent is zeroed a slab a turn of the loop: all of it at
 * once could take longer than other borrowers wait for an answer.
 */
void rdma_session_free(struct rdma_session *s);

#endif
