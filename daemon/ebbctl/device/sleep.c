// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kmoddev.h"
#include "loopdev.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/files.h"
#include "lib/base/json.h"
#include "lib/base/paths.h"
#include "lib/base/privilege.h"
#include "sleep.h"
#include "swaps.h"
#include "teardown.h"

/* The path of a JSON array: the names of devices whose swap is off because of sleep. */
static const char *asleep_file(void)
{
	static char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/asleep", ebb_run_dir());
	return path;
}

static struct json_object *asleep_read(void)
{
	char text[PATH_MAX];
	struct json_object *o = file_read(asleep_file(), text, sizeof(text)) > 0 ?
				json_tokener_parse(text) : NULL;

	if (json_object_is_type(o, json_type_array))
		return o;
	json_object_put(o);
	return json_object_new_array();
}

static int asleep_write(struct json_object *asleep, struct error *e)
{
	int r = 0;

	if (json_object_array_length(asleep))
		r = file_replace(asleep_file(), json_object_to_json_string(asleep));
	else if (unlink(asleep_file()) < 0 && errno != ENOENT)
		r = -errno;
	return r ? fail(e, r, "%s: cannot write: %s", asleep_file(), strerror(-r)) : 0;
}

static int check(const struct device_record *d, const struct swap_area *area, struct error *e)
{
	if (!kmoddev_is(d) && !d->server_pid && area->used)
		return fail_exit(e, EXIT_REFUSED, EIO,
				 "device %s: ebb-swapd is dead, and swapoff would wait for it; see \"ebbctl device list\"",
				 d->name);
	return swaps_can_leave(d->name, area, "keep the machine awake", e);
}

/* Devices that go to sleep. */
struct sleepers {
	const struct swapoff_options *options;
	struct json_object *asleep, *names;
	struct error *e;
};

static int put_to_sleep(const struct device_record *record, void *data)
{
	struct sleepers *s = data;
	struct device_record d;
	struct swap_area area;
	int r;

	if (device_find(record->name, &d, NULL) || !*d.block || swaps_find(d.block, &area))
		return 0;
	r = check(&d, &area, s->e);
	if (r)
		return r;
	r = loop_keep(d.block, true);
	if (r)
		return fail(s->e, r, "%s: cannot be kept without swap: %s", d.block, strerror(-r));
	/* Written first: whatever ends this process, devices_wake() knows of the device. */
	json_object_array_add(s->asleep, json_object_new_string(d.name));
	r = asleep_write(s->asleep, s->e);
	if (!r)
		r = swaps_off(d.name, d.block, s->options, s->e);
	if (!r)
		json_object_array_add(s->names, json_object_new_string(d.name));
	return r;
}

/* Returns 0 also for a device that was removed, or whose swap is on. */
static int wake_one(const char *name, struct json_object *names, struct error *e)
{
	struct device_record d;
	struct swap_area area;
	int r = 0;

	if (device_find(name, &d, NULL) || !*d.block)
		return 0;
	if (swaps_find(d.block, &area)) {
		r = swaps_on(name, d.block, d.priority, e);
		if (!r)
			json_object_array_add(names, json_object_new_string(name));
	}
	/* It may stay: `device destroy` detaches it, too. */
	if (!r)
		loop_keep(d.block, false);
	return r;
}

/* Tries each once; returns those that failed, and the first error. */
static struct json_object *wake_round(struct json_object *asleep, struct json_object *names,
				      struct error *e)
{
	struct json_object *left = json_object_new_array();

	for (size_t i = 0; i < json_object_array_length(asleep); i++) {
		const char *name = json_object_get_string(json_object_array_get_idx(asleep, i));

		if (wake_one(name, names, e))
			json_object_array_add(left, json_object_new_string(name));
	}
	return left;
}

static int wake_all(int timeout_ms, struct json_object *names, struct error *e)
{
	const struct timespec pause = { .tv_sec = 1 };
	_cleanup_json_ struct json_object *asleep = asleep_read();
	int64_t deadline = now_ms() + timeout_ms;
	struct error why;
	int r;

	for (;;) {
		struct json_object *left;

		why = (struct error){ 0 };
		left = wake_round(asleep, names, &why);
		json_object_put(asleep);
		asleep = left;
		r = asleep_write(asleep, e);
		if (r || !json_object_array_length(asleep))
			return r;
		if (now_ms() >= deadline || process_interrupted())
			return fail(e, why.code, "%s; swap stays off until \"ebbctl device wake\"", why.text);
		nanosleep(&pause, NULL);
	}
}

static int begin(const char *what, int *lock, struct error *e)
{
	int r = need_root(what, e);

	if (r)
		return r;
	process_defer_signals();
	*lock = device_lock(PATIENCE_UNTIL_INTERRUPTED, e);
	return *lock < 0 ? *lock : 0;
}

int devices_sleep(int timeout_ms, enum swapoff_show show, struct json_object *names,
		  struct error *e)
{
	const struct swapoff_options options = { timeout_ms, PATIENCE_UNTIL_INTERRUPTED, show };
	_cleanup_json_ struct json_object *asleep = NULL, *again = json_object_new_array();
	_cleanup_close_ int lock = -1;
	struct error also = { 0 };
	int r = begin("device sleep", &lock, e);

	if (r)
		return r;
	asleep = asleep_read();
	r = device_record_each(put_to_sleep, &(struct sleepers){ &options, asleep, names, e });
	if (r && wake_all(0, again, &also))
		fprintf(stderr, "ebbctl: %s\n", also.text);
	return r;
}

int devices_wake(int timeout_ms, struct json_object *names, struct error *e)
{
	_cleanup_close_ int lock = -1;
	int r = begin("device wake", &lock, e);

	return r ? r : wake_all(timeout_ms, names, e);
}
