/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Binds data connections to the TLS connection that they belong to.
 *
 * Both ends of a control connection derive the session's key by its exporter, so that only they
 * have it, and no other connection has an equal one.  A data connection begins with JOIN, whose MAC
 * proves the key, for a number that is used once; from then on each header is followed by its GMAC
 * under a key of that connection and direction, with the number of frames before it as the nonce.
 * So no frame, acknowledgements included, can be forged, left out, repeated or moved.  From version
 * 4 of the protocol on each payload is followed by its GMAC, under another key, with the number of
 * payloads before it as the nonce: the headers tell which frame has that payload.
 */
#ifndef EBB_SESSION_H
#define EBB_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/error.h"
#include "stream.h"

#define SESSION_KEY 32
#define SESSION_LABEL "EXPORTER-ebb-data" /* tls_export() */
/* Limit of connection numbers in a session: 0 to 63. */
#define SESSION_NUMBERS 64u

/* Sets @j->mac for the other members of @j.  Returns 0 or -EIO. */
int session_sign(const uint8_t key[static SESSION_KEY], struct wire_join *j);

/*
 * Returns whether @j was made with @key.  Says nothing about its session and number, which the
 * caller checks to be its own and unused.
 */
bool session_genuine(const uint8_t key[static SESSION_KEY], const struct wire_join *j);

/* Marks @number as used; returns whether it was unused.  *@used is 0 at first. */
bool session_take_number(uint64_t *used, uint32_t number);

/* One direction of a data connection. */
struct session_guard {
	struct stream_guard guard;
	struct evp_cipher_ctx_st *gmac, *payload_gmac; /* owned */
	uint64_t frames, payloads;      /* so far, the present ones included */
	bool begun;                     /* the present payload has had a piece */
	bool failed;                    /* ... whose MAC could not be computed */
};

/* Returns 0 or -ENOMEM. */
int session_guard_init(struct session_guard *g);
void session_guard_free(struct session_guard *g);

enum session_role { SESSION_SENDS, SESSION_RECEIVES };

/*
 * Starts one direction of the connection that @j joins, the borrower's requests or the replies,
 * from the first frame after JOIN and its reply on.  @role is this side's; @version that of the
 * protocol, by which payloads have MACs.  Returns 0 or -EIO.
 */
int session_guard_start(struct session_guard *g, enum session_role role,
			const uint8_t key[static SESSION_KEY], const struct wire_join *j,
			enum wire_direction direction, uint32_t version);

#endif
