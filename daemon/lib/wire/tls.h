/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * TLS 1.3 between borrower and donor, by a key that both have (key.h) and nothing else: no
 * certificates, older versions, tickets, early data or messages after the handshake except ebb's
 * data.  The key authenticates both sides; a fresh Diffie-Hellman exchange protects earlier traffic
 * if the key is stolen later.
 *
 * A struct tls belongs to one connection and one thread.  During the handshake the owner polls the
 * socket and calls tls_handshake(); then the streams (stream.h) get tls_io with it as their channel
 * and work as on a bare socket, but without descriptors.  Nothing here raises SIGPIPE.
 *
 * OpenSSL allocates: in a handshake, and a little at any time.  A process that must not wait for
 * memory calls tls_reserve() first.
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
	bool meddled;         /* then a message other than data came */
	int broken;           /* errno of every receive from now on; 0 = none */
	/* Key in use: the borrower's own, or the one that the donor found.  "" until then. */
	char name[KEY_NAME], fingerprint[KEY_FINGERPRINT];
	uint8_t key[KEY_BYTES];       /* borrower only, with the identity that it offers */
	char identity[KEY_IDENTITY];
	bool unknown;         /* borrower only: the donor does not know that identity */
	bool closed;          /* the handshake failed because the connection ended */
	char why[192];        /* reason of a failed handshake: "CAUSE; REMEDY" */
};

/* TLS as the carrier of a stream; its channel is a struct tls. */
extern const struct stream_io tls_io;

/* Makes the state that a borrower's connections share.  Copies @key. */
int tls_borrower(struct tls_context **out, const struct key *key, struct error *e);

/*
 * Makes a donor's.  The caller owns @ring and may change it between calls of functions of this
 * file.
 */
int tls_donor(struct tls_context **out, const struct keyring *ring, struct error *e);
void tls_context_free(struct tls_context **c);

/*
 * Begins on the connected, non-blocking @fd, which the caller keeps.  A borrower offers the
 * context's key.  Returns 0 or -ENOMEM.
 */
int tls_start(struct tls *t, struct tls_context *c, int fd);
/* tls_start() of a borrower that offers the key derived for the donor of this key_donor_name(). */
int tls_start_derived(struct tls *t, struct tls_context *c, int fd, const char *donor);

/*
 * Continues the handshake.  Returns 0 when done: the other side has the key of t->name; 1 when it
 * waits for the socket, to be readable or, if t->wants_write, writable; -EACCES when it failed,
 * with t->why.
 */
int tls_handshake(struct tls *t);

/* Moves a connection to @to, which is not in use; @from then is not. */
void tls_move(struct tls *to, struct tls *from);

/* Frees the connection without a message to the other side.  Fine when not in use. */
void tls_stop(struct tls *t);

static inline bool tls_used(const struct tls *t)
{
	return t->ssl != NULL;
}

/*
 * After the handshake: derives @len bytes that only the two sides know, different for each
 * connection and @label (RFC 8446, 7.5).  Returns 0 or -EIO.
 */
int tls_export(struct tls *t, const char *label, void *out, size_t len);

/*
 * Makes the heap large enough for @connections handshakes, touches it, and prevents it from
 * shrinking or mapping.  With locked memory, OpenSSL's allocations in the calling, main thread then
 * use resident pages.
 */
int tls_reserve(unsigned connections, struct error *e);

#endif
