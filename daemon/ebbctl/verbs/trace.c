// SPDX-License-Identifier: GPL-2.0-or-later
/* ebbctl trace: shows and plots recordings. */
#include "ebbctl/sim_exec.h"
#include "verbs.h"

static int run_show(int argc, char **argv, void *options, struct error *e)
{
	return sim_exec("show", sim_show_options, options, argv[0], e);
}

static int run_plot(int argc, char **argv, void *options, struct error *e)
{
	return sim_exec("plot", sim_plot_options, options, argv[0], e);
}

const struct command command_trace_show = {
	.object = "trace", .action = "show", .arguments = "FILE",
	.help = "Summarize a trace, or print its records", .options = sim_show_options,
	.example = "  ebbctl trace show faults.trace\n",
	.options_size = sizeof(struct sim_show), .run = run_show, .min_args = 1, .max_args = 1,
};

const struct command command_trace_plot = {
	.object = "trace", .action = "plot", .arguments = "FILE",
	.help = "Draw a trace: pages over time", .options = sim_plot_options,
	.example = "  ebbctl trace plot faults.trace -o faults.svg\n",
	.options_size = sizeof(struct sim_plot), .run = run_plot, .min_args = 1, .max_args = 1,
};
