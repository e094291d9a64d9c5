/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The session of a kernel module: its queue pairs and its frames, which go by RDMA.  It reads
 * and writes what it was lent by itself (kernel_export.h).
 */
#ifndef EBB_KERNEL_SESSION_H
#define EBB_KERNEL_SESSION_H

#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>

#include "donord/pool/headroom_follow.h"
#include "donord/pool/kernel_export.h"
#include "lib/wire/hmac.h"
#include "lib/wire/wire_proof.h"
#include "lib/wire/wire_rdma.h"

#define KERNEL_MESSAGES 8
#define KERNEL_ASKED 4                /* EVICTs unanswered at a time */

/* A connection request, of the kind that the donor takes. */
struct kernel_request {
	struct wire_rdma_open open;
	uint8_t reads;              /* most READs at once */
	const struct key *key;      /* the one that it names */
	uint8_t bytes[WIRE_PROOF_REQUEST_SIZE], proof[WIRE_PROOF];
	uint32_t borrower;          /* number of its queue pair */
};

/* What all sessions share. */
struct kernel_env {
	struct pool *pool;
	struct eviction *eviction;
	struct headroom_follow *follow;
	struct donor_log *log;
	struct kernel_export *export;
	uint64_t quota;             /* bytes that a borrower may have; 0 = no limit */
};

struct kernel_session {
	struct borrower borrower;
	struct kernel_domain domain;
	const struct kernel_env *env;
	uint64_t number;
	char fingerprint[KEY_FINGERPRINT]; /* of its key */
	struct wire_hmac secret;
	uint64_t sent, received;          /* frames */
	bool proven;                      /* one that came was its borrower's */
	uint64_t since;                   /* ns: it began */
	uint32_t queues;
	struct rdma_cm_id *id[WIRE_RDMA_QUEUES]; /* NULL = not connected */
	char peer[64];                    /* "10.9.0.1" */
	struct ibv_context *verbs;
	struct ibv_comp_channel *channel; /* readable: kernel_session_turn() */
	struct ibv_cq *cq;
	/* Of WIRE_RDMA_MESSAGE bytes: KERNEL_MESSAGES to receive in and to answer from,
	 * then KERNEL_ASKED to ask from. */
	uint8_t *messages;
	struct ibv_mr *messages_key;
	bool greeted;
	const char *failed;               /* why it is to end; NULL = it is not */
	uint32_t granting;                /* MAPs whose grant is to come: a bit each message */
	struct wire_frame held;           /* a MAP that waits for the next turn, if .op is one */
	uint64_t held_at;                 /* its message */
	bool more;                        /* completions may be left */
	uint32_t leaving;                 /* EVICTs that have not left: a bit each; then the probe */
};

/* For the borrower whose first connection request @id is; 0 or -errno. */
int kernel_session_new(struct kernel_session **out, const struct kernel_env *env,
		       struct rdma_cm_id *id, const struct kernel_request *request);
/* Whether the request, by @id, is for a connection that the session lacks, and its borrower's. */
bool kernel_session_lacks(const struct kernel_session *s, const struct rdma_cm_id *id,
			  const struct kernel_request *request);
/*
 * Makes the queue pair of @id, which the session lacks, and accepts it.  On failure @id has
 * no queue pair and is still the caller's.
 */
int kernel_session_join(struct kernel_session *s, struct rdma_cm_id *id,
			const struct kernel_request *request);
/* Connections of the session. */
uint32_t kernel_session_connections(const struct kernel_session *s);
/* Answers some of what came in; s->more: there may be more.  -errno: it is to be ended. */
int kernel_session_turn(struct kernel_session *s);
/*
 * Asks whether its borrower's machine is there: a turn says so if it is not, in about a second.  A
 * borrower reads and writes without us, and one whose machine or link ended does not say so.
 */
int kernel_session_probe(struct kernel_session *s);
/*
 * Destroys its queue pairs, so that nothing of it can reach the memory any more, and ends its
 * loans; returns how many.  It is to be freed when its domain has no keys left.
 */
uint32_t kernel_session_end(struct kernel_session *s);
void kernel_session_free(struct kernel_session *s);

#endif
