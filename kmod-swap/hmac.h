/* SPDX-License-Identifier: GPL-2.0-only */
/* HMAC-SHA256 by the kernel's crypto API, for the proofs of wire_proof.h. */
#ifndef EBB_HMAC_H
#define EBB_HMAC_H

#include <ebb/swap.h>
#include <linux/types.h>

struct crypto_shash;

/* The key is part of the transform's state and is wiped with it. */
struct wire_hmac {
	struct crypto_shash *tfm; /* NULL = no key */
};

struct ebb_key {
	struct wire_hmac hmac;
	u8 number[EBB_SWAP_KEY_NUMBER]; /* its fingerprint */
};

/* Sets the key of @h, which must have none; @key has WIRE_PROOF bytes. */
int ebb_hmac_init(struct wire_hmac *h, const u8 *key);
void ebb_hmac_free(struct wire_hmac *h);

#endif
