// SPDX-License-Identifier: GPL-2.0-or-later
/* Detects a cgroup that mostly misses. */
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_random_walk_waits),
		cmocka_unit_test(who_mostly_hits_does_not),
		cmocka_unit_test(a_few_misses_are_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
