// SPDX-License-Identifier: GPL-2.0-or-later
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "ebbctl/device/create.h"
#include "ebbctl/device/destroy.h"
#include "lib/base/text.h"
#include "verbs.h"

#define NS_PER_MS 1000000

struct destroy_options {
	bool json, force;
	uint64_t timeout;
};

static void print_destroyed(struct json_object *o)
{
	printf("device %s: removed\n", json_text(o, "name", ""));
}

static int run(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();
	const struct destroy_options *d = options;
	uint64_t ms = d->timeout / NS_PER_MS;
	enum swapoff_show show = d->json ? SWAPOFF_QUIET :
				 isatty(STDERR_FILENO) ? SWAPOFF_LIVE : SWAPOFF_LINES;
	int r = device_destroy(argv[0], d->force ? DESTROY_FORCED : DESTROY_POLITE,
			       ms < INT_MAX ? (int)ms : INT_MAX, show, e);

	if (r)
		return r;
	json_add_text(o, "name", argv[0]);
	json_add_bool(o, "destroyed", true);
	output(d->json, o, print_destroyed);
	return 0;
}

static const struct option_spec specs[] = {
	OPTION(destroy_options, force, "force", OPTION_FLAG, NULL,
	       .help = "skip all checks; the OOM killer may end programs"),
	OPTION(destroy_options, timeout, "timeout", OPTION_DURATION, "TIME",
	       .help = "time limit of swapoff [60s]"),
	OPTION_JSON,
	OPTIONS_END
};

static const struct destroy_options defaults = {
	.timeout = (uint64_t)SWAPOFF_MS * NS_PER_MS,
};

const struct command command_device_destroy = {
	.object = "device", .action = "destroy", .arguments = "NAME",
	.help = "Disable swap (swapoff) and remove the device, also an incomplete one",
	.options = specs, .options_size = sizeof(struct destroy_options),
	.defaults = &defaults, .run = run, .min_args = 1, .max_args = 1,
};
