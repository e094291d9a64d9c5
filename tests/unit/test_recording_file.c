// SPDX-License-Identifier: GPL-2.0-or-later
/* The file of a recording, in directories of other users. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "ebbd/recording_file.h"
#include "lib/base/files.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static char dir[] = "/tmp/ebb-test-recording-XXXXXX", path[64], other[64];

static int setup(void **state)
{
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/x.trace", dir);
	snprintf(other, sizeof(other), "%s/other", dir);
	return 0;
}

static int clean(void **state)
{
	unlink(path);
	unlink(other);
	return 0;
}

static int teardown(void **state)
{
	return rmdir(dir);
}

static void refused(int status, const char *why)
{
	struct error e = { 0 };
	int fd = -1;

	assert_int_equal(recording_file(path, &fd, &e), status);
	assert_int_equal(fd, -1);
	assert_non_null(strstr(e.text, path));
	assert_non_null(strstr(e.text, why));
}

/* Creates the file and writes a trace to it. */
static void record(void)
{
	struct stat st;
	int fd = -1;

	assert_int_equal(recording_file(path, &fd, NULL), 0);
	assert_int_equal(write(fd, "secret", 6), 6);
	assert_int_equal(lstat(path, &st), 0);
	assert_int_equal(st.st_mode, S_IFREG | 0600);
	assert_int_equal(st.st_uid, geteuid());
	assert_int_equal(st.st_nlink, 1);
	assert_int_equal(st.st_size, 6);
	close(fd);
}

static void assert_other(const char *text)
{
	char now[32];

	assert_true(file_read(other, now, sizeof(now)) >= 0);
	assert_string_equal(now, text);
}

static void is_created(void **state)
{
	umask(0);
	record();
	umask(022);
}

/* The owner of a file with that name reads the trace neither by name, nor descriptor, nor link. */
static void owner_of_an_old_file(void **state)
{
	char now[32];
	int reader;

	assert_int_equal(file_replace(path, "older and longer"), 0);
	assert_int_equal(chmod(path, 0666), 0);
	if (!geteuid())
		assert_int_equal(chown(path, 65534, 65534), 0);
	assert_int_equal(link(path, other), 0);
	reader = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(reader >= 0);
	record();
	assert_int_equal(read(reader, now, sizeof(now)), 16);
	assert_memory_equal(now, "older and longer", 16);
	close(reader);
	assert_other("older and longer");
}

static void no_link_is_followed(void **state)
{
	assert_int_equal(file_replace(other, "untouched"), 0);
	assert_int_equal(symlink(other, path), 0);
	refused(-EINVAL, "not a regular file");
	assert_other("untouched");
	unlink(other);
	refused(-EINVAL, "not a regular file");
	assert_int_equal(access(other, F_OK), -1);
}

static void other_kinds(void **state)
{
	struct stat st;

	assert_int_equal(mkfifo(path, 0600), 0);
	refused(-EINVAL, "not a regular file");
	assert_int_equal(lstat(path, &st), 0);
	assert_true(S_ISFIFO(st.st_mode));
	unlink(path);
	assert_int_equal(mkdir(path, 0700), 0);
	refused(-EINVAL, "not a regular file");
	assert_int_equal(rmdir(path), 0);
}

static void is_locked(void **state)
{
	struct error e = { 0 };
	int fd = -1, second = -1;

	assert_int_equal(recording_file(path, &fd, NULL), 0);
	assert_int_equal(write(fd, "first", 5), 5);
	assert_int_equal(recording_file(path, &second, &e), -EBUSY);
	assert_int_equal(e.exit_status, EXIT_REFUSED);
	assert_non_null(strstr(e.text, "another recording"));
	assert_int_equal(lseek(fd, 0, SEEK_END), 5);
	close(fd);
	record();
}

static void missing_directory(void **state)
{
	struct error e = { 0 };
	int fd;

	assert_int_equal(recording_file("/nowhere/x.trace", &fd, &e), -ENOENT);
	assert_non_null(strstr(e.text, "existing directory"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(is_created, clean),
		cmocka_unit_test_teardown(owner_of_an_old_file, clean),
		cmocka_unit_test_teardown(no_link_is_followed, clean),
		cmocka_unit_test_teardown(other_kinds, clean),
		cmocka_unit_test_teardown(is_locked, clean),
		cmocka_unit_test_teardown(missing_directory, clean),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
