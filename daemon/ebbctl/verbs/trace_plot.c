// SPDX-License-Identifier: GPL-2.0-or-later
#include "ebbctl/sim_exec.h"
#include "verbs.h"

struct plot_options {
	bool json, partial;
	const char *output, *by;
};

static int run(int argc, char **argv, void *options, struct error *e)
{
	const struct plot_options *opt = options;
	struct sim_call sim = { .n = 0 };

	sim_command(&sim, "plot");
	sim_add(&sim, "--output", opt->output);
	sim_add(&sim, "--by", opt->by);
	sim_add_flag(&sim, "--partial", opt->partial);
	sim_add_flag(&sim, "--json", opt->json);
	return sim_exec(&sim, argv[0], e);
}

static const struct option_spec specs[] = {
	OPTION(plot_options, output, "output", OPTION_STRING, "FILE", .letter = 'o',
	       .help = "picture to write: OUT.svg or OUT.png"),
	OPTION(plot_options, by, "by", OPTION_STRING, "kind|thread",
	       .help = "meaning of the colours [kind]"),
	OPTION(plot_options, partial, "partial", OPTION_FLAG, NULL,
	       .help = "accept a truncated recording"),
	OPTION_JSON,
	OPTIONS_END
};

const struct command command_trace_plot = {
	.object = "trace", .action = "plot", .arguments = "FILE",
	.help = "Draw a recording: pages over time", .options = specs,
	.example = "  ebbctl trace plot faults.trace -o faults.svg\n",
	.options_size = sizeof(struct plot_options), .run = run, .min_args = 1, .max_args = 1,
};
