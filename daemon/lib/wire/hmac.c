// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "hmac.h"

int wire_hmac(const struct wire_hmac *h, const uint8_t *text, size_t len,
	      uint8_t mac[static WIRE_PROOF])
{
	return HMAC(EVP_sha256(), h->key, sizeof(h->key), text, len, mac, NULL) ? 0 : -EIO;
}

bool wire_same(const uint8_t *a, const uint8_t *b, size_t len)
{
	return !CRYPTO_memcmp(a, b, len);
}

void wire_hmac_forget(struct wire_hmac *h)
{
	OPENSSL_cleanse(h, sizeof(*h));
}
