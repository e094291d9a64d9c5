// SPDX-License-Identifier: GPL-2.0-or-later
#include <limits.h>
#include <stdio.h>

#include "ebbctl/device/sleep.h"
#include "lib/base/text.h"
#include "verbs.h"

#define NS_PER_MS 1000000
#define NS_PER_S 1000000000ULL

struct sleep_options {
	bool json;
	uint64_t timeout;
};

static void print_all(struct json_object *o, const char *state)
{
	struct json_object *names = json_member(o, "devices");

	for (size_t i = 0; i < json_object_array_length(names); i++)
		printf("device %s: swap is %s\n",
		       json_object_get_string(json_object_array_get_idx(names, i)), state);
}

static void print_asleep(struct json_object *o)
{
	print_all(o, "off");
}

static void print_awake(struct json_object *o)
{
	print_all(o, "on");
}

static int milliseconds(const struct sleep_options *s)
{
	uint64_t ms = s->timeout / NS_PER_MS;

	return ms < INT_MAX ? (int)ms : INT_MAX;
}

static int run_sleep(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();
	struct json_object *names = json_object_new_array();
	const struct sleep_options *s = options;
	int r;

	json_object_object_add(o, "devices", names);
	r = devices_sleep(milliseconds(s), s->json ? SWAPOFF_QUIET : SWAPOFF_LINES, names, e);
	if (!r)
		output(s->json, o, print_asleep);
	return r;
}

static int run_wake(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();
	struct json_object *names = json_object_new_array();
	const struct sleep_options *s = options;
	int r;

	json_object_object_add(o, "devices", names);
	r = devices_wake(milliseconds(s), names, e);
	if (!r || !s->json)
		output(s->json, o, print_awake);
	return r;
}

static const struct option_spec sleep_specs[] = {
	OPTION(sleep_options, timeout, "timeout", OPTION_DURATION, "TIME",
	       .help = "time limit of swapoff for each device [2m]"),
	OPTION_JSON,
	OPTIONS_END
};

static const struct option_spec wake_specs[] = {
	OPTION(sleep_options, timeout, "timeout", OPTION_DURATION, "TIME",
	       .help = "time to retry while donors are unreachable [1m]"),
	OPTION_JSON,
	OPTIONS_END
};

static const struct sleep_options sleep_defaults = { .timeout = 120 * NS_PER_S };
static const struct sleep_options wake_defaults = { .timeout = 60 * NS_PER_S };

const struct command command_device_sleep = {
	.object = "device", .action = "sleep",
	.help = "Disable the swap of all devices before the machine sleeps, or refuse",
	.options = sleep_specs, .options_size = sizeof(struct sleep_options),
	.defaults = &sleep_defaults, .run = run_sleep,
};

const struct command command_device_wake = {
	.object = "device", .action = "wake",
	.help = "Enable the swap that device sleep disabled",
	.options = wake_specs, .options_size = sizeof(struct sleep_options),
	.defaults = &wake_defaults, .run = run_wake,
};
