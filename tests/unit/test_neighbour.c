// SPDX-License-Identifier: GPL-2.0-or-later
/* Detects a cgroup that mostly misses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#undef fail

#include "lib/rules/pace.h"

#define MS 1000000ull

struct totals {
	uint64_t misses, hits, miss_ns;
};

/* A tick in which each miss takes @ns. */
static bool slow_tick(struct neighbour *n, struct totals *t, uint64_t misses, uint64_t hits,
		      uint64_t ns)
{
	t->misses += misses;
	t->hits += hits;
	t->miss_ns += misses * ns;
	neighbour_tick(n, t->misses, t->hits, t->miss_ns);
	return neighbour_waits(n);
}

static bool tick(struct neighbour *n, struct totals *t, uint64_t misses, uint64_t hits)
{
	return slow_tick(n, t, misses, hits, MS / 20);
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
static void a_scan_with_hits_does_not(void **unused)
{
	struct neighbour n = { 0 };
	struct totals t = { 0 };

	for (int i = 0; i < 100; i++)
		assert_false(tick(&n, &t, 700, 14000));
	/* The pattern has ended. */
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

/* Prefetches that delay misses a lot must not make them too few to count. */
static void slow_misses_count_by_time(void **unused)
{
	struct neighbour n = { 0 };
	struct totals t = { 0 };

	for (int i = 0; i < 100; i++)
		assert_false(slow_tick(&n, &t, 2, 0, 9 * MS));
	assert_true(slow_tick(&n, &t, 2, 0, 10 * MS));
	for (int i = 0; i < 2 * NEIGHBOUR_TICKS; i++)
		assert_int_equal(slow_tick(&n, &t, 2, 2, 50 * MS), i < NEIGHBOUR_TICKS - 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_random_walk_waits),
		cmocka_unit_test(a_scan_with_hits_does_not),
		cmocka_unit_test(a_few_misses_are_nothing),
		cmocka_unit_test(slow_misses_count_by_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
