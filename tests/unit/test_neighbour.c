// SPDX-License-Identifier: GPL-2.0-or-later
/* Detects a co-located cgroup that misses, and limits the others' prefetches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#undef fail

#include "lib/rules/pace.h"

struct totals {
	uint64_t misses, hits;
};

static bool tick(struct neighbour *n, struct totals *t, uint64_t misses, uint64_t hits)
{
	t->misses += misses;
	t->hits += hits;
	neighbour_tick(n, t->misses, t->hits);
	return neighbour_waits(n);
}

static void a_random_walk_waits(void **unused)
{
	struct neighbour n = { 0 };
	struct totals t = { 0 };

	assert_true(tick(&n, &t, 500, 0));
	/* A pause of less than a second is part of it. */
	for (int i = 0; i < NEIGHBOUR_TICKS - 1; i++)
		assert_true(tick(&n, &t, 0, 0));
	assert_true(tick(&n, &t, 500, 3));
	for (int i = 0; i < NEIGHBOUR_TICKS - 1; i++)
		assert_true(tick(&n, &t, 0, 0));
	assert_false(tick(&n, &t, 0, 0));
	assert_false(tick(&n, &t, 0, 0));
}

/* Two that are prefetched for do not slow each other down. */
static void who_mostly_hits_does_not(void **unused)
{
	struct neighbour n = { 0 };
	struct totals t = { 0 };

	for (int i = 0; i < 100; i++)
		assert_false(tick(&n, &t, 700, 14000));
	/* Its order is at an end. */
	assert_true(tick(&n, &t, 700, 699));
}

static void a_few_misses_are_nothing(void **unused)
{
	struct neighbour n = { 0 };
	struct totals t = { 0 };

	for (int i = 0; i < 100; i++)
		assert_false(tick(&n, &t, NEIGHBOUR_MISSES - 1, 0));
	assert_true(tick(&n, &t, NEIGHBOUR_MISSES, 0));
}

static void pace(void **unused)
{
	struct pace p = pace_of(64, 128, 16, 0);

	assert_int_equal(p.batch, 64);
	assert_int_equal(p.before, 128);
	p = pace_of(64, 128, 16, 2);
	assert_int_equal(p.batch, 16);
	assert_int_equal(p.before, 0);
	/* More than a batch: the rest may be on its way. */
	p = pace_of(64, 128, 96, 1);
	assert_int_equal(p.batch, 64);
	assert_int_equal(p.before, 32);
	/* Switched off. */
	p = pace_of(64, 128, 128, 1);
	assert_int_equal(p.batch, 64);
	assert_int_equal(p.before, 128);
	p = pace_of(8, 32, 16, 1);
	assert_int_equal(p.batch, 8);
	assert_int_equal(p.before, 8);
	for (uint32_t beside = 1; beside < 128; beside++) {
		p = pace_of(64, 128, beside, 1);
		assert_true(p.batch > 0);
		assert_int_equal(p.batch + p.before, beside);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_random_walk_waits),
		cmocka_unit_test(who_mostly_hits_does_not),
		cmocka_unit_test(a_few_misses_are_nothing),
		cmocka_unit_test(pace),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
