// SPDX-License-Identifier: GPL-2.0-or-later
/* swapoff(2) in a child: here one that looks at what it has in place of the kernel. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/swap.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ebbctl/device/swaps.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static int held;
static bool endless;

/* In the child: EBUSY where it would keep @held open for as long as it hangs. */
int swapoff(const char *path)
{
	while (endless)
		pause();
	if (fcntl(held, F_GETFD) < 0 && fcntl(STDERR_FILENO, F_GETFD) < 0)
		return 0;
	errno = EBUSY;
	return -1;
}

static void one_that_hangs_would_hold_nothing(void **state)
{
	struct error e = { 0 };

	held = open("/dev/null", O_RDONLY | O_CLOEXEC);
	assert_true(held >= 0);
	assert_int_equal(swaps_off("x", "/dev/none", 10000, PATIENCE_TO_THE_END, &e), 0);
	assert_true(fcntl(held, F_GETFD) >= 0);
	close(held);
}

/* The kernel takes the signal for the end of swapoff(2), which leaves swap on. */
static void one_that_takes_too_long_is_given_up(void **state)
{
	struct error e = { 0 };

	endless = true;
	assert_int_equal(swaps_off("x", "/dev/none", 200, PATIENCE_TO_THE_END, &e), -ETIMEDOUT);
	endless = false;
	assert_non_null(strstr(e.text, "the device still works, try again with a longer"));
	assert_int_equal(waitpid(-1, NULL, 0), -1);
	assert_int_equal(errno, ECHILD);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_that_hangs_would_hold_nothing),
		cmocka_unit_test(one_that_takes_too_long_is_given_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
