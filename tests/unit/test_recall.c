// SPDX-License-Identifier: GPL-2.0-or-later
/* How a donor recalls slabs by ACTIVITY and EVICT, and announces revocations. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "donor_world.h"
#include "lib/base/clock.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

/* Answers an ACTIVITY: for the loan at index i of the peer's @rate[i]. */
static void tell_rates(struct donor *d, struct peer *p, struct wire_frame f, const uint64_t *rate)
{
	uint8_t payload[WIRE_SMALL];

	for (uint32_t i = 0; i < f.length / WIRE_LOAN_SIZE; i++) {
		struct wire_loan loan = wire_get_loan(p->payload, i);
		uint32_t at = 0;

		while (at < p->count && p->loans[at].slab != loan.slab)
			at++;
		assert_true(at < p->count && p->loans[at].generation == loan.generation);
		wire_put_rate(payload, i, rate[at]);
	}
	f.direction = WIRE_REPLY;
	send_frame(d, p, f, payload);
}

static void by_activity(void **state)
{
	static const uint64_t low[] = { 5, 1, 3, 2 }, high[] = { 50, 10, 30, 20 };
	struct donor *d = *state;
	struct peer a, b;
	struct wire_frame f;

	connect_peer(d, &a, 1, 4);
	connect_peer(d, &b, 2, 4);
	/* 5 + 3 of 8: all of them. */
	eviction_start(&d->l->eviction, &d->l->follow.rule, 5, now_ns());
	turn(d->l);
	f = take(&a, WIRE_ACTIVITY);
	assert_int_equal(f.length, 4 * WIRE_LOAN_SIZE);
	tell_rates(d, &a, f, low);
	/* Not before the others have told, or had their time. */
	assert_false(take_frame(&a, &f));
	tell_rates(d, &b, take(&b, WIRE_ACTIVITY), high);
	for (int i = 0; i < 4; i++)
		answer(d, &a, take(&a, WIRE_EVICT), WIRE_OK);
	f = take(&b, WIRE_EVICT);
	assert_int_equal(f.slab, b.loans[1].slab);
	assert_int_equal(f.generation, b.loans[1].generation);
	assert_false(take_frame(&b, &f));
	assert_int_equal(eviction_expected(&d->l->eviction), 5);
	assert_int_equal(d->l->eviction.counts.promised, 4);
	/* An asked owner is not sampled again. */
	eviction_start(&d->l->eviction, &d->l->follow.rule, 8, now_ns());
	turn(d->l);
	assert_false(take_frame(&a, &f));
	assert_int_equal(take(&b, WIRE_ACTIVITY).length, 3 * WIRE_LOAN_SIZE);
	close(a.fd);
	close(b.fd);
	turn(d->l);
	assert_int_equal(d->pool.in[LEND_LENT], 0);
	assert_int_equal(d->l->eviction.waiting, 0);
}

static void a_late_answer(void **state)
{
	static const uint64_t rates[] = { 9, 9, 9, 9 };
	struct donor *d = *state;
	struct peer a, b;
	struct wire_frame late, f;
	uint64_t now = now_ns();

	connect_peer(d, &a, 1, 4);
	connect_peer(d, &b, 2, 4);
	eviction_start(&d->l->eviction, &d->l->follow.rule, 4, now);
	turn(d->l);
	late = take(&a, WIRE_ACTIVITY);
	f = take(&b, WIRE_ACTIVITY);
	tell_rates(d, &b, f, rates);
	assert_int_equal(d->l->eviction.waiting, 1);
	eviction_turn(&d->l->eviction, now + EVICTION_ACTIVITY_NS - 1);
	assert_int_equal(d->l->eviction.want, 4);
	eviction_turn(&d->l->eviction, now + EVICTION_ACTIVITY_NS);
	assert_int_equal(d->l->eviction.want, 0);
	assert_int_equal(d->l->eviction.counts.silent, 1);
	/* It owes an answer, so it is not asked again: one ACTIVITY at a time. */
	eviction_start(&d->l->eviction, &d->l->follow.rule, 1, now);
	turn(d->l);
	while (take_frame(&a, &f))
		assert_int_equal(f.op, WIRE_EVICT);
	tell_rates(d, &a, late, rates);
	assert_int_equal(a.c->borrower.asked, 0);
	assert_false(hung_up(&a));
	/* The same answer twice is one to nothing. */
	tell_rates(d, &a, late, rates);
	assert_true(hung_up(&a));
	close(a.fd);
	close(b.fd);
}

/* At most WIRE_EVICTS without an answer, however many are wanted. */
static void evicts_are_bounded(void **state)
{
	static const uint64_t rates[SLABS];
	struct donor *d = *state;
	struct wire_frame f[WIRE_EVICTS], more;
	struct peer a;

	connect_peer(d, &a, 1, SLABS);
	eviction_start(&d->l->eviction, &d->l->follow.rule, SLABS, now_ns());
	turn(d->l);
	tell_rates(d, &a, take(&a, WIRE_ACTIVITY), rates);
	for (uint32_t i = 0; i < WIRE_EVICTS; i++)
		f[i] = take(&a, WIRE_EVICT);
	assert_false(take_frame(&a, &more));
	for (uint32_t i = 0; i < WIRE_EVICTS; i++) {
		answer(d, &a, f[i], i % 2 ? WIRE_NO_ROOM : WIRE_OK);
		take(&a, WIRE_EVICT);
		assert_false(take_frame(&a, &more));
	}
	assert_int_equal(d->l->eviction.counts.refused, WIRE_EVICTS / 2);
	assert_int_equal(eviction_expected(&d->l->eviction), SLABS - WIRE_EVICTS / 2);
	close(a.fd);
}

static void what_is_not_there_is_back(void **state)
{
	static const uint64_t rates[SLABS];
	struct donor *d = *state;
	struct wire_frame f[3];
	struct peer a;

	connect_peer(d, &a, 1, 3);
	eviction_start(&d->l->eviction, &d->l->follow.rule, 3, now_ns());
	turn(d->l);
	tell_rates(d, &a, take(&a, WIRE_ACTIVITY), rates);
	for (int i = 0; i < 3; i++)
		f[i] = take(&a, WIRE_EVICT);
	answer(d, &a, f[0], WIRE_NO_SLAB);
	assert_int_equal(d->pool.in[LEND_LENT], 2);
	/* UNMAP and EVICT have crossed. */
	send_frame(d, &a, (struct wire_frame){ .op = WIRE_UNMAP, .slab = f[1].slab,
					       .generation = f[1].generation }, NULL);
	assert_int_equal(take(&a, WIRE_UNMAP).status, WIRE_OK);
	answer(d, &a, f[1], WIRE_NO_SLAB);
	assert_int_equal(d->pool.in[LEND_LENT], 1);
	assert_int_equal(d->l->eviction.counts.returned, 2);
	assert_false(hung_up(&a));
	/* Of another loan than asked for. */
	f[2].generation++;
	answer(d, &a, f[2], WIRE_OK);
	assert_true(hung_up(&a));
	assert_int_equal(d->pool.in[LEND_LENT], 0);
	close(a.fd);
}

/* A borrower hears at once of a revoked slab, if it understands that; its others stay. */
static void revocation_is_announced(void **state)
{
	struct donor *d = *state;
	struct wire_frame f;
	struct peer a;

	for (version = WIRE_VERSION_OLDEST; version <= WIRE_VERSION; version++) {
		connect_peer(d, &a, 1, 2);
		revoke_slab(d, a.loans[0].slab);
		if (version >= 4) {
			f = take(&a, WIRE_REVOKED);
			assert_int_equal(f.slab, a.loans[0].slab);
			assert_int_equal(f.generation, a.loans[0].generation);
		}
		assert_false(take_frame(&a, &f));
		assert_int_equal(say(d, &a, WIRE_UNMAP, a.loans[0]), WIRE_STALE);
		assert_int_equal(say(d, &a, WIRE_UNMAP, a.loans[1]), WIRE_OK);
		close(a.fd);
		turn(d->l);
	}
	version = WIRE_VERSION;
}

/* It waits for room in the queue of a borrower that does not read, which limits nothing else. */
static void announced_when_there_is_room(void **state)
{
	enum { REQUESTS = 2 * CONNECTION_REPLIES };
	struct donor *d = *state;
	uint8_t requests[REQUESTS * WIRE_HEADER];
	struct wire_frame f;
	int came = 0, little = 4096, much = SLAB;
	struct peer a, b;

	d->l->sessions.options.keep = 30 * SECOND;
	assert_int_equal(greet_as(d, &a, 1, WIRE_KEEP), WIRE_OK);
	assert_int_equal(map(d, &a), WIRE_OK);
	setsockopt(a.c->fd, SOL_SOCKET, SO_SNDBUF, &little, sizeof(little));
	for (int i = 0; i < REQUESTS; i++)
		wire_build(requests + i * WIRE_HEADER, &(struct wire_frame){ .op = WIRE_UNMAP,
									     .slab = SLABS });
	assert_int_equal(send(a.fd, requests, sizeof(requests), 0), sizeof(requests));
	turn(d->l);
	assert_false(connection_has_room(a.c));
	revoke_slab(d, a.loans[0].slab);
	assert_true(d->pool.slabs[a.loans[0].slab].untold);
	assert_true(stream_tx_room(&a.c->tx) >= WIRE_ASKED);
	setsockopt(a.c->fd, SOL_SOCKET, SO_SNDBUFFORCE, &much, sizeof(much));
	turn(d->l);
	for (int i = 0; i < 1000 && came < REQUESTS + 1; i++) {
		while (take_frame(&a, &f))
			came++;
		turn(d->l);
	}
	setsockopt(a.c->fd, SOL_SOCKET, SO_SNDBUF, &little, sizeof(little));
	assert_int_equal(came, REQUESTS + 1);
	assert_false(d->pool.slabs[a.loans[0].slab].untold);
	/* One that reconnects instead is told by the reply to REMAP. */
	assert_int_equal(map(d, &a), WIRE_OK);
	assert_int_equal(send(a.fd, requests, sizeof(requests), 0), sizeof(requests));
	turn(d->l);
	revoke_slab(d, a.loans[1].slab);
	assert_true(d->pool.slabs[a.loans[1].slab].untold);
	close(a.fd);
	turn(d->l);
	assert_false(d->pool.slabs[a.loans[1].slab].untold);
	assert_true(connection_is_free(a.c));
	assert_int_equal(greet_as(d, &b, 1, WIRE_KEEP), WIRE_OK);
	assert_false(take_frame(&b, &f));
	close(b.fd);
}

/* Sends @n bytes, of a frame that has more of them. */
static void send_some(struct donor *d, const struct peer *p, const void *bytes, size_t n)
{
	assert_int_equal(send(p->fd, bytes, n, 0), n);
	turn(d->l);
}

/* Stops in the midst of a WRITE to the first page of @loan. */
static void begin_write(struct donor *d, const struct peer *p, struct wire_loan loan)
{
	const struct wire_frame f = { .op = WIRE_WRITE, .slab = loan.slab,
				      .generation = loan.generation, .length = WIRE_PAGE };
	uint8_t bytes[WIRE_HEADER + 100];

	memset(bytes, 'w', sizeof(bytes));
	wire_build(bytes, &f);
	send_some(d, p, bytes, sizeof(bytes));
	assert_int_equal(d->pool.slabs[loan.slab].pins, 1);
}

static void end_write(struct donor *d, const struct peer *p)
{
	uint8_t bytes[WIRE_PAGE - 100];

	memset(bytes, 'w', sizeof(bytes));
	send_some(d, p, bytes, sizeof(bytes));
}

/* Returns whether the slab can be lent to others, or its memory released. */
static bool is_free(const struct donor *d, uint32_t slab)
{
	const struct lend_slab *s = &d->pool.slabs[slab];

	return (s->state == LEND_DIRTY || s->state == LEND_CLEAN) && !s->pins;
}

/*
 * A borrower that stops in the midst of a WRITE does not keep memory that is revoked, and what it
 * sends later does not reach it.
 */
static void a_write_that_stops(void **state)
{
	struct donor *d = *state;
	struct peer a, b;
	struct wire_loan loan;

	connect_peer(d, &a, 1, 1);
	loan = a.loans[0];
	begin_write(d, &a, loan);
	revoke_slab(d, loan.slab);
	assert_true(is_free(d, loan.slab));
	take(&a, WIRE_REVOKED);
	while (d->pool.slabs[loan.slab].state != LEND_CLEAN)
		turn(d->l);
	connect_peer(d, &b, 2, 1);
	assert_int_equal(b.loans[0].slab, loan.slab);
	end_write(d, &a);
	assert_int_equal(take(&a, WIRE_WRITE).status, WIRE_STALE);
	for (uint32_t i = 0; i < WIRE_PAGE; i++)
		assert_int_equal(pool_memory(&d->pool, loan.slab)[i], 0);
	/* The connection goes on. */
	assert_int_equal(map(d, &a), WIRE_OK);
	begin_write(d, &a, a.loans[1]);
	end_write(d, &a);
	assert_int_equal(take(&a, WIRE_WRITE).status, WIRE_OK);
	assert_int_equal(pool_memory(&d->pool, a.loans[1].slab)[WIRE_PAGE - 1], 'w');
	close(a.fd);
	close(b.fd);
}

/* Nor does one that reads replies so slowly that it never stops. */
static void replies_that_are_read_slowly(void **state)
{
	enum { READS = 64 };
	struct donor *d = *state;
	struct lend_slab *slab;
	struct peer a;
	int little = 4096;

	d->l->sessions.options.keep = 30 * SECOND;
	assert_int_equal(greet_as(d, &a, 1, WIRE_KEEP), WIRE_OK);
	assert_int_equal(map(d, &a), WIRE_OK);
	assert_int_equal(map(d, &a), WIRE_OK);
	slab = &d->pool.slabs[a.loans[0].slab];
	setsockopt(a.c->fd, SOL_SOCKET, SO_SNDBUF, &little, sizeof(little));
	for (int i = 0; i < READS; i++)
		send_frame(d, &a, (struct wire_frame){ .op = WIRE_READ, .slab = a.loans[0].slab,
			   .generation = a.loans[0].generation, .length = WIRE_PAGE }, NULL);
	assert_in_range(slab->pins, READS / 2, READS);
	revoke_slab(d, a.loans[0].slab);
	/* It has just read one. */
	a.c->sent_at = now_ns() + 9 * SECOND;
	connections_tick(&d->l->sessions, now_ns() + 9 * SECOND);
	assert_true(slab->pins > 0);
	a.c->sent_at = now_ns() + 11 * SECOND;
	connections_tick(&d->l->sessions, now_ns() + 11 * SECOND);
	assert_int_equal(slab->pins, 0);
	/* It may come back for the other slab. */
	assert_int_equal(a.c->fd, -1);
	assert_int_equal(d->pool.in[LEND_LENT], 1);
	close(a.fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(by_activity, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(a_late_answer, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(evicts_are_bounded, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(what_is_not_there_is_back, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(revocation_is_announced, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(announced_when_there_is_room, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(a_write_that_stops, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(replies_that_are_read_slowly, with_donor,
						without_donor),
	};

	log_setup("recall", LOG_LVL_ERR);
	return cmocka_run_group_tests_name("recall", tests, NULL, NULL);
}
