// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/text.h"
#include "lib/base/cleanup.h"
#include "lib/base/size.h"
#include "lib/trace/sim.h"
#include "picture.h"
#include "plot.h"
#include "commands.h"

static void make_title(const struct loaded_trace *t, const char *file, char *title, size_t size)
{
	const char *base = strrchr(file, '/') ? strrchr(file, '/') + 1 : file;
	char memory[16] = "any amount";

	if (t->info.memory)
		size_format(t->info.memory, memory, sizeof(memory));
	snprintf(title, size, "%.80s: %s with %s of memory, policy %s", base,
		 *t->info.comm ? t->info.comm : "faults", memory, t->info.policy);
}

static void print_plotted(struct json_object *o)
{
	char size[16];

	printf("%s: %s\n", json_text(o, "file", ""),
	       size_format((uint64_t)json_int(o, "bytes", 0), size, sizeof(size)));
}

static int run(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();
	_cleanup_loaded_ struct loaded_trace t = { 0 };
	const struct sim_plot *opt = options;
	_cleanup_free_ char *svg = NULL;
	char title[192];
	size_t size;
	FILE *to;
	int r = picture_check("plot", opt->output, e);

	if (!r)
		r = trace_load(&t, argv[0], opt->partial ? TRACE_PARTIAL : TRACE_WHOLE, e);
	if (r)
		return r;
	make_title(&t, argv[0], title, sizeof(title));
	to = open_memstream(&svg, &size);
	r = to ? plot_svg(&t, strcmp(opt->by, "thread") ? PLOT_BY_KIND : PLOT_BY_THREAD, title, to) :
		 -ENOMEM;
	if (to && fclose(to))
		r = -ENOMEM;
	if (r)
		return fail(e, r, "%s: too large for this machine's memory", argv[0]);
	r = picture_write(svg, opt->output, e);
	if (r)
		return r;
	json_add_text(o, "file", opt->output);
	json_add_int(o, "bytes", (int64_t)size);
	output(opt->json, o, print_plotted);
	return 0;
}

static const struct sim_plot defaults = { .by = "kind" };

const struct command sim_command_plot = {
	.object = "plot", .arguments = "FILE", .help = "Draw a trace: pages over time",
	.example = "  ebb-sim plot faults.trace -o faults.svg\n", .options = sim_plot_options,
	.defaults = &defaults, .options_size = sizeof(struct sim_plot), .run = run, .min_args = 1,
	.max_args = 1,
};
