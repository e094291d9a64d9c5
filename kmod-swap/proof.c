// SPDX-License-Identifier: GPL-2.0-only
/*
 * The device's key, and what its sessions and their donors prove to each other by it; how
 * is in daemon/lib/wire/wire_proof.h, which the donor compiles, too.
 *
 * The key comes when the device is made, is in the state of an HMAC from then on, which the
 * crypto API wipes when it is given up, and is told to nobody.
 */
#include <crypto/algapi.h>
#include <crypto/hash.h>
#include <linux/err.h>
#include <linux/random.h>

#include "internal.h"
#include "wire_rdma.h"

static_assert(EBB_SWAP_KEY == WIRE_PROOF && EBB_SWAP_KEY_NUMBER == WIRE_KEY_NUMBER);
/* The longest that is sent. */
static_assert(EBB_FRAME >= WIRE_HEADER + WIRE_DONOR_SIZE + WIRE_MARK);

int wire_hmac(const struct wire_hmac *h, const uint8_t *text, size_t len,
	      uint8_t mac[static WIRE_PROOF])
{
	return crypto_shash_tfm_digest(h->tfm, text, len, mac);
}

bool wire_same(const uint8_t *a, const uint8_t *b, size_t len)
{
	return !crypto_memneq(a, b, len);
}

/* With @key; free of any before. */
static int hmac_init(struct wire_hmac *h, const u8 *key)
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

static void hmac_free(struct wire_hmac *h)
{
	if (h->tfm)
		crypto_free_shash(h->tfm);
	h->tfm = NULL;
}

int key_set(struct ebb_device *d, const u8 *key, const u8 *number, const char **why)
{
	int r = hmac_init(&d->key, key);

	if (r)
		*why = "key: the kernel has no hmac(sha256); modprobe hmac sha256_generic";
	memcpy(d->key_number, number, sizeof(d->key_number));
	return r;
}

void key_free(struct ebb_device *d)
{
	hmac_free(&d->key);
}

void proof_free(struct ebb_session *s)
{
	hmac_free(&s->secret);
}

int proof_request(struct ebb_session *s, struct ebb_queue *q, u32 index)
{
	struct wire_proof_request request = {
		.queue = index, .queues = s->device->queues, .session = s->number,
	};
	int r = 0;

	memcpy(request.key, s->device->key_number, sizeof(request.key));
	if (!index)
		get_random_bytes(request.proof, sizeof(request.proof));
	wire_build_proof_request(q->request, &request);
	if (index) {
		r = wire_prove_join(&s->secret, q->request, q->id->qp->qp_num, request.proof);
		wire_build_proof_request(q->request, &request);
	}
	return r;
}

/* Of the donor that accepted connection 0. */
static int secret_make(struct ebb_session *s, const struct ebb_queue *q, const u8 *nonce,
		       struct wire_pair pair)
{
	u8 secret[WIRE_PROOF];
	int r = wire_secret(&s->device->key, q->request, nonce, pair, secret) ?:
		hmac_init(&s->secret, secret);

	memzero_explicit(secret, sizeof(secret));
	return r;
}

int proof_check(struct ebb_session *s, const struct ebb_queue *q, u32 index, const char **why)
{
	const struct wire_pair pair = { q->id->qp->qp_num, q->peer };
	struct wire_proof_reply reply;
	u8 proof[WIRE_PROOF];
	int r;

	*why = "session: not enough memory";
	if (wire_parse_proof_reply(q->reply, sizeof(q->reply), &reply)) {
		*why = "address: who lends there knows no keys; is it an ebb-donord with --rdma-kernel?";
		return -EKEYREJECTED;
	}
	r = index ? wire_prove_joined(&s->secret, q->request, pair, proof) :
		    secret_make(s, q, reply.nonce, pair) ?: wire_prove_donor(&s->secret, proof);
	if (r || wire_same(proof, reply.proof, sizeof(proof)))
		return r;
	*why = "address: who lends there has not the device's key; who took that address?";
	return -EKEYREJECTED;
}

int proof_mark(struct ebb_session *s, u8 *frame, u32 *length)
{
	int r = wire_mark(&s->secret, WIRE_AT_DONOR, s->sent++, frame, *length, frame + *length);

	*length += WIRE_MARK;
	return r;
}

bool proof_genuine(struct ebb_session *s, const u8 *frame, u32 *length)
{
	u8 mark[WIRE_MARK];

	if (*length < WIRE_MARK)
		return false;
	*length -= WIRE_MARK;
	return !wire_mark(&s->secret, WIRE_AT_BORROWER, s->received++, frame, *length, mark) &&
	       wire_same(mark, frame + *length, WIRE_MARK);
}
