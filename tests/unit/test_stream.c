// SPDX-License-Identifier: GPL-2.0-or-later
/* Replies that are expected arrive in place with few system calls; others arrive as well. */
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
#include "lib/wire/stream.h"

#include <cmocka.h>

enum { REPLIES = 16, PAGES = 20, ROUNDS = 4000 };

enum kind { ACK, PAGE_READ, REFUSED, FIGURES, KINDS };

/* A reply: what is sent, and where it has to arrive. */
struct reply {
	enum kind kind;
	uint32_t length;
	uint8_t content; /* of each byte */
	bool expected, discarded, done;
	uint8_t *payload;
};

struct world {
	struct stream_rx rx;
	struct stream_tx tx;
	struct session_guard sends, receives;
	struct reply reply[REPLIES];
	int order[REPLIES]; /* in which they are sent */
	int count, next, calls;
	int fd[2];
	uint8_t *wire;      /* as sent */
	size_t length, size;
	uint8_t small[WIRE_SMALL];
	uint8_t spill[STREAM_SPILL];
};

static ssize_t count_receive(void *channel, int fd, struct msghdr *m)
{
	struct world *w = channel;

	w->calls++;
	return recvmsg(fd, m, MSG_DONTWAIT);
}

static ssize_t keep_sent(void *channel, int fd, struct msghdr *m)
{
	struct world *w = channel;
	size_t before = w->length;

	for (size_t i = 0; i < m->msg_iovlen; i++) {
		assert_true(w->length + m->msg_iov[i].iov_len <= w->size);
		memcpy(w->wire + w->length, m->msg_iov[i].iov_base, m->msg_iov[i].iov_len);
		w->length += m->msg_iov[i].iov_len;
	}
	return (ssize_t)(w->length - before);
}

static const struct stream_io io = { .receive = count_receive, .send = keep_sent };

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));
	int size = 4 << 20;

	*state = w;
	w->size = REPLIES * (PAGES * WIRE_PAGE + 256u);
	w->wire = malloc(w->size);
	for (int i = 0; i < REPLIES; i++)
		w->reply[i].payload = malloc(PAGES * WIRE_PAGE);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, w->fd) ||
	    setsockopt(w->fd[0], SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)))
		return -1;
	return session_guard_init(&w->sends) ?: session_guard_init(&w->receives) ?:
	       stream_rx_init(&w->rx, WIRE_AT_BORROWER) ?: stream_tx_init(&w->tx, REPLIES);
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
	for (int i = 0; i < REPLIES; i++)
		free(w->reply[i].payload);
	free(w->wire);
	free(w);
	return 0;
}

/* A new connection with MACs of protocol @version; 0 = none. */
static void begin(struct world *w, uint32_t version)
{
	static const uint8_t key[SESSION_KEY] = { 1, 2, 3 };
	const struct wire_join j = { .session = 7, .number = 1 };

	stream_rx_reset(&w->rx);
	stream_tx_reset(&w->tx, NULL, NULL);
	w->rx.spill = memset(w->spill, 0x5a, sizeof(w->spill));
	w->rx.io = w->tx.io = &io;
	w->rx.channel = w->tx.channel = w;
	w->count = w->next = w->calls = 0;
	w->length = 0;
	if (!version)
		return;
	assert_int_equal(session_guard_start(&w->sends, SESSION_SENDS, key, &j, WIRE_REPLY,
					     version), 0);
	assert_int_equal(session_guard_start(&w->receives, SESSION_RECEIVES, key, &j, WIRE_REPLY,
					     version), 0);
	w->rx.guard = &w->receives.guard;
	w->tx.guard = &w->sends.guard;
}

static void add(struct world *w, enum kind kind, uint32_t length, bool expected)
{
	struct reply *r = &w->reply[w->count];

	*r = (struct reply){ .kind = kind, .length = length, .content = (uint8_t)(w->count + 1),
			     .expected = expected, .payload = r->payload };
	memset(r->payload, 0xee, PAGES * WIRE_PAGE);
	w->order[w->count] = w->count;
	w->count++;
}

static void send_all(struct world *w)
{
	static uint8_t content[REPLIES + 1][PAGES * WIRE_PAGE];

	for (int i = 0; i < w->count; i++) {
		const struct reply *r = &w->reply[w->order[i]];
		struct wire_frame f = {
			.direction = WIRE_REPLY, .tag = (uint64_t)w->order[i],
			.op = r->kind == ACK ? WIRE_WRITE :
			      r->kind == FIGURES ? WIRE_PING : WIRE_READ,
			.status = r->kind == REFUSED ? WIRE_STALE : WIRE_OK,
			.length = r->kind == FIGURES ? WIRE_DONOR_SIZE : r->length,
		};

		memset(content[r->content], r->content, sizeof(content[0]));
		assert_int_equal(stream_push(&w->tx, &f, content[r->content], 0), 0);
	}
	assert_int_equal(stream_flush(&w->tx, -1, NULL, NULL), 0);
}

static int arrived(void *data, const struct wire_frame *f, void **payload)
{
	struct world *w = data;
	struct reply *r = &w->reply[f->tag];

	assert_int_equal(f->tag, w->order[w->next]);
	*payload = r->kind == FIGURES ? w->small : r->discarded ? NULL : r->payload;
	return 0;
}

static int finished(void *data, const struct wire_frame *f)
{
	struct world *w = data;
	struct reply *r = &w->reply[f->tag];
	const uint8_t *at = r->kind == FIGURES ? w->small : r->payload;
	uint32_t length = r->discarded ? 0 : wire_payload(f);

	assert_false(r->done);
	for (uint32_t i = 0; i < length; i++)
		assert_int_equal(at[i], r->content);
	/* Its owner may change what has arrived, and what will not arrive. */
	if (length || r->kind == REFUSED)
		memset(r->payload, 0x11, PAGES * WIRE_PAGE);
	r->done = true;
	w->next++;
	return 0;
}

static uint32_t expected(void *data, struct stream_expected *frames, uint32_t most)
{
	struct world *w = data;
	uint32_t n = 0;

	for (int i = 0; i < w->count && n < most; i++) {
		struct reply *r = &w->reply[i];
		bool arriving = w->rx.busy && w->rx.frame.tag == (uint64_t)i;

		if (r->done || !r->expected || arriving)
			continue;
		frames[n++] = r->kind == ACK ? (struct stream_expected){ NULL, 0 } :
					       (struct stream_expected){ r->payload, r->length };
	}
	return n;
}

static const struct stream_rx_ops ops = { arrived, finished, expected };

static void deliver(struct world *w, size_t from, size_t to)
{
	int r = 1;

	assert_int_equal(send(w->fd[0], w->wire + from, to - from, 0), to - from);
	while (r == 1)
		r = stream_receive(&w->rx, w->fd[1], STREAM_RX_BUFFER, &ops, w);
	assert_int_equal(r, 0);
}

static void assert_nothing_spilled(const struct world *w)
{
	for (size_t i = 0; i < sizeof(w->spill); i++)
		assert_int_equal(w->spill[i], 0x5a);
}

/*
 * A reply of any usual size comes with one system call, and so do several small ones; all of them
 * in place, also if they come in two parts.
 */
static void one_call(void **state)
{
	static const struct { uint32_t pages, replies, calls; } cases[] = {
		{ 1, 1, 1 }, { 6, 1, 1 }, { 15, 1, 1 }, { 20, 1, 2 }, { 2, 7, 1 }, { 1, 16, 3 },
	};
	struct world *w = *state;

	for (uint32_t version = 0; version <= WIRE_VERSION; version += version ? 1 : 3)
		for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
			begin(w, version);
			for (uint32_t n = 0; n < cases[i].replies; n++)
				add(w, PAGE_READ, cases[i].pages * WIRE_PAGE, true);
			send_all(w);
			deliver(w, 0, w->length);
			assert_int_equal(w->next, w->count);
			assert_true((uint32_t)w->calls <= cases[i].calls);
			assert_nothing_spilled(w);
			begin(w, version);
			for (uint32_t n = 0; n < cases[i].replies; n++)
				add(w, PAGE_READ, cases[i].pages * WIRE_PAGE, true);
			send_all(w);
			deliver(w, 0, w->length / 3);
			deliver(w, w->length / 3, w->length);
			assert_int_equal(w->next, w->count);
			assert_nothing_spilled(w);
		}
}

static void acknowledgements(void **state)
{
	struct world *w = *state;

	begin(w, 0);
	for (int i = 0; i < REPLIES; i++)
		add(w, ACK, PAGES * WIRE_PAGE, true);
	send_all(w);
	deliver(w, 0, w->length);
	assert_int_equal(w->next, w->count);
	assert_int_equal(w->calls, 1);
}

/* A refused READ, also one that overtakes an acknowledgement, whose payload has other replies. */
static void refusals(void **state)
{
	struct world *w = *state;

	for (uint32_t version = 0; version <= WIRE_VERSION; version += version ? 1 : 3)
		for (int overtakes = 0; overtakes < 2; overtakes++) {
			begin(w, version);
			add(w, ACK, WIRE_PAGE, true);
			add(w, REFUSED, 2 * WIRE_PAGE, true);
			for (int i = 0; i < 4; i++)
				add(w, PAGE_READ, WIRE_PAGE, true);
			w->order[0] = overtakes;
			w->order[1] = !overtakes;
			send_all(w);
			deliver(w, 0, w->length);
			assert_int_equal(w->next, w->count);
		}
}

static uint32_t random_below(uint32_t n)
{
	static uint64_t seed = 1;

	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(seed >> 33) % n;
}

static void make_any(struct world *w, uint32_t wrong)
{
	int n = 1 + (int)random_below(REPLIES);

	for (int i = 0; i < n; i++) {
		enum kind kind = random_below(8) < 6 ? random_below(2) : random_below(KINDS);
		uint32_t most = random_below(4) ? 3 : PAGES;

		add(w, kind, (1 + random_below(most)) * WIRE_PAGE,
		    kind != FIGURES && random_below(100) >= wrong);
		w->reply[i].discarded = kind == PAGE_READ && random_below(100) < wrong;
		if (w->reply[i].discarded)
			w->reply[i].expected = false;
	}
	for (int i = 0; i < n; i++) {
		int other = (int)random_below((uint32_t)n), at = w->order[i];

		if (random_below(100) >= wrong)
			continue;
		w->order[i] = w->order[other];
		w->order[other] = at;
	}
}

/* Replies in another order, refused, unexpected or unwanted, cut anywhere. */
static void other_replies(void **state)
{
	struct world *w = *state;

	for (int round = 0; round < ROUNDS; round++) {
		static const uint32_t versions[] = { 0, 3, 4 };
		size_t at = 0;

		begin(w, versions[round % 3]);
		make_any(w, round % 5 * 10u);
		send_all(w);
		while (at < w->length) {
			size_t most = random_below(3) ? w->length : 200;
			size_t to = at + 1 + random_below((uint32_t)most);

			to = to < w->length ? to : w->length;
			deliver(w, at, to);
			at = to;
		}
		assert_int_equal(w->next, w->count);
		assert_int_equal(w->rx.head, w->rx.tail);
	}
}

/* A changed byte is noticed wherever it arrived. */
static void altered(void **state)
{
	struct world *w = *state;

	for (int round = 0; round < ROUNDS / 4; round++) {
		int r = 1;

		begin(w, 4);
		make_any(w, 20);
		send_all(w);
		w->wire[random_below((uint32_t)w->length)] ^= 1;
		assert_int_equal(send(w->fd[0], w->wire, w->length, 0), w->length);
		while (r == 1)
			r = stream_receive(&w->rx, w->fd[1], STREAM_RX_BUFFER, &ops, w);
		assert_int_equal(r, -EBADMSG);
		assert_true(w->next < w->count);
		while (recv(w->fd[1], w->wire, w->size, MSG_DONTWAIT) > 0)
			;
	}
}

/* --- a channel that always has the next record ---------------------------------------- */

enum { RECORD = 16384, ENDLESS = 1000 };

static struct {
	size_t at, received; /* in w->wire; in all */
	int calls;
} endless;

static ssize_t receive_endless(void *channel, int fd, struct msghdr *m)
{
	struct world *w = channel;
	size_t n = 0;

	/* The end, or it would not be reached. */
	if (++endless.calls > ENDLESS) {
		errno = EAGAIN;
		return -1;
	}
	for (size_t i = 0; i < m->msg_iovlen; i++)
		for (size_t j = 0; j < m->msg_iov[i].iov_len; j++, n++) {
			((uint8_t *)m->msg_iov[i].iov_base)[j] = w->wire[endless.at++];
			endless.at %= w->length;
		}
	endless.received += n;
	return (ssize_t)n;
}

static size_t always_pending(void *channel)
{
	return RECORD;
}

static int ping_arrived(void *data, const struct wire_frame *frame, void **payload)
{
	*payload = NULL;
	return 0;
}

static int ping_finished(void *data, const struct wire_frame *frame)
{
	return 0;
}

/* However fast the peer sends, one call ends after its budget and a record. */
static void a_fast_peer_ends_no_budget(void **state)
{
	static const struct stream_io always = { .receive = receive_endless, .send = keep_sent,
						 .pending = always_pending };
	static const struct stream_rx_ops pings = { ping_arrived, ping_finished, NULL };
	const struct wire_frame ping = { .op = WIRE_PING };
	const size_t budget = 65536;
	struct world *w = *state;

	begin(w, 0);
	w->rx.side = WIRE_AT_DONOR;
	assert_int_equal(stream_push(&w->tx, &ping, NULL, 0), 0);
	assert_int_equal(stream_flush(&w->tx, -1, NULL, NULL), 0);
	w->rx.io = &always;
	memset(&endless, 0, sizeof(endless));
	for (int i = 0; i < 4; i++) {
		size_t before = endless.received;

		assert_int_equal(stream_receive(&w->rx, -1, budget, &pings, w), 1);
		assert_in_range(endless.received - before, budget,
				budget + STREAM_RX_BUFFER + RECORD);
	}
	assert_true(endless.calls < ENDLESS);
	w->rx.side = WIRE_AT_BORROWER;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_call), cmocka_unit_test(acknowledgements),
		cmocka_unit_test(refusals), cmocka_unit_test(other_replies),
		cmocka_unit_test(altered), cmocka_unit_test(a_fast_peer_ends_no_budget),
	};

	return cmocka_run_group_tests_name("stream", tests, setup, teardown);
}
