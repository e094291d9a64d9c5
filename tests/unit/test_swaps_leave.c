// SPDX-License-Identifier: GPL-2.0-or-later
/* Whether the pages of swap fit elsewhere.  No machine has memory and swap for those here. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ebbctl/device/swaps.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static void devices_need_room_for_all_their_pages(void **state)
{
	const uint64_t available = memory_available();
	const struct swap_area areas[] = {
		{ .path = "/dev/none0", .size = 1ull << 60, .used = available / 2 },
		{ .path = "/dev/none1", .size = 1ull << 60, .used = 1ull << 59 },
	};
	struct error e = { 0 };

	assert_true(available > 0);
	assert_int_equal(swaps_can_leave("a, b", areas, 2, "wait", &e), -EBUSY);
	assert_int_equal(e.exit_status, EXIT_REFUSED);
	assert_memory_equal(e.text, "devices a, b: 512", strlen("devices a, b: 512"));
	assert_non_null(strstr(e.text, "end programs, or wait"));
	e = (struct error){ 0 };
	assert_int_equal(swaps_can_leave("b", areas + 1, 1, "wait", &e), -EBUSY);
	assert_memory_equal(e.text, "device b: 512", strlen("device b: 512"));
}

static void nothing_needs_no_room(void **state)
{
	const struct swap_area area = { .path = "/dev/none0", .size = 1ull << 60 };

	assert_int_equal(swaps_can_leave("a", &area, 1, "wait", NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(devices_need_room_for_all_their_pages),
		cmocka_unit_test(nothing_needs_no_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
