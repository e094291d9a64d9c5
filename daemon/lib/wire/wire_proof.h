/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * How a kernel-module borrower (kmod-swap) and its donor authenticate to each other over
 * RDMA by a shared key (key.h), and authenticate all later messages.  Both compile this
 * file; docs/protocol.md is the prose.
 *
 *	connection 0    request: which key, a nonce, half of HMAC(key, "open", the request)
 *	                reply:   a nonce, HMAC(S, "donor")
 *	connection i    request: HMAC(S, "join", the request)
 *	                reply:   HMAC(S, "joined", the request)
 *	each message    the frame, then HMAC(S, "to donor" or "to borrower", how many were
 *	                before it, the frame), of which the first half is sent
 *
 * S, the secret of a session, is HMAC(key, "ebb kmod session", the request of connection 0,
 * the donor's nonce, the queue pairs).  So it differs for each session even if one
 * side's nonce repeats, and no message of one session is valid in another.  Each text begins
 * with its own label: none is valid for another purpose or in the other direction.
 * Numbers of queue pairs are part of all texts about connections: a relay that passes on what both
 * say, between connections of its own, has other numbers.
 *
 * Strangers can replay "open", which only lets the donor prefer such a request while it has many.
 * The MAC of its first frame authenticates the borrower; the MAC in the first reply
 * authenticates the donor.  All functions here are pure except the HMAC, which each side
 * supplies.
 */
#ifndef EBB_WIRE_PROOF_H
#define EBB_WIRE_PROOF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire.h"
#include "wire_hmac.h"

#define WIRE_KEY_NUMBER 8u   /* bytes of a key's fingerprint, which is no secret */
#define WIRE_MARK 16u        /* bytes behind each frame */
#define WIRE_PROOF_VERSION 1u

/* Private data of a connection request: all that there is room for. */
struct wire_proof_request {
	uint32_t queue, queues; /* as in struct wire_rdma_open */
	uint64_t session;
	uint8_t key[WIRE_KEY_NUMBER];
	/* Connection 0: a nonce of WIRE_NONCE bytes, then wire_prove_open(), or random bytes. */
	uint8_t proof[WIRE_PROOF];
};
#define WIRE_NONCE 16u
#define WIRE_PROOF_REQUEST_SIZE 56u

void wire_build_proof_request(uint8_t buf[static WIRE_PROOF_REQUEST_SIZE],
			      const struct wire_proof_request *q);
/*
 * Returns 0, -EPROTO for another message, -EPROTONOSUPPORT for another version.  Ignores padding.
 */
int wire_parse_proof_request(const uint8_t *buf, size_t len, struct wire_proof_request *q);

/* Private data of the reply. */
struct wire_proof_reply {
	uint8_t nonce[WIRE_PROOF]; /* of connection 0, else zeros */
	uint8_t proof[WIRE_PROOF];
};
#define WIRE_PROOF_REPLY_SIZE 72u

void wire_build_proof_reply(uint8_t buf[static WIRE_PROOF_REPLY_SIZE],
			    const struct wire_proof_reply *a);
int wire_parse_proof_reply(const uint8_t *buf, size_t len, struct wire_proof_reply *a);

/* Private data of a rejection: why. */
enum wire_refusal {
	WIRE_REFUSED_UNKNOWN,   /* not told, as by older donors */
	WIRE_REFUSED_VERSION,
	WIRE_REFUSED_OPEN,      /* the donor has no keys */
	WIRE_REFUSED_NO_KEY,    /* the donor requires a key */
	WIRE_REFUSED_OTHER_KEY, /* the donor does not know the key */
	WIRE_REFUSED_BAD_PROOF, /* a further connection is not of its session */
	WIRE_REFUSED_FULL,      /* the donor has as many borrowers as it may */
	WIRE_REFUSED_FAILED,    /* the donor failed */
	WIRE_REFUSALS
};
#define WIRE_REFUSAL_SIZE 12u

void wire_build_refusal(uint8_t buf[static WIRE_REFUSAL_SIZE], enum wire_refusal why);
/* Returns WIRE_REFUSED_UNKNOWN for other data or reasons of later versions. */
enum wire_refusal wire_parse_refusal(const uint8_t *buf, size_t len);
/* Returns text for the borrower, such as "it wants a key; give ..."; never NULL. */
const char *wire_refusal_text(enum wire_refusal why);

/* Numbers of a connection's queue pairs. */
struct wire_pair {
	uint32_t borrower, donor;
};

/*
 * Derives the secret of the session that @request, of connection 0, begins.  All return 0 or
 * -errno.
 */
int wire_secret(const struct wire_hmac *key, const uint8_t request[static WIRE_PROOF_REQUEST_SIZE],
		const uint8_t nonce[static WIRE_PROOF], struct wire_pair pair,
		uint8_t secret[static WIRE_PROOF]);
/*
 * Makes the MAC behind the nonce in @request of connection 0, by the key itself.  Older borrowers
 * send a longer nonce instead, older donors do not look.
 */
int wire_prove_open(const struct wire_hmac *key,
		    const uint8_t request[static WIRE_PROOF_REQUEST_SIZE], uint32_t borrower,
		    uint8_t mac[static WIRE_MARK]);
/* Makes the donor's proof for its reply to connection 0. */
int wire_prove_donor(const struct wire_hmac *secret, uint8_t proof[static WIRE_PROOF]);
/* Makes the proof for @request of a further connection; ignores a proof in it. */
int wire_prove_join(const struct wire_hmac *secret,
		    const uint8_t request[static WIRE_PROOF_REQUEST_SIZE], uint32_t borrower,
		    uint8_t proof[static WIRE_PROOF]);
/* Makes the proof in the donor's reply to that, over the whole of it. */
int wire_prove_joined(const struct wire_hmac *secret,
		      const uint8_t request[static WIRE_PROOF_REQUEST_SIZE], struct wire_pair pair,
		      uint8_t proof[static WIRE_PROOF]);

#define WIRE_MARKED_MOST 128u
/*
 * Makes the MAC of @frame, header and payload, at most WIRE_MARKED_MOST bytes; @to is the receiving
 * side, @before the number of frames sent to it before.
 */
int wire_mark(const struct wire_hmac *secret, enum wire_side to, uint64_t before,
	      const uint8_t *frame, size_t len, uint8_t mark[static WIRE_MARK]);

#endif
