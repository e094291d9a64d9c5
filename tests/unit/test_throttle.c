// SPDX-License-Identifier: GPL-2.0-or-later
/* Who wastes what is brought in gets little, until it is used again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "ebbd/throttle.h"

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

static void a_third_is_enough(void **state)
{
	struct throttle t = { 0 };

	throttle_judge(&t, 100, 200);
	assert_int_equal(passed(&t, 1000), 1000);
	throttle_judge(&t, 199, 401);
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

static void a_sample_of_no_use_gets_smaller_once(void **state)
{
	struct throttle t = { 0 };

	throttle_judge(&t, 0, 1000);
	throttle_judge(&t, 0, 2000);
	assert_int_equal(passed(&t, 100 * THROTTLE_SAMPLE_MOST), 100);
	throttle_judge(&t, 0, 3000);
	assert_int_equal(t.sample, THROTTLE_SAMPLE_MOST);
	/* A quarter of what it took to close is enough to open. */
	throttle_judge(&t, THROTTLE_SETTLED / 4, 3000);
	assert_int_equal(passed(&t, 1000), 1000);
}

static void what_is_used_late_is_used(void **state)
{
	struct throttle t = { 0 };

	throttle_judge(&t, 0, 1000);
	/* Of those that waited a hundred were used, which says nothing of others. */
	throttle_judge(&t, 100, 900);
	assert_int_equal(t.sample, THROTTLE_SAMPLE);
	throttle_judge(&t, 200, 900);
	assert_int_equal(t.sample, 0);
}

#define MS 1000000ULL

static void a_pause_is_no_time_to_use_pages(void **state)
{
	struct throttle t = { 0 };
	uint64_t issued = 10000 * MS, faults = 0;

	for (uint64_t now = 9000 * MS; now <= 10500 * MS; now += 100 * MS)
		throttle_tick(&t, ++faults, now);
	assert_false(throttle_waited(&t, issued));
	throttle_tick(&t, faults, 15000 * MS);
	assert_false(throttle_waited(&t, issued));
	/* It goes on: from now on its time runs again. */
	for (uint64_t now = 20000 * MS; now < 21000 * MS; now += 100 * MS) {
		throttle_tick(&t, ++faults, now);
		assert_false(throttle_waited(&t, issued));
	}
	throttle_tick(&t, ++faults, 21000 * MS);
	assert_true(throttle_waited(&t, issued));
	assert_false(throttle_waited(&t, 20001 * MS));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_is_judged_by_a_few_pages),
		cmocka_unit_test(a_third_is_enough),
		cmocka_unit_test(a_sample_goes_on_and_opens_it_again),
		cmocka_unit_test(a_sample_of_no_use_gets_smaller_once),
		cmocka_unit_test(what_is_used_late_is_used),
		cmocka_unit_test(a_pause_is_no_time_to_use_pages),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
