/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The session of a kernel module: its queue pairs and its frames.  The module reads and writes its
 * slabs by itself (kernel_export.h).
 *
 * A session with WIRE_KEEP whose connections fail is parted: it keeps its loans for the grace
 * period.  Its borrower resumes it by a new session, which takes the loans over once the old queue
 * pairs are destroyed, and registers the slabs again, in its own protection domain.  So nothing of
 * the old queue pairs can land later, and no stranger's queue pair is ever in a domain with keys.
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

#define KERNEL_ASKED 4                /* most unanswered EVICTs */
/* Receives: requests, and answers to EVICTs.  At most 32: a bit each in .granting. */
#define KERNEL_MESSAGES (2 * WIRE_RDMA_REQUESTS + KERNEL_ASKED)

/* A valid connection request. */
struct kernel_request {
	struct wire_rdma_open open;
	uint8_t reads;              /* most concurrent READs */
	const struct key *key;      /* the key that it names */
	uint8_t bytes[WIRE_PROOF_REQUEST_SIZE], proof[WIRE_PROOF];
	uint32_t borrower;          /* number of the borrower's queue pair */
	bool claims;                /* of connection 0: made with the key, and not a replay */
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

struct kernel_session;

/* State that all sessions share. */
struct kernel_env {
	struct pool *pool;
	struct eviction *eviction;
	struct headroom_follow *follow;
	struct donor_log *log;
	struct kernel_export *export;
	uint64_t quota;             /* bytes per borrower; 0 = no limit */
	uint64_t keep;              /* ns: session grace period; 0 = none */
	/*
	 * Returns the session of @s's borrower with number @id, parted, which is then @s's; NULL:
	 * none.
	 */
	struct kernel_session *(*find)(struct kernel_session *s, uint64_t id);
	/* Takes @old, which find() returned and whose loans have ended or have been passed on. */
	void (*found)(struct kernel_session *old);
};

struct kernel_session {
	struct borrower borrower;
	struct kernel_domain domain;
	const struct kernel_env *env;
	uint64_t number;
	char fingerprint[KEY_FINGERPRINT]; /* of its key */
	struct wire_hmac secret;          /* its key until connection 0 is accepted */
	uint64_t sent, received;          /* frames so far */
	bool proven;                      /* a frame had a correct MAC */
	bool claims;                      /* as its request */
	uint64_t since;                   /* ns: start */
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
	/* Of WIRE_RDMA_MESSAGE bytes: KERNEL_MESSAGES for requests and their replies, then
	 * KERNEL_ASKED for EVICTs. */
	uint8_t *messages;
	struct ibv_mr *messages_key;
	bool greeted;
	bool keeps;                       /* WIRE_KEEP */
	uint64_t id;                      /* of the borrower, as HELLO said */
	uint64_t kept_until;              /* ns: end of the grace period, once parted */
	struct kernel_session *resumes;   /* HELLO waits until its queue pairs are destroyed */
	struct wire_frame hello;          /* that HELLO, */
	uint64_t hello_at;                /* and its message */
	uint32_t version;                 /* of the protocol, as HELLO agreed */
	const char *failed;               /* reason to end the session; NULL = none */
	uint32_t granting;                /* MAPs, REMAPs without a grant: a bit each message */
	struct wire_frame held;           /* MAP that waits for the next turn; .op 0 = none */
	uint64_t held_at;                 /* its message */
	bool more;                        /* completions may be left */
	uint32_t leaving;                 /* EVICTs being sent: a bit each; then the probe */
};

/*
 * Sessions are the loop's.  The pool thread makes and destroys their queue pairs and all that these
 * need, which takes milliseconds with real devices.
 */

/* Makes the session that the connection request @id begins.  Returns 0 or -ENOMEM. */
int kernel_session_new(struct kernel_session **out, const struct kernel_env *env,
		       const struct rdma_cm_id *id, const struct kernel_request *request);
/* Returns whether @request is for a connection that the session lacks, and proves its borrower. */
bool kernel_session_lacks(const struct kernel_session *s, const struct rdma_cm_id *id,
			  const struct kernel_request *request);
/* Takes @id, which passed kernel_session_lacks(), and has its queue pair made: see s->made. */
void kernel_session_join(struct kernel_session *s, struct rdma_cm_id *id,
			 const struct kernel_request *request);
/* Accepts a connection of s->made, *@id.  Returns 0 or -errno. */
int kernel_session_accept(struct kernel_session *s, struct rdma_cm_id **id);
/* Answers some frames; s->more: there may be more.  Returns 0, or -errno: end the session. */
int kernel_session_turn(struct kernel_session *s);
/*
 * Probes the borrower's machine: without a reply, a turn fails in about a second.  A borrower uses
 * its slabs without the donor, which does not notice when machine or link fail.
 */
int kernel_session_probe(struct kernel_session *s);
/* Returns whether a turn can answer a HELLO that waits. */
static inline bool kernel_session_resumable(const struct kernel_session *s)
{
	return s->resumes && s->resumes->state == KERNEL_ENDED;
}

/*
 * Has its queue pairs destroyed; its loans and their keys stay, for a resumption or until
 * kernel_session_end().  Returns the number of loans.
 */
uint32_t kernel_session_part(struct kernel_session *s);
/*
 * Has its queue pairs destroyed and ends its loans; returns their number.  The slabs are lent again
 * when their keys are invalid.
 */
uint32_t kernel_session_end(struct kernel_session *s);
/* Continues the end in each turn; returns true when the session can be freed. */
bool kernel_session_close(struct kernel_session *s);
/* Frees @s, which has no task in the pool thread; closes it first if needed. */
void kernel_session_free(struct kernel_session *s);

#endif
