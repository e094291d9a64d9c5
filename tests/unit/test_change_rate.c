// SPDX-License-Identifier: GPL-2.0-or-later
/* How often the configuration of a user's cgroups may change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail

#include "ebbd/attach/change_rate.h"

#define SECOND 1000000000ULL

static uint32_t changes(struct change_rate *r, uid_t user, uint64_t now)
{
	uint32_t n = 0;

	while (n < 10000 && change_allowed(r, user, now))
		n++;
	return n;
}

static void a_burst_and_then_eight_a_second(void **unused)
{
	struct change_rate r = { 0 };

	assert_int_equal(changes(&r, 1000, 100 * SECOND), CHANGE_BURST);
	assert_int_equal(changes(&r, 1000, 100 * SECOND), 0);
	for (uint64_t s = 101; s < 110; s++)
		assert_int_equal(changes(&r, 1000, s * SECOND), 8);
	assert_int_equal(changes(&r, 1000, 200 * SECOND), CHANGE_BURST);
}

static void users_have_rates_of_their_own(void **unused)
{
	struct change_rate r = { 0 };

	assert_int_equal(changes(&r, 1000, SECOND), CHANGE_BURST);
	for (uid_t user = 2000; user < 2000 + CHANGE_USERS - 2; user++)
		assert_int_equal(changes(&r, user, SECOND + 1), CHANGE_BURST);
	assert_true(changes(&r, 0, SECOND + 1) > 16 * CHANGE_BURST);
	assert_int_equal(changes(&r, 1000, SECOND + 1), 0);
	/* Beyond the table the user whose changes are due first is forgotten. */
	assert_int_equal(changes(&r, 5000, SECOND + 2), CHANGE_BURST);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_burst_and_then_eight_a_second),
		cmocka_unit_test(users_have_rates_of_their_own),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
