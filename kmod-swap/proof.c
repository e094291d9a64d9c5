// SPDX-License-Identifier: GPL-2.0-only
#include <linux/random.h>

#include "proof.h"

static_assert(EBB_SWAP_KEY == WIRE_PROOF && EBB_SWAP_KEY_NUMBER == WIRE_KEY_NUMBER);

int ebb_key_set(struct ebb_key *k, const u8 *key, const u8 *number, const char **why)
{
	int r = ebb_hmac_init(&k->hmac, key);

	if (r)
		*why = "key: the kernel has no hmac(sha256); modprobe hmac sha256_generic";
	memcpy(k->number, number, sizeof(k->number));
	return r;
}

void ebb_key_free(struct ebb_key *k)
{
	ebb_hmac_free(&k->hmac);
}

void ebb_proof_reset(struct ebb_proof *p)
{
	ebb_hmac_free(&p->secret);
	p->sent = p->received = 0;
}

void ebb_proof_free(struct ebb_proof *p)
{
	ebb_proof_reset(p);
	ebb_key_free(&p->own);
}

int ebb_proof_request(struct ebb_proof *p, u32 queues, struct ebb_join *join, u32 index,
		      u64 number)
{
	struct wire_proof_request request = {
		.queue = index, .queues = queues, .session = number,
	};
	int r;

	memcpy(request.key, p->key->number, sizeof(request.key));
	if (!index)
		get_random_bytes(request.proof, WIRE_NONCE);
	wire_build_proof_request(join->request, &request);
	if (index)
		r = wire_prove_join(&p->secret, join->request, join->own, request.proof);
	else
		r = wire_prove_open(&p->key->hmac, join->request, join->own,
				    request.proof + WIRE_NONCE);
	wire_build_proof_request(join->request, &request);
	return r;
}

/* Derives the session's secret; called once the donor has accepted connection 0. */
static int secret_make(struct ebb_proof *p, const struct ebb_join *join, const u8 *nonce)
{
	const struct wire_pair pair = { join->own, join->peer };
	u8 secret[WIRE_PROOF];
	int r = wire_secret(&p->key->hmac, join->request, nonce, pair, secret) ?:
		ebb_hmac_init(&p->secret, secret);

	memzero_explicit(secret, sizeof(secret));
	return r;
}

int ebb_proof_check(struct ebb_proof *p, const struct ebb_join *join, u32 index, const char **why)
{
	const struct wire_pair pair = { join->own, join->peer };
	struct wire_proof_reply reply;
	u8 proof[WIRE_PROOF];
	int r;

	*why = "session: out of memory";
	if (wire_parse_proof_reply(join->reply, sizeof(join->reply), &reply)) {
		*why = "address: the donor there proves no key; is it an ebb-donord with --rdma-kernel?";
		return -EKEYREJECTED;
	}
	r = index ? wire_prove_joined(&p->secret, join->request, pair, proof) :
		    secret_make(p, join, reply.nonce) ?: wire_prove_donor(&p->secret, proof);
	if (r || wire_same(proof, reply.proof, sizeof(proof)))
		return r;
	*why = "address: the donor there does not have the device's key; check which machine has that address";
	return -EKEYREJECTED;
}

int ebb_proof_sign(struct ebb_proof *p, u8 *frame, u32 *length)
{
	int r = wire_mark(&p->secret, WIRE_AT_DONOR, p->sent++, frame, *length, frame + *length);

	*length += WIRE_MARK;
	return r;
}

bool ebb_proof_verify(struct ebb_proof *p, const u8 *frame, u32 *length)
{
	u8 mac[WIRE_MARK];

	if (*length < WIRE_MARK)
		return false;
	*length -= WIRE_MARK;
	return !wire_mark(&p->secret, WIRE_AT_BORROWER, p->received++, frame, *length, mac) &&
	       wire_same(mac, frame + *length, WIRE_MARK);
}
