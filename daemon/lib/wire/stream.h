/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Frames over a non-blocking stream socket, for both sides.
 *
 * Receiving: header and a small payload come with one recvmsg(2) and are copied from there (copying
 * a page from the first-level cache is cheaper than a second system call); the rest of a larger
 * payload is received directly into its destination.  Where the receiver knows which replies come
 * next (struct stream_rx_ops), their headers and whole payloads come with one recvmsg(2), and no
 * payload is copied.  Sending: entries refer to their payload, and
 * a flush sends many with one sendmsg(2).  Nothing is allocated after the *_init() calls.
 *
 * Over a unix socket a frame may have a file descriptor with it.
 */
#ifndef EBB_STREAM_H
#define EBB_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "wire.h"

#define STREAM_RX_BUFFER 16384u
/* Longer payloads are sent by reference: pages, ACTIVITY. */
#define STREAM_INLINE WIRE_DONOR_SIZE
/* Expected frames per system call, and the bytes of their payloads. */
#define STREAM_EXPECTED 8u
#define STREAM_EXPECTED_BYTES 65536u
/* Room for all that one system call receives. */
#define STREAM_SPILL (STREAM_RX_BUFFER + STREAM_EXPECTED_BYTES)
/* Limit of received descriptors not taken yet; a sender sends one per frame. */
#define STREAM_FDS 4

/*
 * Replaces the socket as the carrier of a connection's bytes.  Works like recvmsg(2) and sendmsg(2)
 * on a non-blocking socket, including -1 with errno EAGAIN and short transfers.  A short receive
 * means that the socket is empty.
 */
struct stream_io {
	ssize_t (*receive)(void *channel, int fd, struct msghdr *m);
	ssize_t (*send)(void *channel, int fd, struct msghdr *m);
	/*
	 * Returns the number of bytes that the channel has left after a receive, at most one TLS
	 * record, or 1 for an error: epoll would not report them, so they are received beyond the
	 * budget.  NULL = none.
	 */
	size_t (*pending)(void *channel);
};

/*
 * Authenticates frames and their order by a MAC behind each header, computed from the header and
 * the frames before it; with @trailers, also payloads, by a MAC behind each one that is bound to
 * its frame.
 */
#define STREAM_MARK 16u

struct stream_guard {
	bool trailers;
	void (*mark)(struct stream_guard *g, const uint8_t *header, uint8_t *mark);
	bool (*genuine)(struct stream_guard *g, const uint8_t *header, const uint8_t *mark);
	/* The next piece of the payload, of any length; then, once it is complete, its MAC. */
	void (*piece)(struct stream_guard *g, const void *piece, uint32_t length);
	void (*trailer)(struct stream_guard *g, uint8_t *mark);
	bool (*intact)(struct stream_guard *g, const uint8_t *mark);
};

/* A frame that is expected next: its payload, and the payload's length; 0 = none. */
struct stream_expected {
	void *payload;
	uint32_t length;
};

/* A payload that arrived directly, before its header was parsed. */
struct stream_direct {
	struct stream_expected of;
	uint32_t at;               /* where it belongs in buf */
	uint32_t room, got;        /* bytes asked for and received */
};

struct stream_rx {
	enum wire_side side;       /* this side */
	uint8_t *buf;              /* STREAM_RX_BUFFER bytes, owned */
	uint32_t head, tail;       /* unparsed bytes are buf[head..tail) and the payloads between */
	struct stream_direct direct[STREAM_EXPECTED];
	uint32_t next_direct, directs; /* unparsed ones; none between two calls */
	/*
	 * STREAM_SPILL bytes of the caller for wrong expectations, in use only during
	 * stream_receive(), so that all connections of a thread may share them; NULL = none: expect
	 * nothing.  A reset keeps it.
	 */
	uint8_t *spill;
	bool spilled;              /* unparsed bytes are spill[head..tail) */
	struct wire_frame frame;   /* frame whose payload is arriving */
	uint8_t *dst;              /* destination of the rest; NULL = discard */
	uint32_t left;             /* payload bytes to come */
	bool busy;                 /* a frame arrived and is not finished */
	bool trailed;              /* ... and has a MAC behind its payload */
	bool takes_fds;            /* the connection may bring descriptors */
	int fds[STREAM_FDS];       /* received, not taken, oldest first; or -EMFILE */
	uint32_t fd_count;
	const struct stream_io *io; /* NULL = the socket; until the next reset */
	void *channel;
	struct stream_guard *guard; /* authenticates received frames; NULL = none; until reset */
	bool proven;               /* the guard has accepted the header at head */
	uint64_t moved;            /* bytes received since the last reset */
};

struct stream_rx_ops {
	/*
	 * Handles a header.  Sets *@payload to room for wire_payload() bytes that stays valid until
	 * finished(), or to NULL to discard the payload.  Returns 0, -errno to end the connection,
	 * or 1 for "not now": the frame stays unread and stream_receive() returns 1.
	 */
	int (*arrived)(void *data, const struct wire_frame *frame, void **payload);
	/* Handles a complete frame, whose MACs are right.  Returns 0 or -errno. */
	int (*finished)(void *data, const struct wire_frame *frame);
	/*
	 * Stores up to @most frames that will probably come next, after the one that is arriving,
	 * in order; returns their number.  If other frames come instead, their bytes may pass
	 * through these payloads: nothing may access one before finished() is called for its frame,
	 * also for a refusal without that payload, or stream_receive() returns; and arrived() must
	 * not say "not now".  NULL = nothing is expected.
	 */
	uint32_t (*expected)(void *data, struct stream_expected *frames, uint32_t most);
};

/* @side receives, besides requests, the replies to its own ones. */
int stream_rx_init(struct stream_rx *rx, enum wire_side side);
void stream_rx_reset(struct stream_rx *rx); /* for a new connection */
void stream_rx_free(struct stream_rx *rx);

/* Discards the rest of the payload that is arriving; its MAC is checked all the same. */
void stream_rx_discard(struct stream_rx *rx);

/*
 * Returns the descriptor that came with the current frame, owned by the caller; -ENODATA = none
 * came, -EMFILE = this process could not have it.  Must be called in finished() of every frame that
 * has one: only their order tells them apart.
 */
int stream_take_fd(struct stream_rx *rx);

/*
 * Receives available data, at most about @budget bytes and what is pending then.  Returns 0 when
 * the socket is drained, 1 when there may be more (or an operation said "not now"), -ECONNRESET at
 * end of stream, -EPROTO on a malformed frame or on descriptors that are not taken, -EBADMSG on a
 * wrong MAC of a header or, if rx->busy, of a payload, other -errno.
 */
int stream_receive(struct stream_rx *rx, int fd, size_t budget,
		   const struct stream_rx_ops *ops, void *data);

struct stream_entry {
	uint8_t bytes[WIRE_HEADER + STREAM_MARK + STREAM_INLINE];
	uint8_t trailer[STREAM_MARK];
	uint32_t first;      /* bytes sent from bytes[]; the payload, if elsewhere, follows */
	uint32_t last;       /* bytes sent from trailer[], behind the payload */
	bool marked;         /* trailer[] is computed: when the payload is about to leave */
	const void *payload; /* NULL: in bytes[], behind the header */
	uint32_t length;     /* of the payload */
	uint32_t cookie;
	int fd;              /* passed with the frame; -1 = none */
};

struct stream_tx {
	struct stream_entry *entries; /* ring, owned */
	uint32_t size, head, count;
	uint64_t popped;              /* entries sent since stream_tx_init() */
	uint32_t sent;                /* bytes of the first entry already sent */
	uint64_t moved;               /* bytes sent since stream_tx_init() */
	size_t budget;                /* bytes per flush, about; 0 = no limit */
	const struct stream_io *io;   /* NULL = the socket; until the next reset */
	void *channel;
	struct stream_guard *guard;   /* authenticates pushed frames; NULL = none; until reset */
};

/* @size: most entries waiting. */
int stream_tx_init(struct stream_tx *tx, uint32_t size);
void stream_tx_free(struct stream_tx *tx);

static inline uint32_t stream_tx_room(const struct stream_tx *tx)
{
	return tx->size - tx->count;
}

/* Returns the number of the entry that is pushed next. */
static inline uint64_t stream_tx_next(const struct stream_tx *tx)
{
	return tx->popped + tx->count;
}

/* Returns whether the entry of this number was sent, payload included. */
static inline bool stream_tx_has_left(const struct stream_tx *tx, uint64_t number)
{
	return tx->popped > number;
}

/*
 * Queues @frame.  A @payload of up to STREAM_INLINE bytes is copied; a longer
 * one must stay until the entry is sent.  -ENOSPC when the ring is full.
 */
int stream_push(struct stream_tx *tx, const struct wire_frame *frame, const void *payload,
		uint32_t cookie);

/* As stream_push(), with @fd, which must stay open until the entry is sent. */
int stream_push_fd(struct stream_tx *tx, const struct wire_frame *frame, int fd,
		   uint32_t cookie);

/*
 * Sends until the socket is full; calls @sent (may be NULL) with the cookie of each sent entry.
 * Returns 0 when all is sent, 1 when the socket is full or the budget used up, or -errno.
 */
int stream_flush(struct stream_tx *tx, int fd, void (*sent)(void *data, uint32_t cookie),
		 void *data);

/* Forgets every entry, calling @sent for each; for a new connection. */
void stream_tx_reset(struct stream_tx *tx, void (*sent)(void *data, uint32_t cookie),
		     void *data);

#endif
