// SPDX-License-Identifier: GPL-2.0-or-later
/* A program that wastes prefetched pages gets few, until it uses them again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/rules/throttle.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static uint32_t passed(struct throttle *t, uint32_t requests)
{
	uint32_t n = 0;

	while (requests--)
		n += throttle_passes(t);
	return n;
}

static void nothing_is_judged_by_a_few_pages(void **state)
{
	struct throttle t = { 0 };

	throttle_judge(&t, 0, THROTTLE_SETTLED - 1);
	assert_int_equal(passed(&t, 1000), 1000);
	throttle_judge(&t, 0, THROTTLE_SETTLED);
	assert_int_equal(t.sample, THROTTLE_SAMPLE);
}

static void half_is_enough(void **state)
{
	struct throttle t = { 0 };

	throttle_judge(&t, 150, 150);
	assert_int_equal(passed(&t, 1000), 1000);
	throttle_judge(&t, 299, 301);
	assert_int_equal(t.sample, THROTTLE_SAMPLE);
}

static void a_sample_goes_on_and_opens_it_again(void **state)
{
	struct throttle t = { 0 };

	throttle_judge(&t, 10, 990);
	assert_int_equal(passed(&t, 160 * THROTTLE_SAMPLE), 160);
	/* What came before the last judgement does not count. */
	throttle_judge(&t, 10 + THROTTLE_SETTLED, 990);
	assert_int_equal(passed(&t, 1000), 1000);
}

static void a_sample_of_no_use_goes_on(void **state)
{
	struct throttle t = { 0 };

	throttle_judge(&t, 0, 1000);
	throttle_judge(&t, 0, 2000);
	assert_int_equal(passed(&t, 100 * THROTTLE_SAMPLE), 100);
	/* Less than it took to close is enough to open. */
	throttle_judge(&t, THROTTLE_SAMPLED - 1, 2000);
	assert_int_equal(t.sample, THROTTLE_SAMPLE);
	throttle_judge(&t, THROTTLE_SAMPLED, 2000);
	assert_int_equal(passed(&t, 1000), 1000);
}

static void what_is_used_late_is_used(void **state)
{
	struct throttle t = { 0 };

	throttle_judge(&t, 0, 1000);
	/* Of those that waited a hundred were used, which says nothing of others. */
	throttle_judge(&t, 100, 900);
	assert_int_equal(t.sample, THROTTLE_SAMPLE);
	throttle_judge(&t, 300, 900);
	assert_int_equal(t.sample, 0);
}

#define MS 1000000ULL

/* Ticks of 100 ms with @faults in each; returns when the last was. */
static uint64_t ticks(struct throttle *t, uint64_t now, uint32_t n, uint64_t faults, uint32_t room)
{
	while (n--)
		throttle_tick(t, t->faults + faults, t->told, room, now += 100 * MS);
	return now;
}

/* Ten thousand faults a second; 2048 of them take 205 ms. */
#define ROOM (2048 - THROTTLE_SLACK)
#define STEADY(t, now) ticks(t, now, 30, 1000, ROOM)

static void timely_is_before_so_many_other_faults(void **state)
{
	struct throttle t = { 0 };
	uint64_t now = STEADY(&t, 1000 * MS);

	assert_in_range(t.timely_ns, 200 * MS, 210 * MS);
	assert_false(throttle_waited(&t, now - 200 * MS));
	assert_true(throttle_waited(&t, now - 210 * MS));
	/* However fast or slow it goes, there are bounds. */
	now = ticks(&t, now, 30, 100000, ROOM);
	assert_int_equal(t.timely_ns, THROTTLE_TIMELY_MIN);
	now = ticks(&t, now, 60, 1, ROOM);
	assert_int_equal(t.timely_ns, THROTTLE_TIMELY_MAX);
	/* What it did before a pause is not slow because of that. */
	now = STEADY(&t, STEADY(&t, now));
	now = ticks(&t, now + 60000 * MS, 1, 1, ROOM);
	assert_in_range(t.timely_ns, 200 * MS, 210 * MS);
}

static void a_pause_is_no_time_to_use_pages(void **state)
{
	struct throttle t = { 0 };
	uint64_t now = STEADY(&t, 10000 * MS), issued = now - 100 * MS;

	assert_false(throttle_waited(&t, issued));
	now += 10000 * MS;
	throttle_tick(&t, t.faults, 0, ROOM, now);
	assert_false(throttle_waited(&t, issued));
	/* It goes on: from now on its time runs again. */
	now = ticks(&t, now, 3, 1000, ROOM);
	assert_false(throttle_waited(&t, issued));
	now = ticks(&t, now, 1, 1000, ROOM);
	assert_true(throttle_waited(&t, issued));
	assert_false(throttle_waited(&t, now - 100 * MS));
}

static void what_waited_for_a_pause_to_end_is_not_used_by_chance(void **state)
{
	struct throttle t = { 0 };
	uint64_t now = STEADY(&t, 1000 * MS);

	throttle_tick(&t, t.faults + 1000, 7, ROOM, now += 100 * MS);
	assert_int_equal(t.by_chance, 7);
	now += 5000 * MS;
	throttle_tick(&t, t.faults + 1000, 507, ROOM, now);
	throttle_tick(&t, t.faults + 1000, 607, ROOM, now + 100 * MS);
	assert_int_equal(t.by_chance, 7);
	/* By now it is long ago. */
	throttle_tick(&t, t.faults + 1000, 610, ROOM, now + 300 * MS);
	assert_int_equal(t.by_chance, 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_is_judged_by_a_few_pages),
		cmocka_unit_test(half_is_enough),
		cmocka_unit_test(a_sample_goes_on_and_opens_it_again),
		cmocka_unit_test(a_sample_of_no_use_goes_on),
		cmocka_unit_test(what_is_used_late_is_used),
		cmocka_unit_test(a_pause_is_no_time_to_use_pages),
		cmocka_unit_test(timely_is_before_so_many_other_faults),
		cmocka_unit_test(what_waited_for_a_pause_to_end_is_not_used_by_chance),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
