// SPDX-License-Identifier: GPL-2.0-or-later
/* A kernel's session at its donor, frame by frame, on a device that the test plays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "donord/session/kernel_session.h"
#include "fake_verbs.h"

#include <cmocka.h>

enum { SLAB = 1 << 20, SLABS = 4 };

static struct rdma_pool pool;
static const struct key keys[] = {
	{ .name = "alice", .fingerprint = "01" }, { .name = "alice", .fingerprint = "02" },
	{ .name = "bob", .fingerprint = "03" },
};

static int with_pool(void **state)
{
	struct error e = { 0 };

	fake_reset();
	return rdma_pool_init(&pool, SLABS * SLAB, SLAB, &e);
}

static int without_pool(void **state)
{
	rdma_pool_free(&pool);
	return 0;
}

/* Sends @f and @payload as the borrower of @s; what rdma_session_turn() makes of it. */
static int send_frame(struct rdma_session *s, struct wire_frame f, const void *payload)
{
	uint8_t bytes[WIRE_RDMA_MESSAGE];
	uint32_t n = WIRE_HEADER + f.length;

	wire_build(bytes, &f);
	if (f.length)
		memcpy(bytes + WIRE_HEADER, payload, f.length);
	assert_int_equal(wire_mark(&s->secret, WIRE_AT_DONOR, s->received, bytes, n, bytes + n), 0);
	fake_arrives(s->id[0], bytes, n + WIRE_MARK);
	return rdma_session_turn(s);
}

/* Returns the donor's reply and its payload. */
static struct wire_frame say(struct rdma_session *s, struct wire_frame f, const void *payload,
			     const uint8_t **answer)
{
	struct wire_frame reply;
	const uint8_t *sent;
	uint32_t n;

	assert_int_equal(send_frame(s, f, payload), 0);
	sent = fake_sent(s->id[0], &n);
	assert_int_equal(wire_parse(sent, n, WIRE_AT_BORROWER, &reply), 1);
	assert_int_equal(reply.op, f.op);
	if (answer)
		*answer = sent + WIRE_HEADER;
	return reply;
}

static struct rdma_session *begin(const struct key *key, uint32_t queues)
{
	struct wire_hello h = { .version = WIRE_VERSION, .slab_size = SLAB, .name = "kernel" };
	struct rdma_request q = { .open = { .queues = queues, .session = 1 }, .key = key };
	uint8_t payload[WIRE_HELLO_SIZE];
	struct rdma_session *s = NULL;

	for (; q.open.queue < queues; q.open.queue++) {
		struct rdma_cm_id *id = fake_id();

		if (!s)
			assert_int_equal(rdma_session_new(&s, &pool, id, &q), 0);
		assert_int_equal(rdma_session_join(s, id, &q), 0);
	}
	wire_build_hello(payload, &h);
	assert_int_equal(say(s, (struct wire_frame){ .op = WIRE_HELLO, .length = sizeof(payload) },
			     payload, NULL).status, WIRE_OK);
	return s;
}

static struct wire_frame map(struct rdma_session *s)
{
	uint8_t payload[WIRE_MAP_SIZE];

	wire_build_map(payload, WIRE_CLASS_SWAP);
	return say(s, (struct wire_frame){ .op = WIRE_MAP, .length = sizeof(payload) }, payload, NULL);
}

static enum wire_status unmap(struct rdma_session *s, const struct wire_frame *loan)
{
	return say(s, (struct wire_frame){ .op = WIRE_UNMAP, .slab = loan->slab,
					   .generation = loan->generation }, NULL, NULL).status;
}

/* Slabs of the donor's total that the borrower can have, and bytes that are free for it. */
static uint32_t room_of(struct rdma_session *s, uint64_t *free_bytes)
{
	const uint8_t *payload;
	struct wire_frame r = say(s, (struct wire_frame){ .op = WIRE_PING }, NULL, &payload);
	struct wire_donor d;

	assert_int_equal(wire_parse_donor(payload, WIRE_DONOR_SIZE, &d), 0);
	*free_bytes = d.free;
	return (uint32_t)(d.total / SLAB) - r.slab;
}

/* The quota is of all sessions with keys of one name. */
static void a_quota(void **state)
{
	struct rdma_session *a, *a2, *b;
	struct wire_frame loan;
	uint64_t left;

	pool.quota = 2 * SLAB + SLAB / 2;
	a = begin(&keys[0], 2);
	a2 = begin(&keys[1], 1);
	b = begin(&keys[2], 1);
	assert_int_equal(room_of(a, &left), 2);
	assert_int_equal(left, 2 * SLAB);
	loan = map(a);
	assert_int_equal(loan.status, WIRE_OK);
	assert_int_equal(room_of(a2, &left), 1);
	assert_int_equal(left, SLAB);
	assert_int_equal(map(a2).status, WIRE_OK);
	assert_int_equal(map(a).status, WIRE_OVER_QUOTA);
	assert_int_equal(map(a2).status, WIRE_OVER_QUOTA);
	assert_int_equal(room_of(a, &left), 0);
	assert_int_equal(left, 0);
	assert_int_equal(map(b).status, WIRE_OK);
	assert_int_equal(room_of(b, &left), 1);
	assert_int_equal(unmap(a, &loan), WIRE_OK);
	assert_int_equal(map(a2).status, WIRE_OK);
	rdma_session_free(a);
	rdma_session_free(a2);
	rdma_session_free(b);
	assert_int_equal(fake.registered, 0);
}

/* Only proven sessions count, so that nobody without the key can use its connections up. */
static void connections_of_a_key(void **state)
{
	struct rdma_session *a = begin(&keys[0], 3), *a2 = begin(&keys[1], 2);
	struct rdma_session *b = begin(&keys[2], 1);

	a->next = a2;
	a2->next = b;
	assert_int_equal(rdma_session_connections(a, a2), 5);
	assert_int_equal(rdma_session_connections(a, b), 1);
	a->proven = false;
	assert_int_equal(rdma_session_connections(a, a2), 2);
	rdma_session_free(a);
	rdma_session_free(a2);
	rdma_session_free(b);
}

/* The device fails to invalidate a key: its borrower may still reach the slab. */
static void a_key_that_stays(void **state)
{
	struct rdma_session *a = begin(&keys[0], 1), *b;
	struct wire_frame loan = map(a), other;
	uint64_t left;

	map(a);
	fake.dereg_error = EIO;
	assert_int_equal(send_frame(a, (struct wire_frame){ .op = WIRE_UNMAP, .slab = loan.slab,
							    .generation = loan.generation }, NULL),
			 -EIO);
	/* The session ends; what else it had is lent again, that slab is not. */
	rdma_session_free(a);
	b = begin(&keys[2], 1);
	assert_int_equal(room_of(b, &left), SLABS - 1);
	assert_int_equal(left, (SLABS - 1) * SLAB);
	for (int i = 0; i < SLABS - 1; i++) {
		other = map(b);
		assert_int_equal(other.status, WIRE_OK);
		assert_int_not_equal(other.slab, loan.slab);
	}
	assert_int_equal(map(b).status, WIRE_NO_SPACE);
	/* Nor is it given back to the machine and made again, for others to get its memory. */
	rdma_session_free(b);
	rdma_pool_limit(&pool, 0);
	while (rdma_pool_turn(&pool, 0))
		;
	assert_int_equal(rdma_pool_present(&pool), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_quota, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(connections_of_a_key, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(a_key_that_stays, with_pool, without_pool),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
