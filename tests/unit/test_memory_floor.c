// SPDX-License-Identifier: GPL-2.0-or-later
/* A cgroup's limit while it is recorded with --full; the limit is a plain file. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ebbctl/device/memory_floor.h"
#include "lib/base/files.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

/* Of equal length: unlike the kernel's, a plain file keeps the rest of a longer value. */
#define BEFORE "8388608"
#define LOWERED 4194304
#define LOWERED_TEXT "4194304"
#define ADMIN "6291456"

static char dir[] = "/tmp/ebb-test-floor-XXXXXX", file[64];
static struct cgroup_ref cgroup = { .rel = "/x", .v2 = true };

static int setup(void **state)
{
	if (!mkdtemp(dir))
		return -1;
	snprintf(file, sizeof(file), "%s/memory.high", dir);
	snprintf(cgroup.path, sizeof(cgroup.path), "%s", dir);
	return 0;
}

static int teardown(void **state)
{
	return unlink(file) || rmdir(dir);
}

static void has(const char *value)
{
	char text[64];

	assert_true(file_read(file, text, sizeof(text)) > 0);
	text[strcspn(text, "\n")] = '\0';
	assert_string_equal(text, value);
}

static void lower(struct memory_floor *f, uint64_t bytes)
{
	struct error e = { 0 };

	assert_int_equal(file_replace(file, BEFORE "\n"), 0);
	assert_int_equal(memory_floor_set(f, &cgroup, bytes, &e), 0);
	has(LOWERED_TEXT);
}

static void limit_is_restored(void **state)
{
	struct memory_floor f;

	lower(&f, LOWERED);
	memory_floor_end(&f);
	has(BEFORE);
}

/* The kernel shows whole pages. */
static void limit_that_the_kernel_rounds_is_restored(void **state)
{
	struct memory_floor f;

	lower(&f, LOWERED + 100);
	memory_floor_end(&f);
	has(BEFORE);
}

static void limit_of_an_administrator_stays(void **state)
{
	struct memory_floor f;

	lower(&f, LOWERED);
	assert_int_equal(file_write(file, ADMIN), 0);
	memory_floor_end(&f);
	has(ADMIN);
}

/* Another cgroup of that name, such as a restarted service's. */
static void recreated_cgroup_is_another(void **state)
{
	struct memory_floor f;

	lower(&f, LOWERED);
	assert_int_equal(unlink(file), 0);
	assert_int_equal(file_replace(file, LOWERED_TEXT "\n"), 0);
	memory_floor_end(&f);
	has(LOWERED_TEXT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(limit_is_restored),
		cmocka_unit_test(limit_that_the_kernel_rounds_is_restored),
		cmocka_unit_test(limit_of_an_administrator_stays),
		cmocka_unit_test(recreated_cgroup_is_another),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
