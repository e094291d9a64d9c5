// SPDX-License-Identifier: GPL-2.0-or-later
/* Which run stops the services that `ebbctl run --start` started. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ebbctl/device/destroy.h"
#include "ebbctl/run/run_services.h"
#include "lib/base/json.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static char dir[] = "/tmp/ebb-test-run-services-XXXXXX", lock_file[64], steps[128];
static const char *attached_by; /* of the one attached cgroup, or NULL */
static int destroy_result;
static struct program program = { .signals = -1 };

/* --- the services ------------------------------------------------------------ */

static void step(const char *what)
{
	snprintf(steps + strlen(steps), sizeof(steps) - strlen(steps), "%s ", what);
}

int __wrap_daemon_call(struct json_object *request, struct json_object **answer, struct error *e)
{
	struct json_object *list = json_object_new_array(), *row = json_object_new_object();

	json_object_put(request);
	*answer = json_object_new_object();
	json_object_object_add(*answer, "attachments", list);
	json_add_text(row, "cgroup", "/sys/fs/cgroup/spark.slice");
	json_add_text(row, "by", attached_by);
	if (attached_by)
		json_object_array_add(list, row);
	else
		json_object_put(row);
	return 0;
}

int __wrap_device_destroy(const char *name, enum destroy_mode mode, int timeout_ms,
			  enum swapoff_show show, struct error *e)
{
	int fd = open(lock_file, O_RDWR);

	assert_string_equal(name, STARTED_DEVICE);
	/* Pages that fit nowhere else are those of other programs. */
	assert_int_equal(mode, DESTROY_PATIENT);
	/* No run begins meanwhile. */
	assert_int_equal(flock(fd, LOCK_SH | LOCK_NB), -1);
	close(fd);
	step("device");
	return destroy_result;
}

int __wrap_process_end(pid_t pid, const char *comm, int timeout_ms)
{
	step(comm);
	return 0;
}

/* --- the tests ---------------------------------------------------------------- */

static int setup(void **state)
{
	snprintf(lock_file, sizeof(lock_file), "%s/run.lock", mkdtemp(dir));
	return setenv("EBB_RUN_DIR", dir, 1);
}

static int teardown(void **state)
{
	return unlink(lock_file) || rmdir(dir) ? -1 : 0;
}

static int reset(void **state)
{
	*steps = '\0';
	attached_by = NULL;
	destroy_result = 0;
	return 0;
}

static int use(void)
{
	int lock = services_use(&program, NULL);

	assert_true(lock >= 0);
	return lock;
}

static struct started all(void)
{
	return (struct started){ .device = true, .donor = 11, .daemon = 12 };
}

/* Ends the run with @lock, and closes it. */
static void ends(struct started *s, int lock, int result, const char *expected)
{
	struct error e = { 0 };

	*steps = '\0';
	assert_int_equal(started_end(s, lock, &e), result);
	assert_string_equal(steps, expected);
	close(lock);
}

static void the_only_run_stops_all(void **state)
{
	struct started s = all();

	ends(&s, use(), 0, "device ebb-donord ebbd ");
	assert_false(started_any(&s));
}

static void a_device_that_is_gone_keeps_nothing(void **state)
{
	struct started s = all();

	destroy_result = -ENOENT;
	ends(&s, use(), 0, "device ebb-donord ebbd ");
	assert_false(started_any(&s));
}

static void run_that_uses_them_keeps_them(void **state)
{
	struct started a = all(), b = { 0 };
	int of_a = use(), of_b = use();
	char text[128];

	ends(&a, of_a, -EBUSY, "");
	assert_string_equal(started_format(&a, text, sizeof(text)),
			    "ebbctl device destroy ebb0 && kill 11 12");
	ends(&b, of_b, 0, "");
}

static void run_that_uses_them_ends_first(void **state)
{
	struct started a = all(), b = { 0 };
	int of_a = use(), of_b = use();

	ends(&b, of_b, 0, "");
	ends(&a, of_a, 0, "device ebb-donord ebbd ");
}

static void killed_run_uses_nothing(void **state)
{
	struct started a = all();
	int of_a = use(), ready[2];
	pid_t pid;
	char byte;

	assert_int_equal(pipe(ready), 0);
	pid = fork();
	if (pid == 0) {
		if (services_use(&program, NULL) >= 0 && write(ready[1], "x", 1) == 1)
			pause();
		_exit(1);
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	close(ready[0]);
	close(ready[1]);
	ends(&a, of_a, 0, "device ebb-donord ebbd ");
}

static void cgroup_that_was_attached_keeps_them(void **state)
{
	struct started s = all();

	attached_by = "command";
	ends(&s, use(), -EBUSY, "");
	/* ebbd attached it because --start started ebbd. */
	attached_by = "/etc/ebb/ebb.conf:3";
	ends(&s, use(), 0, "device ebb-donord ebbd ");
}

static void pages_of_others_keep_them(void **state)
{
	struct started s = all();
	struct error e = { 0 };
	char text[128];
	int lock = use();

	destroy_result = -EBUSY;
	assert_int_equal(started_end(&s, lock, &e), -EBUSY);
	assert_string_equal(steps, "device ");
	assert_string_equal(started_format(&s, text, sizeof(text)),
			    "ebbctl device destroy ebb0 && kill 11 12");
	close(lock);
}

static void what_was_not_started_is_not_stopped(void **state)
{
	struct started device = { .device = true, .donor = 11 }, daemon = { .daemon = 12 };
	char text[128];

	/* Another ebbd: not the business of this run. */
	attached_by = "command";
	assert_string_equal(started_format(&device, text, sizeof(text)),
			    "ebbctl device destroy ebb0 && kill 11");
	ends(&device, use(), 0, "device ebb-donord ");
	attached_by = NULL;
	assert_string_equal(started_format(&daemon, text, sizeof(text)), "kill 12");
	ends(&daemon, use(), 0, "ebbd ");
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup(f, reset)
	const struct CMUnitTest tests[] = {
		TEST(the_only_run_stops_all),
		TEST(a_device_that_is_gone_keeps_nothing),
		TEST(run_that_uses_them_keeps_them),
		TEST(run_that_uses_them_ends_first),
		TEST(killed_run_uses_nothing),
		TEST(cgroup_that_was_attached_keeps_them),
		TEST(pages_of_others_keep_them),
		TEST(what_was_not_started_is_not_stopped),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
