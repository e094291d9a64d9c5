/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The primitives that wire_proof.c needs.  hmac.c implements them with OpenSSL, the kernel module
 * with the kernel's crypto API.
 */
#ifndef EBB_WIRE_HMAC_H
#define EBB_WIRE_HMAC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_PROOF 32u /* bytes of a nonce, a key, a MAC */

/* HMAC-SHA256 with its key. */
struct wire_hmac;

/* Writes the MAC of @len bytes of @text to @mac.  Returns 0 or -errno. */
int wire_hmac(const struct wire_hmac *h, const uint8_t *text, size_t len,
	      uint8_t mac[static WIRE_PROOF]);
/* Compares in a time that does not depend on where @a and @b differ. */
bool wire_same(const uint8_t *a, const uint8_t *b, size_t len);

#endif
