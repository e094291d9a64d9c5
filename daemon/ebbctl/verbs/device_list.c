// SPDX-License-Identifier: GPL-2.0-or-later
#include "ebbctl/device/list.h"
#include "device_view.h"
#include "lib/base/text.h"
#include "verbs.h"

static void print_list(struct json_object *o)
{
	device_print_table(json_member(o, "devices"));
}

static int run(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();
	const struct common_options *c = options;

	json_object_object_add(o, "devices", device_describe_all());
	output(c->json, o, print_list);
	return 0;
}

const struct command command_device_list = {
	.object = "device", .action = "list", .help = "List the devices, incomplete ones included",
	JSON_OPTIONS, .run = run,
};
