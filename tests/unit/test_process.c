// SPDX-License-Identifier: GPL-2.0-or-later
/* What a daemon that ebbctl starts has of it. */
#include <fcntl.h>
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

#include "ebbctl/process.h"
#include "lib/base/files.h"
#include "lib/base/process_run.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static char dir[] = "/tmp/ebb-test-process-XXXXXX";

static int setup(void **state)
{
	return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
	char path[64];

	snprintf(path, sizeof(path), "%s/log", dir);
	unlink(path);
	snprintf(path, sizeof(path), "%s/fds", dir);
	unlink(path);
	return rmdir(dir);
}

static bool has_line(const char *text, int number)
{
	char line[16], all[1024];

	snprintf(line, sizeof(line), "\n%d\n", number);
	snprintf(all, sizeof(all), "\n%s", text);
	return strstr(all, line);
}

/* Else a lock of the caller's script would be held as long as the device is there. */
static void it_has_no_descriptors_of_the_caller(void **state)
{
	int given = open("/dev/null", O_RDONLY), also = open("/dev/null", O_RDONLY | O_CLOEXEC);
	char log[64], fds[64], command[160], text[512];
	/* "--ready-fd N" is behind it. */
	const char *const argv[] = { "/bin/sh", "-c", command, NULL };
	struct error e = { 0 };

	snprintf(log, sizeof(log), "%s/log", dir);
	snprintf(fds, sizeof(fds), "%s/fds", dir);
	snprintf(command, sizeof(command), "ls /proc/$$/fd >%s; echo READY >&$1", fds);
	assert_int_equal(process_start(argv, "ebb-test-process.scope", log, also, 20000, &e), 0);
	assert_true(file_read(fds, text, sizeof(text)) > 0);
	assert_true(has_line(text, STDERR_FILENO));
	assert_true(has_line(text, also));
	assert_false(has_line(text, given));
	close(given);
	close(also);
}

/* As nohup(1) and `command &` in a script have it. */
static void signals_that_the_caller_ignores_interrupt_nothing(void **state)
{
	void (*before)(int) = signal(SIGHUP, SIG_IGN);
	sigset_t set, mask;

	process_ending_signals(&set);
	assert_false(sigismember(&set, SIGHUP));
	assert_true(sigismember(&set, SIGINT));
	sigprocmask(SIG_SETMASK, NULL, &mask);
	process_defer_signals();
	raise(SIGHUP);
	assert_false(process_interrupted());
	raise(SIGTERM);
	assert_true(process_interrupted());
	signal(SIGTERM, SIG_IGN);
	sigprocmask(SIG_SETMASK, &mask, NULL);
	signal(SIGTERM, SIG_DFL);
	signal(SIGHUP, before);
}

/* As `ebbctl device destroy 2>&1 | head -1`: its swapoff would go on without a time-out. */
static void reader_that_exits_does_not_end_a_change(void **state)
{
	const char *const argv[] = { "grep", "SigIgn", "/proc/self/status", NULL };
	char text[128];
	int fds[2], status;
	pid_t pid = fork();

	if (pid == 0) {
		struct error e = { 0 };

		process_defer_signals();
		if (pipe(fds) || close(fds[0]))
			_exit(2);
		if (write(fds[1], "x", 1) != -1)
			_exit(3);
		/* Programs that it runs, such as mkswap, end as usual. */
		if (process_run(argv, text, sizeof(text), &e))
			_exit(4);
		_exit(strtoull(text + strlen("SigIgn:"), NULL, 16) & 1ULL << (SIGPIPE - 1) ? 5 : 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* A daemon that ignores SIGCHLD cannot wait for its children. */
static void it_ignores_no_signal_that_the_caller_ignores(void **state)
{
	char log[64], fds[64], command[160], text[512];
	const char *const argv[] = { "/bin/sh", "-c", command, NULL };
	struct error e = { 0 };

	snprintf(log, sizeof(log), "%s/log", dir);
	snprintf(fds, sizeof(fds), "%s/fds", dir);
	snprintf(command, sizeof(command), "grep SigIgn /proc/self/status >%s; echo READY >&$1", fds);
	signal(SIGHUP, SIG_IGN);
	assert_int_equal(process_start(argv, "ebb-test-process.scope", log, -1, 20000, &e), 0);
	signal(SIGHUP, SIG_DFL);
	assert_true(file_read(fds, text, sizeof(text)) > 0);
	/* The lowest bits: libc keeps the highest signals to itself. */
	assert_string_equal(text + strlen(text) - 8, "0000000\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_has_no_descriptors_of_the_caller),
		cmocka_unit_test(signals_that_the_caller_ignores_interrupt_nothing),
		cmocka_unit_test(reader_that_exits_does_not_end_a_change),
		cmocka_unit_test(it_ignores_no_signal_that_the_caller_ignores),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
