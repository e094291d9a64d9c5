// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/text.h"
#include "lib/base/cleanup.h"
#include "lib/base/files.h"
#include "lib/base/process_run.h"
#include "lib/base/size.h"
#include "lib/trace/sim.h"
#include "plot.h"
#include "commands.h"

static bool ends_with(const char *name, const char *suffix)
{
	size_t n = strlen(name), k = strlen(suffix);

	return n > k && !strcmp(name + n - k, suffix);
}

static void make_title(const struct loaded_trace *t, const char *file, char *title, size_t size)
{
	const char *base = strrchr(file, '/') ? strrchr(file, '/') + 1 : file;
	char memory[16] = "any amount";

	if (t->info.memory)
		size_format(t->info.memory, memory, sizeof(memory));
	snprintf(title, size, "%.80s: %s with %s of memory, policy %s", base,
		 *t->info.comm ? t->info.comm : "faults", memory, t->info.policy);
}

/* librsvg draws PNG from the SVG, in a staging file beside the result. */
static int write_png(const char *svg, const char *output, struct error *e)
{
	char from[PATH_MAX], to[PATH_MAX];
	const char *const argv[] = { "rsvg-convert", "--format", "png", "--output", to, from, NULL };
	struct error why = { 0 };
	int r;

	if (snprintf(from, sizeof(from), "%s.svg~", output) >= (int)sizeof(from) ||
	    snprintf(to, sizeof(to), "%s.png~", output) >= (int)sizeof(to))
		return fail(e, ENAMETOOLONG, "%.200s...: name too long; give a shorter one", output);
	r = file_replace(from, svg);
	if (r)
		return fail(e, r, "%s: cannot write: %s; give a file in an existing directory",
			    output, strerror(-r));
	r = process_run(argv, NULL, 0, &why);
	unlink(from);
	if (!r && rename(to, output) < 0)
		r = fail(e, errno, "%s: cannot write: %s", output, strerror(errno));
	if (r) {
		unlink(to);
		return fail(e, r, "%s: cannot draw: %s; install librsvg2-bin, or give a name that ends in .svg",
			    output, why.text);
	}
	return 0;
}

static int write_picture(const char *svg, const char *output, struct error *e)
{
	int r;

	if (ends_with(output, ".png"))
		return write_png(svg, output, e);
	r = file_replace(output, svg);
	return r ? fail(e, r, "%s: cannot write: %s; give a file in an existing directory",
			output, strerror(-r)) : 0;
}

static int check(const struct sim_plot *o, struct error *e)
{
	if (!o->output)
		return fail_exit(e, EXIT_USAGE, EINVAL, "plot: file missing; give -o OUT.svg or OUT.png");
	if (!ends_with(o->output, ".svg") && !ends_with(o->output, ".png"))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "%s: unknown format; give a name that ends in .svg or .png",
				 o->output);
	return 0;
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
	int r = check(opt, e);

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
	r = write_picture(svg, opt->output, e);
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
