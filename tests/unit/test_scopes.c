// SPDX-License-Identifier: GPL-2.0-or-later
/* The thread of ebbd that applies --scope attached, with devices and an engine of the test. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "ebbd/scopes.h"
#include "lib/base/clock.h"
#include "lib/control/device.h"
#include "lib/host/scope.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define TICK_US 1000
#define LONG_MS 20000   /* no wait takes as long */
#define QUIET_MS 300    /* in which nothing more is applied */

static atomic_uint applied;
static atomic_int failures, exit_status; /* applications that fail from now on, and how */
static atomic_bool blocked;

int device_record_each(int (*each)(const struct device_record *d, void *data), void *data)
{
	static const struct device_record records[] = {
		{ .name = "a", .scope = "any" }, { .name = "b", .scope = "attached" },
	};
	int r = 0;

	for (size_t i = 0; !r && i < 2; i++)
		r = each(&records[i], data);
	return r;
}

int scope_apply(const char *device, const char *extra, enum scope_caller caller, struct error *e)
{
	assert_string_equal(device, "b");
	assert_null(extra);
	assert_int_equal(caller, SCOPE_DAEMON);
	atomic_fetch_add(&applied, 1);
	while (atomic_load(&blocked))
		usleep(TICK_US);
	if (atomic_load(&failures) <= 0)
		return 0;
	atomic_fetch_sub(&failures, 1);
	return fail_exit(e, atomic_load(&exit_status), EIO, "as the test wants");
}

static void wait_applied(unsigned int n)
{
	int64_t end = now_ms() + LONG_MS;

	while (atomic_load(&applied) < n && now_ms() < end)
		usleep(TICK_US);
	assert_int_equal(atomic_load(&applied), n);
}

static void quiet(unsigned int n)
{
	usleep(QUIET_MS * 1000);
	assert_int_equal(atomic_load(&applied), n);
}

static struct scopes *begin(void)
{
	struct error e = { 0 };
	struct scopes *s;

	atomic_store(&applied, 0);
	assert_int_equal(scopes_start(&s, &e), 0);
	wait_applied(1);
	return s;
}

static void it_is_applied_at_start_and_after_each_change(void **state)
{
	struct scopes *s = begin();

	scopes_follow(s, 0);
	quiet(1);
	scopes_follow(s, 3);
	wait_applied(2);
	scopes_follow(s, 3);
	quiet(2);
	scopes_follow(s, 4);
	wait_applied(3);
	scopes_wake(s);
	wait_applied(4);
	scopes_stop(&s);
	assert_null(s);
}

/* The main thread does not wait, and what changes meanwhile is not lost. */
static void changes_during_an_application_are_joined(void **state)
{
	struct scopes *s = begin();

	atomic_store(&blocked, true);
	scopes_follow(s, 1);
	wait_applied(2);
	for (uint64_t i = 2; i < 100; i++)
		scopes_follow(s, i);
	atomic_store(&blocked, false);
	wait_applied(3);
	quiet(3);
	scopes_stop(&s);
}

static void it_is_applied_again_while_ebbd_does_not_answer(void **state)
{
	struct scopes *s = begin();

	atomic_store(&exit_status, EXIT_NO_DAEMON);
	atomic_store(&failures, 2);
	scopes_follow(s, 1);
	wait_applied(4);
	scopes_stop(&s);
}

/* Such as a record that cannot be read: a change may help, the time does not. */
static void it_is_not_applied_again_after_other_errors(void **state)
{
	struct scopes *s = begin();

	atomic_store(&exit_status, EXIT_FAILED);
	atomic_store(&failures, 1);
	scopes_follow(s, 1);
	wait_applied(2);
	usleep(1500000);
	quiet(2);
	scopes_stop(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_is_applied_at_start_and_after_each_change),
		cmocka_unit_test(changes_during_an_application_are_joined),
		cmocka_unit_test(it_is_applied_again_while_ebbd_does_not_answer),
		cmocka_unit_test(it_is_not_applied_again_after_other_errors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
