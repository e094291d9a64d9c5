// SPDX-License-Identifier: GPL-2.0-or-later
/* When programs and the executor share a CPU, and which. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/rules/colocate.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

/* CPUs @allowed and @confined, as bits. */
static struct colocate_cpus cpus_of(unsigned int allowed, unsigned int confined, int busiest)
{
	static const uint32_t none[CPU_SETSIZE];
	struct colocate_cpus c = { .sharers = none, .busiest = busiest };

	for (int i = 0; i < 32; i++) {
		if (allowed >> i & 1)
			CPU_SET(i, &c.allowed);
		if (confined >> i & 1)
			CPU_SET(i, &c.confined);
	}
	return c;
}

static void the_cpu_is_the_busiest_threads_if_possible(void **state)
{
	struct colocate_cpus c = cpus_of(0xf, 0, 2);

	assert_int_equal(colocate_choose(&c), 2);
	c = cpus_of(0xf, 0, -1);
	assert_int_equal(colocate_choose(&c), 0);
	/* It runs where the executor may not. */
	c = cpus_of(0xc, 0, 1);
	assert_int_equal(colocate_choose(&c), 2);
	/* A user has confined another process there. */
	c = cpus_of(0x3, 0x1, 0);
	assert_int_equal(colocate_choose(&c), 1);
	c = cpus_of(0x3, 0x3, 0);
	assert_int_equal(colocate_choose(&c), -1);
	c = cpus_of(0, 0, 0);
	assert_int_equal(colocate_choose(&c), -1);
}

static void cgroups_spread_over_cpus(void **state)
{
	uint32_t sharers[CPU_SETSIZE] = { 2, 1, 1, 3 };
	struct colocate_cpus c = cpus_of(0xf, 0, 3);

	c.sharers = sharers;
	assert_int_equal(colocate_choose(&c), 1);
	c.busiest = 2;
	assert_int_equal(colocate_choose(&c), 2);
	sharers[0] = 0;
	assert_int_equal(colocate_choose(&c), 0);
}

/* --- placement=auto ----------------------------------------------------------- */

#define LOOK_NS 250000000ull
#define PAGES 500 /* a look, of which more than 2000 a second are many */

/* A look at programs that swap in @pages; others run @others/1000 of the busiest thread's time. */
static bool step(struct colocate_auto *a, uint32_t others, uint64_t pages)
{
	return colocate_auto_step(a, &(struct colocate_look){
		.wall_ns = LOOK_NS, .busiest_ns = LOOK_NS / 5, .others_ns = LOOK_NS / 5000 * others,
		.pages = pages, .prefetched = pages });
}

/* Returns the look, from 1 on, at which they come together; 0 = none of @looks. */
static int joins(struct colocate_auto *a, int looks)
{
	for (int i = 1; i <= looks; i++)
		if (step(a, 0, PAGES))
			return i;
	return 0;
}

/* @looks at @pages each, during the pause after an attempt that failed. */
static void pause_for(struct colocate_auto *a, int looks, uint64_t pages)
{
	for (int i = 0; i < looks; i++)
		assert_false(step(a, 0, pages));
}

/* Returns whether an attempt that has just begun goes on, with @pages a look. */
static bool attempt(struct colocate_auto *a, uint64_t pages)
{
	bool together = false;

	/* A part of the first look is from before. */
	assert_true(step(a, 0, 0));
	for (int look = 1; look < 5; look++)
		together = step(a, 0, pages);
	return together;
}

/* Fewer pages swapped in per second than before end an attempt. */
static void an_attempt_that_slows_a_program_down_ends(void **state)
{
	static const struct {
		uint64_t apart, together;
		bool stays;
	} cases[] = {
		{ 10000, 10000, true }, { 10000, 9800, true }, { 10000, 9600, false },
		{ 10000, 20000, true }, { 600, 550, false },
		/* Pages that are no longer swapped in say nothing. */
		{ 10000, PAGES - 1, true },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct colocate_auto a = { 0 };
		bool together = false;

		for (int look = 0; look < 4; look++)
			together = step(&a, 0, cases[i].apart);
		assert_true(together);
		assert_int_equal(attempt(&a, cases[i].together), cases[i].stays);
		if (cases[i].stays)
			continue;
		/* The next attempt is 4 s later. */
		pause_for(&a, 15, cases[i].apart);
		assert_true(step(&a, 0, cases[i].apart));
	}
}

/* Looks long before an attempt have little weight. */
static void an_attempt_is_compared_with_the_time_just_before_it(void **state)
{
	struct colocate_auto a = { 0 };

	for (int look = 0; look < 4; look++)
		step(&a, 0, 10000);
	assert_false(attempt(&a, 9000));
	pause_for(&a, 8, 20000);
	pause_for(&a, 7, 10000);
	assert_true(step(&a, 0, 10000));
	assert_true(attempt(&a, 10900));
}

static void a_single_thread_that_swaps_shares_after_a_second(void **state)
{
	struct colocate_auto a = { 0 };

	assert_int_equal(joins(&a, 100), 4);
	for (int i = 0; i < 1000; i++)
		assert_true(step(&a, 250, PAGES));
}

static void others_or_little_swapping_keep_apart(void **state)
{
	struct colocate_auto a = { 0 };

	for (int i = 0; i < 100; i++) {
		assert_false(step(&a, 260, PAGES));
		assert_false(step(&a, 0, PAGES - 1));
	}
	/* The looks in a row start again. */
	for (int i = 0; i < 100; i++)
		assert_false(step(&a, 0, i % 4 ? PAGES : 0));
}

/* A program under the policy "none", or one that is not predicted, gains nothing. */
static void pages_that_nobody_prefetched_keep_apart(void **state)
{
	struct colocate_look l = {
		.wall_ns = LOOK_NS, .busiest_ns = LOOK_NS / 5, .pages = 4 * PAGES,
		.prefetched = PAGES - 1,
	};
	struct colocate_auto a = { 0 };

	for (int i = 0; i < 100; i++)
		assert_false(colocate_auto_step(&a, &l));
	l.prefetched = PAGES;
	for (int i = 0; i < 3; i++)
		assert_false(colocate_auto_step(&a, &l));
	assert_true(colocate_auto_step(&a, &l));
}

static void threads_that_appear_separate_at_once(void **state)
{
	/* As often, the pause doubles, up to 1024 looks. */
	const int pauses[] = { 16, 32, 64, 128, 256, 512, 1024, 1024 };
	struct colocate_auto a = { 0 };

	assert_int_equal(joins(&a, 4), 4);
	for (size_t i = 0; i < sizeof(pauses) / sizeof(*pauses); i++) {
		assert_false(step(&a, 260, PAGES));
		assert_int_equal(joins(&a, 2000), pauses[i]);
	}
	/* An attempt that lasted for a minute forgives. */
	for (int i = 0; i < 240; i++)
		assert_true(step(&a, 0, PAGES));
	assert_false(step(&a, 260, PAGES));
	assert_int_equal(joins(&a, 2000), 16);
}

static void a_rest_of_swapping_separates_without_a_pause(void **state)
{
	struct colocate_auto a = { 0 };

	assert_int_equal(joins(&a, 4), 4);
	for (int i = 0; i < 15; i++)
		assert_true(step(&a, 0, 0));
	assert_true(step(&a, 0, PAGES));
	for (int i = 0; i < 15; i++)
		assert_true(step(&a, 0, 0));
	assert_false(step(&a, 0, 0));
	assert_int_equal(joins(&a, 100), 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_cpu_is_the_busiest_threads_if_possible),
		cmocka_unit_test(cgroups_spread_over_cpus),
		cmocka_unit_test(an_attempt_that_slows_a_program_down_ends),
		cmocka_unit_test(an_attempt_is_compared_with_the_time_just_before_it),
		cmocka_unit_test(a_single_thread_that_swaps_shares_after_a_second),
		cmocka_unit_test(others_or_little_swapping_keep_apart),
		cmocka_unit_test(pages_that_nobody_prefetched_keep_apart),
		cmocka_unit_test(threads_that_appear_separate_at_once),
		cmocka_unit_test(a_rest_of_swapping_separates_without_a_pause),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
