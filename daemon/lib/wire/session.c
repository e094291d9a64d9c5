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

static bool begin(EVP_CIPHER_CTX *c, uint64_t number)
{
	uint8_t nonce[NONCE] = { 0 };

	put64(nonce, number);
	return EVP_CipherInit_ex(c, NULL, NULL, NULL, nonce, -1) == 1;
}

static bool add(EVP_CIPHER_CTX *c, const void *piece, uint32_t length)
{
	int n;

	return EVP_CipherUpdate(c, NULL, &n, piece, (int)length) == 1;
}

static bool end(EVP_CIPHER_CTX *c, uint8_t *mark)
{
	uint8_t none;
	int n;

	return EVP_CipherFinal_ex(c, &none, &n) == 1 &&
	       EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, STREAM_MARK, mark) == 1;
}

static bool end_with(EVP_CIPHER_CTX *c, const uint8_t *mark)
{
	uint8_t none;
	int n;

	return EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, STREAM_MARK, (void *)mark) == 1 &&
	       EVP_CipherFinal_ex(c, &none, &n) == 1;
}

static bool add_header(struct session_guard *g, const uint8_t *header)
{
	return begin(g->gmac, g->frames++) && add(g->gmac, header, WIRE_HEADER);
}

static void mark(struct stream_guard *guard, const uint8_t *header, uint8_t *mark)
{
	struct session_guard *g = (struct session_guard *)guard;

	/* On failure the MAC is wrong, and the other side reports it. */
	if (!add_header(g, header) || !end(g->gmac, mark))
		memset(mark, 0, STREAM_MARK);
}

static bool genuine(struct stream_guard *guard, const uint8_t *header, const uint8_t *mark)
{
	struct session_guard *g = (struct session_guard *)guard;

	return add_header(g, header) && end_with(g->gmac, mark);
}

static void piece(struct stream_guard *guard, const void *piece, uint32_t length)
{
	struct session_guard *g = (struct session_guard *)guard;

	if (!g->begun)
		g->failed = !begin(g->payload_gmac, g->payloads++);
	g->begun = true;
	g->failed = g->failed || !add(g->payload_gmac, piece, length);
}

static void trailer(struct stream_guard *guard, uint8_t *mark)
{
	struct session_guard *g = (struct session_guard *)guard;

	g->begun = false;
	if (g->failed || !end(g->payload_gmac, mark))
		memset(mark, 0, STREAM_MARK);
}

static bool intact(struct stream_guard *guard, const uint8_t *mark)
{
	struct session_guard *g = (struct session_guard *)guard;

	g->begun = false;
	return !g->failed && end_with(g->payload_gmac, mark);
}

int session_guard_init(struct session_guard *g)
{
	*g = (struct session_guard){
		.guard = { false, mark, genuine, piece, trailer, intact },
		.gmac = EVP_CIPHER_CTX_new(), .payload_gmac = EVP_CIPHER_CTX_new(),
	};
	return g->gmac && g->payload_gmac ? 0 : -ENOMEM;
}

void session_guard_free(struct session_guard *g)
{
	EVP_CIPHER_CTX_free(g->gmac);
	EVP_CIPHER_CTX_free(g->payload_gmac);
	*g = (struct session_guard){ .frames = 0 };
}

/* Makes @c compute MACs with the key of @label, connection and direction. */
static int start(EVP_CIPHER_CTX *c, enum session_role role,
		 const uint8_t key[static SESSION_KEY], const char *label,
		 const struct wire_join *j, enum wire_direction direction)
{
	uint8_t own[MAC];
	int r = derive(key, label, j, direction, own);

	if (!r && EVP_CipherInit_ex(c, EVP_aes_256_gcm(), NULL, own, NULL,
				    role == SESSION_SENDS) != 1)
		r = -EIO;
	OPENSSL_cleanse(own, sizeof(own));
	return r;
}

int session_guard_start(struct session_guard *g, enum session_role role,
			const uint8_t key[static SESSION_KEY], const struct wire_join *j,
			enum wire_direction direction, uint32_t version)
{
	int r = start(g->gmac, role, key, "ebb frames", j, direction);

	g->guard.trailers = version >= 4;
	if (!r && g->guard.trailers)
		r = start(g->payload_gmac, role, key, "ebb payloads", j, direction);
	g->frames = g->payloads = 0;
	g->begun = false;
	return r;
}
