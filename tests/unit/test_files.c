// SPDX-License-Identifier: GPL-2.0-or-later
/* Files that are replaced whole, also in directories of somebody else's. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/files.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static char dir[] = "/tmp/ebb-test-files-XXXXXX", path[64], victim[64];

static int setup(void **state)
{
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/x", dir);
	snprintf(victim, sizeof(victim), "%s/victim", dir);
	return 0;
}

static int teardown(void **state)
{
	unlink(path);
	unlink(victim);
	return rmdir(dir);
}

static void is(const char *file, const char *text, mode_t mode)
{
	char now[64];
	struct stat st;

	assert_true(file_read(file, now, sizeof(now)) >= 0);
	assert_string_equal(now, text);
	assert_int_equal(lstat(file, &st), 0);
	assert_int_equal(st.st_mode, S_IFREG | mode);
}

static void modes(void **state)
{
	mode_t before = umask(077);

	assert_int_equal(file_replace(path, "a"), 0);
	is(path, "a", 0600);
	assert_int_equal(file_publish(path, "b"), 0);
	is(path, "b", 0644);
	umask(before);
}

/* A user with write access there plants a link for root to follow. */
static void no_link_is_followed(void **state)
{
	char old[80], own[80];

	umask(022);
	assert_int_equal(file_replace(victim, "untouched"), 0);
	snprintf(old, sizeof(old), "%s.new", path);
	snprintf(own, sizeof(own), "%s.new.%d", path, (int)getpid());
	assert_int_equal(symlink(victim, old), 0);
	assert_int_equal(symlink(victim, own), 0);
	unlink(path);
	assert_int_equal(symlink(victim, path), 0);
	assert_int_equal(file_publish(path, "new"), 0);
	is(victim, "untouched", 0644);
	is(path, "new", 0644);
	assert_int_equal(unlink(old), 0);
	assert_int_equal(unlink(own), -1);
}

static void what_fails_leaves_nothing(void **state)
{
	char deep[80];

	snprintf(deep, sizeof(deep), "%s/none/x", dir);
	assert_int_equal(file_replace(deep, "x"), -ENOENT);
	/* A directory is not replaced. */
	assert_int_equal(file_replace(dir, "x"), -EISDIR);
	snprintf(deep, sizeof(deep), "%s.new.%d", dir, (int)getpid());
	assert_int_equal(access(deep, F_OK), -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(modes), cmocka_unit_test(no_link_is_followed),
		cmocka_unit_test(what_fails_leaves_nothing),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
