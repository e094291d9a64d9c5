// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Swap of devices before and after the machine sleeps.  The directory of devices is real; swap,
 * loop devices and servers are the test's.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ebbctl/device/loopdev.h"
#include "ebbctl/device/sleep.h"
#include "ebbctl/device/swaps.h"
#include "ebbctl/device/teardown.h"
#include "ebbctl/device/ublkdev.h"
#include "lib/base/files.h"
#include "lib/base/json.h"
#include "lib/base/paths.h"
#include "lib/base/privilege.h"
#include "lib/control/control.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define GIB (1ull << 30)

/* The devices of this machine, without a kernel. */
static struct fake {
	const char *name, *block;
	bool server, attached, on, autoclear;
	uint64_t used;
	int off, on_result;       /* results of swapoff and swapon */
	int priority, discards, offs;
} fake[4];

static bool goes_on; /* a swapoff that was given up */
static int checks, checked;
static uint64_t checked_pages;
static char dir[] = "/tmp/ebb-test-sleep-XXXXXX";

static struct fake *of_name(const char *name)
{
	for (struct fake *f = fake; f < fake + 4; f++)
		if (f->name && !strcmp(f->name, name))
			return f;
	return NULL;
}

static struct fake *of_block(const char *block)
{
	for (struct fake *f = fake; f < fake + 4; f++)
		if (f->block && !strcmp(f->block, block))
			return f;
	return NULL;
}

/* "/run/ebb/devices/a.sock", "/run/ebb/mnt/a": the device a. */
static struct fake *of_path(const char *path)
{
	char name[DEVICE_NAME_MAX];

	snprintf(name, sizeof(name), "%.31s", strrchr(path, '/') + 1);
	name[strcspn(name, ".")] = '\0';
	return of_name(name);
}

int need_root(const char *what, struct error *e)
{
	return 0;
}

struct json_object *control_ask(const char *path, const char *verb, int timeout_ms)
{
	struct fake *f = of_path(path);
	struct json_object *o = NULL;

	if (f && f->server) {
		o = json_object_new_object();
		json_object_object_add(o, "pid", json_object_new_int(4711));
	}
	return o;
}

int ublk_find(const char *name, char *block, size_t size)
{
	return -ENOENT;
}

int ublk_remove(const char *name, struct error *e)
{
	return 0;
}

int loop_find(const char *mount, char *block, size_t size)
{
	struct fake *f = of_path(mount);

	if (!f || !f->attached)
		return -ENOENT;
	snprintf(block, size, "%s", f->block);
	return 0;
}

int loop_keep(const char *block, bool keep)
{
	of_block(block)->autoclear = !keep;
	return 0;
}

int loop_detach(const char *block)
{
	return 0;
}

int block_discard(const char *block)
{
	assert_false(of_block(block)->on);
	of_block(block)->discards++;
	return 0;
}

int swaps_find(const char *block, struct swap_area *area)
{
	struct fake *f = of_block(block);

	if (!f || !f->on)
		return -ENOENT;
	*area = (struct swap_area){ .used = f->used };
	snprintf(area->path, sizeof(area->path), "%s", block);
	return 0;
}

int swaps_can_leave(const char *devices, const struct swap_area *leaving, int n,
		    const char *otherwise, struct error *e)
{
	checks++;
	checked = n;
	checked_pages = 0;
	for (int i = 0; i < n; i++)
		checked_pages += leaving[i].used;
	return checked_pages > 8 * GIB ?
	       fail_exit(e, EXIT_REFUSED, EBUSY, "%s do not fit; %s", devices, otherwise) : 0;
}

int swaps_off(const char *device, const char *block, const struct swapoff_options *o,
	      struct error *e)
{
	struct fake *f = of_block(block);

	assert_string_equal(o->again, "ebbctl device sleep");
	f->offs++;
	if (f->off)
		return fail_exit(e, EXIT_FAILED, -f->off, "device %s: swapoff failed", device);
	f->on = false;
	/* The kernel detaches a loop device with autoclear that has no user. */
	f->attached = !f->autoclear;
	return 0;
}

bool swapoff_goes_on(void)
{
	return goes_on;
}

int swaps_on(const char *name, const char *block, int priority, struct error *e)
{
	struct fake *f = of_block(block);

	if (f->on_result)
		return fail_exit(e, EXIT_FAILED, -f->on_result, "mkswap: cannot write");
	f->on = true;
	f->priority = priority;
	return 0;
}

static void record(const char *name, const char *suffix, const char *text)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/devices/%s%s", dir, name, suffix);
	assert_int_equal(file_replace(path, text), 0);
}

/* A device that works. */
static struct fake *make(int i, const char *name, const char *block, int priority)
{
	struct device_record d = { .size = GIB, .slab = GIB, .priority = priority };

	strcpy(d.name, name);
	strcpy(d.frontend, "fuse");
	strcpy(d.block, block);
	assert_int_equal(device_record_write(&d, NULL), 0);
	fake[i] = (struct fake){ .name = name, .block = block, .server = true, .attached = true,
				 .on = true, .autoclear = true, .used = GIB };
	return &fake[i];
}

static int setup(void **state)
{
	memset(fake, 0, sizeof(fake));
	goes_on = false;
	checks = checked = 0;
	strcpy(dir + strlen(dir) - 6, "XXXXXX");
	return mkdtemp(dir) && !setenv("EBB_RUN_DIR", dir, 1) ?
	       file_make_dirs(ebb_device_dir(), 0755) : -1;
}

static int teardown(void **state)
{
	char command[64];

	snprintf(command, sizeof(command), "rm -r %s", dir);
	return system(command);
}

static int recorded(const char *name)
{
	char path[64], text[256];

	snprintf(path, sizeof(path), "%s/asleep", dir);
	return file_read(path, text, sizeof(text)) > 0 && strstr(text, name) != NULL;
}

static int sleeps(struct error *e)
{
	struct json_object *names = json_object_new_array();
	int r = devices_sleep(1000, SWAPOFF_QUIET, names, e);

	r = r ?: (int)json_object_array_length(names);
	json_object_put(names);
	return r;
}

static int wakes(struct error *e)
{
	struct json_object *names = json_object_new_array();
	int r = devices_wake(0, names, e);

	r = r ?: (int)json_object_array_length(names);
	json_object_put(names);
	return r;
}

static void swap_is_off_and_on_again(void **state)
{
	struct fake *a = make(0, "a", "/dev/loop0", 203), *b = make(1, "b", "/dev/loop1", -1);
	struct error e = { 0 };

	b->on = false; /* by the administrator */
	assert_int_equal(sleeps(&e), 1);
	assert_false(a->on);
	assert_true(a->attached && recorded("a") && !recorded("b"));
	assert_int_equal(sleeps(&e), 0);
	assert_true(recorded("a"));
	assert_int_equal(wakes(&e), 1);
	assert_true(a->on && a->autoclear && !b->on && !recorded("a"));
	assert_int_equal(a->priority, 203);
	assert_int_equal(wakes(&e), 0);
}

/* Else their donors keep them while the machine sleeps, and report them as lost with a donor. */
static void pages_that_are_in_memory_leave_the_donors(void **state)
{
	struct fake *a = make(0, "a", "/dev/loop0", 200);
	struct error e = { 0 };

	assert_int_equal(sleeps(&e), 1);
	assert_int_equal(a->discards, 1);
	assert_int_equal(wakes(&e), 1);
	assert_int_equal(a->discards, 1);
}

/* ebbctl was killed after swapon(2), or something damaged the record. */
static void a_device_without_record_sleeps_too(void **state)
{
	struct fake *a = make(0, "a", "/dev/loop0", 200), *b = make(1, "b", "/dev/loop1", 200);
	struct error e = { 0 };

	device_record_remove("a");
	record("a", ".partial", "{ \"frontend\": \"fuse\", \"priority\": 207 }");
	record("b", ".json", "{");
	record("b", ".partial", "{ \"frontend\": \"fuse\", \"priority\": 208 }");
	assert_int_equal(sleeps(&e), 2);
	assert_true(!a->on && !b->on);
	assert_int_equal(wakes(&e), 2);
	assert_true(a->on && b->on);
	assert_int_equal(a->priority, 207);
}

static void all_pages_must_fit_before_the_first_swapoff(void **state)
{
	struct fake *a = make(0, "a", "/dev/loop0", 200), *b = make(1, "b", "/dev/loop1", 201);
	struct error e = { 0 };

	a->used = b->used = 5 * GIB;
	assert_int_equal(sleeps(&e), -EBUSY);
	assert_int_equal(e.exit_status, EXIT_REFUSED);
	assert_string_equal(e.text, "a, b do not fit; keep the machine awake");
	assert_true(checks == 1 && checked == 2 && checked_pages == 10 * GIB);
	assert_true(a->on && b->on && !a->offs && !b->offs && !recorded("a"));
}

static void one_that_fails_wakes_the_others(void **state)
{
	struct fake *a = make(0, "a", "/dev/loop0", 200), *b = make(1, "b", "/dev/loop1", 201);
	struct error e = { 0 };

	b->off = -ETIMEDOUT;
	assert_int_equal(sleeps(&e), -ETIMEDOUT);
	assert_true(a->on && b->on && a->autoclear && b->autoclear && !recorded("a") && !recorded("b"));
}

/*
 * The kernel may complete a swapoff(2) that does not react to a signal.  A later one waits for it,
 * and is given up with -ETIMEDOUT.
 */
static void one_whose_swapoff_goes_on_is_remembered(void **state)
{
	const int results[] = { -EINPROGRESS, -ETIMEDOUT };
	struct fake *a = make(0, "a", "/dev/loop0", 200), *b = make(1, "b", "/dev/loop1", 201);
	struct error e;

	goes_on = true;
	for (int i = 0; i < 2; i++) {
		b->off = results[i];
		e = (struct error){ 0 };
		assert_int_equal(sleeps(&e), results[i]);
		assert_true(a->on && !recorded("a") && recorded("b") && !b->autoclear);
	}
	e = (struct error){ 0 };
	assert_int_equal(wakes(&e), -EIO);
	assert_string_equal(e.text, "device b: a swapoff has not ended; "
			    "run \"ebbctl device wake\" once it has");
	assert_true(b->on && recorded("b") && !b->autoclear);
	b->on = goes_on = false;
	e = (struct error){ 0 };
	assert_int_equal(wakes(&e), 1);
	assert_true(b->on && b->autoclear && !recorded("b"));
}

static void one_whose_swapoff_was_stopped_is_awake(void **state)
{
	struct fake *a = make(0, "a", "/dev/loop0", 200);
	struct error e = { 0 };

	a->off = -EINPROGRESS;
	goes_on = true;
	assert_int_equal(sleeps(&e), -EINPROGRESS);
	goes_on = false;
	e = (struct error){ 0 };
	assert_int_equal(wakes(&e), 0);
	assert_true(a->on && a->autoclear && !recorded("a"));
}

static void a_dead_server_keeps_the_machine_awake(void **state)
{
	struct fake *a = make(0, "a", "/dev/loop0", 200);
	struct error e = { 0 };

	a->server = false;
	a->used = 0;
	assert_int_equal(sleeps(&e), -EIO);
	assert_int_equal(e.exit_status, EXIT_REFUSED);
	assert_non_null(strstr(e.text, "device a: ebb-swapd is dead"));
	assert_non_null(strstr(e.text, "ebbctl device destroy a"));
	assert_true(a->on && !a->offs);
}

static void what_cannot_wake_says_why(void **state)
{
	struct fake *a = make(0, "a", "/dev/loop0", 200), *b = make(1, "b", "/dev/loop1", 201);
	struct error e = { 0 };

	assert_int_equal(sleeps(&e), 2);
	a->server = false;
	assert_int_equal(wakes(&e), -EIO);
	assert_string_equal(e.text, "device a: ebb-swapd exited while swap was off; "
			    "run \"ebbctl device destroy a\", then create it again");
	assert_true(b->on && recorded("a") && !recorded("b"));

	a->server = true;
	a->attached = false;
	e = (struct error){ 0 };
	assert_int_equal(wakes(&e), -EIO);
	assert_non_null(strstr(e.text, "device a: its block device was removed while swap was off"));

	a->attached = true;
	a->on_result = -EIO;
	e = (struct error){ 0 };
	assert_int_equal(wakes(&e), -EIO);
	assert_string_equal(e.text, "device a: mkswap: cannot write; "
			    "swap stays off, run \"ebbctl device wake\" to try again");
	a->on_result = 0;
	e = (struct error){ 0 };
	assert_int_equal(wakes(&e), 1);
}

static void one_that_was_destroyed_is_forgotten(void **state)
{
	struct fake *a = make(0, "a", "/dev/loop0", 200);
	struct error e = { 0 };

	assert_int_equal(sleeps(&e), 1);
	device_record_remove("a");
	a->name = a->block = NULL;
	assert_int_equal(wakes(&e), 0);
	assert_false(recorded("a"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(swap_is_off_and_on_again), TEST(pages_that_are_in_memory_leave_the_donors),
		TEST(a_device_without_record_sleeps_too),
		TEST(all_pages_must_fit_before_the_first_swapoff),
		TEST(one_that_fails_wakes_the_others),
		TEST(one_whose_swapoff_goes_on_is_remembered),
		TEST(one_whose_swapoff_was_stopped_is_awake),
		TEST(a_dead_server_keeps_the_machine_awake), TEST(what_cannot_wake_says_why),
		TEST(one_that_was_destroyed_is_forgotten),
	};
#undef TEST

	return cmocka_run_group_tests(tests, NULL, NULL);
}
