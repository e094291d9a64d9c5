/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Authentication of a connection, and the requests allowed then (docs/protocol.md,
 * "Authentication").
 *
 * Without keys connections need no authentication: the donor then listens on this machine only.
 * With keys, a network connection begins with TLS and becomes a control connection, or begins
 * with JOIN and becomes a data connection of one:
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
	ACCESS_BARE,    /* no authentication: all requests but JOIN */
	ACCESS_PEEKING, /* waits for its first byte */
	ACCESS_SHAKING, /* TLS */
	ACCESS_CONTROL, /* all requests but READ, WRITE and JOIN */
	ACCESS_JOINING, /* only JOIN */
	ACCESS_DATA,    /* only READ and WRITE */
};

/* State of one connection. */
struct access {
	uint8_t state; /* enum access_state */
	struct tls tls;
	/* CONTROL */
	uint64_t session;          /* 0 = no HELLO yet */
	uint64_t numbers;          /* used numbers of data connections */
	uint8_t key[SESSION_KEY];
	/* DATA */
	struct session_guard in, out;
};

/* Begins a new connection; @tls NULL = no authentication. */
void access_begin(struct access *a, struct tls_context *tls);

/*
 * While PEEKING or SHAKING: continues the authentication of the connection at @fd, and then makes
 * its streams use it.  Returns 0 when frames can be received; 1 when it waits for the socket, to be
 * writable if a->tls.wants_write; -EACCES when it is refused, with a->tls.why; or -errno of the
 * socket.
 */
int access_go_on(struct access *a, struct tls_context *tls, int fd, struct stream_rx *rx,
		 struct stream_tx *tx);

static inline bool access_waits(const struct access *a)
{
	return a->state == ACCESS_PEEKING || a->state == ACCESS_SHAKING;
}

/* Returns whether a key has authenticated the connection. */
static inline bool access_known(const struct access *a)
{
	return a->state == ACCESS_CONTROL || a->state == ACCESS_DATA;
}

/* Returns WIRE_OK if requests of @op are served, else the status of the reply. */
enum wire_status access_serves(const struct access *a, enum wire_op op);

/* Gives a CONTROL connection its session after HELLO.  Returns 0 or -EIO. */
int access_greeted(struct access *a);

/*
 * Joins the data connection @a to the session of @control, whose number is in @j, and whose
 * version of the protocol is @version.  After WIRE_OK @a is DATA: push the reply, which has no MAC,
 * then call access_guard().
 */
enum wire_status access_join(struct access *a, struct access *control, const struct wire_join *j,
			     uint32_t version);
void access_guard(struct access *a, struct stream_rx *rx, struct stream_tx *tx);

/* Ends the connection's session and forgets its keys. */
void access_end(struct access *a);

#endif
