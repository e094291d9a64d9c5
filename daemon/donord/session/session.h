/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A borrower's connection: its socket, its replies and its end, which gives back all it was
 * lent.  What one of them does is bounded for each turn of the loop, in bytes received and
 * sent and in MAPs, so that none has the donor to itself.
 *
 * What a borrower has survives its process (docs/protocol.md, "Reconnecting").  The connection
 * of one that wants that (WIRE_KEEP) may end without a word: its loans then keep their contents
 * and their place in connections[] for options.keep.  Its reconnecting borrower says HELLO with
 * the same number, and the same key where there are keys, takes them over, and says which of
 * them it knows.
 */
#ifndef EBB_CONNECTION_H
#define EBB_CONNECTION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "access.h"
#include "donord/pool/headroom_follow.h"
#include "donord/pool/lending_options.h"
#include "donord/pool/rdma.h"
#include "lib/wire/stream.h"

#define CONNECTIONS 256
/* Most replies a connection has in flight; a borrower that pipelines more waits. */
#define CONNECTION_REPLIES 1024
/*
 * Bytes of one connection in a turn of the loop, each way: with 1 MiB some 0.2 ms, the
 * time the others wait for a greedy one.
 */
#define CONNECTION_TURN (1u << 20)
#define NO_SLAB UINT32_MAX

struct delayed {
	uint64_t due; /* ns, CLOCK_MONOTONIC */
	struct wire_frame reply;
	void *memory;
};

struct connection {
	struct borrower borrower; /* its name, key and export are set by HELLO */
	struct sessions *sessions;
	int fd; /* -1 = not connected: free, or kept for a reconnecting borrower */
	uint32_t number;
	bool greeted, reading, writing; /* the last two: epoll interest */
	bool answers;        /* greeted and, with a key, its data connection or queue has joined */
	bool keeps;          /* WIRE_KEEP */
	uint64_t kept_until; /* ns: it ended, and its loans wait until then; 0 = no */
	bool held;           /* a request that has arrived waits for room for its reply, or its turn */
	bool unsent;         /* frames were queued since the last connection_flush() */
	bool local;          /* by a unix socket: may map slabs */
	bool by_rdma;        /* moves pages by its queue, when that has joined */
	struct rdma_queue queue;
	struct access access;
	uint32_t home;       /* number of the connection whose slabs it moves pages of */
	uint64_t id;         /* the borrower's number */
	char fingerprint[KEY_FINGERPRINT]; /* of its key, also while it is kept; "" without */
	struct sockaddr_storage peer;
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
};

/* All connections, and what they share. */
struct sessions {
	struct session_options options;
	struct pool *pool;
	struct eviction *eviction;
	struct headroom_follow *follow;
	struct donor_log *log;
	const struct stream_rx_ops *requests; /* requests.h */
	struct export stream, shared;
	struct rdma_place *rdma;        /* NULL = not by RDMA */
	struct keyring keys;
	struct tls_context *tls;        /* with keys; NULL = without */
	int epoll_fd;                   /* connection i is its key i */
	uint64_t now;                   /* ns: when this turn began */
	bool ending;                    /* the donor is to end: kept loans wait no longer than 3 s */
	struct connection *connections; /* CONNECTIONS of them */
	uint32_t held;                  /* connections with .held */
	uint32_t unsent;                /* connections with .unsent */
	uint32_t mapped;                /* connection of the last MAP */
};

/* -ENOMEM */
int sessions_init(struct sessions *s);
/* Drops all connections. */
void sessions_free(struct sessions *s);

/* Connections with keys of @name, data connections included. */
uint64_t connections_with_key(const struct sessions *s, const char *name);

/* Whether it moves pages of another one's slabs. */
static inline bool connection_is_data(const struct connection *c)
{
	return c->home != c->number;
}

/* Whether its place is free. */
static inline bool connection_is_free(const struct connection *c)
{
	return c->fd < 0 && !c->kept_until;
}

static inline struct connection *connection_of(struct borrower *b)
{
	return (struct connection *)((char *)b - offsetof(struct connection, borrower));
}

/* Something happened on its socket; @events as epoll's. */
void connection_event(struct connection *c, uint32_t events);
/* Sends what is queued; may drop it. */
void connection_flush(struct connection *c);
/* Ends it; its slabs come back, also those that were kept. */
void connection_drop(struct connection *c, const char *why);

/*
 * Ends it but for its loans, and its data connections: when this returns, nothing that
 * they sent can arrive in a slab any more.
 */
void connection_hang_up(struct connection *c);

/* Ends it because of @why: its loans are kept for its reconnecting borrower, if it wants that. */
void connection_lost(struct connection *c, const char *why);

/* Queues a frame; there is room, see connection_has_room() and WIRE_ASKED. */
void connection_push(struct connection *c, const struct wire_frame *f, const void *payload,
		     uint32_t cookie);
/* Queues the reply to request @f. */
void connection_reply(struct connection *c, const struct wire_frame *f, enum wire_status st,
		      const void *payload, uint32_t length, uint32_t cookie);
/* Has it flushed at the end of the turn. */
void connection_unsent(struct connection *c);
/* Whether the reply to one more request has a place. */
bool connection_has_room(const struct connection *c);
/* A request that has arrived waits, or does not. */
void connection_hold(struct connection *c, bool held);
/* The payload that was arriving is there, or never will be. */
void connection_end_arrival(struct connection *c);
/* Whether those of @c's key would be more than there may be, with @more to come. */
bool connection_too_many(const struct connection *c, uint64_t more);

/* A new turn: goes on with held requests that may be done now; true = there are more. */
bool connections_resume(struct sessions *s);
/* The end of a turn: sends what connection_unsent() was told of. */
void connections_flush(struct sessions *s);
/* Sends delayed replies that are due; returns ns until the next is, or UINT64_MAX. */
uint64_t connections_delayed(struct sessions *s);
/* Once a second: disconnects those that do not send HELLO, or do not read. */
void connections_tick(struct sessions *s, uint64_t now);
/* The keys have changed: disconnects those whose key is gone. */
void connections_keys(struct sessions *s);

/* "127.0.0.1:4711", "unix"; @buf of 64 bytes is returned. */
const char *connection_peer_text(const struct connection *c, char *buf, size_t size);

#endif
