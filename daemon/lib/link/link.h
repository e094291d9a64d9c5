/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Links: connections to donors, and the transports that move data over them.
 *
 * Each link has a control connection, a stream socket with frames (HELLO, MAP, PING).  The
 * link's owner drives it: handshake, deadlines, reconnection.  A transport opens the control
 * connection and moves the data of mappings:
 *
 *	open --> hello --> [map --> submit ... --> unmap] ... --> close
 *
 * A transfer is the link's from submit() to done().  A transport without a round trip calls
 * done() within submit().
 *
 * All functions are the loop thread's, except prepare().
 */
#ifndef EBB_LINK_H
#define EBB_LINK_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/base/error.h"
#include "lib/wire/address.h"
#include "lib/wire/session.h"
#include "lib/wire/stream.h"
#include "lib/wire/tls.h"
#include "mapping.h"

struct link;
struct rdma_links;

/* More data connections gain nothing: one thread at each end serves all. */
#define DATA_LINKS 8
/* Tags are consecutive, so chains stay short whatever replies a donor makes up. */
#define LINK_BUCKETS 64

/* A READ or WRITE of a part of a mapping. */
struct transfer {
	/* Set by the submitter. */
	uint8_t op;              /* WIRE_READ or WIRE_WRITE */
	bool by_reference;       /* READ: in_place may be set instead of filling the payload */
	uint32_t number;         /* the submitter's number of the transfer */
	uint32_t serial;         /* the submitter's, of the mapping */
	uint32_t offset, length; /* bytes */
	void *payload;
	/* Set by the link, valid in done(). */
	/* 0; -ECONNRESET: the link has been lost; -ESTALE: the donor has ended the mapping */
	int result;
	const void *in_place;    /* READ: location of the data until unmap(), or NULL */
	uint64_t since;          /* ns: submitted; 0 = no round trip */
	/* Private to the link. */
	uint32_t remote, generation; /* valid in done() with -ESTALE */
	uint64_t tag;
	uint64_t entry;          /* tcp: stream_tx_next() of the frame */
	uint8_t channel;
	struct transfer *previous, *next, *chain;
};

/*
 * Bytes after which receiving pauses, so that the replies in them are used while others arrive:
 * one system call, unless it brings less.
 */
#define LINK_PIECE STREAM_RX_BUFFER

struct transfer_list {
	struct transfer *head, *tail;
};

/*
 * A lost link may work after a reconnection, or only after an operator's action.  LOSS_ALTERED
 * passes: what was sent, either way, is not what arrived, and it was detected by its MAC.
 */
enum loss { LOSS_PASSING, LOSS_LASTING, LOSS_ALTERED };

/*
 * Upcalls of a link.  ready: hello() returned 1, and data can move now.  lost: the link has failed;
 * the owner closes it before lost() returns.  done: the submitter owns the transfer again, with its
 * payload, also after an error: done() may use that, but must neither submit nor close.
 */
struct donor_ops {
	void (*ready)(void *owner);
	void (*lost)(void *owner, enum loss loss, const char *text);
	void (*done)(void *owner, struct transfer *t);
};

/* State that the links of a process share. */
struct transport_env {
	int epoll_fd;
	struct tls_context *tls;     /* NULL = no key */
	uint64_t slab;               /* bytes: least size of a mapping */
	uint32_t connections;        /* data connections of a link with TLS */
	uint32_t links, transfers;   /* limits: links of the process, transfers in flight on one */
	void *memory;                /* memory that contains all payloads */
	size_t memory_size;
	struct rdma_links *rdma;     /* NULL until prepare() */
	/* counters */
	uint64_t *late_replies, *refused_transfers;
};

enum data_link_state { LINK_NONE, LINK_CONNECTING, LINK_JOINING, LINK_UP };

/* A data connection (tcp_link.h). */
struct data_link {
	uint8_t state; /* enum data_link_state */
	bool watched_for_write;
	bool more;      /* the last piece received was not all there is */
	uint8_t number; /* in the session, from 0 */
	int fd;
	struct wire_join join;
	uint32_t version;       /* of the protocol, as HELLO agreed */
	uint8_t key[SESSION_KEY];
	struct stream_rx rx;
	struct stream_tx tx;
	struct session_guard in, out;
	uint8_t small[WIRE_JOIN_SIZE]; /* payload of JOIN */
};

struct link {
	const struct transport *transport;
	struct transport_env *env;
	const struct donor_ops *ops;
	void *owner;
	uint16_t index;          /* index among the process's links */
	struct address at;
	uint64_t slab_size;      /* bytes of the donor's slabs, as reported in HELLO */
	bool refuses_one;        /* STALE and NO_SLAB to a transfer end its mapping only */
	/* The control connection. */
	int fd;                  /* -1 = closed */
	bool watched_for_write;  /* epoll interest in EPOLLOUT */
	bool more;               /* the last piece received was not all there is */
	struct stream_rx rx;
	struct stream_tx tx;
	struct tls tls;
	uint8_t small[WIRE_SMALL]; /* payload of the current frame, unless it is data */
	uint32_t data_queued;    /* frames of transfers in tx */
	const char *refusal;     /* why a transfer was refused, if that ends the link */
	struct transfer_list waiting; /* transfers in flight, oldest first */
	struct transfer *by_tag[LINK_BUCKETS]; /* chained */
	/*
	 * Transfer whose reply is being received, by channel: 0 is the control connection; the
	 * transport defines the others.
	 */
	struct transfer *arriving[1 + DATA_LINKS];
	uint64_t sequence;       /* of the last tag */
	struct data_link data[DATA_LINKS]; /* with TLS; data[i] is channel i + 1 */
};

struct transport {
	const char *name;     /* "tcp" */
	uint32_t hello_flags; /* in HELLO, besides those of every transport */
	bool maps_here;       /* map() and unmap() take milliseconds */

	/*
	 * Allocates what the transport needs in this process, threads included, before the first
	 * link; further calls do nothing.  May block.  May be NULL.
	 */
	int (*prepare)(struct transport_env *env, struct error *e);

	/* Starts the control connection to l->at; returns its descriptor or -errno. */
	int (*open)(struct link *l);

	/*
	 * Handles the reply to HELLO, @told.  Returns 0 when data can move, 1 when ready() will
	 * follow, or -errno.  May be NULL.
	 */
	int (*hello)(struct link *l, const struct wire_donor *told);

	/*
	 * Makes the slab reachable that the donor granted with the current frame (l->rx,
	 * l->small).  Returns 0, -EPROTO for an invalid grant, or another -errno when this machine
	 * cannot reach it.  May be NULL.
	 */
	int (*map)(struct link *l, struct mapping *m);
	/*
	 * Undoes map(), also after the link is closed; no transfer uses @m.  Only its memory and
	 * size are looked at.  May be NULL.
	 */
	void (*unmap)(struct mapping *m);

	/* Moves data between t->payload and @m.  Cannot fail: a broken link is lost later. */
	void (*submit)(struct link *l, const struct mapping *m, struct transfer *t);
	/* Sends what submit() has queued outside of the control connection.  May be NULL. */
	void (*flush)(struct link *l);

	/*
	 * Handles a READ or WRITE frame on @channel, as in struct stream_rx_ops.  NULL where data
	 * does not come in frames; such a frame then breaks the protocol.
	 */
	int (*arrived)(struct link *l, uint32_t channel, const struct wire_frame *f,
		       void **payload);
	int (*finished)(struct link *l, uint32_t channel, const struct wire_frame *f);
	/* Frames that come next on @channel, as in struct stream_rx_ops.  May be NULL: unknown. */
	uint32_t (*expected)(const struct link *l, uint32_t channel,
			     struct stream_expected *frames, uint32_t most);

	/*
	 * Handles an event of @channel; 0 means any except the control connection.  It may belong
	 * to an earlier link of this index.  May be NULL.
	 */
	void (*event)(struct link *l, uint32_t channel);
	/*
	 * event() receives one piece of what has arrived.  Receives the next one on each channel
	 * that has more; returns whether there was one.  May be NULL.
	 */
	bool (*more)(struct link *l);
	/*
	 * For poll(2) without epoll: fills in what event(l, 0) waits for, up to @most entries, and
	 * returns how many.  May be NULL.
	 */
	int (*fds)(const struct link *l, struct pollfd *p, int most);

	/* Closes the transport's part.  On return no payload is accessed.  May be NULL. */
	void (*close)(struct link *l);
};

extern const struct transport transport_tcp; /* "HOST:PORT" */
extern const struct transport transport_shm; /* "unix:/PATH" */
extern const struct transport transport_rdma; /* "rdma:HOST:PORT" */

/* For owners of links: */

/* Allocates the buffers of a closed link that queues up to @queue frames; 0 or -errno. */
int link_init(struct link *l, struct transport_env *env, uint16_t index, uint32_t queue);
/* Closes the link and frees its buffers.  Transfers in flight are forgotten. */
void link_free(struct link *l);
/* Prepares a closed link, whose buffers stay, for another donor at @at. */
void link_reset(struct link *l, const struct transport *transport, const struct address *at);

/* Starts the control connection to l->at, under epoll; 0 or -errno. */
int link_open(struct link *l);
/* Call it when HELLO is answered: until then, closing discards what the donor has not received. */
void link_greeted(struct link *l);
/* Sets whether epoll reports that the control connection is writable. */
void link_watch(struct link *l, bool write);
/* Sends what the control connection's queue has; 0 or -errno. */
int link_flush(struct link *l);
/* Closes all connections.  Transfers in flight stay on their lists until link_cancel(). */
void link_close(struct link *l);
/* Ends the transfers of a closed link with -ECONNRESET. */
void link_cancel(struct link *l);

/* Returns the epoll key of the descriptor of @channel. */
static inline uint64_t link_key(const struct link *l, uint32_t channel)
{
	return (uint64_t)channel << 32 | l->index;
}

/* For transports: */

/* Puts @t in flight over @channel, with a tag that is unique on the link. */
void link_wait(struct link *l, const struct mapping *m, struct transfer *t, uint32_t channel);
/* Returns the transfer in flight with @tag, or NULL. */
struct transfer *link_find(const struct link *l, uint64_t tag);
/* Ends a transfer that is in flight. */
void link_done(struct link *l, struct transfer *t, int result);

#endif
