// SPDX-License-Identifier: GPL-2.0-or-later
/* What a donor revokes when its machine runs out of memory: slabs that are elsewhere, too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "donor_world.h"
#include "lib/base/clock.h"
#include "lib/base/files.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static void say_available(const struct donor *d, uint64_t kib)
{
	char text[80];

	snprintf(text, sizeof(text), "MemTotal: 1048576 kB\nMemAvailable: %llu kB\n",
		 (unsigned long long)kib);
	assert_int_equal(file_replace(d->meminfo, text), 0);
}

/* Samples the machine and does what that requires. */
static void sample(struct donor *d)
{
	loop_tick(d->l, now_ns());
	settle(d);
	for (int i = 0; i < 60000 && d->pool.in[LEND_GOING]; i++) {
		turn(d->l);
		usleep(1000);
	}
}

/* The status of an UNMAP behind frames that the donor sent by itself. */
static enum wire_status say_unmapped(struct donor *d, struct peer *p, struct wire_loan loan)
{
	struct wire_frame f = { .op = WIRE_UNMAP, .slab = loan.slab,
				.generation = loan.generation };

	send_frame(d, p, f, NULL);
	do
		assert_true(take_frame(p, &f));
	while (f.op != WIRE_UNMAP);
	return f.status;
}

static uint32_t lent_backed(const struct donor *d)
{
	uint32_t n = 0;

	for (int i = 0; i < SLABS; i++)
		n += d->pool.slabs[i].state == LEND_LENT && d->pool.slabs[i].backed;
	return n;
}

/*
 * Before the kernel kills programs, the donor reclaims what is elsewhere, too: free slabs first,
 * and never an only copy.
 */
static void an_emergency(void **state)
{
	enum { BACKED = 4, OTHERS = 3 };
	struct donor *d = *state;
	const uint32_t *in = d->pool.in;
	struct wire_frame f;
	struct peer a;
	uint32_t told = 0;
	uint64_t began;

	connect_peer(d, &a, 1, OTHERS);
	loan_flags = WIRE_BACKED;
	for (int i = 0; i < BACKED; i++)
		assert_int_equal(map(d, &a), WIRE_OK);
	loan_flags = 0;
	assert_int_equal(lent_backed(d), BACKED);
	/* The reserve is half of HeadRoom: 512 KiB.  Borrowers have a second to release slabs. */
	say_available(d, 200);
	began = now_ns();
	sample(d);
	assert_true(d->l->follow.emergency_since);
	assert_true(in[LEND_LENT] == BACKED + OTHERS || now_ns() - began > SECOND);
	say_available(d, 0);
	for (int i = 0; i < 2 * SLABS; i++) {
		uint32_t free_slabs = pool_free_slabs(&d->pool);

		sample(d);
		assert_true(!free_slabs || in[LEND_LENT] == BACKED + OTHERS);
	}
	assert_int_equal(in[LEND_LENT], OTHERS);
	assert_int_equal(lent_backed(d), 0);
	assert_int_equal(d->l->eviction.counts.revoked, BACKED);
	assert_int_equal(d->l->eviction.counts.revoked_backed, BACKED);
	while (take_frame(&a, &f))
		told += f.op == WIRE_REVOKED;
	assert_int_equal(told, BACKED);
	close(a.fd);
}

/* Has the machine sampled some times; returns how many slabs were revoked until then. */
static uint64_t revoked_after(struct donor *d, int samples)
{
	for (int i = 0; i < samples; i++)
		sample(d);
	return d->l->eviction.counts.revoked;
}

/*
 * The memory of a revoked slab is free only when nothing uses it: neither its borrower's mapping,
 * nor a reply on its way.  Until then, for a second at most, the donor revokes no other for it.
 */
static void an_emergency_awaits_what_is_leaving(void **state)
{
	enum { BACKED = 8 };
	struct donor *d = *state;
	struct lend_slab *slabs = d->pool.slabs;
	uint32_t first = SLABS, second;
	struct wire_frame f;
	struct peer a;
	uint64_t began;

	loan_flags = WIRE_BACKED;
	connect_peer(d, &a, 1, BACKED);
	loan_flags = 0;
	say_available(d, 100);
	/* Free slabs first. */
	for (int i = 0; i < 2 * SLABS && pool_free_slabs(&d->pool); i++) {
		say_available(d, 400);
		sample(d);
	}
	assert_int_equal(d->pool.in[LEND_LENT], BACKED);
	for (int i = 0; i < BACKED; i++)
		pool_hand_over(&d->pool, a.loans[i].slab);
	/* One slab of 1 MiB is enough. */
	say_available(d, 100);
	began = now_ns();
	assert_true(revoked_after(d, 5) == 1 || now_ns() - began > SECOND);
	for (uint32_t i = 0; i < BACKED; i++)
		first = slabs[a.loans[i].slab].state == LEND_LENT ? first : i;
	/* That was not enough: others use it. */
	assert_int_equal(say_unmapped(d, &a, a.loans[first]), WIRE_STALE);
	began = now_ns();
	assert_true(revoked_after(d, 5) == 2 || now_ns() - began > SECOND);
	/* A borrower that does not unmap it is not waited for any longer. */
	for (uint32_t i = 0; i < SLABS; i++)
		slabs[i].revoked_at -= slabs[i].revoked_at ? SECOND : 0;
	began = now_ns();
	assert_true(revoked_after(d, 5) == 3 || now_ns() - began > SECOND);
	/* A reply uses the next one. */
	for (uint32_t i = 0; i < SLABS; i++) {
		slabs[i].revoked_at -= slabs[i].revoked_at ? SECOND : 0;
		slabs[i].pins += slabs[i].state == LEND_LENT;
		slabs[i].handed = false;
	}
	began = now_ns();
	assert_true(revoked_after(d, 5) == 4 || now_ns() - began > SECOND);
	for (second = 0; slabs[second].state != LEND_DIRTY;)
		second++;
	pool_unpin(&d->pool, second);
	began = now_ns();
	assert_true(revoked_after(d, 5) == 5 || now_ns() - began > SECOND);
	for (uint32_t i = 0; i < SLABS; i++)
		slabs[i].pins = 0;
	while (take_frame(&a, &f))
		;
	close(a.fd);
}

/*
 * --revoke-after costs pages: it ends only as many loans as the machine lacks slabs, beside those
 * that their borrowers are moving, and those revoked whose memory is not free yet.
 */
static void revokes_no_more_than_is_lacking(void **state)
{
	enum { LENT = 16 };
	struct donor *d = *state;
	struct lend_slab *slabs = d->pool.slabs;
	uint64_t now = now_ns(), began;
	struct wire_frame f;
	struct peer a;

	d->l->follow.no_emergency = true;
	d->l->follow.rule.headroom = d->l->follow.headroom = 12 << 20;
	d->l->eviction.options.revoke = 10 * SECOND;
	connect_peer(d, &a, 1, LENT);
	for (int i = 0; i < 2 * SLABS && pool_free_slabs(&d->pool); i++)
		sample(d);
	for (int i = 0; i < LENT; i++) {
		pool_hand_over(&d->pool, a.loans[i].slab);
		pool_asked(&d->pool, a.loans[i].slab, LEND_REFUSED, now);
		slabs[a.loans[i].slab].asked_at = now - 20 * SECOND;
		slabs[a.loans[i].slab].answered_at = now;
	}
	/* Its borrower has promised this one lately. */
	pool_asked(&d->pool, a.loans[0].slab, LEND_PROMISED, now);
	slabs[a.loans[0].slab].asked_at = now;
	/* Half of HeadRoom is 6 MiB: 4 slabs are lacking. */
	say_available(d, 2 << 10);
	d->l->follow.short_since = now - 11 * SECOND;
	began = now_ns();
	sample(d);
	assert_int_equal(d->l->eviction.counts.revoked, 3);
	assert_false(slabs[a.loans[0].slab].revoked);
	/* Their borrower still maps them. */
	assert_true(revoked_after(d, 3) == 3 || now_ns() - began > SECOND);
	while (take_frame(&a, &f))
		;
	close(a.fd);
}

/*
 * A shortage of 4 slabs and two borrowers that have promised all of theirs: @a its first @old ones
 * long ago, its other ones lately, and @b lately.
 */
static void make_promises(struct donor *d, struct peer *a, int old, struct peer *b, uint64_t now)
{
	const struct peer *peers[] = { a, b };

	d->l->follow.no_emergency = true;
	d->l->follow.rule.headroom = d->l->follow.headroom = 12 << 20;
	d->l->eviction.options.revoke = 10 * SECOND;
	d->l->eviction.options.overdue = 5 * SECOND;
	for (int i = 0; i < 2 * SLABS && pool_free_slabs(&d->pool); i++)
		sample(d);
	for (int p = 0; p < 2; p++)
		for (uint32_t i = 0; i < peers[p]->count; i++) {
			uint32_t slab = peers[p]->loans[i].slab;
			bool long_ago = p == 0 && (int)i < old;

			pool_hand_over(&d->pool, slab);
			pool_asked(&d->pool, slab, LEND_PROMISED, now);
			d->pool.slabs[slab].asked_at = now - (long_ago ? 20 : 6) * SECOND;
		}
	say_available(d, 2 << 10);
	d->l->follow.short_since = now - 11 * SECOND;
	sample(d);
}

static uint32_t revoked_of(const struct donor *d, const struct peer *p)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < p->count; i++)
		n += d->pool.slabs[p->loans[i].slab].revoked;
	return n;
}

static void forget(struct peer *p)
{
	struct wire_frame f;

	while (take_frame(p, &f))
		;
	close(p->fd);
}

/* A borrower that keeps no promise cannot put off --revoke-after by giving others. */
static void new_promises_of_a_borrower_that_kept_none(void **state)
{
	struct donor *d = *state;
	struct peer a, b;

	connect_peer(d, &a, 1, 16);
	connect_peer(d, &b, 2, 0);
	make_promises(d, &a, 12, &b, now_ns());
	assert_int_equal(revoked_of(d, &a), 4);
	for (int i = 12; i < 16; i++)
		assert_false(d->pool.slabs[a.loans[i].slab].revoked);
	forget(&a);
	forget(&b);
}

/* The promises of another borrower count: it may be moving those slabs. */
static void promises_of_another_borrower(void **state)
{
	struct donor *d = *state;
	struct peer a, b;

	connect_peer(d, &a, 1, 16);
	connect_peer(d, &b, 2, 3);
	make_promises(d, &a, 12, &b, now_ns());
	assert_int_equal(revoked_of(d, &a), 1);
	assert_int_equal(revoked_of(d, &b), 0);
	forget(&a);
	forget(&b);
}

/* A drain recalls other slabs of a borrower while older ones are late. */
static void a_drain_of_a_borrower_that_keeps_no_promise(void **state)
{
	struct donor *d = *state;
	struct peer a, b;

	connect_peer(d, &a, 1, 36);
	connect_peer(d, &b, 2, 0);
	d->pool.draining = true;
	make_promises(d, &a, 12, &b, now_ns());
	assert_int_equal(revoked_of(d, &a), 4);
	d->pool.draining = false;
	forget(&a);
	forget(&b);
}

/* Without a new sample, nothing says whether what was revoked was enough: no more is revoked. */
static void a_sample_revokes_once(void **state)
{
	struct donor *d = *state;
	struct headroom_follow *f = &d->l->follow;
	uint64_t now = now_ns();
	struct peer a, b;

	connect_peer(d, &a, 1, 16);
	connect_peer(d, &b, 2, 0);
	make_promises(d, &a, 16, &b, now);
	assert_int_equal(revoked_of(d, &a), 4);
	/* The statistics take longer than a second to read, again and again. */
	for (int i = 2; i < 6; i++) {
		f->due = true;
		headroom_follow_second(f, now + i * SECOND);
		assert_int_equal(revoked_of(d, &a), 4);
	}
	forget(&a);
	forget(&b);
}

/* A sample that cannot be taken tells nothing either. */
static void a_failed_sample_revokes_nothing(void **state)
{
	struct donor *d = *state;
	struct peer a, b;

	connect_peer(d, &a, 1, 16);
	connect_peer(d, &b, 2, 0);
	make_promises(d, &a, 0, &b, now_ns());
	assert_int_equal(revoked_of(d, &a), 0);
	/* Recalled too long ago now. */
	for (uint32_t i = 0; i < a.count; i++)
		d->pool.slabs[a.loans[i].slab].asked_at -= 20 * SECOND;
	assert_int_equal(unlink(d->meminfo), 0);
	sample(d);
	assert_true(d->l->follow.sample_failed);
	assert_int_equal(revoked_of(d, &a), 0);
	say_available(d, 2 << 10);
	sample(d);
	assert_int_equal(revoked_of(d, &a), 4);
	forget(&a);
	forget(&b);
}

/* A slow sample that began before the memory of revoked slabs was free does not show it. */
static void a_sample_from_before_a_revocation(void **state)
{
	struct donor *d = *state;
	struct headroom_follow *f = &d->l->follow;
	uint64_t now = now_ns(), later;
	struct peer a, b;

	connect_peer(d, &a, 1, 16);
	connect_peer(d, &b, 2, 0);
	make_promises(d, &a, 16, &b, now);
	assert_int_equal(revoked_of(d, &a), 4);
	/* It begins now and ends in five seconds. */
	later = now_ns() + 5 * SECOND;
	for (uint32_t i = 0; i < SLABS; i++)
		d->pool.slabs[i].revoked_at += d->pool.slabs[i].revoked ? SECOND : 0;
	headroom_follow_second(f, now);
	for (int i = 0; i < 60000 && f->due; i++) {
		usleep(1000);
		headroom_follow_woken(f, later);
	}
	assert_false(f->due);
	assert_int_equal(revoked_of(d, &a), 4);
	/* The next one shows what there is then. */
	for (uint32_t i = 0; i < SLABS; i++)
		d->pool.slabs[i].revoked_at -= d->pool.slabs[i].revoked ? 10 * SECOND : 0;
	sample(d);
	assert_int_equal(revoked_of(d, &a), 8);
	forget(&a);
	forget(&b);
}

/* Borrowers tolerate a limited number of REVOKED a second, however small the slabs are. */
static void an_emergency_goes_step_by_step(void **state)
{
	enum { STEP = HEADROOM_EVICT_MOST / 4 };
	struct donor *d = *state;
	uint64_t before = 0;
	struct peer a;

	loan_flags = WIRE_BACKED;
	connect_peer(d, &a, 1, SLABS);
	loan_flags = 0;
	/* The machine lacks 32 MiB. */
	d->l->options.headroom = d->l->follow.headroom = 256 << 20;
	for (int i = 0; i < 60000 && lent_backed(d); i++) {
		uint64_t revoked;

		machine_watch_ask(&d->l->follow.watch);
		usleep(1000);
		headroom_follow_woken(&d->l->follow, now_ns());
		revoked = d->l->eviction.counts.revoked;
		assert_in_range(revoked, before, before + STEP);
		before = revoked;
		pool_thread_wake(&d->l->pool_thread);
		pool_settle(&d->pool);
	}
	assert_int_equal(lent_backed(d), 0);
	close(a.fd);
}

static void an_emergency_is_met_in_no_other_way(void **state)
{
	struct donor *d = *state;
	struct peer a;

	d->l->follow.no_emergency = true;
	loan_flags = WIRE_BACKED;
	connect_peer(d, &a, 1, 4);
	loan_flags = 0;
	for (int i = 0; i < 2 * SLABS; i++)
		sample(d);
	assert_int_equal(d->pool.in[LEND_LENT], 4);
	close(a.fd);
}

/* A fixed amount: its free slabs go, others are recalled; both come back with the memory. */
static void an_emergency_of_a_fixed_amount(void **state)
{
	struct donor *d = *state;
	struct wire_frame f;
	struct peer a;

	d->l->options.headroom = d->l->follow.headroom = 0;
	connect_peer(d, &a, 1, SLABS / 2);
	/* 32 MiB are the reserve: half of that is no emergency, unless tasks wait. */
	say_available(d, 16 << 10);
	sample(d);
	assert_int_equal(d->pool.in[LEND_CLEAN], SLABS / 2);
	say_available(d, 15 << 10);
	sample(d);
	assert_in_range(d->pool.in[LEND_CLEAN], 0, SLABS / 2 - 17);
	sample(d);
	assert_int_equal(d->pool.in[LEND_CLEAN], 0);
	/* Its slabs are only copies. */
	assert_int_equal(take(&a, WIRE_ACTIVITY).op, WIRE_ACTIVITY);
	for (int i = 0; i < 3; i++)
		sample(d);
	assert_int_equal(d->pool.in[LEND_LENT], SLABS / 2);
	while (take_frame(&a, &f))
		;
	say_available(d, 64 << 10);
	sample(d);
	assert_int_equal(d->pool.in[LEND_COMING], 0);
	say_available(d, (64 + 5) << 10);
	sample(d);
	for (int i = 0; i < 60000 && d->pool.in[LEND_COMING]; i++) {
		turn(d->l);
		usleep(1000);
	}
	assert_int_equal(d->pool.in[LEND_CLEAN], 5);
	close(a.fd);
}

/* Without emergency measures, a fixed amount is made however little the machine has. */
static void a_fixed_amount_without_emergencies(void **state)
{
	struct donor *d = *state;

	d->l->follow.no_emergency = true;
	d->l->options.headroom = d->l->follow.headroom = 0;
	say_available(d, 64 << 10);
	assert_int_equal(pool_shrink(&d->pool, 5), 5);
	pool_thread_wake(&d->l->pool_thread);
	for (int i = 0; i < 60000 && d->pool.in[LEND_GOING]; i++) {
		turn(d->l);
		usleep(1000);
	}
	assert_int_equal(d->pool.in[LEND_ABSENT], 5);
	say_available(d, 0);
	sample(d);
	assert_int_equal(d->pool.in[LEND_ABSENT], 0);
	assert_int_equal(headroom_follow_turn(&d->l->follow, now_ns()), UINT64_MAX);
	for (int i = 0; i < 60000 && d->pool.in[LEND_COMING]; i++) {
		turn(d->l);
		usleep(1000);
	}
	assert_int_equal(pool_free_slabs(&d->pool), SLABS);
}

/* Only borrowers of version 4 have flags, and REMAP changes them. */
static void what_is_backed(void **state)
{
	const struct wire_loan_request without = { .class = WIRE_CLASS_SWAP };
	struct donor *d = *state;
	uint8_t payload[WIRE_MAP_SIZE];
	struct wire_frame f = { .op = WIRE_REMAP, .length = WIRE_MAP_SIZE };
	struct wire_loan loan;
	struct peer a;

	loan_flags = WIRE_BACKED;
	connect_peer(d, &a, 1, 1);
	assert_int_equal(lent_backed(d), 1);
	assert_int_equal(say(d, &a, WIRE_REMAP, a.loans[0]), WIRE_OK);
	assert_int_equal(lent_backed(d), 1);
	f.slab = a.loans[0].slab;
	f.generation = a.loans[0].generation;
	wire_build_loan_request(payload, &without);
	send_frame(d, &a, f, payload);
	assert_int_equal(take(&a, WIRE_REMAP).status, WIRE_OK);
	assert_int_equal(lent_backed(d), 0);
	close(a.fd);
	/* A borrower withdraws it for its own loans. */
	connect_peer(d, &a, 1, 1);
	loan = a.loans[0];
	loan.generation++;
	assert_int_equal(say(d, &a, WIRE_UNBACKED, loan), WIRE_STALE);
	loan = (struct wire_loan){ SLABS, 0 };
	assert_int_equal(say(d, &a, WIRE_UNBACKED, loan), WIRE_NO_SLAB);
	assert_int_equal(lent_backed(d), 1);
	assert_int_equal(say(d, &a, WIRE_UNBACKED, a.loans[0]), WIRE_OK);
	assert_int_equal(lent_backed(d), 0);
	close(a.fd);
	version = WIRE_VERSION_OLDEST;
	loan_flags = 0;
	connect_peer(d, &a, 1, 1);
	send_frame(d, &a, (struct wire_frame){ .op = WIRE_UNBACKED, .slab = a.loans[0].slab,
					       .generation = a.loans[0].generation }, NULL);
	assert_true(hung_up(&a));
	close(a.fd);
	connect_peer(d, &a, 1, 0);
	wire_build_loan_request(payload, &(struct wire_loan_request){ .flags = WIRE_BACKED });
	send_frame(d, &a, (struct wire_frame){ .op = WIRE_MAP, .length = WIRE_MAP_SIZE }, payload);
	assert_true(hung_up(&a));
	version = WIRE_VERSION;
	loan_flags = 0;
	close(a.fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(an_emergency, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(an_emergency_goes_step_by_step, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(revokes_no_more_than_is_lacking, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(new_promises_of_a_borrower_that_kept_none,
						with_donor, without_donor),
		cmocka_unit_test_setup_teardown(promises_of_another_borrower, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(a_drain_of_a_borrower_that_keeps_no_promise,
						with_donor, without_donor),
		cmocka_unit_test_setup_teardown(a_sample_revokes_once, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(a_failed_sample_revokes_nothing, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(a_sample_from_before_a_revocation, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(an_emergency_awaits_what_is_leaving, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(an_emergency_is_met_in_no_other_way, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(an_emergency_of_a_fixed_amount, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(a_fixed_amount_without_emergencies, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(what_is_backed, with_donor, without_donor),
	};

	log_setup("emergency", LOG_LVL_ERR);
	return cmocka_run_group_tests_name("emergency", tests, NULL, NULL);
}
