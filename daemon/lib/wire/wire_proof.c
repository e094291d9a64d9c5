// SPDX-License-Identifier: GPL-2.0-or-later
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "lib/base/bytes.h"
#include "wire_proof.h"
#include "wire_rdma.h"

#define REQUEST_MAGIC 0x4b424245u /* "EBBK" as bytes */
#define REPLY_MAGIC 0x44424245u   /* "EBBD" */
#define REFUSAL_MAGIC 0x4e424245u /* "EBBN" */

/* Length of the part of a request that its proof covers. */
#define STATED 24u
_Static_assert(STATED + WIRE_PROOF == WIRE_PROOF_REQUEST_SIZE, "a request ends with its proof");
_Static_assert(WIRE_NONCE + WIRE_MARK == WIRE_PROOF, "a nonce and a MAC fill the proof");

#define LABEL 16u

/* A text being built.  All its parts have fixed sizes, except possibly the last. */
struct text {
	uint8_t bytes[LABEL + 8 + WIRE_MARKED_MOST];
	size_t len;
};

static void begin(struct text *t, const char *label)
{
	memset(t->bytes, 0, LABEL);
	memcpy(t->bytes, label, strlen(label));
	t->len = LABEL;
}

static void add(struct text *t, const uint8_t *part, size_t len)
{
	memcpy(t->bytes + t->len, part, len);
	t->len += len;
}

static void add32(struct text *t, uint32_t v)
{
	put32(t->bytes + t->len, v);
	t->len += 4;
}

/* Request: 0 magic, 4 version, 6 queue, 7 queues, 8 session, 16 key, 24 proof. */
void wire_build_proof_request(uint8_t buf[static WIRE_PROOF_REQUEST_SIZE],
			      const struct wire_proof_request *q)
{
	put32(buf, REQUEST_MAGIC);
	put32(buf + 4, WIRE_PROOF_VERSION | q->queue << 16 | q->queues << 24);
	put64(buf + 8, q->session);
	memcpy(buf + 16, q->key, WIRE_KEY_NUMBER);
	memcpy(buf + STATED, q->proof, WIRE_PROOF);
}

int wire_parse_proof_request(const uint8_t *buf, size_t len, struct wire_proof_request *q)
{
	uint32_t word;

	if (len < WIRE_PROOF_REQUEST_SIZE || get32(buf) != REQUEST_MAGIC)
		return -EPROTO;
	word = get32(buf + 4);
	if ((word & 0xffff) != WIRE_PROOF_VERSION)
		return -EPROTONOSUPPORT;
	q->queue = word >> 16 & 0xff;
	q->queues = word >> 24;
	q->session = get64(buf + 8);
	memcpy(q->key, buf + 16, WIRE_KEY_NUMBER);
	memcpy(q->proof, buf + STATED, WIRE_PROOF);
	return !q->queues || q->queues > WIRE_RDMA_QUEUES || q->queue >= q->queues ? -EPROTO : 0;
}

/* Reply: 0 magic, 4 version, 8 nonce, 40 proof. */
void wire_build_proof_reply(uint8_t buf[static WIRE_PROOF_REPLY_SIZE],
			    const struct wire_proof_reply *a)
{
	put32(buf, REPLY_MAGIC);
	put32(buf + 4, WIRE_PROOF_VERSION);
	memcpy(buf + 8, a->nonce, WIRE_PROOF);
	memcpy(buf + 8 + WIRE_PROOF, a->proof, WIRE_PROOF);
}

int wire_parse_proof_reply(const uint8_t *buf, size_t len, struct wire_proof_reply *a)
{
	if (len < WIRE_PROOF_REPLY_SIZE || get32(buf) != REPLY_MAGIC ||
	    get32(buf + 4) != WIRE_PROOF_VERSION)
		return -EPROTO;
	memcpy(a->nonce, buf + 8, WIRE_PROOF);
	memcpy(a->proof, buf + 8 + WIRE_PROOF, WIRE_PROOF);
	return 0;
}

/* Refusal: 0 magic, 4 version, 8 why. */
void wire_build_refusal(uint8_t buf[static WIRE_REFUSAL_SIZE], enum wire_refusal why)
{
	put32(buf, REFUSAL_MAGIC);
	put32(buf + 4, WIRE_PROOF_VERSION);
	put32(buf + 8, why);
}

enum wire_refusal wire_parse_refusal(const uint8_t *buf, size_t len)
{
	if (len < WIRE_REFUSAL_SIZE || get32(buf) != REFUSAL_MAGIC ||
	    get32(buf + 4) != WIRE_PROOF_VERSION || get32(buf + 8) >= WIRE_REFUSALS)
		return WIRE_REFUSED_UNKNOWN;
	return (enum wire_refusal)get32(buf + 8);
}

/* Kept short: an extended acknowledgement delivers 127 bytes. */
const char *wire_refusal_text(enum wire_refusal why)
{
	static const char *const texts[WIRE_REFUSALS] = {
		[WIRE_REFUSED_UNKNOWN] = "it refuses without a reason; see the log of its ebb-donord, which may be an older version",
		[WIRE_REFUSED_VERSION] = "it speaks another version of the protocol; have the same version of ebb on both machines",
		[WIRE_REFUSED_OPEN] = "it lends without keys; start ebb-donord there with --rdma-kernel and --keys",
		[WIRE_REFUSED_NO_KEY] = "it wants a key; give --key FILE, which must be among its --keys",
		[WIRE_REFUSED_OTHER_KEY] = "it does not know the device's key; add one of \"ebbctl key derive\" to its --keys, then SIGHUP",
		[WIRE_REFUSED_BAD_PROOF] = "it rejects this connection as not part of its session; check for a man in the middle",
		[WIRE_REFUSED_FULL] = "its limit of borrowers is reached; name other donors",
		[WIRE_REFUSED_FAILED] = "it cannot lend now; see the log of its ebb-donord",
	};

	return why < WIRE_REFUSALS ? texts[why] : texts[WIRE_REFUSED_UNKNOWN];
}

int wire_secret(const struct wire_hmac *key, const uint8_t request[static WIRE_PROOF_REQUEST_SIZE],
		const uint8_t nonce[static WIRE_PROOF], struct wire_pair pair,
		uint8_t secret[static WIRE_PROOF])
{
	struct text t;

	begin(&t, "ebb kmod session");
	add(&t, request, WIRE_PROOF_REQUEST_SIZE);
	add(&t, nonce, WIRE_PROOF);
	add32(&t, pair.borrower);
	add32(&t, pair.donor);
	return wire_hmac(key, t.bytes, t.len, secret);
}

int wire_prove_open(const struct wire_hmac *key,
		    const uint8_t request[static WIRE_PROOF_REQUEST_SIZE], uint32_t borrower,
		    uint8_t mac[static WIRE_MARK])
{
	uint8_t whole[WIRE_PROOF];
	struct text t;
	int r;

	begin(&t, "open");
	add(&t, request, STATED + WIRE_NONCE);
	add32(&t, borrower);
	r = wire_hmac(key, t.bytes, t.len, whole);
	memcpy(mac, whole, WIRE_MARK);
	return r;
}

int wire_prove_donor(const struct wire_hmac *secret, uint8_t proof[static WIRE_PROOF])
{
	struct text t;

	begin(&t, "donor");
	return wire_hmac(secret, t.bytes, t.len, proof);
}

int wire_prove_join(const struct wire_hmac *secret,
		    const uint8_t request[static WIRE_PROOF_REQUEST_SIZE], uint32_t borrower,
		    uint8_t proof[static WIRE_PROOF])
{
	struct text t;

	begin(&t, "join");
	add(&t, request, STATED);
	add32(&t, borrower);
	return wire_hmac(secret, t.bytes, t.len, proof);
}

int wire_prove_joined(const struct wire_hmac *secret,
		      const uint8_t request[static WIRE_PROOF_REQUEST_SIZE], struct wire_pair pair,
		      uint8_t proof[static WIRE_PROOF])
{
	struct text t;

	begin(&t, "joined");
	add(&t, request, WIRE_PROOF_REQUEST_SIZE);
	add32(&t, pair.borrower);
	add32(&t, pair.donor);
	return wire_hmac(secret, t.bytes, t.len, proof);
}

int wire_mark(const struct wire_hmac *secret, enum wire_side to, uint64_t before,
	      const uint8_t *frame, size_t len, uint8_t mark[static WIRE_MARK])
{
	uint8_t mac[WIRE_PROOF];
	struct text t;
	int r;

	if (len > WIRE_MARKED_MOST)
		return -EMSGSIZE;
	begin(&t, to == WIRE_AT_DONOR ? "to donor" : "to borrower");
	put64(t.bytes + t.len, before);
	t.len += 8;
	add(&t, frame, len);
	r = wire_hmac(secret, t.bytes, t.len, mac);
	memcpy(mark, mac, WIRE_MARK);
	return r;
}
