/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A borrower's connection: its socket, its replies and its end, which releases all its slabs.  Each
 * turn of the loop bounds the bytes and the MAPs of a connection, and the bytes of all data
 * connections of a key, so that none starves others.
 *
 * Loans can survive the borrower's process (docs/protocol.md, "Reconnecting").  When a connection
 * with WIRE_KEEP is lost, its loans and its reservation stay in connections[] for options.keep.
 * The reconnecting borrower sends HELLO with the same number and, if there are keys, the same key,
 * takes them over, and names the loans that it knows.
 */
#ifndef EBB_CONNECTION_H
#define EBB_CONNECTION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "access.h"
#include "donord/far/far_members.h"
#include "donord/far/far_results.h"
#include "donord/job/job_heap.h"
#include "donord/pool/headroom_follow.h"
#include "donord/pool/lending_options.h"
#include "donord/pool/rdma.h"
#include "lib/wire/stream.h"
#include "rate.h"

#define CONNECTIONS 256
/*
 * Of these, the ones that sessions do not take.  A borrower that reconnects needs one until HELLO
 * names the session that it resumes, also while all sessions are in use: otherwise it would lose
 * its loans for lack of a place that it has already.
 */
#define CONNECTIONS_SPARE 8
/*
 * Most bytes of one connection in a turn of the loop, each way: 1 MiB delays others by about
 * 0.2 ms.
 */
#define CONNECTION_TURN (1u << 20)
/*
 * Most replies of a connection in flight, also of those that --delay holds; a borrower that
 * pipelines more waits.  As many as the pages that move in a turn: each takes 176 bytes of locked
 * memory, and only with more requests than these in flight does a page take more processor time.
 */
#define CONNECTION_REPLIES (CONNECTION_TURN / WIRE_PAGE)
#define NO_SLAB UINT32_MAX
/* Cookie of a reply whose payload is in far_buffer->bytes. */
#define FAR_REPLY (UINT32_MAX - 1)
/* Cookie of a NOTIFIED. */
#define FAR_WORD (UINT32_MAX - 2)
/* Replies of far memory are copies, so that a later change does not reach them. */
#define FAR_REPLIES (2 * WIRE_FAR_MOST)
/* The payload of a job arrives behind the place of its reply. */
_Static_assert(2 * WIRE_JOB_MOST <= WIRE_FAR_MOST, "room for the reply is room for both");

/*
 * Payloads of a connection for far memory, while it has any: the replies that wait, and a WRITE
 * that is arriving.  Connections without requests in flight have none, so there are as many as have
 * been in use at a time.  They are used again and freed at the end: to allocate, which locks the
 * memory, may have to wait for memory, and the loop with it.
 */
struct far_buffer {
	struct far_buffer *next; /* unused ones */
	uint8_t bytes[FAR_REPLIES];
};

struct delayed {
	uint64_t due; /* ns, CLOCK_MONOTONIC */
	struct wire_frame reply;
	void *memory;
};

struct connection {
	struct borrower borrower; /* HELLO sets its name, key and export */
	struct sessions *sessions;
	int fd; /* -1 = not connected: free, or kept for a reconnecting borrower */
	uint32_t number;
	uint32_t adoption; /* how often its place has been used */
	bool greeted, reading, writing; /* the last two: epoll interest */
	bool owns;           /* has sent HELLO: it may own slabs, so its end scans them */
	bool answers;        /* has sent HELLO; with a key, its data connection or queue joined */
	bool keeps;          /* WIRE_KEEP */
	uint32_t version;    /* of the protocol, as HELLO agreed */
	uint64_t kept_until; /* ns: end of the session grace period; 0 = connected, or free */
	uint64_t told;       /* turn of the loop of its last PING or RESERVE */
	bool claims;         /* it has resumed a session: until RELEASE, loans may be unclaimed */
	bool held;           /* a request waits: for room for its reply, a turn, or a share */
	bool throttled;      /* ... for the share, of .payer or .job_heap */
	bool hung_up;        /* its peer has closed it: nothing waits for .payer */
	const char *ends;    /* why it ends once its queue is sent; NULL = it goes on */
	struct payer *payer; /* since HELLO or JOIN; NULL = none */
	bool unsent;         /* frames were queued since the last connection_flush() */
	bool local;          /* unix socket: may map slabs */
	bool by_rdma;        /* moves pages by RDMA, when its queue has joined */
	struct rdma_queue queue;
	bool is_far;         /* WIRE_FAR: it may have these */
	struct far_member *member; /* of a far pool; NULL = none */
	struct far_buffer *far_buffer;
	uint8_t *far_arriving; /* there: the payload of a WRITE or a job */
	bool does_jobs;      /* WIRE_JOBS: it may have these */
	struct job_heap *job_heap; /* NULL = none; also in the grace period */
	struct far_results *far_results; /* also in the grace period */
	uint32_t far_used, far_waiting; /* of its replies: bytes; frames that refer to them */
	uint32_t far_words;  /* frames with FAR_WORD that wait: at most one */
	struct access access;
	uint32_t home;       /* number of the control connection of its session */
	/* Its session's places beside this one: the most data connections that it has had. */
	uint32_t data_places;
	uint64_t id;         /* the borrower's number */
	char fingerprint[KEY_FINGERPRINT]; /* of its key, also in the grace period; "" without */
	struct sockaddr_storage peer;
	uint64_t since;      /* ns: accepted */
	uint64_t sent_at;    /* ns: the last reply left, or the first one began to wait */
	struct stream_rx rx;
	struct stream_tx tx;
	uint8_t small[WIRE_SMALL];    /* payload other than pages */
	enum wire_status verdict;     /* status for the request whose payload is arriving */
	uint32_t arriving;            /* destination slab, or NO_SLAB */
	struct delayed *delayed;      /* ring; only with a delay */
	uint32_t delayed_head, delayed_count;
	uint64_t reads, writes;       /* pages */
};

/* All connections and their shared state. */
struct sessions {
	struct session_options options;
	struct pool *pool;
	struct eviction *eviction;
	struct headroom_follow *follow;
	struct donor_log *log;
	const struct stream_rx_ops *requests; /* requests.h */
	struct far *far;                /* NULL = no far memory */
	struct jobs *jobs;              /* NULL = no jobs */
	struct far_buffer *far_unused;  /* by no connection */
	struct far_results *far_results_unused;
	struct export stream, shared;
	struct rdma_place *rdma;        /* NULL = no RDMA */
	struct keyring keys;
	struct tls_context *tls;        /* NULL = no keys */
	int epoll_fd;                   /* connections have connection_key() */
	uint64_t now;                   /* ns: start of this turn */
	bool ending;                    /* the donor is ending: the grace period is at most 3 s */
	struct connection *connections; /* CONNECTIONS of them */
	struct payer *payers;           /* as many */
	uint32_t held;                  /* connections with .held */
	uint32_t unsent;                /* connections with .unsent */
	uint32_t last;                  /* connection of the last MAP, or throttled request */
	uint32_t last_far;              /* of far memory: the last that had a turn */
	uint32_t last_data;             /* of data connections: that too */
};

/* Returns 0 or -ENOMEM. */
int sessions_init(struct sessions *s);
void sessions_free(struct sessions *s);

/* Returns whether @c is a data connection of another connection's session. */
static inline bool connection_is_data(const struct connection *c)
{
	return c->home != c->number;
}

static inline bool connection_is_free(const struct connection *c)
{
	return c->fd < 0 && !c->kept_until;
}

static inline struct connection *connection_of(struct borrower *b)
{
	return (struct connection *)((char *)b - offsetof(struct connection, borrower));
}

/* Returns the key of its events: the number, and in the upper half the use of its place. */
static inline uint64_t connection_key(const struct connection *c)
{
	return (uint64_t)c->adoption << 32 | c->number;
}

/* Handles @events of its socket, as of epoll(7). */
void connection_event(struct connection *c, uint32_t events);
/*
 * Handles @events of the connection with @key, unless an earlier event of the turn has dropped it:
 * its place may be another connection's by now.
 */
void connections_event(struct sessions *s, uint64_t key, uint32_t events);
/* Sends queued frames; may drop the connection. */
void connection_flush(struct connection *c);
/* Ends the connection and releases its slabs, including kept ones. */
void connection_drop(struct connection *c, const char *why);

/*
 * Closes it and its data connections, and keeps its loans.  On return none of their writes can
 * still arrive in a slab.
 */
void connection_hang_up(struct connection *c);

/* Ends it because of @why; with WIRE_KEEP its loans stay for the grace period. */
void connection_lost(struct connection *c, const char *why);

/* A frame is about to be queued: the first one that waits starts the time-out. */
void connection_waits(struct connection *c);
/* Queues a frame; requires room by connection_has_room() or WIRE_ASKED. */
void connection_push(struct connection *c, const struct wire_frame *f, const void *payload,
		     uint32_t cookie);
/* Queues the reply to request @f. */
void connection_reply(struct connection *c, const struct wire_frame *f, uint16_t st,
		      const void *payload, uint32_t length, uint32_t cookie);
/* Has it flushed at the end of this turn. */
void connection_unsent(struct connection *c);
/* Returns whether there is room for the reply to one more request. */
bool connection_has_room(const struct connection *c);
/* Sets whether a received request waits, and whether it does for connection_wait(). */
void connection_hold(struct connection *c, bool held, bool throttled);
/* Makes its traffic count for the payer with @key or, if that is "", of its address. */
void connection_pays(struct connection *c, const char *key);
/*
 * Returns for how many ns the request that has arrived, a READ, a WRITE or one of a job, must wait:
 * for its payer, or for its heap's share of the processor.
 */
uint64_t connection_wait(const struct connection *c);
/* The arriving payload is complete, or cancelled. */
void connection_end_arrival(struct connection *c);
/*
 * Return whether there is no place for the new session of @c, which counts already for its key; for
 * one more data connection of the session of @c, which keeps the places that it has had.
 */
bool connection_is_too_many(const struct connection *c);
bool connection_data_is_too_many(const struct connection *c);
/* A data connection has joined the session of @c. */
void connection_data_joined(struct connection *c);

/* In a new turn: continues held requests; returns true when there are more. */
bool connections_resume(struct sessions *s);
/* At the end of a turn: flushes the connections of connection_unsent(). */
void connections_flush(struct sessions *s);
/* Returns ns until a request that waits by connection_wait() may go on, or UINT64_MAX. */
uint64_t connections_throttled(const struct sessions *s);
/* Sends delayed replies that are due; returns ns until the next is, or UINT64_MAX. */
uint64_t connections_delayed(struct sessions *s);
/* Once a second: disconnects peers that send no HELLO, or do not read. */
void connections_tick(struct sessions *s, uint64_t now);
/* Disconnects borrowers whose key was removed; call after a change of the keys. */
void connections_keys(struct sessions *s);

/* Returns @buf (64 bytes) with "127.0.0.1:4711" or "unix". */
const char *connection_peer_text(const struct connection *c, char *buf, size_t size);

#endif
