// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>

#include "lib/base/bytes.h"
#include "session.h"

#define NONCE 12
#define MAC 32

/* Computes HMAC-SHA256(key, label || session || number || what), without @what if < 0. */
static int derive(const uint8_t *key, const char *label, const struct wire_join *j, int what,
		  uint8_t out[static MAC])
{
	size_t len = strlen(label);
	uint8_t text[64];

	memcpy(text, label, len);
	put64(text + len, j->session);
	put32(text + len + 8, j->number);
	len += 12;
	if (what >= 0)
		text[len++] = (uint8_t)what;
	return HMAC(EVP_sha256(), key, SESSION_KEY, text, len, out, NULL) ? 0 : -EIO;
}

int session_sign(const uint8_t key[static SESSION_KEY], struct wire_join *j)
{
	return derive(key, "ebb data", j, -1, j->mac);
}

bool session_genuine(const uint8_t key[static SESSION_KEY], const struct wire_join *j)
{
	uint8_t mac[MAC];

	return derive(key, "ebb data", j, -1, mac) == 0 && !CRYPTO_memcmp(mac, j->mac, MAC);
}

bool session_take_number(uint64_t *used, uint32_t number)
{
	if (number >= SESSION_NUMBERS || *used >> number & 1)
		return false;
	*used |= 1ull << number;
	return true;
}

/* Starts the next frame's MAC: nonce and header. */
static bool begin(struct session_guard *g, const uint8_t *header)
{
	uint8_t nonce[NONCE] = { 0 };
	int n;

	put64(nonce, g->frames++);
	return EVP_CipherInit_ex(g->gmac, NULL, NULL, NULL, nonce, -1) == 1 &&
	       EVP_CipherUpdate(g->gmac, NULL, &n, header, WIRE_HEADER) == 1;
}

static void mark(struct stream_guard *guard, const uint8_t *header, uint8_t *mark)
{
	struct session_guard *g = (struct session_guard *)guard;
	uint8_t none;
	int n;

	/* On failure the MAC is wrong, and the other side reports it. */
	if (!begin(g, header) || EVP_CipherFinal_ex(g->gmac, &none, &n) != 1 ||
	    EVP_CIPHER_CTX_ctrl(g->gmac, EVP_CTRL_AEAD_GET_TAG, STREAM_MARK, mark) != 1)
		memset(mark, 0, STREAM_MARK);
}

static bool genuine(struct stream_guard *guard, const uint8_t *header, const uint8_t *mark)
{
	struct session_guard *g = (struct session_guard *)guard;
	uint8_t none;
	int n;

	return begin(g, header) &&
	       EVP_CIPHER_CTX_ctrl(g->gmac, EVP_CTRL_AEAD_SET_TAG, STREAM_MARK, (void *)mark) ==
		       1 &&
	       EVP_CipherFinal_ex(g->gmac, &none, &n) == 1;
}

int session_guard_init(struct session_guard *g)
{
	*g = (struct session_guard){ .guard = { mark, genuine }, .gmac = EVP_CIPHER_CTX_new() };
	return g->gmac ? 0 : -ENOMEM;
}

void session_guard_free(struct session_guard *g)
{
	EVP_CIPHER_CTX_free(g->gmac);
	*g = (struct session_guard){ .frames = 0 };
}

int session_guard_start(struct session_guard *g, enum session_role role,
			const uint8_t key[static SESSION_KEY], const struct wire_join *j,
			enum wire_direction direction)
{
	uint8_t own[MAC];
	int r = derive(key, "ebb frames", j, direction, own);

	if (!r && EVP_CipherInit_ex(g->gmac, EVP_aes_256_gcm(), NULL, own, NULL,
				    role == SESSION_SENDS) != 1)
		r = -EIO;
	OPENSSL_cleanse(own, sizeof(own));
	g->frames = 0;
	return r;
}
