/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The HMAC of wire_hmac.h in a process: OpenSSL's. */
#ifndef EBB_HMAC_H
#define EBB_HMAC_H

#include "key.h"
#include "wire_hmac.h"

struct wire_hmac {
	uint8_t key[WIRE_PROOF];
};
_Static_assert(KEY_BYTES == WIRE_PROOF, "a key of a file is one");

void wire_hmac_forget(struct wire_hmac *h);

#endif
