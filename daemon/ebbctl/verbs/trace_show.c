// SPDX-License-Identifier: GPL-2.0-or-later
#include "ebbctl/sim_exec.h"
#include "verbs.h"

struct show_options {
	bool json, csv, partial;
};

static int run(int argc, char **argv, void *options, struct error *e)
{
	const struct show_options *opt = options;
	struct sim_call sim = { .n = 0 };

	sim_command(&sim, "show");
	sim_add_flag(&sim, "--csv", opt->csv);
	sim_add_flag(&sim, "--partial", opt->partial);
	sim_add_flag(&sim, "--json", opt->json);
	return sim_exec(&sim, argv[0], e);
}

static const struct option_spec specs[] = {
	OPTION(show_options, csv, "csv", OPTION_FLAG, NULL, .help = "print one line per record"),
	OPTION(show_options, partial, "partial", OPTION_FLAG, NULL,
	       .help = "accept a truncated recording"),
	OPTION_JSON,
	OPTIONS_END
};

const struct command command_trace_show = {
	.object = "trace", .action = "show", .arguments = "FILE",
	.help = "Summarize a recording, or print its records", .options = specs,
	.example = "  ebbctl trace show faults.trace\n",
	.options_size = sizeof(struct show_options), .run = run, .min_args = 1, .max_args = 1,
};
