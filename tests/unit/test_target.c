// SPDX-License-Identifier: GPL-2.0-or-later
/* A process that pages are fetched for, and another one that gets its number. */
#include <errno.h>
#include <linux/sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ebbd/prefetch/target.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

/* A process that waits, with the number @pid unless 0; -errno. */
static pid_t start(pid_t pid)
{
	struct clone_args args = {
		.exit_signal = SIGCHLD,
		.set_tid = pid ? (uintptr_t)&pid : 0,
		.set_tid_size = pid ? 1 : 0,
	};
	long r = syscall(SYS_clone3, &args, sizeof(args));

	if (!r)
		for (;;)
			pause();
	return r < 0 ? -errno : (pid_t)r;
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void is_told_from_its_namesake(void **state)
{
	struct target t, next;
	pid_t pid = start(0), other;

	assert_true(pid > 0);
	assert_int_equal(target_open(&t, (uint32_t)pid, 1), 0);
	assert_false(target_gone(&t));
	end(pid);
	assert_true(target_gone(&t));
	other = start(pid);
	if (other == -EPERM) {
		target_close(&t);
		print_message("skip: needs root to choose a process's number\n");
		skip();
	}
	assert_int_equal(other, pid);
	assert_true(target_gone(&t));
	assert_int_equal(target_open(&next, (uint32_t)pid, 1), 0);
	assert_false(target_gone(&next));
	end(other);
	target_close(&next);
	target_close(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(is_told_from_its_namesake) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
