// SPDX-License-Identifier: GPL-2.0-or-later
/* One ebbctl at a time makes or takes apart devices; the others wait, and may be told not to. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ebbctl/device/teardown.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static char dir[] = "/tmp/ebb-test-lock-XXXXXX";

static int setup(void **state)
{
	return mkdtemp(dir) ? setenv("EBB_RUN_DIR", dir, 1) : -1;
}

static int teardown(void **state)
{
	char path[64];

	snprintf(path, sizeof(path), "%s/devices/lock", dir);
	unlink(path);
	snprintf(path, sizeof(path), "%s/devices", dir);
	return rmdir(path) || rmdir(dir) ? -1 : 0;
}

/* A process that has the lock until it has slept for so long. */
static pid_t hold(unsigned int us)
{
	int ready[2];
	char byte;
	pid_t pid;

	assert_int_equal(pipe(ready), 0);
	pid = fork();
	if (!pid) {
		int lock = device_lock(PATIENCE_TO_THE_END, NULL);

		if (lock < 0 || write(ready[1], "x", 1) != 1)
			_exit(1);
		usleep(us);
		_exit(0);
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	close(ready[1]);
	return pid;
}

static void is_waited_for(void **state)
{
	pid_t other = hold(300000);
	struct error e = { 0 };
	int lock = device_lock(PATIENCE_UNTIL_INTERRUPTED, &e);

	assert_true(lock >= 0);
	close(lock);
	kill(other, SIGKILL);
	waitpid(other, NULL, 0);
}

static void is_not_waited_for_after_a_signal(void **state)
{
	pid_t other = hold(20000000);
	struct error e = { 0 };
	sigset_t none;

	process_defer_signals();
	kill(getpid(), SIGTERM);
	/* Instead of waiting for ever. */
	alarm(10);
	assert_int_equal(device_lock(PATIENCE_UNTIL_INTERRUPTED, &e), -EINTR);
	alarm(0);
	assert_non_null(strstr(e.text, "interrupted"));
	kill(other, SIGKILL);
	waitpid(other, NULL, 0);
	/* A free lock is taken even after an interrupt: cleanup continues. */
	e = (struct error){ 0 };
	close(device_lock(PATIENCE_UNTIL_INTERRUPTED, &e));
	assert_int_equal(e.code, 0);
	signal(SIGTERM, SIG_IGN);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(is_waited_for), cmocka_unit_test(is_not_waited_for_after_a_signal),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
