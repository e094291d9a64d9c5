// SPDX-License-Identifier: GPL-2.0-or-later
/* --scope attached on a hierarchy of plain files, with a systemd of the test. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <systemd/sd-bus.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/files.h"
#include "lib/base/paths.h"
#include "lib/control/control.h"
#include "lib/host/cgroup.h"
#include "lib/host/cgroup_files.h"
#include "lib/host/cgroup_walk.h"
#include "lib/host/scope.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define LEAF "/user.slice/user@1000.service/leaf"
#define NAMESAKE "/user.slice/user@1000.service/postgresql.service"
#define SERVICE "/system.slice/postgresql.service"
#define OTHER "/system.slice/cron.service"

static char top[] = "/tmp/ebb-test-scope-XXXXXX", mount[64];
static const char *attached[4];
static bool version1;
static char told[256]; /* units that systemd was to change, and the values */
static const char *denied; /* part of the path of files that cannot be written */

/* --- the machine ------------------------------------------------------------- */

const char *cgroup_memory_mount(bool *v2)
{
	if (v2)
		*v2 = !version1;
	return mount;
}

int cgroup_each(int (*each)(const char *dir, void *data), void *data)
{
	return cgroup_walk(mount, each, data);
}

struct json_object *control_ask(const char *path, const char *verb, int timeout_ms)
{
	struct json_object *o = json_object_new_object(), *list = json_object_new_array();

	json_object_object_add(o, "attachments", list);
	for (int i = 0; i < 4 && attached[i]; i++) {
		struct json_object *row = json_object_new_object();
		char dir[PATH_MAX];

		snprintf(dir, sizeof(dir), "%s%s", mount, attached[i]);
		json_add_text(row, "cgroup", dir);
		json_object_array_add(list, row);
	}
	return o;
}

/* Unlike a plain file, one of the kernel's has the new value alone. */
int __wrap_file_write(const char *path, const char *text)
{
	if (denied && strstr(path, denied))
		return -EACCES;
	return access(path, F_OK) < 0 ? -errno : file_replace(path, text);
}

/* --- systemd: it manages two services, and is asked one thing at a time ---------- */

static const char *answered;
static bool hangs;

int sd_booted(void) { return 1; }
int sd_bus_open_system(sd_bus **bus) { return 0; }
int sd_bus_is_ready(sd_bus *bus) { return 1; }
int sd_bus_set_method_call_timeout(sd_bus *bus, uint64_t usec) { return 0; }
sd_bus *sd_bus_close_unref(sd_bus *bus) { return NULL; }
sd_bus_message *sd_bus_message_unref(sd_bus_message *m) { return NULL; }

static const char *cgroup_of(const char *unit)
{
	return !strcmp(unit, "postgresql.service") ? SERVICE :
	       !strcmp(unit, "cron.service") ? OTHER : NULL;
}

int sd_bus_call_method(sd_bus *bus, const char *destination, const char *path,
		       const char *interface, const char *member, sd_bus_error *error,
		       sd_bus_message **reply, const char *types, ...)
{
	const char *unit;
	va_list ap;

	if (hangs) {
		snprintf(told + strlen(told), sizeof(told) - strlen(told), "timeout ");
		return -ETIMEDOUT;
	}
	va_start(ap, types);
	unit = va_arg(ap, const char *);
	answered = cgroup_of(unit);
	if (!strcmp(member, "SetUnitProperties")) {
		assert_int_equal(va_arg(ap, int) + va_arg(ap, int), 2);
		assert_string_equal(va_arg(ap, const char *), "MemorySwapMax");
		assert_string_equal(va_arg(ap, const char *), "t");
		snprintf(told + strlen(told), sizeof(told) - strlen(told), "%s=%lld ", unit,
			 va_arg(ap, long long));
	} else {
		assert_string_equal(member, "GetUnit");
	}
	va_end(ap);
	return answered ? 0 : -ENOENT;
}

int sd_bus_message_read(sd_bus_message *m, const char *types, ...)
{
	va_list ap;

	va_start(ap, types);
	*va_arg(ap, const char **) = "/unit";
	va_end(ap);
	return 0;
}

int sd_bus_get_property_string(sd_bus *bus, const char *destination, const char *path,
			       const char *interface, const char *member, sd_bus_error *error,
			       char **value)
{
	assert_string_equal(interface, "org.freedesktop.systemd1.Service");
	assert_string_equal(member, "ControlGroup");
	*value = strdup(answered);
	return 0;
}

/* --- the tests ---------------------------------------------------------------- */

static const char *file_of(const char *cgroup)
{
	static char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s%s/memory.%s", mount, cgroup,
		 version1 ? "swappiness" : "swap.max");
	return path;
}

static void put(const char *cgroup, const char *value)
{
	assert_int_equal(file_replace(file_of(cgroup), value), 0);
}

static void make(const char *cgroup)
{
	char dir[PATH_MAX];

	snprintf(dir, sizeof(dir), "%s%s", mount, cgroup);
	assert_int_equal(file_make_dirs(dir, 0755), 0);
	put(cgroup, version1 ? "60\n" : "max\n");
}

static void has(const char *cgroup, const char *value)
{
	char text[64];

	assert_true(file_read(file_of(cgroup), text, sizeof(text)) > 0);
	text[strcspn(text, "\n")] = '\0';
	assert_string_equal(text, value);
}

static int setup_version(bool v1)
{
	static const char *const cgroups[] = {
		"", "/user.slice", "/user.slice/user@1000.service", LEAF, NAMESAKE, "/system.slice",
		SERVICE, OTHER,
	};

	snprintf(top, sizeof(top), "/tmp/ebb-test-scope-XXXXXX");
	if (!mkdtemp(top) || setenv("EBB_RUN_DIR", top, 1))
		return -1;
	snprintf(mount, sizeof(mount), "%s/cgroup", top);
	memset(attached, 0, sizeof(attached));
	*told = '\0';
	denied = NULL;
	version1 = v1;
	if (file_make_dirs(ebb_device_dir(), 0755))
		return -1;
	for (size_t i = 0; i < sizeof(cgroups) / sizeof(cgroups[0]); i++)
		make(cgroups[i]);
	return 0;
}

static int setup(void **state) { return setup_version(false); }
static int setup1(void **state) { return setup_version(true); }

static int drop(const char *path, const struct stat *st, int type, struct FTW *where)
{
	return remove(path);
}

static int teardown(void **state)
{
	return nftw(top, drop, 16, FTW_DEPTH | FTW_PHYS);
}

static void systemd_gets_the_units_that_are_limited(void **state)
{
	struct error e = { 0 };

	attached[0] = LEAF;
	attached[1] = SERVICE;
	assert_int_equal(scope_apply("d", NULL, SCOPE_COMMAND, &e), 0);
	has(SERVICE, "max");
	has(LEAF, "max");
	has(OTHER, "0");
	assert_string_equal(told, "cron.service=0 ");
	assert_int_equal(scope_undo("d", &e), 0);
	has(OTHER, "max");
	assert_string_equal(told, "cron.service=0 cron.service=-1 ");
}

/* A user may create it, and with it change the service's limit. */
static void delegated_cgroup_with_the_name_of_a_unit(void **state)
{
	struct error e = { 0 };

	attached[0] = LEAF;
	attached[1] = SERVICE;
	put(NAMESAKE, "4096\n");
	assert_int_equal(scope_apply("d", NULL, SCOPE_COMMAND, &e), 0);
	has(NAMESAKE, "0");
	assert_null(strstr(told, "postgresql"));
	assert_int_equal(scope_undo("d", &e), 0);
	has(NAMESAKE, "4096");
	assert_null(strstr(told, "postgresql"));
}

/* At destroy, and when the cgroup is attached. */
static void limit_of_an_administrator_stays(void **state)
{
	struct error e = { 0 };

	attached[0] = LEAF;
	assert_int_equal(scope_apply("d", NULL, SCOPE_COMMAND, &e), 0);
	has(NAMESAKE, "0");
	has("/system.slice", "0");
	has(OTHER, "max"); /* included */
	put(NAMESAKE, "4096\n");
	put("/system.slice", "8192\n");
	attached[1] = NAMESAKE;
	assert_int_equal(scope_apply("d", NULL, SCOPE_COMMAND, &e), 0);
	has(NAMESAKE, "4096");
	has("/system.slice", "8192");
	assert_int_equal(scope_undo("d", &e), 0);
	has("/system.slice", "8192");
}

static void daemon_waits_for_no_other_caller(void **state)
{
	struct error e = { 0 };
	char path[PATH_MAX];
	int other;

	attached[0] = LEAF;
	attached[1] = SERVICE;
	assert_int_equal(scope_apply("d", NULL, SCOPE_COMMAND, &e), 0);
	attached[2] = OTHER;
	snprintf(path, sizeof(path), "%s/scope.lock", ebb_device_dir());
	other = open(path, O_RDWR);
	assert_int_equal(flock(other, LOCK_EX), 0);
	assert_int_equal(scope_apply("d", NULL, SCOPE_DAEMON, &e), -EAGAIN);
	close(other);
	has(OTHER, "0");
	assert_int_equal(scope_apply("d", NULL, SCOPE_DAEMON, &e), 0);
	has(OTHER, "max");
	assert_int_equal(scope_undo("d", &e), 0);
}

/* No process would restore the limits of a device that is being removed. */
static void daemon_sets_no_first_limits(void **state)
{
	struct error e = { 0 };

	attached[0] = LEAF;
	assert_int_equal(scope_apply("d", NULL, SCOPE_DAEMON, &e), 0);
	has("/system.slice", "max");
}

/* Each of many cgroups would cost a timeout. */
static void systemd_that_does_not_answer_is_asked_once(void **state)
{
	struct error e = { 0 };

	hangs = true;
	attached[0] = LEAF;
	attached[1] = SERVICE;
	assert_int_equal(scope_apply("d", NULL, SCOPE_COMMAND, &e), 0);
	hangs = false;
	has(NAMESAKE, "0");
	has(OTHER, "0");
	assert_string_equal(told, "timeout ");
}

/* As the kernel creates it. */
static void make_below_limited(const char *cgroup)
{
	make(cgroup);
	put(cgroup, "0\n");
}

/* Attached later, it has its swap; and at destroy those that are not attached. */
static void version_1_cgroup_that_inherits_a_limit(void **state)
{
	struct error e = { 0 };

	put(SERVICE, "0\n");
	attached[0] = LEAF;
	assert_int_equal(scope_apply("d", NULL, SCOPE_COMMAND, &e), 0);
	has("/system.slice", "0");
	make_below_limited("/system.slice/late.service");
	make_below_limited(OTHER "/late");
	make_below_limited(OTHER "/late/below");
	attached[1] = OTHER "/late/below";
	assert_int_equal(scope_apply("d", NULL, SCOPE_COMMAND, &e), 0);
	has("/system.slice", "60");
	has(OTHER "/late", "60");
	has(OTHER "/late/below", "60");
	has("/system.slice/late.service", "0");
	make_below_limited("/system.slice/late.service/below");
	assert_int_equal(scope_undo("d", &e), 0);
	has("/system.slice/late.service", "60");
	has("/system.slice/late.service/below", "60");
	/* Not ebb's. */
	has(SERVICE, "0");
}

/* As a cgroup of a user's for root without CAP_DAC_OVERRIDE. */
static void value_that_cannot_be_restored_is_kept(void **state)
{
	struct error e = { 0 }, again = { 0 };

	attached[0] = LEAF;
	attached[1] = SERVICE;
	put(NAMESAKE, "4096\n");
	assert_int_equal(scope_apply("d", NULL, SCOPE_COMMAND, &e), 0);
	denied = NAMESAKE;
	assert_int_equal(scope_undo("d", &e), -EACCES);
	assert_non_null(strstr(e.text, NAMESAKE));
	assert_non_null(strstr(e.text, "1 cgroup,"));
	has(OTHER, "max");
	has(NAMESAKE, "0");
	assert_true(scope_has_limits("d"));
	denied = NULL;
	assert_int_equal(scope_undo("d", &again), 0);
	has(NAMESAKE, "4096");
	assert_false(scope_has_limits("d"));
}

static void attached_cgroup_that_stays_without_swap(void **state)
{
	struct error e = { 0 }, again = { 0 };

	attached[0] = LEAF;
	attached[1] = SERVICE;
	assert_int_equal(scope_apply("d", NULL, SCOPE_COMMAND, &e), 0);
	denied = NAMESAKE;
	attached[2] = NAMESAKE;
	assert_int_equal(scope_apply("d", NULL, SCOPE_COMMAND, &e), -EACCES);
	assert_non_null(strstr(e.text, NAMESAKE));
	denied = NULL;
	assert_int_equal(scope_apply("d", NULL, SCOPE_COMMAND, &again), 0);
	has(NAMESAKE, "max");
	assert_int_equal(scope_undo("d", &again), 0);
}

/* Else a value that the cgroup's owner sets to 0 later would be taken for ebb's. */
static void limit_that_cannot_be_set_is_not_recorded(void **state)
{
	struct error e = { 0 };

	attached[0] = LEAF;
	attached[1] = SERVICE;
	denied = NAMESAKE;
	assert_int_equal(scope_apply("d", NULL, SCOPE_COMMAND, &e), 0);
	has(NAMESAKE, "max");
	has(OTHER, "0");
	denied = NULL;
	put(NAMESAKE, "0\n");
	assert_int_equal(scope_undo("d", &e), 0);
	has(NAMESAKE, "0");
	has(OTHER, "max");
}

static void removed_cgroup_needs_no_value(void **state)
{
	struct error e = { 0 };
	char dir[PATH_MAX];

	attached[0] = LEAF;
	assert_int_equal(scope_apply("d", NULL, SCOPE_COMMAND, &e), 0);
	remove(file_of(OTHER));
	snprintf(dir, sizeof(dir), "%s" OTHER, mount);
	assert_int_equal(rmdir(dir), 0);
	assert_int_equal(scope_undo("d", &e), 0);
	assert_false(scope_has_limits("d"));
}

static size_t number_recorded(void)
{
	_cleanup_json_ struct json_object *list = NULL;
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/d.scope", ebb_device_dir());
	list = json_object_from_file(path);
	assert_true(json_object_is_type(list, json_type_array));
	return json_object_array_length(list);
}

/* Each is looked up among those that are limited: comparing each with each takes ten minutes. */
static void many_cgroups_are_looked_up(void **state)
{
	enum { MANY = 10000 };
	char path[PATH_MAX];
	struct error e = { 0 };
	FILE *f;

	attached[0] = LEAF;
	snprintf(path, sizeof(path), "%s/d.scope", ebb_device_dir());
	f = fopen(path, "w");
	assert_non_null(f);
	fputs("[ ", f);
	for (int i = 0; i < MANY; i++) {
		snprintf(path, sizeof(path), "%s/user.slice/user@1000.service/%05d", mount, i);
		assert_return_code(mkdir(path, 0755), errno);
		fprintf(f, "%s{ \"dir\": \"%s\", \"old\": \"4096\" }", i ? ", " : "", path);
	}
	fputs(" ]", f);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(scope_apply("d", NULL, SCOPE_COMMAND, &e), 0);
	has("/system.slice", "0");
	/* And /system.slice, two below it, and NAMESAKE. */
	assert_int_equal(number_recorded(), MANY + 4);
	put("/user.slice/user@1000.service/00007", "0\n");
	assert_int_equal(scope_undo("d", &e), 0);
	has("/user.slice/user@1000.service/00007", "4096");
	has(OTHER, "60");
	assert_false(scope_has_limits("d"));
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(systemd_gets_the_units_that_are_limited),
		TEST(delegated_cgroup_with_the_name_of_a_unit),
		TEST(limit_of_an_administrator_stays),
		TEST(daemon_waits_for_no_other_caller),
		TEST(daemon_sets_no_first_limits),
		TEST(systemd_that_does_not_answer_is_asked_once),
		TEST(value_that_cannot_be_restored_is_kept),
		TEST(attached_cgroup_that_stays_without_swap),
		TEST(limit_that_cannot_be_set_is_not_recorded),
		TEST(removed_cgroup_needs_no_value),
		cmocka_unit_test_setup_teardown(many_cgroups_are_looked_up, setup1, teardown),
		cmocka_unit_test_setup_teardown(version_1_cgroup_that_inherits_a_limit, setup1,
						teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
