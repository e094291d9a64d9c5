/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Proofs that borrower and donor have the device's key: see wire_proof.h, which the donor compiles
 * as well.  The key comes with CREATE and is never reported.
 */
#ifndef EBB_PROOF_H
#define EBB_PROOF_H

#include "device.h"
#include "wire_proof.h"

/* Of a session. */
struct ebb_proof {
	struct wire_hmac secret;  /* of this session alone */
	u64 sent, received;       /* frames */
};

/* Of a connection: what both sides sent when it was made, and their queue pairs. */
struct ebb_join {
	u8 request[WIRE_PROOF_REQUEST_SIZE], reply[WIRE_PROOF_REPLY_SIZE];
	u32 own, peer;
};

/* While the device is created, before there are sessions. */
int ebb_key_set(struct ebb_device *device, const u8 *key, const u8 *number, const char **why);
void ebb_key_free(struct ebb_device *device);

/* Fills in join->request of connection @index of the session @number; join->own is set. */
int ebb_proof_request(struct ebb_proof *p, const struct ebb_device *device, struct ebb_join *join,
		      u32 index, u64 number);
/* -EKEYREJECTED: join->reply, from join->peer, does not prove the key for this session. */
int ebb_proof_check(struct ebb_proof *p, const struct ebb_device *device,
		    const struct ebb_join *join, u32 index, const char **why);

/* Appends the MAC of the next frame sent, and adds it to *@length.  Frames leave in this order. */
int ebb_proof_sign(struct ebb_proof *p, u8 *frame, u32 *length);
/* Whether @frame is the donor's next one; *@length loses its MAC.  One caller at a time. */
bool ebb_proof_verify(struct ebb_proof *p, const u8 *frame, u32 *length);
void ebb_proof_free(struct ebb_proof *p);

#endif
