/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A borrower's connection: its requests, the replies, and its end, which gives
 * back all it was lent.  What one of them does is bounded for each turn of the
 * loop, in bytes received and sent and in MAPs, so that none has the donor to itself.
 */
#ifndef EBB_CONNECTION_H
#define EBB_CONNECTION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "access.h"
#include "donord/pool/rdma.h"
#include "lib/wire/stream.h"

#define CONNECTIONS 256
/* Most replies a connection has under way; a borrower that pipelines more waits. */
#define CONNECTION_REPLIES 1024
/*
 * Bytes of one connection in a turn of the loop, each way: with 1 MiB some 0.2 ms, the
 * time the others wait for a greedy one.
 */
#define CONNECTION_TURN (1u << 20)
/* MAPs of all connections in a turn; of these one that has to wait for its slab to be zeroed. */
#define CONNECTION_MAPS 16
/* Connections accepted from one socket in a turn: about 1 ms. */
#define CONNECTION_ACCEPTS 64
#define NO_SLAB UINT32_MAX

struct lender;

struct delayed {
	uint64_t due; /* ns, CLOCK_MONOTONIC */
	struct wire_frame reply;
	void *memory;
};

struct connection {
	struct lender *lender;
	int fd; /* -1 = nobody is there: free, or kept for a successor */
	uint32_t number;
	bool greeted, reading, writing; /* the last two: epoll interest */
	bool answers;        /* greeted and, with a key, its data connection or queue has joined */
	bool keeps;          /* WIRE_KEEP */
	uint64_t kept_until; /* ns: it ended, and a successor may come for its loans (resume.h); 0 = no */
	bool held;           /* a request that has arrived waits for room for its reply, or its turn */
	bool local;          /* by a unix socket: may map slabs */
	bool by_rdma;        /* moves pages by its queue, when that has joined */
	struct rdma_queue queue;
	struct access access;
	uint32_t home;       /* number of the connection whose slabs it moves pages of */
	uint64_t borrower;
	char name[WIRE_NAME];
	/* Of its key, also while it is kept; "" without. */
	char key[KEY_NAME], fingerprint[KEY_FINGERPRINT];
	struct sockaddr_storage peer;
	uint64_t quota;      /* bytes; 0 = no limit */
	uint64_t since;      /* ns: accepted */
	uint64_t sent_at;    /* ns: a reply has left, or the first one began to wait */
	struct stream_rx rx;
	struct stream_tx tx;
	uint8_t small[WIRE_SMALL];    /* payloads that are not pages */
	enum wire_status verdict;     /* on the request whose payload is arriving */
	uint32_t arriving;            /* the slab it goes to, or NO_SLAB */
	struct delayed *delayed;      /* ring; only with a delay */
	uint32_t delayed_head, delayed_count;
	uint64_t reads, writes;       /* pages */

	/* eviction.c's: what it was asked and has not answered */
	uint32_t evicts;
	uint32_t asked;               /* loans in the ACTIVITY; 0 = none */
	uint64_t asked_tag;
	uint8_t asking[WIRE_SMALL];   /* its payload, while it may not have left */
};

/* Accepts what waits at the listening socket of @place, at most CONNECTION_ACCEPTS. */
void connection_accept(struct lender *l, int place);
/* Takes the connected socket @fd, which is closed on failure, as if it had been accepted. */
struct connection *connection_adopt(struct lender *l, int fd, const struct sockaddr_storage *peer);

/* Connections of all who have a key of @name, data connections included. */
uint64_t connections_with_key(const struct lender *l, const char *name);

/* Whether it moves pages of another one's slabs. */
static inline bool connection_is_data(const struct connection *c)
{
	return c->home != c->number;
}

/* Something happened on its socket; @events as epoll's. */
void connection_event(struct connection *c, uint32_t events);
/* Sends what is queued; may drop it. */
void connection_flush(struct connection *c);
/* Ends it; its slabs come back, also those that were kept for a successor. */
void connection_drop(struct connection *c, const char *why);

/*
 * Ends it but for its loans, and its data connections: when this returns, nothing that
 * they sent can arrive in a slab any more.
 */
void connection_hang_up(struct connection *c);

/*
 * What rdma_queue_grant() was asked for: @c can use the loan that @reply names, with
 * @payload of WIRE_RDMA_GRANT_SIZE bytes; NULL = it never will.
 */
void connection_granted(struct connection *c, const struct wire_frame *reply,
			const uint8_t *payload);

/*
 * @c gives a loan back, by UNMAP or by what it answers.  After WIRE_OK nothing of it can
 * reach whose the slab is next; else as lend_check().
 */
enum wire_status connection_unmap(struct connection *c, uint32_t slab, uint32_t generation);

/* Whether its place is anybody's. */
static inline bool connection_is_free(const struct connection *c)
{
	return c->fd < 0 && !c->kept_until;
}

/* Whether it takes questions: one that resumes its slabs does not before it can use them. */
static inline bool connection_may_be_asked(const struct connection *c)
{
	return c->fd >= 0 && c->answers;
}

/*
 * Room for a request of ours: WIRE_ASKED places of the queue are kept for them, so
 * that there always is within the protocol's bounds.
 */
void connection_ask(struct connection *c, const struct wire_frame *f, const void *payload);

/* A new turn: goes on with held requests that may be done now; true = there are more. */
bool connections_resume(struct lender *l);
/* Sends delayed replies that are due; returns ns until the next is, or UINT64_MAX. */
uint64_t connections_delayed(struct lender *l);
/* Once a second: who does not greet, or does not read, is hung up on. */
void connections_tick(struct lender *l, uint64_t now);
void connections_free(struct lender *l);

/* "127.0.0.1:4711", "unix"; @buf of 64 bytes is returned. */
const char *connection_peer_text(const struct connection *c, char *buf, size_t size);

#endif
