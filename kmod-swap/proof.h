/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Proofs that borrower and donor have a key: see wire_proof.h, shared with the donor.
 * CREATE and CONNECT pass it; no command reports it.
 */
#ifndef EBB_PROOF_H
#define EBB_PROOF_H

#include "device.h"
#include "wire_proof.h"

/* State of a session. */
struct ebb_proof {
	const struct ebb_key *key; /* the device's, or own */
	struct ebb_key own;
	struct wire_hmac secret;  /* unique to this session */
	u64 sent, received;       /* numbers of frames */
};

/* Private data that both sides of a connection sent in the handshake, and their queue pairs. */
struct ebb_join {
	u8 request[WIRE_PROOF_REQUEST_SIZE], reply[WIRE_PROOF_REPLY_SIZE];
	u32 own, peer;
};

/* Sets @k, which has none, to EBB_SWAP_KEY bytes of @key with fingerprint @number. */
int ebb_key_set(struct ebb_key *k, const u8 *key, const u8 *number, const char **why);
void ebb_key_free(struct ebb_key *k);

/* Fills in join->request for connection @index of session @number; join->own must be set. */
int ebb_proof_request(struct ebb_proof *p, u32 queues, struct ebb_join *join, u32 index,
		      u64 number);
/* Checks join->reply from join->peer; -EKEYREJECTED: no proof of the key for this session. */
int ebb_proof_check(struct ebb_proof *p, const struct ebb_join *join, u32 index, const char **why);

/* Appends a MAC to @frame and adds its size to *@length.  Frames must be sent in this order. */
int ebb_proof_sign(struct ebb_proof *p, u8 *frame, u32 *length);
/* Returns whether @frame is the donor's next; removes its MAC from *@length.  One caller only. */
bool ebb_proof_verify(struct ebb_proof *p, const u8 *frame, u32 *length);
/* Forgets the secret and the counts, for new connections; the key stays. */
void ebb_proof_reset(struct ebb_proof *p);
void ebb_proof_free(struct ebb_proof *p);

#endif
