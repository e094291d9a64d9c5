// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/files.h"
#include "lib/base/paths.h"
#include "lib/control/device.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static char dir[] = "/tmp/ebb-test-device-XXXXXX";

static int setup(void **state)
{
	return mkdtemp(dir) ? setenv("EBB_RUN_DIR", dir, 1) : -1;
}

static int teardown(void **state)
{
	char path[64];

	snprintf(path, sizeof(path), "%s/devices", dir);
	return rmdir(path) || rmdir(dir) ? -1 : 0;
}

static const struct device_record sample = {
	.name = "ebb0", .frontend = "fuse", .block = "/dev/loop3", .major = 7, .minor = 3,
	.size = 1ULL << 40, .slab = 64 << 20, .priority = 100, .server_pid = 4321,
	.donor = "127.0.0.1:7070", .backup = "/var/lib/ebb/ebb0.\"x\"", .mount = "/run/ebb/m",
	.scope = "attached", .donors_from = "command", .durability = "disk", .key = "/etc/ebb/a.key",
	.seal = "auto", .connections = "1",
};

static void names(void **state)
{
	static const char *const good[] = { "e", "ebb0", "0", "a-b_c", "abcdefghijklmnopqrstuvwxyz01234" };
	static const char *const bad[] = { "", "-a", "_a", "A", "a/b", "..", "a b", "a.json", "é",
					   "abcdefghijklmnopqrstuvwxyz012345" };

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		assert_int_equal(device_name_check(good[i], NULL), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct error e = { 0 };

		assert_int_equal(device_name_check(bad[i], &e), -EINVAL);
		assert_int_equal(e.exit_status, EXIT_USAGE);
	}
}

static void round_trip(void **state)
{
	struct device_record d = { 0 };
	struct error e = { 0 };

	assert_int_equal(device_record_write(&sample, &e), 0);
	assert_int_equal(device_record_read("ebb0", &d, &e), 0);
	assert_memory_equal(&d, &sample, sizeof(d));
	assert_int_equal(device_record_remove("ebb0"), 0);
	assert_int_equal(device_record_remove("ebb0"), 0);
	memset(&d, 0x55, sizeof(d));
	assert_int_equal(device_record_read("ebb0", &d, &e), -ENOENT);
	assert_int_equal(d.major, 0x55555555);
	assert_int_equal(e.exit_status, EXIT_USAGE);
}

static void damaged(void **state)
{
	static const char *const texts[] = {
		"", "{", "[]", "{\"name\":\"ebb0\"}", "3",
		/* the wrong type, a string too long for its field, another's name */
		"{\"name\":7}", "{\"name\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}",
	};
	struct device_record d;

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		struct error e = { 0 };

		assert_int_equal(file_replace(ebb_device_record("ebb0"), texts[i]), 0);
		assert_int_equal(device_record_read("ebb0", &d, &e), -EBADMSG);
		assert_non_null(strstr(e.text, "ebb0"));
	}
	assert_int_equal(device_record_write(&sample, NULL), 0);
	assert_int_equal(rename(ebb_device_record("ebb0"), "/tmp/ebb-test-record"), 0);
	{
		char text[4096];

		assert_true(file_read("/tmp/ebb-test-record", text, sizeof(text)) > 0);
		assert_int_equal(file_replace(ebb_device_record("ebb1"), text), 0);
		unlink("/tmp/ebb-test-record");
	}
	assert_int_equal(device_record_read("ebb1", &d, NULL), -EBADMSG);
	assert_int_equal(device_record_remove("ebb1"), 0);
	assert_int_equal(device_record_remove("ebb0"), 0);
}

static int collect(const struct device_record *d, void *data)
{
	strcat(data, d->name);
	return strlen(data) >= 6;
}

static void in_name_order(void **state)
{
	struct device_record d = sample;
	static const char *const order[] = { "c", "a", "b", "d", "e", "f", "g" };
	char seen[16] = "";

	for (size_t i = 0; i < 3; i++) {
		strcpy(d.name, order[i]);
		assert_int_equal(device_record_write(&d, NULL), 0);
	}
	/* Neither a staging file nor a damaged record stops the others. */
	file_replace(ebb_device_record("b"), "damaged");
	assert_int_equal(device_record_each(collect, seen), 0);
	assert_string_equal(seen, "ac");
	for (size_t i = 0; i < 7; i++) {
		strcpy(d.name, order[i]);
		assert_int_equal(device_record_write(&d, NULL), 0);
	}
	seen[0] = '\0';
	assert_int_equal(device_record_each(collect, seen), 1);
	assert_string_equal(seen, "abcdef");
	for (size_t i = 0; i < 7; i++)
		assert_int_equal(device_record_remove(order[i]), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names), cmocka_unit_test(round_trip), cmocka_unit_test(damaged),
		cmocka_unit_test(in_name_order),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
