// SPDX-License-Identifier: GPL-2.0-or-later
/* What a daemon that ebbctl starts has of it. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/files.h"
#include "ebbctl/process.h"

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

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(it_has_no_descriptors_of_the_caller) };

	return cmocka_run_group_tests(tests, setup, teardown);
}
