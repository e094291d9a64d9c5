// SPDX-License-Identifier: GPL-2.0-only
#include <crypto/algapi.h>
#include <crypto/hash.h>
#include <linux/err.h>

#include "hmac.h"
#include "wire_proof.h"

int wire_hmac(const struct wire_hmac *h, const uint8_t *text, size_t len,
	      uint8_t mac[static WIRE_PROOF])
{
	return crypto_shash_tfm_digest(h->tfm, text, len, mac);
}

bool wire_same(const uint8_t *a, const uint8_t *b, size_t len)
{
	return !crypto_memneq(a, b, len);
}

int ebb_hmac_init(struct wire_hmac *h, const u8 *key)
{
	struct crypto_shash *tfm = crypto_alloc_shash("hmac(sha256)", 0, 0);
	int r;

	if (IS_ERR(tfm))
		return PTR_ERR(tfm);
	r = crypto_shash_setkey(tfm, key, WIRE_PROOF);
	if (r)
		crypto_free_shash(tfm);
	else
		h->tfm = tfm;
	return r;
}

void ebb_hmac_free(struct wire_hmac *h)
{
	if (h->tfm)
		crypto_free_shash(h->tfm);
	h->tfm = NULL;
}
