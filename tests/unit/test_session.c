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

#include "lib/wire/session.h"

#include <cmocka.h>

static const uint8_t key[SESSION_KEY] = { 1, 2, 3 };
static const struct wire_join joined = { .session = 0x1122334455667788, .number = 3 };

/* What another implementation must get, too; computed by Python's hmac. */
static void known_answer(void **state)
{
	static const uint8_t expected[32] = {
		0x6a, 0xbb, 0x15, 0x3b, 0xbb, 0x3a, 0x4d, 0x2b,
		0xd9, 0x43, 0xf6, 0xc2, 0xa8, 0xea, 0xd4, 0x1a,
		0xc3, 0x1c, 0x89, 0xe4, 0x98, 0xbd, 0xc1, 0xe5,
		0x43, 0x62, 0x72, 0xb7, 0xb1, 0x62, 0xf5, 0x8d,
	};
	struct wire_join j = joined;

	assert_int_equal(session_sign(key, &j), 0);
	assert_memory_equal(j.mac, expected, sizeof(expected));
}

static void only_with_the_key(void **state)
{
	uint8_t other[SESSION_KEY];
	struct wire_join j = joined, changed;

	assert_int_equal(session_sign(key, &j), 0);
	assert_true(session_genuine(key, &j));
	memcpy(other, key, sizeof(key));
	other[31] ^= 1;
	assert_false(session_genuine(other, &j));
	changed = j;
	changed.number++;
	assert_false(session_genuine(key, &changed));
	changed = j;
	changed.session++;
	assert_false(session_genuine(key, &changed));
	for (int bit = 0; bit < 256; bit++) {
		changed = j;
		changed.mac[bit / 8] ^= 1 << bit % 8;
		assert_false(session_genuine(key, &changed));
	}
}

static void a_number_is_used_once(void **state)
{
	uint64_t used = 0;

	for (uint32_t i = 0; i < SESSION_NUMBERS; i++) {
		/* In any order. */
		assert_true(session_take_number(&used, i ^ 5));
		assert_false(session_take_number(&used, i ^ 5));
	}
	assert_false(session_take_number(&used, 0));
	assert_false(session_take_number(&used, SESSION_NUMBERS));
	assert_false(session_take_number(&used, UINT32_MAX));
	assert_int_equal(used, UINT64_MAX);
}

struct world {
	struct session_guard sends, receives;
	struct stream_rx rx;
	struct stream_tx tx;
	int fd[2];
	int finished;
	bool busy; /* takes no frame now */
	bool discards;
	uint8_t page[WIRE_MAX_PAYLOAD], small[WIRE_SMALL];
};

static int setup_version(void **state, uint32_t version)
{
	struct world *w = calloc(1, sizeof(*w));

	*state = w;
	return session_guard_init(&w->sends) ?: session_guard_init(&w->receives) ?:
	       session_guard_start(&w->sends, SESSION_SENDS, key, &joined, WIRE_REQUEST, version) ?:
	       session_guard_start(&w->receives, SESSION_RECEIVES, key, &joined, WIRE_REQUEST,
				   version) ?:
	       stream_rx_init(&w->rx, WIRE_AT_DONOR) ?: stream_tx_init(&w->tx, 64) ?:
	       (w->rx.guard = &w->receives.guard, w->tx.guard = &w->sends.guard,
		socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, w->fd));
}

static int setup(void **state)
{
	return setup_version(state, WIRE_VERSION);
}

static int setup_3(void **state)
{
	return setup_version(state, 3);
}

static int teardown(void **state)
{
	struct world *w = *state;

	session_guard_free(&w->sends);
	session_guard_free(&w->receives);
	stream_rx_free(&w->rx);
	stream_tx_free(&w->tx);
	close(w->fd[0]);
	close(w->fd[1]);
	free(w);
	return 0;
}

static int arrived(void *data, const struct wire_frame *f, void **payload)
{
	struct world *w = data;

	if (w->busy)
		return 1;
	*payload = w->discards ? NULL : f->op == WIRE_WRITE ? w->page : w->small;
	return 0;
}

static int finished(void *data, const struct wire_frame *f)
{
	struct world *w = data;

	assert_int_equal(f->tag, w->finished++);
	return 0;
}

static const struct stream_rx_ops ops = { .arrived = arrived, .finished = finished };

static void push(struct world *w, enum wire_op op, uint64_t tag, uint32_t length,
		 const void *payload)
{
	struct wire_frame f = { .op = op, .tag = tag, .length = length };

	assert_int_equal(stream_push(&w->tx, &f, payload, 0), 0);
}

static const uint8_t pages[4 * WIRE_PAGE] = { 9, 8, 7 };

/* Frames 0..4 as they are on the wire; their bytes. */
static size_t five_frames(struct world *w, uint8_t *wire, size_t size)
{
	ssize_t n;

	push(w, WIRE_WRITE, 0, sizeof(pages), pages);
	push(w, WIRE_READ, 1, WIRE_PAGE, NULL);
	push(w, WIRE_READ, 2, WIRE_PAGE, NULL);
	push(w, WIRE_HELLO, 3, WIRE_HELLO_SIZE, pages);
	push(w, WIRE_READ, 4, WIRE_PAGE, NULL);
	assert_int_equal(stream_flush(&w->tx, w->fd[0], NULL, NULL), 0);
	n = recv(w->fd[1], wire, size, 0);
	assert_int_equal(n, 5 * (WIRE_HEADER + STREAM_MARK) + sizeof(pages) + WIRE_HELLO_SIZE +
			 (w->sends.guard.trailers ? 2 * STREAM_MARK : 0));
	return (size_t)n;
}

static int receive(struct world *w, const uint8_t *wire, size_t n)
{
	assert_int_equal(send(w->fd[0], wire, n, 0), n);
	return stream_receive(&w->rx, w->fd[1], 1 << 20, &ops, w);
}

static void frames_pass_by(struct world *w)
{
	uint8_t wire[2 * sizeof(pages)];
	size_t n = five_frames(w, wire, sizeof(wire));

	assert_int_equal(receive(w, wire, n), 0);
	assert_int_equal(w->finished, 5);
}

static void frames_pass(void **state)
{
	struct world *w = *state;

	frames_pass_by(w);
	assert_memory_equal(w->page, pages, sizeof(pages));
	assert_memory_equal(w->small, pages, WIRE_HELLO_SIZE);
}

/* Discarded payloads have MACs, too. */
static void frames_pass_unread(void **state)
{
	struct world *w = *state;

	w->discards = true;
	frames_pass_by(w);
}

/* By pieces of any size, up to more than the buffer. */
static void in_any_pieces(void **state)
{
	uint32_t version = ((struct world *)*state)->sends.guard.trailers ? WIRE_VERSION : 3;
	uint8_t wire[2 * sizeof(pages)];

	for (size_t piece = 1; piece < STREAM_RX_BUFFER + 200; piece += piece < 80 ? 1 : 619) {
		struct world *w;
		size_t n;

		teardown(state);
		setup_version(state, version);
		w = *state;
		n = five_frames(w, wire, sizeof(wire));
		for (size_t i = 0; i < n; i += piece)
			assert_int_equal(receive(w, wire + i, n - i < piece ? n - i : piece), 0);
		assert_int_equal(w->finished, 5);
		assert_memory_equal(w->page, pages, sizeof(pages));
		assert_memory_equal(w->small, pages, WIRE_HELLO_SIZE);
	}
}

static void not_now_is_no_second_frame(void **state)
{
	struct world *w = *state;
	uint8_t wire[2 * sizeof(pages)];
	size_t n = five_frames(w, wire, sizeof(wire));

	w->busy = true;
	assert_int_equal(receive(w, wire, n), 1);
	for (int i = 0; i < 3; i++)
		assert_int_equal(stream_receive(&w->rx, w->fd[1], 1 << 20, &ops, w), 1);
	w->busy = false;
	assert_int_equal(stream_receive(&w->rx, w->fd[1], 1 << 20, &ops, w), 0);
	assert_int_equal(w->finished, 5);
}

#define FRAME (WIRE_HEADER + STREAM_MARK)

/* Where the READ with @tag 1 or 2 is in what five_frames() made. */
static uint8_t *read_at(uint8_t *wire, int tag)
{
	return wire + FRAME + sizeof(pages) + STREAM_MARK + (tag - 1) * FRAME;
}

static void a_changed_header_is_seen(void **state)
{
	uint8_t wire[2 * sizeof(pages)];

	for (unsigned bit = 0; bit < 8 * FRAME; bit++) {
		struct world *w;
		size_t n;
		int r;

		setup(state);
		w = *state;
		n = five_frames(w, wire, sizeof(wire));
		read_at(wire, 1)[bit / 8] ^= 1 << bit % 8;
		r = receive(w, wire, n);
		/* Some of it is no frame at all, but the MAC tells first. */
		assert_int_equal(r, -EBADMSG);
		assert_int_equal(w->finished, 1);
		teardown(state);
	}
}

static void left_out(void **state)
{
	struct world *w = *state;
	uint8_t wire[2 * sizeof(pages)];
	size_t n = five_frames(w, wire, sizeof(wire));

	memmove(read_at(wire, 1), read_at(wire, 2), wire + n - read_at(wire, 2));
	assert_int_equal(receive(w, wire, n - FRAME), -EBADMSG);
	assert_int_equal(w->finished, 1);
}

static void repeated(void **state)
{
	struct world *w = *state;
	uint8_t wire[2 * sizeof(pages)];

	five_frames(w, wire, sizeof(wire));
	memcpy(read_at(wire, 2), read_at(wire, 1), FRAME);
	assert_int_equal(receive(w, wire, read_at(wire, 3) - wire), -EBADMSG);
	assert_int_equal(w->finished, 2);
}

static void moved(void **state)
{
	struct world *w = *state;
	uint8_t wire[2 * sizeof(pages)], other[FRAME];

	five_frames(w, wire, sizeof(wire));
	memcpy(other, read_at(wire, 1), FRAME);
	memcpy(read_at(wire, 1), read_at(wire, 2), FRAME);
	memcpy(read_at(wire, 2), other, FRAME);
	assert_int_equal(receive(w, wire, read_at(wire, 3) - wire), -EBADMSG);
	assert_int_equal(w->finished, 1);
}

/* --- payloads ----------------------------------------------------------------------- */

#define PAGE_FRAME (FRAME + WIRE_PAGE + STREAM_MARK)

static const uint8_t other_page[WIRE_PAGE] = { 4, 5, 6 };

/* Two WRITEs of a page, 0 and 1, as they are on the wire. */
static void two_writes(struct world *w, uint8_t wire[static 2 * PAGE_FRAME])
{
	push(w, WIRE_WRITE, 0, WIRE_PAGE, pages);
	push(w, WIRE_WRITE, 1, WIRE_PAGE, other_page);
	assert_int_equal(stream_flush(&w->tx, w->fd[0], NULL, NULL), 0);
	assert_int_equal(recv(w->fd[1], wire, 2 * PAGE_FRAME, 0), 2 * PAGE_FRAME);
}

/* Computed by Python's cryptography, from the key of "ebb payloads". */
static void known_answer_of_a_payload(void **state)
{
	static const uint8_t expected[STREAM_MARK] = {
		0x94, 0xe7, 0xdf, 0x8b, 0x88, 0x64, 0xd4, 0xfb,
		0xd8, 0x7f, 0x17, 0xbf, 0x38, 0xb7, 0xcd, 0x1f,
	};
	struct world *w = *state;
	uint8_t wire[2 * PAGE_FRAME];

	two_writes(w, wire);
	assert_memory_equal(wire + 2 * PAGE_FRAME - STREAM_MARK, expected, STREAM_MARK);
}

static void an_altered_payload_is_seen(void **state)
{
	uint8_t wire[2 * PAGE_FRAME];

	/* All bits of the MAC, some of the page; whole, and by pieces. */
	for (size_t at = FRAME, piece = 0; at < PAGE_FRAME;
	     at += at < FRAME + WIRE_PAGE ? 1 + at % 61 : 1, piece = (piece * 7 + 5) % 1000) {
		struct world *w;
		int r = 0;

		setup(state);
		w = *state;
		two_writes(w, wire);
		wire[PAGE_FRAME + at] ^= 1 << at % 8;
		for (size_t i = 0, n; i < sizeof(wire) && !r; i += n) {
			n = piece && piece < sizeof(wire) - i ? piece : sizeof(wire) - i;
			r = receive(w, wire + i, n);
		}
		assert_int_equal(r, -EBADMSG);
		assert_true(w->rx.busy);
		assert_int_equal(w->finished, 1);
		teardown(state);
	}
}

static void payloads_that_change_places(void **state)
{
	struct world *w = *state;
	uint8_t wire[2 * PAGE_FRAME], payload[WIRE_PAGE + STREAM_MARK];

	two_writes(w, wire);
	memcpy(payload, wire + FRAME, sizeof(payload));
	memcpy(wire + FRAME, wire + PAGE_FRAME + FRAME, sizeof(payload));
	memcpy(wire + PAGE_FRAME + FRAME, payload, sizeof(payload));
	assert_int_equal(receive(w, wire, sizeof(wire)), -EBADMSG);
	assert_int_equal(w->finished, 0);
}

static void an_old_payload(void **state)
{
	struct world *w = *state;
	uint8_t wire[2 * PAGE_FRAME];

	two_writes(w, wire);
	memcpy(wire + PAGE_FRAME + FRAME, wire + FRAME, WIRE_PAGE + STREAM_MARK);
	assert_int_equal(receive(w, wire, sizeof(wire)), -EBADMSG);
	assert_int_equal(w->finished, 1);
}

/* A header's MAC is none of a payload, although the numbers of both may be equal. */
static void the_mark_of_a_header(void **state)
{
	struct world *w = *state;
	uint8_t wire[2 * PAGE_FRAME];

	two_writes(w, wire);
	memcpy(wire + FRAME + WIRE_PAGE, wire + WIRE_HEADER, STREAM_MARK);
	assert_int_equal(receive(w, wire, sizeof(wire)), -EBADMSG);
	assert_int_equal(w->finished, 0);
}

static void a_trailer_cut_short(void **state)
{
	uint8_t wire[2 * PAGE_FRAME];

	for (size_t less = 1; less <= STREAM_MARK; less++) {
		struct world *w;

		setup(state);
		w = *state;
		two_writes(w, wire);
		/* The frame is not finished before its MAC has arrived ... */
		assert_int_equal(receive(w, wire, PAGE_FRAME - less), 0);
		assert_int_equal(w->finished, 0);
		/* ... and what follows is not taken for it. */
		assert_int_equal(receive(w, wire + PAGE_FRAME, PAGE_FRAME), -EBADMSG);
		assert_int_equal(w->finished, 0);
		teardown(state);
	}
}

/* As a donor's memory that a later WRITE changes before an earlier READ is answered. */
static void a_payload_that_changes_before_it_leaves(void **state)
{
	static uint8_t page[WIRE_PAGE];
	struct world *w = *state;
	uint8_t wire[PAGE_FRAME];

	page[77] = 1;
	push(w, WIRE_WRITE, 0, WIRE_PAGE, page);
	page[77] = 2;
	assert_int_equal(stream_flush(&w->tx, w->fd[0], NULL, NULL), 0);
	assert_int_equal(recv(w->fd[1], wire, sizeof(wire), 0), sizeof(wire));
	assert_int_equal(receive(w, wire, sizeof(wire)), 0);
	assert_int_equal(w->finished, 1);
	assert_int_equal(w->page[77], 2);
}

/* More than a socket takes, so that each frame leaves by pieces, at any byte. */
static void payloads_leave_by_pieces(void **state)
{
	static uint8_t wire[20 * (FRAME + WIRE_MAX_PAYLOAD + STREAM_MARK)], data[WIRE_MAX_PAYLOAD];
	struct world *w = *state;
	int size = 4096, frames = 0, r;
	size_t all = 0;

	setsockopt(w->fd[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i >> 8 ^ i);
	for (; frames < 20; frames++)
		push(w, WIRE_WRITE, frames, frames % 7 ? WIRE_PAGE * (1 + frames % 5) :
		     WIRE_MAX_PAYLOAD, data);
	for (size_t piece = 1;; piece = (piece * 5 + 3) % 5000) {
		ssize_t n;

		r = stream_flush(&w->tx, w->fd[0], NULL, NULL);
		assert_true(r >= 0);
		n = recv(w->fd[1], wire + all, r ? piece + 1 : sizeof(wire) - all, 0);
		all += n > 0 ? (size_t)n : 0;
		if (!r && n <= 0)
			break;
	}
	for (size_t i = 0, n; i < all; i += n) {
		n = all - i < 4096 ? all - i : 4096;
		assert_int_equal(receive(w, wire + i, n), 0);
	}
	assert_int_equal(w->finished, frames);
	assert_memory_equal(w->page, data, WIRE_PAGE);
}

/* Frames of the receiver's own, of another connection, of another session. */
static void from_elsewhere(void **state)
{
	static const struct { struct wire_join joined; enum wire_direction direction; } from[] = {
		{ { .session = 0x1122334455667788, .number = 3 }, WIRE_REPLY },
		{ { .session = 0x1122334455667788, .number = 4 }, WIRE_REQUEST },
		{ { .session = 0x1122334455667789, .number = 3 }, WIRE_REQUEST },
	};
	uint8_t wire[2 * sizeof(pages)];

	for (size_t i = 0; i < sizeof(from) / sizeof(*from); i++) {
		struct world *w;
		size_t n;

		setup(state);
		w = *state;
		assert_int_equal(session_guard_start(&w->sends, SESSION_SENDS, key, &from[i].joined,
						     from[i].direction, WIRE_VERSION), 0);
		n = five_frames(w, wire, sizeof(wire));
		assert_int_equal(receive(w, wire, n), -EBADMSG);
		assert_int_equal(w->finished, 0);
		teardown(state);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(known_answer),
		cmocka_unit_test(only_with_the_key),
		cmocka_unit_test(a_number_is_used_once),
		cmocka_unit_test_setup_teardown(frames_pass, setup, teardown),
		cmocka_unit_test_setup_teardown(frames_pass, setup_3, teardown),
		cmocka_unit_test_setup_teardown(frames_pass_unread, setup, teardown),
		cmocka_unit_test_setup_teardown(frames_pass_unread, setup_3, teardown),
		cmocka_unit_test_setup_teardown(in_any_pieces, setup, teardown),
		cmocka_unit_test_setup_teardown(in_any_pieces, setup_3, teardown),
		cmocka_unit_test_setup_teardown(not_now_is_no_second_frame, setup, teardown),
		cmocka_unit_test(a_changed_header_is_seen),
		cmocka_unit_test_setup_teardown(left_out, setup, teardown),
		cmocka_unit_test_setup_teardown(repeated, setup, teardown),
		cmocka_unit_test_setup_teardown(moved, setup, teardown),
		cmocka_unit_test(from_elsewhere),
		cmocka_unit_test_setup_teardown(known_answer_of_a_payload, setup, teardown),
		cmocka_unit_test(an_altered_payload_is_seen),
		cmocka_unit_test_setup_teardown(payloads_that_change_places, setup, teardown),
		cmocka_unit_test_setup_teardown(an_old_payload, setup, teardown),
		cmocka_unit_test_setup_teardown(the_mark_of_a_header, setup, teardown),
		cmocka_unit_test(a_trailer_cut_short),
		cmocka_unit_test_setup_teardown(a_payload_that_changes_before_it_leaves, setup,
						teardown),
		cmocka_unit_test_setup_teardown(payloads_leave_by_pieces, setup, teardown),
	};

	return cmocka_run_group_tests_name("session", tests, NULL, NULL);
}
