// SPDX-License-Identifier: GPL-2.0-or-later
/* What a borrower may have of a donor: free slabs, its quota, and what is promised to it. */
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

/* What @p is told that it could have: slabs that are free, and of all that there may be. */
static void figures(struct donor *d, struct peer *p, uint32_t *free_slabs, uint32_t *room)
{
	struct wire_donor told;
	struct wire_frame f;

	send_frame(d, p, (struct wire_frame){ .op = WIRE_PING }, NULL);
	f = take(p, WIRE_PING);
	assert_int_equal(wire_parse_donor(p->payload, f.length, &told), 0);
	*free_slabs = (uint32_t)(told.free / SLAB);
	*room = (uint32_t)(told.total / SLAB) - f.slab;
}

/* Free is what is there; there may be more to come, but none of what others have. */
static void what_there_is_for_it(void **state)
{
	struct donor *d = *state;
	uint32_t free_slabs, room;
	struct peer a, b;

	connect_peer(d, &a, 1, 3);
	connect_peer(d, &b, 2, 5);
	figures(d, &a, &free_slabs, &room);
	assert_int_equal(free_slabs, SLABS - 8);
	assert_int_equal(room, SLABS - 8);
	/* A machine with room, on which the others have not been made yet. */
	for (int i = 8; i < SLABS; i++)
		d->pool.slabs[i].state = LEND_ABSENT;
	d->pool.in[LEND_CLEAN] = 0;
	d->pool.in[LEND_ABSENT] = SLABS - 8;
	d->l->follow.room = (struct headroom){ .memory = 64ull << 30,
					       .available = 64ull << 30,
					       .seen = true };
	d->l->follow.rule.most = SLABS * SLAB;
	d->pool.allowed = headroom_slabs(&d->l->follow.room, &d->l->follow.rule);
	figures(d, &a, &free_slabs, &room);
	assert_int_equal(free_slabs, 0);
	assert_int_equal(room, SLABS - 8);
	close(a.fd);
	close(b.fd);
}

/* What is promised to one is lent to no other, and of two that want all one gets it. */
static void promised_to_one(void **state)
{
	struct donor *d = *state;
	uint32_t free_slabs, room;
	struct peer a, b;

	connect_peer(d, &a, 1, 2);
	connect_peer(d, &b, 2, 3);
	assert_int_equal(reserve(d, &a, 30), 30);
	figures(d, &a, &free_slabs, &room);
	assert_int_equal(free_slabs, SLABS - 5);
	assert_int_equal(room, SLABS - 5);
	figures(d, &b, &free_slabs, &room);
	assert_int_equal(free_slabs, SLABS - 33);
	assert_int_equal(room, SLABS - 33);
	assert_int_equal(reserve(d, &b, 30), SLABS - 30);
	assert_int_equal(pool_lendable(&d->pool), 0);
	/* Its own loans count, so it gets what it was promised and no more. */
	for (int i = 3; i < SLABS - 30; i++)
		assert_int_equal(map(d, &b), WIRE_OK);
	assert_int_equal(map(d, &b), WIRE_NO_SPACE);
	for (int i = 2; i < 30; i++)
		assert_int_equal(map(d, &a), WIRE_OK);
	assert_int_equal(map(d, &a), WIRE_NO_SPACE);
	/* A returned slab is promised again. */
	assert_int_equal(say(d, &a, WIRE_UNMAP, a.loans[0]), WIRE_OK);
	assert_int_equal(map(d, &b), WIRE_NO_SPACE);
	assert_int_equal(map(d, &a), WIRE_OK);
	/* Less than it has: nothing is promised, and what it has stays. */
	assert_int_equal(reserve(d, &a, 0), 0);
	assert_int_equal(pool_promised(&d->pool), 0);
	assert_int_equal(d->pool.in[LEND_LENT], SLABS);
	close(a.fd);
	close(b.fd);
}

/* A promise outlives its connection as loans do, and is never counted twice. */
static void a_promise_is_kept_for_a_successor(void **state)
{
	struct donor *d = *state;
	struct peer a, b, c;

	d->l->sessions.options.keep = 30 * SECOND;
	assert_int_equal(greet_as(d, &a, 1, WIRE_KEEP), WIRE_OK);
	connect_peer(d, &b, 2, 0);
	assert_int_equal(reserve(d, &a, SLABS), SLABS);
	/* Nothing is lent yet. */
	close(a.fd);
	turn(d->l);
	assert_int_equal(pool_promised(&d->pool), SLABS);
	assert_int_equal(map(d, &b), WIRE_NO_SPACE);
	/* The next connection has it, before the first one ended, too. */
	assert_int_equal(greet_as(d, &a, 1, WIRE_KEEP), WIRE_OK);
	assert_int_equal(pool_promised(&d->pool), SLABS);
	for (int i = 0; i < 10; i++)
		assert_int_equal(map(d, &a), WIRE_OK);
	assert_int_equal(greet_as(d, &c, 1, WIRE_KEEP | WIRE_RESUME), WIRE_OK);
	assert_int_equal(c.c->borrower.reserved, SLABS);
	assert_int_equal(pool_promised(&d->pool), SLABS - 10);
	assert_int_equal(say(d, &c, WIRE_RELEASE, (struct wire_loan){ 0 }), WIRE_OK);
	assert_int_equal(pool_promised(&d->pool), SLABS);
	assert_int_equal(reserve(d, &c, SLABS), SLABS);
	close(a.fd);
	/* It ends with the grace period. */
	close(c.fd);
	turn(d->l);
	connections_tick(&d->l->sessions, now_ns() + 29 * SECOND);
	assert_int_equal(pool_promised(&d->pool), SLABS);
	connections_tick(&d->l->sessions, now_ns() + 31 * SECOND);
	assert_int_equal(pool_promised(&d->pool), 0);
	assert_int_equal(map(d, &b), WIRE_OK);
	/* It ends with BYE, at once. */
	assert_int_equal(greet_as(d, &a, 1, WIRE_KEEP), WIRE_OK);
	assert_int_equal(reserve(d, &a, UINT32_MAX), SLABS - 1);
	assert_int_equal(say(d, &a, WIRE_BYE, (struct wire_loan){ 0 }), WIRE_OK);
	assert_int_equal(pool_promised(&d->pool), 0);
	close(a.fd);
	close(b.fd);
}

/* Version 3 has no reservation: it takes no part of others', and asks for none. */
static void no_promise_for_version_3(void **state)
{
	struct donor *d = *state;
	struct peer a, b;
	uint8_t payload[WIRE_RESERVE_SIZE];

	connect_peer(d, &a, 1, 0);
	connect_peer(d, &b, 2, 0);
	assert_int_equal(reserve(d, &a, SLABS - 1), SLABS - 1);
	b.c->version = 3;
	assert_int_equal(map(d, &b), WIRE_OK);
	assert_int_equal(map(d, &b), WIRE_NO_SPACE);
	wire_build_reserve(payload, 1);
	send_frame(d, &b, (struct wire_frame){ .op = WIRE_RESERVE, .length = sizeof(payload) },
		   payload);
	assert_true(hung_up(&b));
	close(a.fd);
	close(b.fd);
}

/* A draining donor promises no more, and withdraws no promise. */
static void promises_and_a_drain(void **state)
{
	struct donor *d = *state;
	struct peer a;

	connect_peer(d, &a, 1, 0);
	assert_int_equal(reserve(d, &a, 5), 5);
	loop_drain(d->l, LOOP_STAY);
	assert_int_equal(reserve(d, &a, 9), 5);
	assert_int_equal(map(d, &a), WIRE_NO_SPACE);
	assert_int_equal(reserve(d, &a, 2), 2);
	/* The machine has the memory that was released. */
	loop_undrain(d->l);
	settle(d);
	d->pool.allowed = SLABS;
	assert_int_equal(reserve(d, &a, 9), 9);
	close(a.fd);
}

/* A borrower whose loans are all revoked in the grace period still has its reservation. */
static void a_promise_survives_revocation(void **state)
{
	struct donor *d = *state;
	struct peer a, b;

	d->l->sessions.options.keep = 30 * SECOND;
	assert_int_equal(greet_as(d, &a, 1, WIRE_KEEP), WIRE_OK);
	assert_int_equal(reserve(d, &a, 5), 5);
	assert_int_equal(map(d, &a), WIRE_OK);
	close(a.fd);
	turn(d->l);
	pool_hand_over(&d->pool, a.loans[0].slab);
	revoke_slab(d, a.loans[0].slab);
	/* It maps nothing any more, and REMAP will tell. */
	assert_false(d->pool.slabs[a.loans[0].slab].mapped);
	assert_false(d->pool.slabs[a.loans[0].slab].untold);
	assert_int_equal(greet_as(d, &b, 1, WIRE_KEEP | WIRE_RESUME), WIRE_OK);
	assert_int_equal(b.c->borrower.reserved, 5);
	assert_int_equal(say(d, &b, WIRE_REMAP, a.loans[0]), WIRE_STALE);
	/* Nothing is left to resume. */
	assert_int_equal(reserve(d, &b, 0), 0);
	assert_int_equal(greet_as(d, &a, 1, WIRE_KEEP | WIRE_RESUME), WIRE_NO_SESSION);
	close(a.fd);
	close(b.fd);
}

static void a_quota_of_promises(void **state)
{
	struct donor *d = *state;
	struct peer a, b;

	connect_peer(d, &a, 1, 1);
	assert_int_equal(reserve(d, &a, SLABS), 2);
	connect_peer(d, &b, 2, 0);
	assert_int_equal(reserve(d, &b, SLABS), 2);
	assert_int_equal(map(d, &a), WIRE_OK);
	assert_int_equal(map(d, &a), WIRE_OVER_QUOTA);
	/* Borrowers with one key share it. */
	strcpy(a.c->borrower.key, "spark");
	strcpy(b.c->borrower.key, "spark");
	for (int i = 0; i < SLABS; i++)
		if (d->pool.slabs[i].state == LEND_LENT)
			strcpy(d->pool.slabs[i].key, "spark");
	assert_int_equal(reserve(d, &b, 0), 0);
	assert_int_equal(reserve(d, &b, 1), 0);
	assert_int_equal(say(d, &a, WIRE_UNMAP, a.loans[0]), WIRE_OK);
	assert_int_equal(reserve(d, &b, 1), 0);
	assert_int_equal(reserve(d, &a, 1), 1);
	assert_int_equal(reserve(d, &b, 2), 1);
	assert_int_equal(map(d, &a), WIRE_OVER_QUOTA);
	assert_int_equal(map(d, &b), WIRE_OK);
	close(a.fd);
	close(b.fd);
}

static void quotas(void **state)
{
	struct donor *d = *state;
	uint32_t free_slabs, room;
	struct peer a, b;

	connect_peer(d, &a, 1, 1);
	figures(d, &a, &free_slabs, &room);
	assert_int_equal(free_slabs, 1);
	assert_int_equal(room, 1);
	assert_int_equal(map(d, &a), WIRE_OK);
	figures(d, &a, &free_slabs, &room);
	assert_int_equal(free_slabs, 0);
	assert_int_equal(room, 0);
	assert_int_equal(map(d, &a), WIRE_OVER_QUOTA);
	connect_peer(d, &b, 2, 2);
	assert_int_equal(map(d, &b), WIRE_OVER_QUOTA);
	/* A second connection of the first is the first's: it has nothing yet. */
	connect_peer(d, &b, 1, 2);
	assert_true(hung_up(&a));
	close(a.fd);
	close(b.fd);
}

/* A released slab that replies still pin is not lent to others, and counts. */
static void a_quota_of_what_is_used(void **state)
{
	struct wire_frame read = { .op = WIRE_READ, .length = SLAB }, unmap = { .op = WIRE_UNMAP };
	struct wire_frame map_one = { .op = WIRE_MAP, .length = WIRE_MAP_SIZE };
	static uint8_t sink[4 * SLAB];
	uint8_t payload[WIRE_MAP_SIZE];
	struct donor *d = *state;
	struct peer a;

	connect_peer(d, &a, 1, 2);
	for (uint32_t i = 0; i < 2; i++) {
		read.slab = unmap.slab = a.loans[i].slab;
		read.generation = unmap.generation = a.loans[i].generation;
		send_frame(d, &a, read, NULL);
		send_frame(d, &a, unmap, NULL);
	}
	wire_build_map(payload, WIRE_CLASS_SWAP);
	send_frame(d, &a, map_one, payload);
	assert_int_equal(d->pool.in[LEND_LENT], 0);
	for (int i = 0; i < 100; i++) {
		recv(a.fd, sink, sizeof(sink), MSG_DONTWAIT);
		turn(d->l);
	}
	assert_int_equal(map(d, &a), WIRE_OK);
	assert_int_equal(map(d, &a), WIRE_OK);
	assert_int_equal(map(d, &a), WIRE_OVER_QUOTA);
	close(a.fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(what_there_is_for_it, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(promised_to_one, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(a_promise_is_kept_for_a_successor, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(no_promise_for_version_3, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(promises_and_a_drain, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(a_quota_of_promises, with_quota, without_donor),
		cmocka_unit_test_setup_teardown(quotas, with_quota, without_donor),
		cmocka_unit_test_setup_teardown(a_quota_of_what_is_used, with_quota, without_donor),
		cmocka_unit_test_setup_teardown(a_promise_survives_revocation, with_donor,
						without_donor),
	};

	log_setup("quotas", LOG_LVL_ERR);
	return cmocka_run_group_tests_name("quotas", tests, NULL, NULL);
}
