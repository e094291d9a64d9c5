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

#include "wire/stream.h"
#include "wire/tcp.h"
#include "wire/wire.h"

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

static void round_trip(void **state)
{
	for (int op = WIRE_HELLO; op < WIRE_OPS; op++) {
		for (int direction = 0; direction < 2; direction++) {
			struct wire_frame f = { .op = op, .direction = direction, .tag = op }, g;
			uint8_t buf[WIRE_HEADER], again[WIRE_HEADER];

			if (op == WIRE_READ || op == WIRE_WRITE)
				f.length = WIRE_PAGE;
			else if (op == WIRE_HELLO)
				f.length = direction ? WIRE_DONOR_SIZE : WIRE_HELLO_SIZE;
			else if (op == WIRE_PING)
				f.length = direction ? WIRE_DONOR_SIZE : 0;
			else if (op == WIRE_MAP)
				f.length = direction ? 0 : WIRE_MAP_SIZE;
			wire_build(buf, &f);
			assert_int_equal(wire_parse(buf, sizeof(buf), direction, &g), 1);
			wire_build(again, &g);
			assert_memory_equal(buf, again, sizeof(buf));
			/* In the other direction it is malformed. */
			assert_int_equal(wire_parse(buf, sizeof(buf), !direction, &g), -EPROTO);
		}
	}
}

static int parse_changed(struct wire_frame f)
{
	struct wire_frame g;
	uint8_t buf[WIRE_HEADER];

	wire_build(buf, &f);
	return wire_parse(buf, sizeof(buf), WIRE_REQUEST, &g);
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
	assert_int_equal(CHANGED(f.op = WIRE_HELLO; f.offset = 0), -EPROTO);
	wire_build(buf, &a_read);
	buf[0] = 'X';
	assert_int_equal(wire_parse(buf, sizeof(buf), WIRE_REQUEST, &g), -EPROTO);
	/* At the first byte already: a web browser is not waited for. */
	assert_int_equal(wire_parse("GET / HTTP/1.1", 3, WIRE_REQUEST, &g), -EPROTO);
	wire_build(buf, &a_read);
	for (size_t n = 0; n < WIRE_HEADER; n++)
		assert_int_equal(wire_parse(buf, n, WIRE_REQUEST, &g), 0);
}

/* Whatever comes, what is accepted keeps the parser's promise. */
static void random_bytes(void **state)
{
	int accepted = 0;

	srandom(1);
	for (int i = 0; i < 400000; i++) {
		uint8_t buf[WIRE_HEADER];
		struct wire_frame f;
		enum wire_direction direction = random() & 1;

		wire_build(buf, &a_read);
		buf[4] = random() % 8;
		buf[5] = random() % 3;
		for (int n = random() % 4; n; n--)
			buf[random() % WIRE_HEADER] = random() & 1 ? 0 : random();
		if (wire_parse(buf, sizeof(buf), direction, &f) != 1)
			continue;
		accepted++;
		assert_true(wire_payload(&f) <= WIRE_MAX_PAYLOAD);
		assert_in_range(f.op, WIRE_HELLO, WIRE_OPS - 1);
		assert_true(f.status < WIRE_STATUSES);
		if (f.op != WIRE_READ && f.op != WIRE_WRITE)
			assert_true(wire_payload(&f) <= STREAM_INLINE);
	}
	assert_true(accepted > 1000);
}

static void payloads(void **state)
{
	struct wire_hello h = { 1, 0x1122334455667788, 64 << 20, "ebb0" }, h2;
	struct wire_donor d = { 1, 64 << 20, 1ull << 40, 1ull << 39 }, d2;
	uint8_t buf[WIRE_HELLO_SIZE], donor[WIRE_DONOR_SIZE], map[WIRE_MAP_SIZE];
	uint32_t class;

	wire_build_hello(buf, &h);
	assert_int_equal(wire_parse_hello(buf, sizeof(buf), &h2), 0);
	assert_int_equal(h2.borrower, h.borrower);
	assert_int_equal(h2.slab_size, h.slab_size);
	assert_string_equal(h2.name, "ebb0");
	assert_int_equal(wire_parse_hello(buf, sizeof(buf) - 1, &h2), -EPROTO);
	buf[25] = '\n'; /* would break the donor's log */
	assert_int_equal(wire_parse_hello(buf, sizeof(buf), &h2), -EPROTO);
	memset(buf + 24, 'x', WIRE_NAME); /* no end */
	assert_int_equal(wire_parse_hello(buf, sizeof(buf), &h2), -EPROTO);

	wire_build_donor(donor, &d);
	assert_int_equal(wire_parse_donor(donor, sizeof(donor), &d2), 0);
	assert_int_equal(d2.free, d.free);
	d.free = d.total + 1;
	wire_build_donor(donor, &d);
	assert_int_equal(wire_parse_donor(donor, sizeof(donor), &d2), -EPROTO);

	wire_build_map(map, WIRE_CLASS_HEAP);
	assert_int_equal(wire_parse_map(map, sizeof(map), &class), 0);
	assert_int_equal(class, WIRE_CLASS_HEAP);
	map[4] = 1;
	assert_int_equal(wire_parse_map(map, sizeof(map), &class), -EPROTO);
}

/* --- frames over a socket ---------------------------------------------- */

struct sink {
	uint8_t page[4 * WIRE_PAGE];
	uint8_t small[STREAM_INLINE];
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

static const struct stream_rx_ops ops = { on_arrived, on_finished };

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
	assert_int_equal(stream_rx_init(&rx, WIRE_REQUEST), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	for (size_t cut = 1; cut < sizeof(bytes); cut += cut < 70 ? 1 : 509) {
		struct sink s = { .refuse = cut % 2 };

		stream_rx_reset(&rx);
		assert_int_equal(write(fd[1], bytes, cut), cut);
		stream_receive(&rx, fd[0], 1 << 20, &ops, &s);
		assert_int_equal(write(fd[1], bytes + cut, sizeof(bytes) - cut), sizeof(bytes) - cut);
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

	assert_int_equal(stream_rx_init(&rx, WIRE_REQUEST), 0);
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
	assert_int_equal(stream_rx_init(&rx, WIRE_REQUEST), 0);
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
	assert_int_equal(tcp_listen(&a, &e), -EACCES);
	assert_int_equal(e.exit_status, EXIT_REFUSED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(header_layout),
		cmocka_unit_test(round_trip),
		cmocka_unit_test(malformed),
		cmocka_unit_test(random_bytes),
		cmocka_unit_test(payloads),
		cmocka_unit_test(any_split),
		cmocka_unit_test(thrown_away),
		cmocka_unit_test(full_socket),
		cmocka_unit_test(addresses),
		cmocka_unit_test(only_loopback_is_listened_on),
	};

	return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
