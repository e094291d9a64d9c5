// SPDX-License-Identifier: GPL-2.0-or-later
/* No borrower takes the turns of others, or more than its rate. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "donor_world.h"
#include "lib/base/clock.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

/* However much one asks for and its socket takes, the others have their turn. */
static void a_greedy_one(void **state)
{
	enum { REQUESTS = 16 };
	struct donor *d = *state;
	uint8_t bytes[REQUESTS * WIRE_HEADER], ping[WIRE_HEADER];
	static uint8_t sink[SLAB];
	struct wire_frame f = { .op = WIRE_READ, .length = SLAB };
	struct peer a, b;
	int size = 2 * REQUESTS * SLAB, waiting, turns = 0;
	size_t got = 0;

	connect_peer(d, &a, 1, 1);
	connect_peer(d, &b, 2, 0);
	/* Without the right to it the socket takes less, and all is easier. */
	setsockopt(a.c->fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size));
	f.slab = a.loans[0].slab;
	f.generation = a.loans[0].generation;
	for (int i = 0; i < REQUESTS; i++)
		wire_build(bytes + i * WIRE_HEADER, &f);
	wire_build(ping, &(struct wire_frame){ .op = WIRE_PING });
	assert_int_equal(send(a.fd, bytes, sizeof(bytes), 0), sizeof(bytes));
	while (got < REQUESTS * (size_t)(WIRE_HEADER + SLAB)) {
		assert_int_equal(send(b.fd, ping, sizeof(ping), 0), sizeof(ping));
		assert_int_equal(loop_turn(d->l, 0), 0);
		take(&b, WIRE_PING);
		assert_int_equal(ioctl(a.fd, FIONREAD, &waiting), 0);
		/* A turn's worth, twice: to read and to flush are two events. */
		assert_true(waiting <= 3 * SLAB);
		for (ssize_t n; (n = recv(a.fd, sink, sizeof(sink), MSG_DONTWAIT)) > 0;)
			got += (size_t)n;
		assert_true(turns++ < 100000);
	}
	assert_true(turns >= REQUESTS / 3);
	close(a.fd);
	close(b.fd);
}

/* Asked for many slabs that have to be zeroed first, it does something else between any two. */
static void many_slabs_at_once(void **state)
{
	enum { MAPS = SLABS / 2 };
	struct donor *d = *state;
	struct wire_frame f = { .op = WIRE_MAP, .length = WIRE_MAP_SIZE };
	uint8_t bytes[MAPS * (WIRE_HEADER + WIRE_MAP_SIZE)] = { 0 };
	struct peer peers[2];
	int came[2] = { 0 };

	for (int i = 0; i < 2; i++)
		connect_peer(d, &peers[i], (uint64_t)i + 1, 0);
	for (int i = 0; i < SLABS; i++)
		d->pool.slabs[i].state = LEND_DIRTY;
	d->pool.in[LEND_CLEAN] = 0;
	d->pool.in[LEND_DIRTY] = SLABS;
	for (uint32_t i = 0; i < MAPS; i++)
		wire_build(bytes + i * (WIRE_HEADER + WIRE_MAP_SIZE), &f);
	for (int i = 0; i < 2; i++)
		assert_int_equal(send(peers[i].fd, bytes, sizeof(bytes), 0), sizeof(bytes));
	for (int turns = 0; came[0] < MAPS || came[1] < MAPS; turns++) {
		int before = came[0] + came[1];

		assert_int_equal(loop_turn(d->l, 0), 0);
		for (int i = 0; i < 2; i++)
			for (; take_frame(&peers[i], &f); came[i]++)
				assert_int_equal(f.status, WIRE_OK);
		/* One, and what it had zeroed by itself. */
		assert_true(came[0] + came[1] - before <= 2);
		/* Neither of them is the last to get any. */
		assert_true(abs(came[0] - came[1]) <= 2);
		assert_true(turns < 1000);
	}
	for (int i = 0; i < 2; i++)
		close(peers[i].fd);
}

/* Sends MAP, or UNMAP of @loan, without a turn. */
static void send_op(struct peer *p, enum wire_op op, struct wire_loan loan)
{
	uint8_t bytes[WIRE_HEADER + WIRE_MAP_SIZE] = { 0 };
	uint32_t length = op == WIRE_MAP ? WIRE_MAP_SIZE : 0;

	wire_build(bytes, &(struct wire_frame){ .op = op, .slab = loan.slab, .length = length,
						.generation = loan.generation });
	assert_int_equal(send(p->fd, bytes, WIRE_HEADER + length, 0), WIRE_HEADER + length);
}

/* Returns until when @b waits, since a slab was zeroed at once for it; changes with each one. */
static uint64_t waits_until(const struct pool *p, const struct borrower *b)
{
	uint64_t until = 0;

	for (int i = 0; i < POOL_ZERO_KEYS; i++)
		if (!strcmp(p->zeroed_for[i].key, b->key) && p->zeroed_for[i].until > until)
			until = p->zeroed_for[i].until;
	return until;
}

/*
 * A borrower that releases each slab and maps the next one has slabs zeroed at once in a part of
 * the time only; otherwise it waits until one was zeroed in pieces.  Another one gets its first
 * slab at once.
 */
static void mapped_over_and_over(void **state)
{
	const struct wire_loan none = { 0 };
	struct donor *d = *state;
	uint32_t loans = 0;
	struct wire_frame f;
	struct peer a, b;

	connect_peer(d, &a, 1, 0);
	connect_peer(d, &b, 2, 0);
	strcpy(a.c->borrower.key, "a");
	for (int i = 0; i < SLABS; i++)
		d->pool.slabs[i].state = LEND_DIRTY;
	d->pool.in[LEND_CLEAN] = 0;
	d->pool.in[LEND_DIRTY] = SLABS;
	send_op(&a, WIRE_MAP, none);
	for (int i = 0; i < 200; i++) {
		uint64_t until = waits_until(&d->pool, &a.c->borrower);

		assert_int_equal(loop_turn(d->l, 0), 0);
		assert_true(waits_until(&d->pool, &a.c->borrower) == until ||
			    until <= d->pool.now);
		if (i == 0)
			send_op(&b, WIRE_MAP, none);
		if (i == 1)
			assert_int_equal(take(&b, WIRE_MAP).status, WIRE_OK);
		if (!take_frame(&a, &f))
			continue;
		assert_int_equal(f.status, WIRE_OK);
		if (f.op == WIRE_MAP) {
			send_op(&a, WIRE_UNMAP, (struct wire_loan){ f.slab, f.generation });
			send_op(&a, WIRE_MAP, none);
			loans++;
		}
	}
	assert_true(waits_until(&d->pool, &a.c->borrower));
	assert_true(loans > 200 / 16);
	close(a.fd);
	close(b.fd);
}

/* A borrower whose MAPs are refused takes no loan of the turn from others. */
static void refused_maps(void **state)
{
	struct wire_frame f = { .op = WIRE_MAP, .length = WIRE_MAP_SIZE };
	uint8_t bytes[2 * POOL_MAPS * (WIRE_HEADER + WIRE_MAP_SIZE)];
	struct donor *d = *state;
	struct peer a, b;

	for (uint32_t i = 0; i < 2 * POOL_MAPS; i++) {
		wire_build(bytes + i * (WIRE_HEADER + WIRE_MAP_SIZE), &f);
		wire_build_map(bytes + i * (WIRE_HEADER + WIRE_MAP_SIZE) + WIRE_HEADER,
			       WIRE_CLASS_SWAP);
	}
	connect_peer(d, &a, 1, 2);
	connect_peer(d, &b, 2, 0);
	assert_int_equal(send(a.fd, bytes, sizeof(bytes), 0), sizeof(bytes));
	assert_int_equal(send(b.fd, bytes, WIRE_HEADER + WIRE_MAP_SIZE, 0),
			 WIRE_HEADER + WIRE_MAP_SIZE);
	assert_int_equal(loop_turn(d->l, 0), 0);
	assert_int_equal(take(&b, WIRE_MAP).status, WIRE_OK);
	for (int refused = 0; refused < 2 * POOL_MAPS;) {
		assert_int_equal(loop_turn(d->l, 0), 0);
		for (; take_frame(&a, &f); refused++)
			assert_int_equal(f.status, WIRE_OVER_QUOTA);
	}
	close(a.fd);
	close(b.fd);
}

/* What may look at all slabs is served once in a turn: many of these do not hold up the loop. */
static void many_questions(void **state)
{
	static const enum wire_op ops[] = { WIRE_PING, WIRE_RESERVE };
	enum { QUESTIONS = 300, SIZE = WIRE_HEADER + WIRE_RESERVE_SIZE };
	struct donor *d = *state;
	struct peer a, b;

	connect_peer(d, &a, 1, 1);
	connect_peer(d, &b, 2, 1);
	for (size_t k = 0; k < sizeof(ops) / sizeof(ops[0]); k++) {
		uint32_t length = ops[k] == WIRE_RESERVE ? WIRE_RESERVE_SIZE : 0;
		uint8_t bytes[QUESTIONS * SIZE] = { 0 }, ping[WIRE_HEADER];
		struct wire_frame f;
		int came = 0, turns = 0;
		size_t at = 0;

		for (int i = 0; i < QUESTIONS; i++, at += WIRE_HEADER + length)
			wire_build(bytes + at, &(struct wire_frame){ .op = ops[k],
								     .length = length });
		assert_int_equal(send(a.fd, bytes, at, 0), at);
		/* Another one has its turn at once. */
		wire_build(ping, &(struct wire_frame){ .op = WIRE_PING });
		assert_int_equal(send(b.fd, ping, sizeof(ping), 0), sizeof(ping));
		for (; came < QUESTIONS; turns++) {
			int before = came;

			assert_int_equal(loop_turn(d->l, 0), 0);
			for (; take_frame(&a, &f); came++)
				assert_int_equal(f.status, WIRE_OK);
			assert_true(came - before <= 1);
			if (!turns)
				take(&b, WIRE_PING);
			assert_true(turns < 10 * QUESTIONS);
		}
	}
	close(a.fd);
	close(b.fd);
}

/* MANY_PIECES: more than a connection's replies in flight. */
enum { PIECE = 256 << 10, PIECES = 64, MANY_PIECES = CONNECTION_REPLIES + 276 };

/* Asks for @n pieces of the first loan of @p. */
static void ask_for_pieces(struct peer *p, int n)
{
	static uint8_t bytes[MANY_PIECES * WIRE_HEADER];
	struct wire_frame f = { .op = WIRE_READ, .length = PIECE, .slab = p->loans[0].slab,
				.generation = p->loans[0].generation };

	for (int i = 0; i < n; i++)
		wire_build(bytes + i * WIRE_HEADER, &f);
	assert_int_equal(send(p->fd, bytes, (size_t)n * WIRE_HEADER, 0), n * WIRE_HEADER);
}

static size_t take_bytes(struct peer *p)
{
	static uint8_t sink[SLAB];
	size_t got = 0;

	for (ssize_t n; (n = recv(p->fd, sink, sizeof(sink), MSG_DONTWAIT)) > 0;)
		got += (size_t)n;
	return got;
}

/* Beyond its rate a borrower waits and loses nothing.  Others do not wait; the loop sleeps. */
static void a_rate(void **state)
{
	struct donor *d = *state;
	uint64_t began, rate = RATE_LEAST;
	size_t got = 0;
	struct peer a, b;
	int turns = 0;

	connect_peer(d, &a, 1, 1);
	connect_peer(d, &b, 2, 1);
	began = now_ns();
	d->l->now = d->l->sessions.now = began;
	ask_for_pieces(&a, PIECES);
	while (got < PIECES * (size_t)(WIRE_HEADER + PIECE)) {
		uint64_t passed;

		assert_int_equal(say(d, &b, WIRE_PING, b.loans[0]), WIRE_OK);
		/* A full socket would hold up the loop. */
		got += take_bytes(&a);
		assert_int_equal(loop_turn(d->l, SECOND), 0);
		got += take_bytes(&a);
		passed = now_ns() - began;
		assert_true(got <= (passed + RATE_BURST_NS) * (double)rate / SECOND +
				   2 * (PIECE + WIRE_HEADER) + 4096);
		assert_true(turns++ < 100000);
	}
	assert_true(turns < 20 * PIECES);
	assert_true(payer_waited(a.c->payer, now_ns()) > 0);
	assert_int_equal(payer_waited(b.c->payer, now_ns()), 0);
	/* One that has gone waits for nothing. */
	ask_for_pieces(&a, PIECES);
	turn(d->l);
	assert_true(a.c->throttled);
	close(a.fd);
	turn(d->l);
	assert_true(connection_is_free(a.c));
	close(b.fd);
}

/* A connection whose place another one had in this turn gets no event of that one. */
static void an_event_of_an_earlier_connection(void **state)
{
	struct donor *d = *state;
	struct peer a, b;
	uint64_t key;

	connect_peer(d, &a, 1, 0);
	key = connection_key(a.c);
	connection_drop(a.c, "its control connection ended");
	connect_peer(d, &b, 2, 1);
	assert_ptr_equal(a.c, b.c);
	connections_event(&d->l->sessions, key, EPOLLHUP);
	assert_false(connection_is_free(b.c));
	/* It would not be held to its rate. */
	b.c->payer->busy_until = now_ns() + 1000 * SECOND;
	ask_for_pieces(&b, PIECES);
	turn(d->l);
	assert_true(b.c->throttled);
	connections_event(&d->l->sessions, connection_key(b.c), EPOLLHUP);
	assert_true(b.c->hung_up);
	close(a.fd);
	close(b.fd);
}

/* Only requests that move pages wait for the rate: a MAP waits for a clean slab, and no longer. */
static void a_rate_of_pages_alone(void **state)
{
	const struct wire_loan_request r = { .class = WIRE_CLASS_SWAP };
	struct wire_frame f = { .op = WIRE_MAP, .length = WIRE_MAP_SIZE };
	enum { FRAME = WIRE_HEADER + WIRE_MAP_SIZE };
	struct donor *d = *state;
	uint8_t bytes[2 * FRAME];
	struct peer a;

	connect_peer(d, &a, 1, 0);
	for (int i = 0; i < SLABS; i++)
		d->pool.slabs[i].state = LEND_DIRTY;
	d->pool.in[LEND_CLEAN] = 0;
	d->pool.in[LEND_DIRTY] = SLABS;
	/* What its data connections owe. */
	a.c->payer->busy_until = now_ns() + 1000 * SECOND;
	for (int i = 0; i < 2; i++) {
		wire_build(bytes + i * FRAME, &f);
		wire_build_loan_request(bytes + i * FRAME + WIRE_HEADER, &r);
	}
	assert_int_equal(send(a.fd, bytes, sizeof(bytes), 0), sizeof(bytes));
	assert_int_equal(loop_turn(d->l, 0), 0);
	assert_true(a.c->held);
	assert_false(a.c->throttled);
	for (int i = 0; a.c->held && i < 4; i++)
		turn(d->l);
	assert_false(a.c->held);
	assert_int_equal(pool_owned(&d->pool, &a.c->borrower), 2);
	assert_int_equal(payer_waited(a.c->payer, now_ns()), 0);
	close(a.fd);
}

/*
 * Connects @n data connections of one key, and has each ask for @pieces.  Returns the most bytes
 * that come in a turn.
 */
static size_t most_in_a_turn(struct donor *d, int n, int pieces)
{
	enum { MANY = 48 };
	int size = 2 * PIECES * PIECE;
	struct peer a, data[MANY];
	size_t most = 0;

	connect_peer(d, &a, 1, 1);
	for (int i = 0; i < n; i++) {
		connect_peer(d, &data[i], 10 + (uint64_t)i, 0);
		data[i].loans[0] = a.loans[0];
		setsockopt(data[i].c->fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size));
		/* As JOIN does. */
		payer_leave(data[i].c->payer, 0);
		data[i].c->home = a.c->number;
		data[i].c->payer = a.c->payer;
		a.c->payer->users++;
		ask_for_pieces(&data[i], pieces);
	}
	for (int i = 0; i < 200; i++) {
		size_t got = 0;

		assert_int_equal(say(d, &a, WIRE_PING, a.loans[0]), WIRE_OK);
		for (int j = 0; j < n; j++)
			take_bytes(&data[j]);
		assert_int_equal(loop_turn(d->l, 0), 0);
		for (int j = 0; j < n; j++)
			got += take_bytes(&data[j]);
		most = got > most ? got : most;
	}
	for (int j = 0; j < n; j++)
		close(data[j].fd);
	close(a.fd);
	turn(d->l);
	return most;
}

/*
 * All data connections of a key have the share of one in a turn, however many there are, also if
 * requests wait for room for their replies.
 */
static void many_connections_of_one_key(void **state)
{
	struct donor *d = *state;

	/* A share, and what the last one exceeds it by, each way. */
	assert_in_range(most_in_a_turn(d, 48, PIECES), CONNECTION_TURN / 2, 2 * CONNECTION_TURN);
	assert_in_range(most_in_a_turn(d, 8, MANY_PIECES), CONNECTION_TURN / 2,
			2 * CONNECTION_TURN);
}

/*
 * The end of a connection that cannot own a slab, a stranger's or a data connection, costs no look
 * at all slabs.
 */
static void ends_without_slabs(void **state)
{
	struct sockaddr_storage nobody = { .ss_family = AF_UNSPEC };
	struct donor *d = *state;
	struct connection *c;
	struct peer a, data;
	int fd[2];

	connect_peer(d, &a, 1, 1);
	connect_peer(d, &data, 2, 0);
	/* As JOIN does, and without HELLO. */
	data.c->home = a.c->number;
	data.c->owns = false;
	turn(d->l);
	assert_false(d->l->eviction.to_ask);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
	c = connection_adopt(&d->l->sessions, fd[1], &nobody);
	assert_non_null(c);
	connection_lost(c, "disconnected");
	assert_true(connection_is_free(c));
	connection_lost(data.c, "disconnected");
	assert_true(connection_is_free(data.c));
	assert_false(d->l->eviction.to_ask);
	connection_lost(a.c, "disconnected");
	assert_true(d->l->eviction.to_ask);
	assert_int_equal(d->pool.in[LEND_LENT], 0);
	close(fd[0]);
	close(a.fd);
	close(data.fd);
}

/*
 * A borrower whose loans were all revoked has no session to resume, but what resumes it gets these
 * slabs, and they outlive it no more than those of a session.
 */
static void revoked_slabs_without_a_session(void **state)
{
	struct donor *d = *state;
	struct peer a, b;
	uint32_t slab;

	connect_peer(d, &a, 1, 1);
	slab = a.loans[0].slab;
	revoke_slab(d, slab);
	assert_int_equal(greet_as(d, &b, 1, WIRE_RESUME), WIRE_NO_SESSION);
	connection_drop(b.c, "ends");
	assert_null(d->pool.slabs[slab].owner);
	close(a.fd);
	close(b.fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_greedy_one, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(many_slabs_at_once, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(a_rate, with_rate, without_donor),
		cmocka_unit_test_setup_teardown(an_event_of_an_earlier_connection, with_rate,
						without_donor),
		cmocka_unit_test_setup_teardown(a_rate_of_pages_alone, with_rate, without_donor),
		cmocka_unit_test_setup_teardown(many_connections_of_one_key, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(ends_without_slabs, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(revoked_slabs_without_a_session, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(mapped_over_and_over, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(refused_maps, with_quota, without_donor),
		cmocka_unit_test_setup_teardown(many_questions, with_quota, without_donor),
	};

	log_setup("fairness", LOG_LVL_ERR);
	return cmocka_run_group_tests_name("fairness", tests, NULL, NULL);
}
