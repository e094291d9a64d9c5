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

/* A connection of a session. */
struct kernel_queue {
	struct pool_task task;      /* makes its queue pair */
	struct kernel_session *session;
	struct rdma_cm_id *id;      /* NULL = not requested */
	struct kernel_request request;
	int result;                 /* of the task */
};

enum kernel_state {
	KERNEL_OPEN,
	KERNEL_ENDING,              /* a task destroys the queue pairs */
	KERNEL_ENDED,               /* waits until its domain has no keys */
	KERNEL_CLOSING,             /* a task destroys all else */
	KERNEL_CLOSED,
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
	struct wire_hmac secret;          /* its key until connection 0 is accepted */
	uint64_t sent, received;          /* frames */
	bool proven;                      /* one that came was its borrower's */
	uint64_t since;                   /* ns: it began */
	uint32_t queues;
	struct kernel_queue queue[WIRE_RDMA_QUEUES];
	uint32_t made;                    /* to be accepted or refused: a bit each connection */
	uint32_t accepted;                /* a bit each connection */
	enum kernel_state state;
	struct pool_task task;            /* of KERNEL_ENDING and KERNEL_CLOSING */
	struct kernel_session *next;      /* kernel_accept.c's list of those that have ended */
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

/*
 * Sessions are the loop's.  The pool thread makes and destroys their queue pairs and all that these
 * need, which takes milliseconds with real devices.
 */

/* For the borrower whose first connection request @id is; 0 or -errno. */
int kernel_session_new(struct kernel_session **out, const struct kernel_env *env,
		       const struct rdma_cm_id *id, const struct kernel_request *request);
/* Whether the request, by @id, is for a connection that the session lacks, and its borrower's. */
bool kernel_session_lacks(const struct kernel_session *s, const struct rdma_cm_id *id,
			  const struct kernel_request *request);
/* Has the queue pair made of @id, which the session lacks and now owns; s->made tells when it is. */
void kernel_session_join(struct kernel_session *s, struct rdma_cm_id *id,
			 const struct kernel_request *request);
/* Accepts one of s->made, *@id, or returns -errno why it cannot be. */
int kernel_session_accept(struct kernel_session *s, struct rdma_cm_id **id);
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
 * Has its queue pairs destroyed and ends its loans, whose slabs are lent again when their keys are
 * invalid; returns how many.
 */
uint32_t kernel_session_end(struct kernel_session *s);
/* After that, now and then: true when the session can be freed. */
bool kernel_session_close(struct kernel_session *s);
/* The pool thread has no task of @s; a session that is not closed yet is closed now. */
void kernel_session_free(struct kernel_session *s);

#endif
