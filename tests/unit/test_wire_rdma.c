// SPDX-License-Identifier: GPL-2.0-or-later
/* What connections and grants of RDMA look like on the wire, and what is no such thing. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/wire/wire_rdma.h"

static void test_open(void **state)
{
	struct wire_rdma_open o = { .queue = 2, .queues = 3, .session = 0x1122334455667788 }, back;
	uint8_t buf[56] = { 0 };

	wire_build_rdma_open(buf, &o);
	assert_memory_equal(buf, "EBBR\1\0\0\0\2\0\0\0\3\0\0\0\x88\x77\x66\x55\x44\x33\x22\x11", 24);
	/* Private data arrives padded. */
	assert_int_equal(wire_parse_rdma_open(buf, sizeof(buf), &back), 0);
	assert_memory_equal(&back, &o, sizeof(o));
	assert_int_equal(wire_parse_rdma_open(buf, WIRE_RDMA_OPEN_SIZE - 1, &back), -EPROTO);
}

static void test_open_refused(void **state)
{
	static const struct wire_rdma_open bad[] = {
		{ .queue = 0, .queues = 0 },
		{ .queue = 3, .queues = 3 },
		{ .queue = 0, .queues = WIRE_RDMA_QUEUES + 1 },
	};
	uint8_t buf[WIRE_RDMA_OPEN_SIZE];
	struct wire_rdma_open back;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		wire_build_rdma_open(buf, &bad[i]);
		assert_int_equal(wire_parse_rdma_open(buf, sizeof(buf), &back), -EPROTO);
	}
	/* Another magic; another version. */
	for (int at = 0; at < 8; at += 4) {
		wire_build_rdma_open(buf, &(struct wire_rdma_open){ .queues = 1 });
		assert_int_equal(wire_parse_rdma_open(buf, sizeof(buf), &back), 0);
		buf[at]++;
		assert_int_equal(wire_parse_rdma_open(buf, sizeof(buf), &back), -EPROTO);
	}
}

static void test_join(void **state)
{
	struct wire_join j = { 0x1122334455667788, 5, { 1, 2, 3 } }, back;
	uint8_t buf[WIRE_RDMA_JOIN_SIZE];

	wire_build_rdma_join(buf, &j);
	assert_memory_equal(buf, "EBBJ\1\0\0\0\x88\x77\x66\x55\x44\x33\x22\x11\5\0\0\0\0\0\0\0\1\2\3", 27);
	assert_int_equal(wire_parse_rdma_join(buf, sizeof(buf), &back), 0);
	assert_int_equal(back.session, j.session);
	assert_int_equal(back.number, j.number);
	assert_memory_equal(back.mac, j.mac, sizeof(j.mac));
	assert_int_equal(wire_parse_rdma_join(buf, sizeof(buf) - 1, &back), -EPROTO);
	/* Magic, a kernel's request among them; version; what is reserved. */
	for (int at = 0; at <= 20; at += at < 4 ? 4 : 16) {
		buf[at]++;
		assert_int_equal(wire_parse_rdma_join(buf, sizeof(buf), &back), -EPROTO);
		buf[at]--;
	}
}

static void test_grant(void **state)
{
	struct wire_rdma_grant g = { .address = 0x7f0000001000, .length = 1 << 20, .key = 0xabcd },
			       back;
	uint8_t buf[WIRE_RDMA_GRANT_SIZE];

	wire_build_rdma_grant(buf, &g);
	assert_int_equal(wire_parse_rdma_grant(buf, sizeof(buf), &back), 0);
	assert_int_equal(back.address, g.address);
	assert_int_equal(back.length, g.length);
	assert_int_equal(back.key, g.key);
	assert_int_equal(wire_parse_rdma_grant(buf, sizeof(buf) - 1, &back), -EPROTO);
	buf[20] = 1; /* reserved */
	assert_int_equal(wire_parse_rdma_grant(buf, sizeof(buf), &back), -EPROTO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_open),
		cmocka_unit_test(test_open_refused),
		cmocka_unit_test(test_join),
		cmocka_unit_test(test_grant),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
