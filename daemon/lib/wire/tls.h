/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * TLS 1.3 between borrower and donor, by a key that both have (key.h) and nothing
 * else: no certificates, no older version, no tickets, no early data, and nothing
 * after the handshake but what is sent here.  The key
 * proves each side to the other; a fresh Diffie-Hellman exchange makes what was
 * sent before safe from a later thief of the key.
 *
 * A struct tls is one connection's.  While its handshake goes on, the owner polls
 * the socket and calls tls_handshake(); then the streams (stream.h) get tls_io with
 * it as their channel and work as on a bare socket, but for descriptors.  All of
 * one connection is one thread's.
 *
 * OpenSSL allocates: in a handshake, and a little at any time.  A process that
 * must not wait for memory calls tls_reserve() first.
 */
#ifndef EBB_TLS_H
#define EBB_TLS_H

#include <stdbool.h>

#include "key.h"
#include "lib/base/error.h"
#include "stream.h"

struct ssl_st;
struct tls_context;

struct tls {
	struct ssl_st *ssl;   /* NULL = not in use */
	struct tls_context *context;
	bool wants_write;     /* the handshake waits for the socket to take more */
	bool shaken;          /* the handshake is over */
	bool meddled;         /* then something else than frames came */
	/* Whose key it is: the borrower's own, or what the donor found.  "" until then. */
	char name[KEY_NAME], fingerprint[KEY_FINGERPRINT];
	char why[192];        /* the handshake failed: "CAUSE; REMEDY" */
};

/* Its channel is a struct tls, after the handshake. */
extern const struct stream_io tls_io;

/* What the borrower's connections share.  Keeps a copy of @key. */
int tls_borrower(struct tls_context **out, const struct key *key, struct error *e);

/*
 * The donor's.  @ring stays the caller's and may change between
 * two calls of functions of this file.
 */
int tls_donor(struct tls_context **out, const struct keyring *ring, struct error *e);
void tls_context_free(struct tls_context **c);

/* Begins on the connected, non-blocking @fd, which stays the caller's.  0 or -ENOMEM. */
int tls_start(struct tls *t, struct tls_context *c, int fd);

/*
 * Goes on.  0 when done: the other side has the key of t->name.  1 when it waits
 * for the socket, to be readable or, if t->wants_write, writable.  -EACCES when it
 * failed, with t->why.
 */
int tls_handshake(struct tls *t);

/* Forgets the connection; says nothing to the other side.  Fine when not in use. */
void tls_stop(struct tls *t);

static inline bool tls_used(const struct tls *t)
{
	return t->ssl != NULL;
}

/*
 * After the handshake: @len bytes that only both sides can make, other
 * ones for each connection and @label (RFC 8446, 7.5).  0 or -EIO.
 */
int tls_export(struct tls *t, const char *label, void *out, size_t len);

/*
 * Makes the heap large enough for @connections handshakes, touches it, and has it
 * never shrink nor map.  With the process's memory locked, OpenSSL's allocations
 * by the calling, main thread then take pages that are there.
 */
int tls_reserve(unsigned connections, struct error *e);

#endif
