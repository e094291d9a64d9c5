// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdio.h>

#include "ebbctl/device/abort.h"
#include "lib/base/text.h"
#include "verbs.h"

struct abort_options {
	bool json, yes;
};

static void print_aborted(struct json_object *o)
{
	const char *name = json_text(o, "name", "");

	if (json_int(o, "connection", 0))
		printf("device %s: aborted; now run \"ebbctl device destroy %s --force\"\n", name, name);
	else
		printf("device %s: aborted; end the programs that use it and reboot: the kernel cannot take its swap off\n",
		       name);
}

static int run(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();
	const struct abort_options *a = options;
	unsigned int connection;
	int r = device_abort(argv[0], a->yes ? ABORT_CONFIRMED : ABORT_ASKED, &connection, e);

	if (r)
		return r;
	json_add_text(o, "name", argv[0]);
	if (connection)
		json_add_int(o, "connection", connection);
	output(a->json, o, print_aborted);
	return 0;
}

static const struct option_spec specs[] = {
	OPTION(abort_options, yes, "yes", OPTION_FLAG, NULL,
	       .help = "confirm that programs may get SIGBUS"),
	OPTION_JSON,
	OPTIONS_END
};

const struct command command_device_abort = {
	.object = "device", .action = "abort", .arguments = "NAME",
	.help = "Fail all I/O of a hung device",
	.options = specs, .options_size = sizeof(struct abort_options), .run = run,
	.min_args = 1, .max_args = 1,
};
