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

static void asleep_add(struct json_object *asleep, const char *name)
{
	for (size_t i = 0; i < json_object_array_length(asleep); i++)
		if (!strcmp(json_object_get_string(json_object_array_get_idx(asleep, i)), name))
			return;
	json_object_array_add(asleep, json_object_new_string(name));
}

/* Devices that go to sleep. */
struct sleepers {
	struct {
		char name[DEVICE_NAME_MAX], block[64];
	} device[SWAPS_MAX];
	struct swap_area area[SWAPS_MAX];
	int n;
	struct error *e;
};

/* Adds the device @name, incomplete or not, if its swap is on. */
static int add(const char *name, void *data)
{
	struct sleepers *s = data;
	struct device_record d;

	if (s->n == SWAPS_MAX || device_find(name, &d, NULL) || !*d.block ||
	    swaps_find(d.block, &s->area[s->n]))
		return 0;
	if (!kmoddev_is(&d) && !d.server_pid)
		return fail_exit(s->e, EXIT_REFUSED, EIO,
				 "device %s: ebb-swapd is dead, and swap is on; run \"ebbctl device destroy %s\", or keep the machine awake",
				 name, name);
	strcpy(s->device[s->n].name, d.name);
	strcpy(s->device[s->n].block, d.block);
	s->n++;
	return 0;
}

/* Before the first swapoff, which may take minutes: all pages must fit elsewhere. */
static int check(const struct sleepers *s)
{
	char names[256] = "";

	for (int i = 0; i < s->n; i++)
		snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s", i ? ", " : "",
			 s->device[i].name);
	return s->n ? swaps_can_leave(names, s->area, s->n, "keep the machine awake", s->e) : 0;
}

static int put_to_sleep(const char *name, const char *block, const struct swapoff_options *options,
			struct json_object *asleep, struct error *e)
{
	int r = loop_keep(block, true);

	if (r)
		return fail(e, r, "device %s: cannot keep %s attached without swap: %s; keep the machine awake",
			    name, block, strerror(-r));
	/* Written first: whatever ends this process, devices_wake() knows of the device. */
	asleep_add(asleep, name);
	r = asleep_write(asleep, e);
	if (!r)
		r = swaps_off(name, block, options, e);
	/* All pages are in memory: donors that are lost from now on lose none. */
	if (!r)
		block_discard(block);
	return r;
}

/* Returns 0 also for a device that was removed, or whose swap is on. */
static int wake_one(const char *name, struct json_object *names, struct error *e)
{
	bool settled = !swapoff_goes_on();
	struct device_record d;
	struct swap_area area;
	struct error why = { 0 };

	if (device_find(name, &d, NULL))
		return 0;
	if (!*d.block || swaps_find(d.block, &area)) {
		if (!kmoddev_is(&d) && !d.server_pid)
			return fail(e, EIO, "device %s: ebb-swapd exited while swap was off; run \"ebbctl device destroy %s\", then create it again",
				    name, name);
		if (!*d.block)
			return fail(e, ENXIO, "device %s: its block device was removed while swap was off; run \"ebbctl device destroy %s\", then create it again",
				    name, name);
		if (swaps_on(name, d.block, d.priority, &why))
			return fail(e, why.code, "device %s: %s; swap stays off, run \"ebbctl device wake\" to try again",
				    name, why.text);
		json_object_array_add(names, json_object_new_string(name));
	} else if (!settled) {
		return fail(e, EBUSY, "device %s: a swapoff has not ended; run \"ebbctl device wake\" once it has",
			    name);
	}
	/* It may stay: `device destroy` detaches it, too. */
	loop_keep(d.block, false);
	return 0;
}

/* Tries each once.  Returns those that failed, and sets @why to an array of the reasons. */
static struct json_object *wake_round(struct json_object *asleep, struct json_object *names,
				      struct json_object **why)
{
	struct json_object *left = json_object_new_array();

	*why = json_object_new_array();
	for (size_t i = 0; i < json_object_array_length(asleep); i++) {
		const char *name = json_object_get_string(json_object_array_get_idx(asleep, i));
		struct error e = { 0 };

		if (!wake_one(name, names, &e))
			continue;
		json_object_array_add(*why, json_object_new_string(e.text));
		json_object_array_add(left, json_object_new_string(name));
	}
	return left;
}

/* Fails with the first reason; prints the others. */
static int stays_off(struct json_object *why, struct error *e)
{
	for (size_t i = 1; i < json_object_array_length(why); i++)
		fprintf(stderr, "ebbctl: %s\n",
			json_object_get_string(json_object_array_get_idx(why, i)));
	return fail(e, EIO, "%s", json_object_get_string(json_object_array_get_idx(why, 0)));
}

static int wake_all(int timeout_ms, struct json_object *names, struct error *e)
{
	const struct timespec pause = { .tv_sec = 1 };
	_cleanup_json_ struct json_object *asleep = asleep_read();
	int64_t deadline = now_ms() + timeout_ms;

	for (;;) {
		_cleanup_json_ struct json_object *why = NULL;
		struct json_object *left = wake_round(asleep, names, &why);
		int r;

		json_object_put(asleep);
		asleep = left;
		r = asleep_write(asleep, e);
		if (r || !json_object_array_length(why))
			return r;
		if (now_ms() >= deadline || process_interrupted())
			return stays_off(why, e);
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
	const struct swapoff_options options = { timeout_ms, PATIENCE_UNTIL_INTERRUPTED, show,
						 "ebbctl device sleep" };
	_cleanup_json_ struct json_object *asleep = NULL, *again = json_object_new_array();
	struct sleepers s = { .n = 0, .e = e };
	_cleanup_close_ int lock = -1;
	struct error also = { 0 };
	int r = begin("device sleep", &lock, e);

	if (r)
		return r;
	asleep = asleep_read();
	r = device_each(add, &s);
	if (!r)
		r = check(&s);
	for (int i = 0; !r && i < s.n; i++) {
		r = put_to_sleep(s.device[i].name, s.device[i].block, &options, asleep, e);
		if (!r)
			json_object_array_add(names, json_object_new_string(s.device[i].name));
	}
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
