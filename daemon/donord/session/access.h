/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Authentication of a connection, and what it may do then (docs/protocol.md, "Authentication").
 *
 * Without keys a connection is taken as it is: the donor then listens where only
 * this machine can reach it.  With keys, what comes by the network begins with
 * TLS and becomes a control connection, or begins with JOIN and becomes a data
 * connection of one of those:
 *
 *	PEEKING --> SHAKING --> CONTROL --HELLO--> has a session
 *	   +------> JOINING ---------------------> DATA
 */
#ifndef EBB_ACCESS_H
#define EBB_ACCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/wire/session.h"
#include "lib/wire/stream.h"
#include "lib/wire/tls.h"

enum access_state {
	ACCESS_BARE,    /* as it is: everything is served but JOIN */
	ACCESS_PEEKING, /* its first byte tells */
	ACCESS_SHAKING, /* TLS */
	ACCESS_CONTROL, /* everything but READ, WRITE and JOIN */
	ACCESS_JOINING, /* JOIN alone */
	ACCESS_DATA,    /* READ and WRITE alone */
};

/* Of one connection. */
struct access {
	uint8_t state; /* enum access_state */
	struct tls tls;
	/* CONTROL */
	uint64_t session;          /* 0 = not greeted yet */
	uint64_t numbers;          /* of data connections, used */
	uint8_t key[SESSION_KEY];
	/* DATA */
	struct session_guard in, out;
};

/* A new connection; @tls is NULL where it is taken as it is. */
void access_begin(struct access *a, struct tls_context *tls);

/*
 * While PEEKING or SHAKING: goes on with the connection at @fd, and when it is
 * through has its streams work by it.  0 when frames can be received; 1 when it
 * waits for the socket, to be writable if a->tls.wants_write; -EACCES when it is
 * refused, with a->tls.why; other -errno from the socket.
 */
int access_go_on(struct access *a, struct tls_context *tls, int fd, struct stream_rx *rx,
		 struct stream_tx *tx);

static inline bool access_waits(const struct access *a)
{
	return a->state == ACCESS_PEEKING || a->state == ACCESS_SHAKING;
}

/* Whether a key has authenticated it. */
static inline bool access_known(const struct access *a)
{
	return a->state == ACCESS_CONTROL || a->state == ACCESS_DATA;
}

/* Whether frames of @op are served: WIRE_OK, or what such a request is answered with. */
enum wire_status access_serves(const struct access *a, enum wire_op op);

/* HELLO was taken: a CONTROL connection gets its session.  0 or -EIO. */
int access_greeted(struct access *a);

/*
 * A data connection @a asks to join the session of @control, whose number is in @j.
 * WIRE_OK makes it DATA: the reply is still to go without a mark, so push it, then
 * call access_guard().
 */
enum wire_status access_join(struct access *a, struct access *control, const struct wire_join *j);
void access_guard(struct access *a, struct stream_rx *rx, struct stream_tx *tx);

/* The connection is gone. */
void access_end(struct access *a);

#endif
