// SPDX-License-Identifier: GPL-2.0-or-later
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/rules/activity.h"

#include <cmocka.h>

static const struct activity_rule paper = ACTIVITY_RULE_DEFAULT;

static void assert_near(double a, double b)
{
	if (fabs(a - b) > 1e-9)
		fail_msg("%.12f is not %.12f", a, b);
}

/* A_current = 0.2 * A_measured + 0.8 * A_old. */
static void average(void **state)
{
	struct activity a = { 0 };

	activity_read(&a, 60);
	activity_write(&a, 40);
	activity_tick(&a, &paper, 1);
	assert_near(a.rate, 20);
	activity_write(&a, 100);
	activity_tick(&a, &paper, 1);
	assert_near(a.rate, 36);
	activity_tick(&a, &paper, 1);
	assert_near(a.rate, 28.8);
	activity_tick(&a, &paper, 0);
	assert_near(a.rate, 28.8);
}

/* The released code multiplies the activity of an idle slab by 20 a second. */
static void idle_cools_down(void **state)
{
	struct activity a = { .rate = 1000 };

	for (int i = 0; i < 60; i++) {
		double before = a.rate;

		activity_tick(&a, &paper, 1);
		assert_true(a.rate < before);
	}
	assert_true(a.rate < 0.01);
}

static void late_ticks_are_many(void **state)
{
	struct activity late = { .rate = 50 }, prompt = { .rate = 50 };

	activity_write(&late, 7 * 30);
	activity_tick(&late, &paper, 7);
	for (int i = 0; i < 7; i++) {
		activity_write(&prompt, 30);
		activity_tick(&prompt, &paper, 1);
	}
	assert_near(late.rate, prompt.rate);
}

static void weights(void **state)
{
	struct activity_rule reads = paper;
	struct activity a = { 0 }, b = { 0 };

	reads.read_weight = 1.5;
	reads.write_weight = 0.5;
	activity_read(&a, 100);
	activity_write(&b, 100);
	activity_tick(&a, &reads, 1);
	activity_tick(&b, &reads, 1);
	assert_near(a.rate, 30);
	assert_near(b.rate, 10);
}

static void counters_do_not_wrap(void **state)
{
	struct activity a = { 0 };

	activity_read(&a, UINT32_MAX);
	activity_read(&a, 5);
	assert_int_equal(a.reads, UINT32_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(average),
		cmocka_unit_test(idle_cools_down),
		cmocka_unit_test(late_ticks_are_many),
		cmocka_unit_test(weights),
		cmocka_unit_test(counters_do_not_wrap),
	};

	return cmocka_run_group_tests_name("activity", tests, NULL, NULL);
}
