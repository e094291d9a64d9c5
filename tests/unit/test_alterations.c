// SPDX-License-Identifier: GPL-2.0-or-later
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/rules/alterations.h"

#include <cmocka.h>

#define MINUTE 60000000000ull

static void the_third_is_too_many(void **state)
{
	struct alterations a = { 0 };

	assert_false(alterations_add(&a, 1));
	assert_false(alterations_add(&a, 2));
	assert_true(alterations_add(&a, 3));
	assert_true(alterations_add(&a, 4));
}

static void within_ten_minutes(void **state)
{
	struct alterations a = { 0 };
	uint64_t start = 5 * MINUTE;

	assert_false(alterations_add(&a, start));
	assert_false(alterations_add(&a, start + 9 * MINUTE));
	assert_true(alterations_add(&a, start + 10 * MINUTE));
	a = (struct alterations){ 0 };
	assert_false(alterations_add(&a, start));
	assert_false(alterations_add(&a, start + 9 * MINUTE));
	assert_false(alterations_add(&a, start + 10 * MINUTE + 1));
	/* The second one still counts. */
	assert_true(alterations_add(&a, start + 19 * MINUTE));
}

static void one_now_and_then_is_never_too_many(void **state)
{
	struct alterations a = { 0 };

	for (uint64_t i = 1; i < 100; i++)
		assert_false(alterations_add(&a, i * 6 * MINUTE));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_third_is_too_many),
		cmocka_unit_test(within_ten_minutes),
		cmocka_unit_test(one_now_and_then_is_never_too_many),
	};

	return cmocka_run_group_tests_name("alterations", tests, NULL, NULL);
}
