// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "lib/base/files.h"
#include "lib/base/size.h"
#include "lib/base/text.h"
#include "lib/trace/sim.h"
#include "report_data.h"
#include "report_page.h"

static int file_in(const char *dir, const char *name, char *path, size_t size, struct error *e)
{
	return (size_t)snprintf(path, size, "%s/%s", dir, name) < size ? 0 :
	       fail(e, ENAMETOOLONG, "%.200s...: name too long; give a shorter one", dir);
}

static void print_reported(struct json_object *o)
{
	char size[16];

	printf("%s: %lld faults, %s\n", json_text(o, "file", ""),
	       (long long)json_int(o, "faults", 0),
	       size_format((uint64_t)json_int(o, "bytes", 0), size, sizeof(size)));
}

/* Writes the page, and with --json its data beside it. */
static int write_report(const struct sim_report *opt, struct json_object *data,
			struct json_object *o, struct error *e)
{
	char page[PATH_MAX], beside[PATH_MAX];
	uint64_t bytes;
	int r = file_in(opt->output, "index.html", page, sizeof(page), e);

	if (!r)
		r = file_in(opt->output, "report.json", beside, sizeof(beside), e);
	if (!r)
		r = report_page_write(data, page, &bytes, e);
	if (r)
		return r;
	json_add_text(o, "file", page);
	json_add_int(o, "bytes", (int64_t)bytes);
	if (!opt->json)
		return 0;
	json_add_text(o, "data", beside);
	return report_data_write(data, beside, e);
}

static int run(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = json_object_new_object(), *data = NULL;
	_cleanup_loaded_ struct loaded_trace t = { 0 };
	const struct sim_report *opt = options;
	int r;

	if (!opt->output)
		return fail_exit(e, EXIT_USAGE, EINVAL, "report: directory missing; give -o DIR");
	r = file_make_dirs(opt->output, 0755);
	if (r)
		return fail(e, r, "%s: cannot create: %s; give another directory", opt->output,
			    strerror(-r));
	r = trace_load(&t, argv[0], opt->partial ? TRACE_PARTIAL : TRACE_WHOLE, e);
	if (r)
		return r;
	data = report_data(&t);
	if (!data)
		return fail(e, ENOMEM, "%s: too large for this machine's memory", argv[0]);
	r = write_report(opt, data, o, e);
	if (r)
		return r;
	json_add_text(o, "trace", argv[0]);
	json_add_int(o, "faults", (int64_t)(t.records - t.count[TRACE_OUT]));
	output(opt->json, o, print_reported);
	return 0;
}

const struct command sim_command_report = {
	.object = "report", .arguments = "FILE",
	.help = "Write an HTML report about a trace",
	.example = "  ebb-sim report faults.trace -o spark\n", .options = sim_report_options,
	.options_size = sizeof(struct sim_report), .run = run, .min_args = 1, .max_args = 1,
};
