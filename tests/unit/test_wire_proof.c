// SPDX-License-Identifier: GPL-2.0-or-later
/* Authentication of a kernel-module borrower and its donor, and its failures. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "lib/wire/hmac.h"
#include "lib/wire/wire_proof.h"
#include "lib/wire/wire_rdma.h"

#include <cmocka.h>

#define SESSION 0x1122334455667788ull

static const struct wire_pair pair = { 0x11, 0x22 }, pair2 = { 0x13, 0x24 };
static struct wire_hmac key, secret;
static uint8_t opened[WIRE_PROOF_REQUEST_SIZE], joins[WIRE_PROOF_REQUEST_SIZE], nonce[WIRE_PROOF];

static void count_up(uint8_t *to, size_t n, uint8_t from)
{
	for (size_t i = 0; i < n; i++)
		to[i] = (uint8_t)(from + i);
}

static void build(uint8_t *to, uint32_t queue, uint32_t queues, uint8_t proof)
{
	struct wire_proof_request q = { .queue = queue, .queues = queues, .session = SESSION };

	count_up(q.key, sizeof(q.key), 0xa0);
	if (proof)
		count_up(q.proof, sizeof(q.proof), proof);
	wire_build_proof_request(to, &q);
}

static int set_up(void **state)
{
	count_up(key.key, sizeof(key.key), 0);
	count_up(nonce, sizeof(nonce), 0x80);
	build(opened, 0, 3, 0x40);
	build(joins, 2, 3, 0);
	return wire_secret(&key, opened, nonce, pair, secret.key);
}

static void expect(const uint8_t *got, size_t n, const char *hex)
{
	char text[2 * WIRE_PROOF + 1];

	for (size_t i = 0; i < n; i++)
		snprintf(text + 2 * i, 3, "%02x", got[i]);
	assert_string_equal(text, hex);
}

/* What another implementation must get, too; computed by Python's hmac. */
static void known_answers(void **state)
{
	uint8_t out[WIRE_PROOF], frame[40], joined[WIRE_PROOF_REQUEST_SIZE];

	expect(secret.key, 32, "b4db90d4fdb6c3b3c52e9d5e030bb77ea72d47675e32dfd29e3bc5f4e423f634");
	assert_int_equal(wire_prove_open(&key, opened, pair.borrower, out), 0);
	expect(out, WIRE_MARK, "c30f23336e30bfd21373d460844a5906");
	assert_int_equal(wire_prove_donor(&secret, out), 0);
	expect(out, 32, "cc357f5b5b11f2e3b05d17a0d879715d572b0c810cfbe3d5fb93610a01b0e854");
	assert_int_equal(wire_prove_join(&secret, joins, pair2.borrower, out), 0);
	expect(out, 32, "3eca6727d93b77d6cf77362a11ae195fb8194e9c49def484af93c73c6d669eb0");
	memcpy(joined, joins, sizeof(joined));
	memcpy(joined + 24, out, WIRE_PROOF);
	assert_int_equal(wire_prove_joined(&secret, joined, pair2, out), 0);
	expect(out, 32, "6fd69a498663dc6bab9f46eabc7f79733f5d8f6d8a9b5d8c0a20170f010af542");
	count_up(frame, sizeof(frame), 0);
	assert_int_equal(wire_mark(&secret, WIRE_AT_DONOR, 5, frame, sizeof(frame), out), 0);
	expect(out, WIRE_MARK, "bdb045583259857142f1d6c625ccd5d5");
	assert_int_equal(wire_mark(&secret, WIRE_AT_BORROWER, 5, frame, sizeof(frame), out), 0);
	expect(out, WIRE_MARK, "bb18a7293257b0381144a0b4a12d7d17");
}

static bool same_secret(const struct wire_hmac *k, const uint8_t *request, const uint8_t *n,
			struct wire_pair p)
{
	uint8_t other[WIRE_PROOF];

	assert_int_equal(wire_secret(k, request, n, p, other), 0);
	return wire_same(other, secret.key, WIRE_PROOF);
}

/* Whatever is not what the other side has seen, too, makes another secret. */
static void all_of_it_counts(void **state)
{
	uint8_t request[WIRE_PROOF_REQUEST_SIZE], n[WIRE_PROOF];
	struct wire_hmac k = key;

	assert_true(same_secret(&key, opened, nonce, pair));
	for (size_t bit = 0; bit < 8 * WIRE_PROOF; bit++) {
		memcpy(n, nonce, sizeof(n));
		n[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_false(same_secret(&key, opened, n, pair));
		k.key[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_false(same_secret(&k, opened, nonce, pair));
		k = key;
	}
	for (size_t bit = 0; bit < 8 * sizeof(request); bit++) {
		memcpy(request, opened, sizeof(request));
		request[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_false(same_secret(&key, request, nonce, pair));
	}
	/* One between them has queue pairs of his own. */
	assert_false(same_secret(&key, opened, nonce, (struct wire_pair){ 0x11, 0x23 }));
	assert_false(same_secret(&key, opened, nonce, (struct wire_pair){ 0x12, 0x22 }));
	assert_false(same_secret(&key, opened, nonce, (struct wire_pair){ 0x22, 0x11 }));
}

/* No answer of one kind is one of another kind, or of another connection. */
static void nothing_is_good_for_something_else(void **state)
{
	uint8_t all[7][WIRE_PROOF] = { 0 }, other[WIRE_PROOF_REQUEST_SIZE];

	build(other, 1, 3, 0);
	assert_int_equal(wire_prove_donor(&secret, all[0]), 0);
	assert_int_equal(wire_prove_join(&secret, joins, 0x13, all[1]), 0);
	assert_int_equal(wire_prove_join(&secret, other, 0x13, all[2]), 0);
	assert_int_equal(wire_prove_join(&secret, joins, 0x14, all[3]), 0);
	assert_int_equal(wire_prove_joined(&secret, joins, pair2, all[4]), 0);
	assert_int_equal(
		wire_prove_joined(&secret, joins, (struct wire_pair){ 0x24, 0x13 }, all[5]), 0);
	memcpy(all[6], secret.key, WIRE_PROOF);
	for (int i = 0; i < 7; i++)
		for (int j = 0; j < i; j++)
			assert_false(wire_same(all[i], all[j], WIRE_PROOF));
}

/* A mark is of one place in one direction of one session, and of each bit of the frame. */
static void marks(void **state)
{
	uint8_t frame[WIRE_MARKED_MOST] = { 1 }, mark[WIRE_MARK], other[WIRE_MARK];
	struct wire_hmac s = secret;

	assert_int_equal(wire_mark(&secret, WIRE_AT_DONOR, 7, frame, 64, mark), 0);
	assert_int_equal(wire_mark(&secret, WIRE_AT_BORROWER, 7, frame, 64, other), 0);
	assert_false(wire_same(mark, other, WIRE_MARK));
	assert_int_equal(wire_mark(&secret, WIRE_AT_DONOR, 8, frame, 64, other), 0);
	assert_false(wire_same(mark, other, WIRE_MARK));
	assert_int_equal(wire_mark(&secret, WIRE_AT_DONOR, 7, frame, 65, other), 0);
	assert_false(wire_same(mark, other, WIRE_MARK));
	s.key[0] ^= 1;
	assert_int_equal(wire_mark(&s, WIRE_AT_DONOR, 7, frame, 64, other), 0);
	assert_false(wire_same(mark, other, WIRE_MARK));
	for (size_t bit = 0; bit < 8 * 64; bit++) {
		frame[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_int_equal(wire_mark(&secret, WIRE_AT_DONOR, 7, frame, 64, other), 0);
		assert_false(wire_same(mark, other, WIRE_MARK));
		frame[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	assert_int_equal(wire_mark(&secret, WIRE_AT_DONOR, 7, frame, sizeof(frame), other), 0);
	assert_int_equal(wire_mark(&secret, WIRE_AT_DONOR, 7, frame, sizeof(frame) + 1, other),
			 -EMSGSIZE);
}

static void requests(void **state)
{
	uint8_t buf[WIRE_PROOF_REQUEST_SIZE], again[WIRE_PROOF_REQUEST_SIZE];
	struct wire_proof_request q;
	struct wire_rdma_open open;
	struct wire_join join;

	assert_memory_equal(opened, "EBBK\1\0\0\3\x88\x77\x66\x55\x44\x33\x22\x11\xa0\xa1", 18);
	assert_int_equal(wire_parse_proof_request(opened, sizeof(opened), &q), 0);
	assert_int_equal(q.queue, 0);
	assert_int_equal(q.queues, 3);
	assert_int_equal(q.session, SESSION);
	wire_build_proof_request(again, &q);
	assert_memory_equal(again, opened, sizeof(again));
	assert_int_equal(wire_parse_proof_request(opened, sizeof(opened) - 1, &q), -EPROTO);
	/* No parser accepts another kind of request. */
	assert_int_equal(wire_parse_rdma_open(opened, sizeof(opened), &open), -EPROTO);
	assert_int_equal(wire_parse_rdma_join(opened, sizeof(opened), &join), -EPROTO);
	wire_build_rdma_open(buf, &(struct wire_rdma_open){ .queues = 1 });
	assert_int_equal(wire_parse_proof_request(buf, sizeof(buf), &q), -EPROTO);
	/* Magic; version; of no queue, more than there are, as many as there are. */
	for (int i = 0; i < 5; i++) {
		static const struct { int at; uint8_t is; } bad[] = {
			{ 3, 'L' }, { 4, 2 }, { 7, 0 }, { 7, WIRE_RDMA_QUEUES + 1 }, { 6, 3 },
		};

		memcpy(buf, opened, sizeof(buf));
		buf[bad[i].at] = bad[i].is;
		assert_int_equal(wire_parse_proof_request(buf, sizeof(buf), &q),
				 bad[i].at == 4 ? -EPROTONOSUPPORT : -EPROTO);
	}
}

static void replies(void **state)
{
	struct wire_proof_reply a = { { 1, 2 }, { 3, 4 } }, back;
	uint8_t buf[196] = { 0 };

	wire_build_proof_reply(buf, &a);
	assert_memory_equal(buf, "EBBD\1\0\0\0\1\2\0", 11);
	/* Private data arrives padded. */
	assert_int_equal(wire_parse_proof_reply(buf, sizeof(buf), &back), 0);
	assert_memory_equal(&back, &a, sizeof(a));
	assert_int_equal(wire_parse_proof_reply(buf, WIRE_PROOF_REPLY_SIZE - 1, &back), -EPROTO);
	for (int at = 0; at < 8; at += 4) {
		buf[at]++;
		assert_int_equal(wire_parse_proof_reply(buf, sizeof(buf), &back), -EPROTO);
		buf[at]--;
	}
	/* One that sends back what it was sent. */
	memcpy(buf, opened, sizeof(opened));
	assert_int_equal(wire_parse_proof_reply(buf, sizeof(buf), &back), -EPROTO);
}

static void refusals(void **state)
{
	uint8_t buf[148] = { 0 };

	for (enum wire_refusal why = 0; why < WIRE_REFUSALS; why++) {
		wire_build_refusal(buf, why);
		assert_int_equal(wire_parse_refusal(buf, sizeof(buf)), why);
		assert_non_null(wire_refusal_text(why));
		/* With "address: " before it, it has to fit in what ebbctl reads. */
		assert_true(strlen(wire_refusal_text(why)) < 128 - strlen("address: "));
	}
	wire_build_refusal(buf, WIRE_REFUSALS);
	assert_int_equal(wire_parse_refusal(buf, sizeof(buf)), WIRE_REFUSED_UNKNOWN);
	assert_non_null(wire_refusal_text(WIRE_REFUSALS));
	memset(buf, 0, sizeof(buf));
	assert_int_equal(wire_parse_refusal(buf, sizeof(buf)), WIRE_REFUSED_UNKNOWN);
	assert_int_equal(wire_parse_refusal(buf, 0), WIRE_REFUSED_UNKNOWN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(known_answers),
		cmocka_unit_test(all_of_it_counts),
		cmocka_unit_test(nothing_is_good_for_something_else),
		cmocka_unit_test(marks),
		cmocka_unit_test(requests),
		cmocka_unit_test(replies),
		cmocka_unit_test(refusals),
	};

	return cmocka_run_group_tests(tests, set_up, NULL);
}
