// SPDX-License-Identifier: GPL-2.0-or-later
/* A thread that hangs, as another one sees it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail

#include "lib/rules/liveness.h"

static void stillness_is_counted_in_observations(void **unused)
{
	struct liveness l = { 0 };

	/* A thread that has not begun counts as hung, too. */
	assert_int_equal(liveness_still(&l), 1);
	liveness_beat(&l);
	assert_int_equal(liveness_still(&l), 0);
	for (uint32_t i = 1; i < 100; i++)
		assert_int_equal(liveness_still(&l), i);
	liveness_beat(&l);
	liveness_beat(&l);
	assert_int_equal(liveness_still(&l), 0);
	assert_int_equal(liveness_still(&l), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stillness_is_counted_in_observations),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
