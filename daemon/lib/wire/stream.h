/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Frames over a non-blocking stream socket, for both sides.
 *
 * Receiving: header and a small payload come with one recv(2) and are copied
 * from there (a page out of the first-level cache is cheaper than a second
 * system call); what is left of a larger payload is received straight to where
 * it belongs.  Sending: entries refer to their payload, a flush sends many with
 * one sendmsg(2).  Nothing is allocated after the *_init() calls.
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
#define STREAM_INLINE 64u /* longer payloads are referred to: pages, and ACTIVITY's */
/* Descriptors that arrived and were not taken; a sender sends one with a frame. */
#define STREAM_FDS 4

/*
 * What carries a connection's bytes, where that is not the socket itself; the
 * only other way to them is in stream.c.  As recvmsg(2) and sendmsg(2) on a
 * non-blocking socket, -1 with errno EAGAIN included, and like them they may
 * move less than asked for.  What is received short is taken for all there is:
 * nothing may be kept back that epoll would not tell of.
 */
struct stream_io {
	ssize_t (*receive)(void *channel, int fd, struct msghdr *m);
	ssize_t (*send)(void *channel, int fd, struct msghdr *m);
	/*
	 * Whether a receive that was not short left bytes in the channel: of those the
	 * socket cannot tell, and no budget holds them back.  NULL = never.
	 */
	bool (*pending)(void *channel);
};

/*
 * What proves that a frame is the other side's, and the next one: a mark behind
 * each header, made of the header and of the frames before it.
 */
#define STREAM_MARK 16u

struct stream_guard {
	void (*mark)(struct stream_guard *g, const uint8_t *header, uint8_t *mark);
	bool (*genuine)(struct stream_guard *g, const uint8_t *header, const uint8_t *mark);
};

struct stream_rx {
	enum wire_side side;       /* which we are */
	uint8_t *buf;              /* STREAM_RX_BUFFER bytes, owned */
	uint32_t head, tail;       /* unparsed bytes are buf[head..tail) */
	struct wire_frame frame;   /* whose payload is arriving */
	uint8_t *dst;              /* where the rest goes; NULL = thrown away */
	uint32_t left;             /* payload bytes still to come */
	bool busy;                 /* a frame arrived and is not finished */
	bool takes_fds;            /* the connection may bring descriptors */
	int fds[STREAM_FDS];       /* that came and were not taken, oldest first; or -EMFILE */
	uint32_t fd_count;
	const struct stream_io *io; /* NULL = the socket; until the next reset */
	void *channel;
	struct stream_guard *guard; /* of the frames to come; NULL = none; until the next reset */
	bool proven;               /* the guard has passed the header at head */
};

struct stream_rx_ops {
	/*
	 * A header arrived.  Sets *@payload to room for wire_payload() bytes that
	 * stays valid until finished(), or to NULL to throw the payload away.
	 * Returns 0, -errno to give the connection up, or 1 for "not now": the
	 * frame stays unread and stream_receive() returns 1.
	 */
	int (*arrived)(void *data, const struct wire_frame *frame, void **payload);
	/* Header and payload are complete.  Returns 0 or -errno. */
	int (*finished)(void *data, const struct wire_frame *frame);
};

/* @side receives: with its requests the other side's replies arrive, too. */
int stream_rx_init(struct stream_rx *rx, enum wire_side side);
void stream_rx_reset(struct stream_rx *rx); /* for a new connection */
void stream_rx_free(struct stream_rx *rx);

/*
 * The descriptor that came with the frame at hand, now the caller's; -ENODATA = none
 * came, -EMFILE = one was sent and this process could not have it.  To be called in
 * finished() of every frame that has one: they are told apart by their order only.
 */
int stream_take_fd(struct stream_rx *rx);

/*
 * Receives what is there, at most about @budget bytes.  Returns 0 when the
 * socket is drained, 1 when there may be more (or an operation said "not now"),
 * -ECONNRESET at end of stream, -EPROTO on a malformed frame or on descriptors
 * that are not taken, -EBADMSG on a frame whose mark is wrong, other -errno.
 */
int stream_receive(struct stream_rx *rx, int fd, size_t budget,
		   const struct stream_rx_ops *ops, void *data);

struct stream_entry {
	uint8_t bytes[WIRE_HEADER + STREAM_MARK + STREAM_INLINE];
	uint32_t first;      /* of these are sent; the payload, if not there, follows */
	const void *payload; /* NULL: behind the header in bytes[] */
	uint32_t length;     /* of the payload */
	uint32_t cookie;
	int fd;              /* goes along; -1 = none */
};

struct stream_tx {
	struct stream_entry *entries; /* ring, owned */
	uint32_t size, head, count;
	uint64_t popped;              /* entries sent since stream_tx_init() */
	uint32_t sent;                /* bytes of the first entry already sent */
	size_t budget;                /* bytes a flush sends, about; 0 = what the socket takes */
	const struct stream_io *io;   /* NULL = the socket; until the next reset */
	void *channel;
	struct stream_guard *guard;   /* of the frames pushed from now on; NULL = none; likewise */
};

/* @size: most entries waiting. */
int stream_tx_init(struct stream_tx *tx, uint32_t size);
void stream_tx_free(struct stream_tx *tx);

static inline uint32_t stream_tx_room(const struct stream_tx *tx)
{
	return tx->size - tx->count;
}

/* The number of the entry that is pushed next: they are counted. */
static inline uint64_t stream_tx_next(const struct stream_tx *tx)
{
	return tx->popped + tx->count;
}

/* Whether the entry of this number has left, payload and all. */
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

/* The same with @fd, which must stay open until the entry is sent. */
int stream_push_fd(struct stream_tx *tx, const struct wire_frame *frame, int fd,
		   uint32_t cookie);

/*
 * Sends what the socket takes; calls @sent (may be NULL) with the cookie of each
 * entry sent.  0 = all sent, 1 = the socket is full or the budget used up,
 * or -errno.
 */
int stream_flush(struct stream_tx *tx, int fd, void (*sent)(void *data, uint32_t cookie),
		 void *data);

/* Forgets every entry, calling @sent for each; for a new connection. */
void stream_tx_reset(struct stream_tx *tx, void (*sent)(void *data, uint32_t cookie),
		     void *data);

#endif
