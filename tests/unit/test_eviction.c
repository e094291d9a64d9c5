// SPDX-License-Identifier: GPL-2.0-or-later
/* Recall and revocation with many slabs and borrowers: their order, and what they cost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "donord/pool/eviction.h"
#include "lib/base/clock.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { SLABS = 100000, BORROWERS = 250 };
#define US 1000ull
#define SECOND 1000000000ull

static struct pool pool;
static struct donor_log donor_log;
static struct eviction eviction;
static struct borrower borrowers[BORROWERS];
static bool takes;  /* borrowers take requests of the donor */
static uint32_t asked[SLABS], ask_count;

static bool ask(struct borrower *b, const struct wire_frame *f, const void *payload)
{
	ask_count++;
	if (takes && f->op == WIRE_EVICT)
		asked[f->slab]++;
	return takes;
}

static const struct borrower_ops ops = { .ask = ask };
static const struct export_ops export_ops = { .grant = NULL };
static struct export export = { .ops = &export_ops, .pool = &pool };

/* All slabs are lent to the first @n borrowers, in turn. */
static void lend_to(int n)
{
	struct error e = { 0 };

	memset(borrowers, 0, sizeof(borrowers));
	memset(asked, 0, sizeof(asked));
	ask_count = 0;
	takes = true;
	eviction = (struct eviction){ .pool = &pool, .log = &donor_log };
	assert_int_equal(pool_init(&pool, SLABS * (1ull << 20), 1 << 20, LEND_PRIVATE, &e), 0);
	assert_int_equal(eviction_init(&eviction), 0);
	for (int i = 0; i < n; i++) {
		borrowers[i] = (struct borrower){ .ops = &ops, .export = &export,
						  .recallable = true, .revocable = true };
		pool_add(&pool, &borrowers[i]);
	}
	for (int i = 0; i < SLABS; i++) {
		pool.slabs[i].state = LEND_LENT;
		pool.slabs[i].owner = &borrowers[i % n];
		borrowers[i % n].lent++;
	}
	pool.in[LEND_ABSENT] = 0;
	pool.in[LEND_LENT] = SLABS;
}

static void end(void)
{
	eviction_free(&eviction);
	pool_free(&pool);
}

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

/* Returns the CPU time of one second's work of a drain. */
static uint64_t drain_cost(int n)
{
	uint64_t now = now_ns(), began;
	uint32_t sum = 0;

	lend_to(n);
	pool.draining = true;
	began = cpu_ns();
	eviction_second(&eviction, now, 0, 0);
	began = cpu_ns() - began;
	eviction_turn(&eviction, now);
	for (int i = 0; i < SLABS; i++)
		sum += asked[i];
	assert_int_equal(sum, 16 * n);
	for (int i = 0; i < n; i++)
		assert_int_equal(borrowers[i].evicts, 16);
	/* No more, until they are back. */
	eviction_second(&eviction, now + SECOND, 0, 0);
	eviction_turn(&eviction, now + SECOND);
	for (int i = 0; i < n; i++)
		assert_int_equal(borrowers[i].evicts, 16);
	end();
	return began;
}

/* A drain looks at each slab a few times, however many borrowers there are. */
static void a_drain_of_many(void **state)
{
	uint64_t one = drain_cost(1);

	assert_true(drain_cost(BORROWERS) < 30 * one);
}

/* A request that its borrower does not take costs other borrowers little of each turn. */
static void borrowers_that_take_nothing(void **state)
{
	uint64_t now = now_ns();

	lend_to(BORROWERS);
	takes = false;
	pool_asked(&pool, 7, LEND_TO_ASK, now);
	eviction.to_ask = true;
	for (int i = 0; i < 1000; i++) {
		uint64_t wait = eviction_turn(&eviction, now + (uint64_t)i * 5 * US);

		assert_true(wait && wait < SECOND);
	}
	assert_in_range(ask_count, 1, 200);
	/* They are asked when they can be. */
	takes = true;
	eviction_turn(&eviction, now + SECOND);
	assert_int_equal(asked[7], 1);
	assert_int_equal(eviction_turn(&eviction, now + SECOND), UINT64_MAX);
	/* A new request does not wait for those. */
	takes = false;
	pool_asked(&pool, 8, LEND_TO_ASK, now);
	eviction.to_ask = true;
	eviction_turn(&eviction, now + SECOND);
	takes = true;
	eviction_forget(&eviction, &borrowers[0]);
	eviction_turn(&eviction, now + SECOND);
	assert_int_equal(asked[8], 1);
	end();
}

/* The loans recalled longest ago go first. */
static void the_oldest_recalls(void **state)
{
	static const uint32_t at[] = { 77, 5, 99999, 31234, 500, 4 };
	uint64_t now = now_ns();

	lend_to(3);
	eviction.options.revoke = 10 * SECOND;
	for (int i = 0; i < SLABS; i++)
		pool_asked(&pool, (uint32_t)i, LEND_PROMISED, now - 20 * SECOND + i % 1000);
	for (uint32_t i = 0; i < 6; i++)
		pool.slabs[at[i]].asked_at = now - (40 - i) * SECOND;
	pool.slabs[9].asked_at = now - 9 * SECOND;
	for (uint32_t n = 0; n <= 6; n += 2) {
		eviction_second(&eviction, now, now - 11 * SECOND, n ? 2 : 0);
		assert_int_equal(eviction.counts.revoked, n);
		for (uint32_t i = 0; i < 6; i++)
			assert_int_equal(pool.slabs[at[i]].revoked, i < n);
	}
	eviction_second(&eviction, now, now - 11 * SECOND, HEADROOM_EVICT_MOST);
	assert_int_equal(eviction.counts.revoked, 6 + HEADROOM_EVICT_MOST);
	assert_false(pool.slabs[9].revoked);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_drain_of_many),
		cmocka_unit_test(borrowers_that_take_nothing),
		cmocka_unit_test(the_oldest_recalls),
	};

	return cmocka_run_group_tests_name("eviction", tests, NULL, NULL);
}
