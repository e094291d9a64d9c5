// SPDX-License-Identifier: GPL-2.0-or-later
/* A device whose limits of cgroups cannot be restored: the rest of it is removed. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ebbctl/device/destroy.h"
#include "ebbctl/device/teardown.h"
#include "lib/base/files.h"
#include "lib/base/paths.h"
#include "lib/host/scope.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static char dir[] = "/tmp/ebb-test-teardown-XXXXXX";
static int undo_result, undone;

int __wrap_scope_undo(const char *device, struct error *e)
{
	undone++;
	return undo_result;
}

static int setup(void **state)
{
	return !mkdtemp(dir) || setenv("EBB_RUN_DIR", dir, 1) || file_make_dirs(ebb_device_dir(), 0700);
}

static int teardown(void **state)
{
	return rmdir(ebb_device_dir()) || rmdir(dir);
}

static void limits_that_are_left_keep_no_device(void **state)
{
	const struct swapoff_options o = { 1000, PATIENCE_TO_THE_END, SWAPOFF_QUIET, NULL };
	struct device_record d;
	struct error e = { 0 };

	assert_int_equal(file_replace(ebb_device_record("x"), "{}"), 0);
	assert_int_equal(device_find("x", &d, &e), 0);
	undo_result = -EACCES;
	assert_int_equal(device_teardown(&d, &o, &e), -EACCES);
	/* With it, ebbd would apply the scope of a device that no longer exists. */
	assert_int_equal(access(ebb_device_record("x"), F_OK), -1);
	/* Another one of this name can be created. */
	assert_int_equal(device_find("x", &d, &e), -ENOENT);
}

/* `device destroy` tries again, without a device. */
static void limits_that_are_left_can_be_restored(void **state)
{
	struct error e = { 0 };
	char path[64];

	if (geteuid()) {
		print_message("skip: needs root to destroy a device\n");
		skip();
	}
	snprintf(path, sizeof(path), "%.40s/x.scope", ebb_device_dir());
	undo_result = 0;
	undone = 0;
	assert_int_equal(device_destroy("x", DESTROY_POLITE, 1000, SWAPOFF_QUIET, &e), -ENOENT);
	assert_int_equal(undone, 0);
	assert_int_equal(file_replace(path, "[]"), 0);
	assert_int_equal(device_destroy("x", DESTROY_POLITE, 1000, SWAPOFF_QUIET, &e), 0);
	assert_int_equal(undone, 1);
	assert_int_equal(unlink(path), 0);
	snprintf(path, sizeof(path), "%.40s/lock", ebb_device_dir());
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(limits_that_are_left_keep_no_device),
		cmocka_unit_test(limits_that_are_left_can_be_restored),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
