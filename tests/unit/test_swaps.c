// SPDX-License-Identifier: GPL-2.0-or-later
/* swapoff(2) in a child: here one that looks at what it has in place of the kernel. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/swap.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ebbctl/device/swapoff.h"
#include "ebbctl/device/swaps.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static int held;
static bool endless;

/* In the child: EBUSY where it would keep @held open for as long as it hangs. */
int swapoff(const char *path)
{
	/* Finds this process. */
	if (!swapoff_goes_on()) {
		errno = ESRCH;
		return -1;
	}
	while (endless)
		pause();
	if (fcntl(held, F_GETFD) < 0 && fcntl(STDERR_FILENO, F_GETFD) < 0)
		return 0;
	errno = EBUSY;
	return -1;
}

/* The area is listed while swapoff(2) has not ended it. */
int swaps_find(const char *block, struct swap_area *area)
{
	*area = (struct swap_area){ .used = 4096 };
	return endless ? 0 : -ENOENT;
}

static void one_that_hangs_would_hold_nothing(void **state)
{
	const struct swapoff_options o = { 10000, PATIENCE_TO_THE_END, SWAPOFF_QUIET, NULL };
	struct error e = { 0 };

	held = open("/dev/null", O_RDONLY | O_CLOEXEC);
	assert_true(held >= 0);
	assert_int_equal(swaps_off("x", "/dev/none", &o, &e), 0);
	assert_true(fcntl(held, F_GETFD) >= 0);
	close(held);
}

/* The kernel takes the signal for the end of swapoff(2), which leaves swap on. */
static void one_that_takes_too_long_is_given_up(void **state)
{
	struct swapoff_options o = { 200, PATIENCE_TO_THE_END, SWAPOFF_QUIET, NULL };
	struct error e = { 0 };

	endless = true;
	assert_int_equal(swaps_off("x", "/dev/none", &o, &e), -ETIMEDOUT);
	assert_non_null(strstr(e.text, "run \"ebbctl device destroy x\" with a longer --timeout"));
	o.again = "ebbctl device sleep";
	e = (struct error){ 0 };
	assert_int_equal(swaps_off("x", "/dev/none", &o, &e), -ETIMEDOUT);
	assert_non_null(strstr(e.text, "run \"ebbctl device sleep\" with a longer --timeout"));
	endless = false;
	assert_int_equal(waitpid(-1, NULL, 0), -1);
	assert_int_equal(errno, ECHILD);
}

static void one_that_is_interrupted_says_how_to_continue(void **state)
{
	struct swapoff_options o = { 10000, PATIENCE_UNTIL_INTERRUPTED, SWAPOFF_QUIET, NULL };
	struct error e = { 0 };
	sigset_t none;

	endless = true;
	process_defer_signals();
	kill(getpid(), SIGTERM);
	assert_int_equal(swaps_off("x", "/dev/none", &o, &e), -EINTR);
	assert_non_null(strstr(e.text, "run \"ebbctl device destroy x\" to continue"));
	o.again = "ebbctl device sleep";
	e = (struct error){ 0 };
	assert_int_equal(swaps_off("x", "/dev/none", &o, &e), -EINTR);
	assert_non_null(strstr(e.text, "run \"ebbctl device sleep\" to continue"));
	endless = false;
	signal(SIGTERM, SIG_IGN);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGTERM, SIG_DFL);
}

#define MIB (1ull << 20)

static void says(const struct swapoff_pace *p, int64_t ms, const char *text)
{
	char buf[128];

	assert_string_equal(swapoff_pace_format(p, ms, buf, sizeof(buf)), text);
}

static void rate_and_time_left_follow_the_last_seconds(void **state)
{
	struct swapoff_pace p = { 0 };

	swapoff_pace_add(&p, 1000 * MIB, 1000);
	says(&p, 1000, "256000 pages (1000 MiB) still swapped out");
	swapoff_pace_add(&p, 900 * MIB, 2000);
	says(&p, 2000, "230400 pages (900 MiB) still swapped out, 100 MiB/s, 9 s left");
	/* Ten times slower: after ten seconds the start has no influence. */
	for (int i = 1; i <= 11; i++)
		swapoff_pace_add(&p, (900 - 10 * i) * MIB, 2000 + 1000 * i);
	says(&p, 13000, "202240 pages (790 MiB) still swapped out, 10.0 MiB/s, 79 s left");
}

static void stall_of_swapoff_is_told(void **state)
{
	struct swapoff_pace p = { 0 };

	swapoff_pace_add(&p, 4 * MIB, 1000);
	swapoff_pace_add(&p, 2 * MIB, 2000);
	swapoff_pace_add(&p, 2 * MIB, 9000);
	says(&p, 9000, "512 pages (2.0 MiB) still swapped out, none read back for 7 s");
	swapoff_pace_add(&p, 1 * MIB, 10000);
	says(&p, 10000, "256 pages (1.0 MiB) still swapped out, 341 KiB/s, 4 s left");
	swapoff_pace_add(&p, 0, 11000);
	says(&p, 11000, "0 pages (0 B) still swapped out, 410 KiB/s, 0 s left");
}

static void text_of_a_short_buffer_is_cut(void **state)
{
	struct swapoff_pace p = { 0 };
	char buf[16];

	swapoff_pace_add(&p, 4 * MIB, 1000);
	assert_string_equal(swapoff_pace_format(&p, 9000, buf, sizeof(buf)), "1024 pages (4.0");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_that_hangs_would_hold_nothing),
		cmocka_unit_test(one_that_takes_too_long_is_given_up),
		cmocka_unit_test(one_that_is_interrupted_says_how_to_continue),
		cmocka_unit_test(rate_and_time_left_follow_the_last_seconds),
		cmocka_unit_test(stall_of_swapoff_is_told),
		cmocka_unit_test(text_of_a_short_buffer_is_cut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
