// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/wire/stream.h"
#include "lib/wire/tcp.h"
#include "lib/wire/wire_far.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static const struct wire_frame a_read = {
	.op = WIRE_READ,
	.tag = 0x0102030405060708,
	.slab = 7,
	.generation = 9,
	.offset = 3 * WIRE_PAGE,
	.length = 2 * WIRE_PAGE,
};

static void header_layout(void **state)
{
	/* What docs/protocol.md promises to other implementations, byte by byte. */
	static const uint8_t expected[WIRE_HEADER] = {
		'E', 'B', 'B', '1', WIRE_READ, 0, 0, 0,
		8, 7, 6, 5, 4, 3, 2, 1,
		7, 0, 0, 0, 9, 0, 0, 0,
		0, 0x30, 0, 0, 0, 0x20, 0, 0,
	};
	uint8_t buf[WIRE_HEADER];

	wire_build(buf, &a_read);
	assert_memory_equal(buf, expected, WIRE_HEADER);
}

/* The side at which a frame of @op sent in @direction arrives. */
static enum wire_side receiver(int op, enum wire_direction direction)
{
	bool by_donor = op == WIRE_ACTIVITY || op == WIRE_EVICT || op == WIRE_REVOKED;

	return by_donor == (direction == WIRE_REQUEST) ? WIRE_AT_BORROWER : WIRE_AT_DONOR;
}

static void round_trip(void **state)
{
	static const uint32_t lengths[WIRE_OPS][2] = {
		[WIRE_HELLO] = { WIRE_HELLO_SIZE, WIRE_DONOR_SIZE },
		[WIRE_MAP] = { WIRE_MAP_SIZE, 0 },
		[WIRE_READ] = { WIRE_PAGE, WIRE_PAGE },
		[WIRE_WRITE] = { WIRE_PAGE, WIRE_PAGE },
		[WIRE_PING] = { 0, WIRE_DONOR_SIZE },
		[WIRE_ACTIVITY] = { 2 * WIRE_LOAN_SIZE, 2 * WIRE_LOAN_SIZE },
		[WIRE_JOIN] = { WIRE_JOIN_SIZE, 0 },
		[WIRE_RESERVE] = { WIRE_RESERVE_SIZE, WIRE_DONOR_SIZE },
	};

	for (int op = WIRE_HELLO; op < WIRE_OPS; op++) {
		for (int direction = 0; direction < 2; direction++) {
			struct wire_frame f = { .op = op, .direction = direction, .tag = op,
						.length = lengths[op][direction] }, g;
			enum wire_side at = receiver(op, direction);
			uint8_t buf[WIRE_HEADER], again[WIRE_HEADER];

			wire_build(buf, &f);
			if (op == WIRE_REVOKED && direction) {
				/* It has no reply. */
				assert_int_equal(wire_parse(buf, sizeof(buf), at, &g), -EPROTO);
				continue;
			}
			assert_int_equal(wire_parse(buf, sizeof(buf), at, &g), 1);
			wire_build(again, &g);
			assert_memory_equal(buf, again, sizeof(buf));
			/* At the other side it is malformed. */
			assert_int_equal(wire_parse(buf, sizeof(buf), !at, &g), -EPROTO);
			if (op == WIRE_READ || op == WIRE_WRITE)
				continue;
			/* So it is with another length, and with a payload after a refusal. */
			f.length += WIRE_LOAN_SIZE / 2;
			wire_build(buf, &f);
			assert_int_equal(wire_parse(buf, sizeof(buf), at, &g), -EPROTO);
			f.length = lengths[op][direction];
			f.status = WIRE_STATUSES - 1;
			wire_build(buf, &f);
			assert_int_equal(wire_parse(buf, sizeof(buf), at, &g),
					 direction && !f.length ? 1 : -EPROTO);
		}
	}
}

/* A loan's reply may have a grant with it. */
static void grant_lengths(void **state)
{
	for (int op = WIRE_HELLO; op < WIRE_OPS; op++) {
		struct wire_frame f = { .op = op, .direction = WIRE_REPLY,
					.length = WIRE_RDMA_GRANT_SIZE }, g;
		bool good = op == WIRE_MAP || op == WIRE_REMAP;
		uint8_t buf[WIRE_HEADER];

		if (op == WIRE_ACTIVITY)
			continue;
		wire_build(buf, &f);
		assert_int_equal(wire_parse(buf, sizeof(buf), receiver(op, WIRE_REPLY), &g),
				 good ? 1 : -EPROTO);
		if (good)
			assert_int_equal(wire_payload(&g), WIRE_RDMA_GRANT_SIZE);
		f.status = WIRE_NO_SPACE;
		wire_build(buf, &f);
		assert_int_equal(wire_parse(buf, sizeof(buf), receiver(op, WIRE_REPLY), &g),
				 -EPROTO);
	}
}

/* ACTIVITY has as many elements as its length says, a frame's worth at most. */
static void activity_lengths(void **state)
{
	for (int direction = 0; direction < 2; direction++) {
		for (uint32_t n = 0; n < 2 * WIRE_SMALL; n++) {
			struct wire_frame f = { .op = WIRE_ACTIVITY, .direction = direction,
						.length = n }, g;
			bool good = n && n <= WIRE_SMALL && n % WIRE_LOAN_SIZE == 0;
			uint8_t buf[WIRE_HEADER];

			wire_build(buf, &f);
			assert_int_equal(wire_parse(buf, sizeof(buf),
						    receiver(WIRE_ACTIVITY, direction), &g),
					 good ? 1 : -EPROTO);
			if (good)
				assert_int_equal(wire_payload(&g), n);
		}
	}
}

static int parse_at(struct wire_frame f, enum wire_side side)
{
	struct wire_frame g;
	uint8_t buf[WIRE_HEADER];

	wire_build(buf, &f);
	return wire_parse(buf, sizeof(buf), side, &g);
}

/* Frames of far memory, at the sides that have them. */
static void far_frames(void **state)
{
	static const uint32_t lengths[][2] = {
		[WIRE_FAR_POOL] = { WIRE_FAR_POOL_SIZE, WIRE_FAR_OPENED_SIZE },
		[WIRE_FAR_LIST] = { 0, 2 * WIRE_FAR_LISTED_SIZE },
		[WIRE_FAR_ARENA] = { 0, 0 },
		[WIRE_FAR_READ] = { 7, 7 },
		[WIRE_FAR_WRITE] = { 7, 0 },
		[WIRE_FAR_CAS] = { 2 * WIRE_FAR_SWAP_SIZE, 2 * WIRE_FAR_WORD_SIZE },
		[WIRE_FAR_ADD] = { WIRE_FAR_WORD_SIZE, WIRE_FAR_WORD_SIZE },
		[WIRE_FAR_NOTIFY] = { WIRE_FAR_MEMBER_SIZE, 0 },
		[WIRE_FAR_DEAD] = { WIRE_FAR_MEMBER_SIZE, 0 },
		[WIRE_FAR_NOTIFIED] = { WIRE_FAR_MEMBER_SIZE, 0 },
	};

	for (int op = WIRE_FAR_POOL; op < WIRE_FAR_OPS; op++) {
		bool placed = op == WIRE_FAR_READ || op == WIRE_FAR_WRITE || op == WIRE_FAR_ADD;

		for (int direction = 0; direction < 2; direction++) {
			struct wire_frame f = { .op = op, .direction = direction, .slab = 3,
						.length = lengths[op][direction] }, g;
			bool by_donor = op == WIRE_FAR_NOTIFIED, good = !by_donor || !direction;
			enum wire_side at = by_donor == !direction ? WIRE_AT_FAR_MEMBER :
								     WIRE_AT_FAR_DONOR;

			assert_int_equal(parse_at(f, at), good ? 1 : -EPROTO);
			for (int side = WIRE_AT_DONOR; side <= WIRE_AT_FAR_MEMBER; side++)
				if (side != (int)at)
					assert_int_equal(parse_at(f, side), -EPROTO);
			if (!good)
				continue;
			g = f;
			/* A repetition, of requests that take effect once. */
			g.generation = WIRE_FAR_REPEATED;
			assert_int_equal(parse_at(g, at),
					 !direction && wire_far_once(&g) ? 1 : -EPROTO);
			g.generation = 2;
			assert_int_equal(parse_at(g, at), -EPROTO);
			g = f;
			g.offset = 8;
			assert_int_equal(parse_at(g, at), placed ? 1 : -EPROTO);
			g = f;
			g.length = placed && op != WIRE_FAR_ADD && f.length ? WIRE_FAR_MOST + 1 :
									       f.length + 4;
			assert_int_equal(parse_at(g, at), -EPROTO);
			for (int status = 1; status < WIRE_FAR_STATUSES + 2; status++) {
				bool known = status < WIRE_STATUSES ||
					     (status >= WIRE_NO_FAR && status < WIRE_FAR_STATUSES);

				g = f;
				g.status = (uint16_t)status;
				assert_int_equal(parse_at(g, at), direction && known && !g.length ?
						 1 : -EPROTO);
				g.length = 0;
				assert_int_equal(parse_at(g, at), direction && known ? 1 : -EPROTO);
			}
		}
	}
	/* Of the others, these alone. */
	for (int op = 0; op < WIRE_FAR_POOL; op++) {
		struct wire_frame f = { .op = (uint8_t)op,
					.length = op == WIRE_HELLO ? WIRE_HELLO_SIZE : 0 };
		bool good = op == WIRE_HELLO || op == WIRE_PING || op == WIRE_BYE;

		assert_int_equal(parse_at(f, WIRE_AT_FAR_DONOR), good ? 1 : -EPROTO);
	}
	assert_int_equal(parse_at((struct wire_frame){ .op = WIRE_HELLO, .direction = WIRE_REPLY,
						       .status = WIRE_NO_FAR }, WIRE_AT_FAR_MEMBER),
			 1);
	assert_int_equal(parse_at((struct wire_frame){ .op = WIRE_HELLO, .direction = WIRE_REPLY,
						       .status = WIRE_NO_FAR }, WIRE_AT_BORROWER),
			 -EPROTO);
	/* A reply to READ brings what its request asked for. */
	assert_int_equal(wire_payload(&(struct wire_frame){ .op = WIRE_FAR_READ, .length = 9 }), 0);
	assert_int_equal(wire_payload(&(struct wire_frame){ .op = WIRE_FAR_READ, .length = 9,
							    .direction = WIRE_REPLY }), 9);
}

static void far_payloads(void **state)
{
	struct wire_far_pool p = { WIRE_FAR_CREATE, WIRE_FAR_SHARED, WIRE_FAR_CPU, "index" }, p2;
	struct wire_far_opened o = { 0x1122334455667788, 7, 8, WIRE_FAR_SHARED, 9, 32 }, o2;
	struct wire_far_listed l = { "index", 0x1122334455667788, 1, WIRE_FAR_SHARED, 2, 3, 4 }, l2;
	struct wire_far_word w = { 7, 0x1122334455667788 }, w2;
	struct wire_far_swap s = { 8, 0x1122334455667788, 3 }, s2;
	uint8_t buf[2 * WIRE_FAR_LISTED_SIZE];

	wire_build_far_pool(buf, &p);
	assert_int_equal(wire_parse_far_pool(buf, WIRE_FAR_POOL_SIZE, &p2), 0);
	assert_memory_equal(&p2, &p, sizeof(p));
	assert_int_equal(wire_parse_far_pool(buf, WIRE_FAR_POOL_SIZE - 1, &p2), -EPROTO);
	buf[4] = 2;
	assert_int_equal(wire_parse_far_pool(buf, WIRE_FAR_POOL_SIZE, &p2), -EPROTO);
	buf[4] = 1;
	/* Flags are those of CREATE; another domain may come later. */
	buf[0] = WIRE_FAR_OPEN;
	assert_int_equal(wire_parse_far_pool(buf, WIRE_FAR_POOL_SIZE, &p2), -EPROTO);
	buf[4] = 0;
	buf[8] = 9;
	assert_int_equal(wire_parse_far_pool(buf, WIRE_FAR_POOL_SIZE, &p2), 0);
	assert_int_equal(p2.domain, 9);
	for (int verb = 0; verb < 6; verb++) {
		buf[0] = (uint8_t)verb;
		assert_int_equal(wire_parse_far_pool(buf, WIRE_FAR_POOL_SIZE, &p2),
				 verb >= WIRE_FAR_CREATE && verb <= WIRE_FAR_DESTROY ? 0 : -EPROTO);
	}
	buf[0] = WIRE_FAR_OPEN;
	/* Names: not empty, printable, without blanks, terminated, then zeros. */
	for (int c = 0; c < 256; c++) {
		buf[17] = (uint8_t)c;
		assert_int_equal(wire_parse_far_pool(buf, WIRE_FAR_POOL_SIZE, &p2),
				 c > ' ' && c <= '~' ? 0 : -EPROTO);
	}
	memset(buf + 16, 0, WIRE_FAR_NAME);
	assert_int_equal(wire_parse_far_pool(buf, WIRE_FAR_POOL_SIZE, &p2), -EPROTO);
	memset(buf + 16, 'x', WIRE_FAR_NAME);
	assert_int_equal(wire_parse_far_pool(buf, WIRE_FAR_POOL_SIZE, &p2), -EPROTO);
	buf[47] = 0;
	assert_int_equal(wire_parse_far_pool(buf, WIRE_FAR_POOL_SIZE, &p2), 0);
	buf[12] = 1;
	assert_int_equal(wire_parse_far_pool(buf, WIRE_FAR_POOL_SIZE, &p2), -EPROTO);

	wire_build_far_opened(buf, &o);
	assert_int_equal(wire_parse_far_opened(buf, WIRE_FAR_OPENED_SIZE, &o2), 0);
	assert_memory_equal(&o2, &o, offsetof(struct wire_far_opened, sections) + 4);
	buf[16] = 2;
	assert_int_equal(wire_parse_far_opened(buf, WIRE_FAR_OPENED_SIZE, &o2), -EPROTO);

	wire_build_far_listed(buf, &l);
	assert_int_equal(wire_parse_far_listed(buf, WIRE_FAR_LISTED_SIZE, &l2), 0);
	assert_memory_equal(&l2, &l, offsetof(struct wire_far_listed, dead) + 4);
	buf[60] = 1;
	assert_int_equal(wire_parse_far_listed(buf, WIRE_FAR_LISTED_SIZE, &l2), -EPROTO);

	wire_build_far_word(buf, &w);
	assert_int_equal(wire_parse_far_word(buf, WIRE_FAR_MEMBER_SIZE, &w2), 0);
	assert_int_equal(w2.member, w.member);
	assert_int_equal(w2.word, w.word);
	buf[4] = 1;
	assert_int_equal(wire_parse_far_word(buf, WIRE_FAR_MEMBER_SIZE, &w2), -EPROTO);

	wire_put_far_swap(buf, 1, &s);
	s2 = wire_get_far_swap(buf, 1);
	assert_memory_equal(&s2, &s, sizeof(s));
}

static void far_hello(void **state)
{
	struct wire_hello h = { WIRE_VERSION, 1, 0, "m", WIRE_FAR | WIRE_KEEP | WIRE_RESUME }, h2;
	uint8_t buf[WIRE_HELLO_SIZE];

	wire_build_hello(buf, &h);
	assert_int_equal(wire_parse_hello(buf, sizeof(buf), &h2), 0);
	assert_int_equal(h2.flags, h.flags);
	buf[4] |= WIRE_RDMA;
	assert_int_equal(wire_parse_hello(buf, sizeof(buf), &h2), -EPROTO);
	h.flags = WIRE_FAR | WIRE_JOBS;
	wire_build_hello(buf, &h);
	assert_int_equal(wire_parse_hello(buf, sizeof(buf), &h2), 0);
	/* Jobs are for far memory alone. */
	h.flags = WIRE_JOBS;
	wire_build_hello(buf, &h);
	assert_int_equal(wire_parse_hello(buf, sizeof(buf), &h2), -EPROTO);
	h.flags = WIRE_FAR;
	h.version = 3;
	wire_build_hello(buf, &h);
	assert_int_equal(wire_parse_hello(buf, sizeof(buf), &h2), -EPROTO);
}

static int parse_changed(struct wire_frame f)
{
	struct wire_frame g;
	uint8_t buf[WIRE_HEADER];

	wire_build(buf, &f);
	return wire_parse(buf, sizeof(buf), WIRE_AT_DONOR, &g);
}

#define CHANGED(...) ({ struct wire_frame f = a_read; __VA_ARGS__; parse_changed(f); })

static void malformed(void **state)
{
	uint8_t buf[WIRE_HEADER];
	struct wire_frame g;

	assert_int_equal(CHANGED(), 1);
	assert_int_equal(CHANGED(f.op = 0), -EPROTO);
	assert_int_equal(CHANGED(f.op = WIRE_OPS), -EPROTO);
	assert_int_equal(CHANGED(f.op = 255), -EPROTO);
	assert_int_equal(CHANGED(f.status = WIRE_STALE), -EPROTO);
	assert_int_equal(CHANGED(f.length = 0), -EPROTO);
	assert_int_equal(CHANGED(f.length = WIRE_PAGE - 1), -EPROTO);
	assert_int_equal(CHANGED(f.length = WIRE_MAX_PAYLOAD), 1);
	assert_int_equal(CHANGED(f.length = WIRE_MAX_PAYLOAD + WIRE_PAGE), -EPROTO);
	assert_int_equal(CHANGED(f.length = 0xfffff000), -EPROTO);
	assert_int_equal(CHANGED(f.offset = 1), -EPROTO);
	assert_int_equal(CHANGED(f.op = WIRE_UNMAP), -EPROTO);
	assert_int_equal(CHANGED(f.op = WIRE_REMAP; f.offset = 0; f.length = 0), 1);
	assert_int_equal(CHANGED(f.op = WIRE_REMAP; f.offset = 0; f.length = WIRE_MAP_SIZE), 1);
	assert_int_equal(CHANGED(f.op = WIRE_HELLO; f.offset = 0), -EPROTO);
	wire_build(buf, &a_read);
	buf[0] = 'X';
	assert_int_equal(wire_parse(buf, sizeof(buf), WIRE_AT_DONOR, &g), -EPROTO);
	/* At the first byte already: a web browser is not waited for. */
	assert_int_equal(wire_parse("GET / HTTP/1.1", 3, WIRE_AT_DONOR, &g), -EPROTO);
	wire_build(buf, &a_read);
	for (size_t n = 0; n < WIRE_HEADER; n++)
		assert_int_equal(wire_parse(buf, n, WIRE_AT_DONOR, &g), 0);
}

/* Whatever comes, what is accepted keeps the parser's promise. */
static void random_bytes(void **state)
{
	int accepted = 0;

	srandom(1);
	for (int i = 0; i < 400000; i++) {
		uint8_t buf[WIRE_HEADER];
		struct wire_frame f;
		enum wire_side side = random() & 1;

		wire_build(buf, &a_read);
		buf[4] = random() % (WIRE_OPS + 1);
		buf[5] = random() % 3;
		for (int n = random() % 4; n; n--)
			buf[random() % WIRE_HEADER] = random() & 1 ? 0 : random();
		if (wire_parse(buf, sizeof(buf), side, &f) != 1)
			continue;
		accepted++;
		assert_true(wire_payload(&f) <= WIRE_MAX_PAYLOAD);
		assert_in_range(f.op, WIRE_HELLO, WIRE_OPS - 1);
		assert_true(f.status < WIRE_STATUSES);
		if (f.op != WIRE_READ && f.op != WIRE_WRITE)
			assert_true(wire_payload(&f) <= WIRE_SMALL);
	}
	assert_true(accepted > 1000);
}

static void payloads(void **state)
{
	struct wire_hello h = { WIRE_VERSION, 0x1122334455667788, 64 << 20, "ebb0", WIRE_KEEP }, h2;
	struct wire_donor d = { WIRE_VERSION, WIRE_DRAINING, 7472, 64 << 20, 1ull << 40, 1ull << 39,
				1ull << 41, 1ull << 38, 0x99aabbccddeeff00,
				0x8877665544332211, 30000, 77 }, d2;
	struct wire_join j = { 0x1122334455667788, 5, { 1, 2, 3 } }, j2;
	uint8_t buf[WIRE_HELLO_SIZE], donor[WIRE_DONOR_SIZE], map[WIRE_MAP_SIZE];
	uint8_t join[WIRE_JOIN_SIZE], loans[2 * WIRE_LOAN_SIZE];
	struct wire_loan_request r;
	uint32_t class;

	wire_build_hello(buf, &h);
	assert_int_equal(wire_parse_hello(buf, sizeof(buf), &h2), 0);
	assert_int_equal(h2.borrower, h.borrower);
	assert_int_equal(h2.slab_size, h.slab_size);
	assert_string_equal(h2.name, "ebb0");
	assert_int_equal(h2.flags, WIRE_KEEP);
	assert_int_equal(wire_parse_hello(buf, sizeof(buf) - 1, &h2), -EPROTO);
	buf[4] = 16; /* an unknown flag */
	assert_int_equal(wire_parse_hello(buf, sizeof(buf), &h2), -EPROTO);
	buf[4] = WIRE_KEEP | WIRE_RESUME | WIRE_RDMA;
	assert_int_equal(wire_parse_hello(buf, sizeof(buf), &h2), 0);
	buf[25] = '\n'; /* would break the donor's log */
	assert_int_equal(wire_parse_hello(buf, sizeof(buf), &h2), -EPROTO);
	memset(buf + 24, 'x', WIRE_NAME); /* no end */
	assert_int_equal(wire_parse_hello(buf, sizeof(buf), &h2), -EPROTO);
	/* In a later version it may be the beginning of something, as may flags. */
	buf[0] = WIRE_VERSION + 1;
	buf[4] = 8;
	assert_int_equal(wire_parse_hello(buf, sizeof(buf), &h2), 0);
	assert_int_equal(h2.version, WIRE_VERSION + 1);
	assert_string_equal(h2.name, "");
	assert_int_equal(h2.borrower, 0);

	assert_int_equal(wire_build_donor(donor, &d), WIRE_DONOR_SIZE);
	assert_int_equal(wire_parse_donor(donor, sizeof(donor), &d2), 0);
	assert_memory_equal(&d2, &d, offsetof(struct wire_donor, reserved) + sizeof(d.reserved));
	/* The length is that of the version. */
	donor[0] = 3;
	assert_int_equal(wire_parse_donor(donor, sizeof(donor), &d2), -EPROTO);
	assert_int_equal(wire_parse_donor(donor, 64, &d2), 0);
	assert_int_equal(d2.grace, 0);
	assert_int_equal(d2.reserved, 0);
	donor[0] = 2;
	assert_int_equal(wire_parse_donor(donor, 64, &d2), -EPROTO);
	d.version = 3;
	assert_int_equal(wire_build_donor(donor, &d), 64);
	d.version = WIRE_VERSION;
	wire_build_donor(donor, &d);
	assert_int_equal(wire_parse_donor(donor, sizeof(donor) - 1, &d2), -EPROTO);
	assert_int_equal(donor[56], 0x11);
	assert_memory_equal(donor + 4, "\1\0\x30\x1d", 4);
	d.flags |= 2;
	wire_build_donor(donor, &d);
	assert_int_equal(wire_parse_donor(donor, sizeof(donor), &d2), -EPROTO);
	d.flags = 0;
	d.free = d.total + 1;
	wire_build_donor(donor, &d);
	assert_int_equal(wire_parse_donor(donor, sizeof(donor), &d2), -EPROTO);
	d.free = d.total;
	d.used = d.memory + 1;
	wire_build_donor(donor, &d);
	assert_int_equal(wire_parse_donor(donor, sizeof(donor), &d2), -EPROTO);

	wire_build_map(map, WIRE_CLASS_HEAP);
	assert_int_equal(wire_parse_map(map, sizeof(map), &class), 0);
	assert_int_equal(wire_parse_loan_request(map, sizeof(map), &r), 0);
	assert_int_equal(r.class, WIRE_CLASS_HEAP);
	assert_int_equal(r.flags, 0);
	r.flags = WIRE_BACKED;
	wire_build_loan_request(map, &r);
	assert_int_equal(wire_parse_loan_request(map, sizeof(map), &r), 0);
	assert_int_equal(r.flags, WIRE_BACKED);
	assert_int_equal(wire_parse_map(map, sizeof(map), &class), -EPROTO);
	assert_int_equal(wire_parse_loan_request(map, sizeof(map) - 1, &r), -EPROTO);
	assert_int_equal(class, WIRE_CLASS_HEAP);
	map[4] = 1;
	assert_int_equal(wire_parse_map(map, sizeof(map), &class), -EPROTO);

	wire_build_reserve(map, 0x12345678);
	assert_int_equal(wire_parse_reserve(map, sizeof(map), &class), 0);
	assert_int_equal(class, 0x12345678);
	assert_int_equal(wire_parse_reserve(map, sizeof(map) - 1, &class), -EPROTO);
	map[7] = 1;
	assert_int_equal(wire_parse_reserve(map, sizeof(map), &class), -EPROTO);

	wire_build_join(join, &j);
	assert_int_equal(wire_parse_join(join, sizeof(join), &j2), 0);
	assert_int_equal(j2.session, j.session);
	assert_int_equal(j2.number, j.number);
	assert_memory_equal(j2.mac, j.mac, sizeof(j.mac));
	assert_int_equal(wire_parse_join(join, sizeof(join) - 1, &j2), -EPROTO);
	join[12] = 1;
	assert_int_equal(wire_parse_join(join, sizeof(join), &j2), -EPROTO);

	for (uint32_t i = 0; i < 2; i++)
		wire_put_loan(loans, i, (struct wire_loan){ 7 + i, 0x01020304 });
	assert_memory_equal(loans, "\x07\0\0\0\x04\x03\x02\x01\x08\0\0\0\x04\x03\x02\x01", 16);
	assert_int_equal(wire_get_loan(loans, 1).slab, 8);
	assert_int_equal(wire_get_loan(loans, 1).generation, 0x01020304);
	wire_put_rate(loans, 1, 0x0102030405060708);
	assert_memory_equal(loans + 8, "\x08\x07\x06\x05\x04\x03\x02\x01", 8);
	assert_int_equal(wire_get_rate(loans, 1), 0x0102030405060708);
}

static void statuses_have_texts(void **state)
{
	for (uint16_t i = 0; i < WIRE_STATUSES; i++)
		for (uint16_t j = 0; j <= i; j++)
			assert_int_equal(strcmp(wire_status_text(i), wire_status_text(j)) == 0,
					 i == j);
	assert_string_equal(wire_status_text(WIRE_STATUSES), "unknown status");
	for (uint16_t i = WIRE_NO_FAR; i < WIRE_FAR_STATUSES; i++)
		assert_string_not_equal(wire_status_text(i), "unknown status");
	assert_string_equal(wire_status_text(WIRE_FAR_STATUSES), "unknown status");
}

/* --- frames over a socket ---------------------------------------------- */

struct sink {
	uint8_t page[4 * WIRE_PAGE];
	uint8_t small[WIRE_SMALL];
	int arrived, finished, refuse;
	bool discard;
	uint64_t tags[64];
};

static int on_arrived(void *data, const struct wire_frame *f, void **payload)
{
	struct sink *s = data;

	if (s->refuse) {
		s->refuse--;
		return 1;
	}
	s->arrived++;
	*payload = s->discard ? NULL : f->op == WIRE_WRITE ? s->page : s->small;
	return 0;
}

static int on_finished(void *data, const struct wire_frame *f)
{
	struct sink *s = data;

	s->tags[s->finished++] = f->tag;
	return 0;
}

static const struct stream_rx_ops ops = { .arrived = on_arrived, .finished = on_finished };

/* What the two sides ask each other arrives among the answers. */
static void both_directions(void **state)
{
	struct wire_frame sent[2][3] = {
		[WIRE_AT_DONOR] = {
			{ .op = WIRE_PING, .tag = 1 },
			{ .op = WIRE_EVICT, .direction = WIRE_REPLY, .tag = 2,
			  .status = WIRE_NO_ROOM },
			{ .op = WIRE_ACTIVITY, .direction = WIRE_REPLY, .tag = 3,
			  .length = WIRE_SMALL },
		},
		[WIRE_AT_BORROWER] = {
			{ .op = WIRE_ACTIVITY, .tag = 1, .length = WIRE_SMALL },
			{ .op = WIRE_PING, .direction = WIRE_REPLY, .tag = 2,
			  .length = WIRE_DONOR_SIZE },
			{ .op = WIRE_EVICT, .tag = 3, .slab = 5, .generation = 6 },
		},
	};
	uint8_t payload[WIRE_SMALL];

	for (size_t i = 0; i < sizeof(payload); i++)
		payload[i] = (uint8_t)(i * 3);
	for (enum wire_side side = WIRE_AT_DONOR; side <= WIRE_AT_BORROWER; side++) {
		struct sink s = { 0 };
		struct stream_rx rx;
		struct stream_tx tx;
		int fd[2];

		assert_int_equal(stream_rx_init(&rx, side), 0);
		assert_int_equal(stream_tx_init(&tx, 4), 0);
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
		for (int i = 0; i < 3; i++)
			assert_int_equal(stream_push(&tx, &sent[side][i], payload, 0), 0);
		assert_int_equal(stream_flush(&tx, fd[1], NULL, NULL), 0);
		assert_int_equal(stream_receive(&rx, fd[0], 1 << 20, &ops, &s), 0);
		assert_int_equal(s.finished, 3);
		for (int i = 0; i < 3; i++)
			assert_int_equal(s.tags[i], i + 1);
		assert_memory_equal(s.small, payload, sizeof(payload));
		stream_rx_free(&rx);
		/* The other side gives up at the first of them. */
		assert_int_equal(stream_rx_init(&rx, !side), 0);
		stream_push(&tx, &sent[side][0], payload, 0);
		assert_int_equal(stream_flush(&tx, fd[1], NULL, NULL), 0);
		assert_int_equal(stream_receive(&rx, fd[0], 1 << 20, &ops, &s), -EPROTO);
		stream_rx_free(&rx);
		stream_tx_free(&tx);
		close(fd[0]);
		close(fd[1]);
	}
}

static const struct wire_frame a_write = {
	.op = WIRE_WRITE, .tag = 42, .slab = 1, .generation = 1, .length = 2 * WIRE_PAGE,
};

/* Any cut of the bytes gives the same frames. */
static void any_split(void **state)
{
	uint8_t payload[2 * WIRE_PAGE], bytes[2 * (WIRE_HEADER + 2 * WIRE_PAGE)];
	struct wire_frame second = a_write;
	struct stream_rx rx;
	int fd[2];

	for (size_t i = 0; i < sizeof(payload); i++)
		payload[i] = (uint8_t)(i * 7 + i / 251);
	second.tag = 43;
	wire_build(bytes, &a_write);
	memcpy(bytes + WIRE_HEADER, payload, sizeof(payload));
	memcpy(bytes + sizeof(bytes) / 2, bytes, sizeof(bytes) / 2);
	wire_build(bytes + sizeof(bytes) / 2, &second);
	assert_int_equal(stream_rx_init(&rx, WIRE_AT_DONOR), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	for (size_t cut = 1; cut < sizeof(bytes); cut += cut < 70 ? 1 : 509) {
		struct sink s = { .refuse = cut % 2 };

		stream_rx_reset(&rx);
		assert_int_equal(write(fd[1], bytes, cut), cut);
		stream_receive(&rx, fd[0], 1 << 20, &ops, &s);
		assert_int_equal(write(fd[1], bytes + cut, sizeof(bytes) - cut),
				 sizeof(bytes) - cut);
		for (int i = 0; i < 3; i++)
			assert_true(stream_receive(&rx, fd[0], 1 << 20, &ops, &s) >= 0);
		assert_int_equal(s.finished, 2);
		assert_int_equal(s.tags[0], 42);
		assert_int_equal(s.tags[1], 43);
		assert_memory_equal(s.page, payload, sizeof(payload));
	}
	close(fd[1]);
	assert_int_equal(stream_receive(&rx, fd[0], 1 << 20, &ops, NULL), -ECONNRESET);
	close(fd[0]);
	stream_rx_free(&rx);
}

/* A refused payload is skipped, and the next frame is found. */
static void thrown_away(void **state)
{
	uint8_t payload[2 * WIRE_PAGE] = { 0 };
	struct sink s = { .discard = true };
	struct stream_rx rx;
	struct stream_tx tx;
	int fd[2];

	assert_int_equal(stream_rx_init(&rx, WIRE_AT_DONOR), 0);
	assert_int_equal(stream_tx_init(&tx, 4), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(stream_push(&tx, i % 2 ? &a_read : &a_write, payload, 0), 0);
	assert_int_equal(stream_push(&tx, &a_read, NULL, 0), -ENOSPC);
	assert_int_equal(stream_flush(&tx, fd[1], NULL, NULL), 0);
	assert_int_equal(stream_tx_room(&tx), 4);
	stream_receive(&rx, fd[0], 1 << 20, &ops, &s);
	stream_receive(&rx, fd[0], 1 << 20, &ops, &s);
	assert_int_equal(s.finished, 4);
	assert_int_equal(s.tags[3], a_read.tag);
	close(fd[0]);
	close(fd[1]);
	stream_rx_free(&rx);
	stream_tx_free(&tx);
}

static void count_cookie(void *data, uint32_t cookie)
{
	*(uint32_t *)data += cookie;
}

/* A socket that takes little at a time gets every byte once. */
static void full_socket(void **state)
{
	enum { FRAMES = 40 };
	struct sink s = { 0 };
	struct stream_rx rx;
	struct stream_tx tx;
	uint8_t payload[2 * WIRE_PAGE];
	uint32_t sum = 0;
	int fd[2], size = 4096, full = 0;

	memset(payload, 0x5a, sizeof(payload));
	assert_int_equal(stream_rx_init(&rx, WIRE_AT_DONOR), 0);
	assert_int_equal(stream_tx_init(&tx, FRAMES), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
	setsockopt(fd[1], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	for (int i = 0; i < FRAMES; i++) {
		struct wire_frame f = a_write;

		f.tag = i;
		assert_int_equal(stream_push(&tx, &f, payload, i), 0);
	}
	while (s.finished < FRAMES) {
		int r = stream_flush(&tx, fd[1], count_cookie, &sum);

		assert_true(r >= 0);
		full += r;
		assert_true(stream_receive(&rx, fd[0], 1 << 20, &ops, &s) >= 0);
	}
	assert_true(full > 0);
	assert_int_equal(sum, FRAMES * (FRAMES - 1) / 2);
	for (int i = 0; i < FRAMES; i++)
		assert_int_equal(s.tags[i], i);
	assert_memory_equal(s.page, payload, sizeof(payload));
	close(fd[0]);
	close(fd[1]);
	stream_rx_free(&rx);
	stream_tx_free(&tx);
}

/* A channel that turns every byte over, a few at a time. */
struct turner {
	uint32_t calls;
	uint8_t staged[64];
};

static ssize_t turned_receive(void *channel, int fd, struct msghdr *m)
{
	struct turner *t = channel;
	ssize_t n;

	t->calls++;
	n = recv(fd, t->staged, sizeof(t->staged), MSG_DONTWAIT);
	for (ssize_t i = 0, v = 0, at = 0; i < n; i++, at++) {
		while ((size_t)at == m->msg_iov[v].iov_len)
			v++, at = 0;
		((uint8_t *)m->msg_iov[v].iov_base)[at] = t->staged[i] ^ 0xff;
	}
	return n;
}

static ssize_t turned_send(void *channel, int fd, struct msghdr *m)
{
	struct turner *t = channel;
	size_t n = m->msg_iov[0].iov_len < sizeof(t->staged) ? m->msg_iov[0].iov_len :
		   sizeof(t->staged);

	t->calls++;
	for (size_t i = 0; i < n; i++)
		t->staged[i] = ((uint8_t *)m->msg_iov[0].iov_base)[i] ^ 0xff;
	return send(fd, t->staged, n, MSG_DONTWAIT);
}

static void another_channel(void **state)
{
	static const struct stream_io turned = {
		.receive = turned_receive, .send = turned_send,
	};
	struct turner to = { 0 }, from = { 0 };
	uint8_t payload[2 * WIRE_PAGE];
	struct sink s = { 0 };
	struct stream_rx rx;
	struct stream_tx tx;
	int fd[2];

	memset(payload, 0x3c, sizeof(payload));
	assert_int_equal(stream_rx_init(&rx, WIRE_AT_DONOR), 0);
	assert_int_equal(stream_tx_init(&tx, 4), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
	rx.io = tx.io = &turned;
	rx.channel = &from;
	tx.channel = &to;
	assert_int_equal(stream_push(&tx, &a_write, payload, 0), 0);
	while (s.finished < 1) {
		assert_true(stream_flush(&tx, fd[1], NULL, NULL) >= 0);
		assert_true(stream_receive(&rx, fd[0], 1 << 20, &ops, &s) >= 0);
	}
	assert_memory_equal(s.page, payload, sizeof(payload));
	assert_true(to.calls > sizeof(payload) / sizeof(to.staged));
	/* The next connection has its own. */
	stream_rx_reset(&rx);
	stream_tx_reset(&tx, NULL, NULL);
	assert_null(rx.io);
	assert_null(tx.io);
	close(fd[0]);
	close(fd[1]);
	stream_rx_free(&rx);
	stream_tx_free(&tx);
}

/* A flush ends at its budget, however much the socket would take. */
static void a_budget(void **state)
{
	uint8_t payload[2 * WIRE_PAGE] = { 0 };
	struct stream_tx tx;
	int fd[2], rounds = 1, size = 1 << 20;

	assert_int_equal(stream_tx_init(&tx, 200), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
	setsockopt(fd[1], SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size));
	tx.budget = sizeof(payload);
	for (int i = 0; i < 200; i++)
		assert_int_equal(stream_push(&tx, i < 100 ? &a_read : &a_write, payload, 0), 0);
	while (stream_flush(&tx, fd[1], NULL, NULL) == 1) {
		uint8_t sink[1 << 16];

		rounds++;
		while (recv(fd[0], sink, sizeof(sink), MSG_DONTWAIT) > 0)
			;
	}
	assert_int_equal(tx.count, 0);
	assert_in_range(rounds, 50, 101);
	close(fd[0]);
	close(fd[1]);
	stream_tx_free(&tx);
}

static void addresses(void **state)
{
	static const char *const bad[] = { "", ":1", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:x",
					   "127.0.0.1:-1", "::1", "[::1", "[::1]7070", "a:1:2" };
	struct address a;

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		struct error e = { 0 };

		assert_int_equal(tcp_parse(bad[i], "donor", &a, &e), -EINVAL);
		assert_int_equal(e.exit_status, EXIT_USAGE);
		assert_non_null(strstr(e.text, "HOST:PORT"));
	}
	assert_int_equal(tcp_parse("127.8.9.1:7071", "donor", &a, NULL), 0);
	assert_true(tcp_is_loopback(&a));
	assert_int_equal(tcp_parse("[::1]:7071", "donor", &a, NULL), 0);
	assert_true(tcp_is_loopback(&a));
	assert_int_equal(tcp_parse("10.0.0.7", "donor", &a, NULL), 0);
	assert_false(tcp_is_loopback(&a));
}

static void only_loopback_is_listened_on(void **state)
{
	struct address a;
	struct error e = { 0 };

	assert_int_equal(tcp_parse("0.0.0.0:0", "listen", &a, NULL), 0);
	assert_int_equal(tcp_listen(&a, ADDRESS_LOOPBACK, &e), -EACCES);
	assert_int_equal(e.exit_status, EXIT_REFUSED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(header_layout),
		cmocka_unit_test(round_trip),
		cmocka_unit_test(grant_lengths),
		cmocka_unit_test(activity_lengths),
		cmocka_unit_test(far_frames),
		cmocka_unit_test(far_payloads),
		cmocka_unit_test(far_hello),
		cmocka_unit_test(malformed),
		cmocka_unit_test(random_bytes),
		cmocka_unit_test(payloads),
		cmocka_unit_test(statuses_have_texts),
		cmocka_unit_test(both_directions),
		cmocka_unit_test(any_split),
		cmocka_unit_test(thrown_away),
		cmocka_unit_test(full_socket),
		cmocka_unit_test(another_channel),
		cmocka_unit_test(a_budget),
		cmocka_unit_test(addresses),
		cmocka_unit_test(only_loopback_is_listened_on),
	};

	return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
