// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "ebbctl/run/record.h"
#include "ebbctl/text.h"
#include "lib/base/cleanup.h"
#include "lib/base/files.h"
#include "lib/base/size.h"
#include "lib/control/control.h"
#include "lib/host/cgroup.h"
#include "report_data.h"
#include "report_page.h"
#include "verbs.h"

#define RECORDING "faults.trace"

struct report_options {
	bool json, partial;
	const char *output, *trace;
	uint64_t seconds; /* ns */
};

static int file_in(const char *dir, const char *name, char *path, size_t size, struct error *e)
{
	return (size_t)snprintf(path, size, "%s/%s", dir, name) < size ? 0 :
	       fail(e, ENAMETOOLONG, "%.200s...: too long a name; give a shorter one", dir);
}

static int check(int argc, const struct report_options *o, struct error *e)
{
	if (!o->output)
		return fail_exit(e, EXIT_USAGE, EINVAL, "report: no directory; give -o DIR");
	if (argc && o->trace)
		return fail_exit(e, EXIT_USAGE, EINVAL, "report: --trace excludes a CGROUP; drop one");
	if (!argc && !o->trace)
		return fail_exit(e, EXIT_USAGE, EINVAL, "report: of what; give a CGROUP or --trace FILE");
	if (o->trace && o->seconds)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "report: --trace excludes --seconds: it shows all of the file; drop one");
	return 0;
}

static int record(const char *cgroup, const char *file, uint64_t ns, struct error *e)
{
	struct json_object *answer = NULL;
	char absolute[PATH_MAX];
	struct cgroup_ref c;
	int r = cgroup_resolve(cgroup, &c, e);

	if (!r)
		r = record_path(file, absolute, sizeof(absolute), e);
	if (!r)
		r = record_for(&c, &(struct record_plan){ .file = absolute, .ns = ns }, &answer, e);
	json_object_put(answer);
	return r;
}

static void print_reported(struct json_object *o)
{
	char size[16];

	printf("%s: %lld faults, %s\n", json_text(o, "file", ""),
	       (long long)json_int(o, "faults", 0),
	       size_format((uint64_t)json_int(o, "bytes", 0), size, sizeof(size)));
}

/* The page, and the data beside it where JSON is asked for. */
static int write_report(const struct report_options *opt, struct json_object *data,
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
	const struct report_options *opt = options;
	char recorded[PATH_MAX];
	const char *file = opt->trace ?: recorded;
	int r = check(argc, opt, e);

	if (r)
		return r;
	r = file_make_dirs(opt->output, 0755);
	if (r)
		return fail(e, r, "%s: cannot be made: %s; give a directory that can", opt->output,
			    strerror(-r));
	r = file_in(opt->output, RECORDING, recorded, sizeof(recorded), e);
	if (!r && argc)
		r = record(argv[0], file, opt->seconds, e);
	if (!r)
		r = trace_load(&t, file, opt->partial ? TRACE_PARTIAL : TRACE_WHOLE, e);
	if (r)
		return r;
	data = report_data(&t);
	if (!data)
		return fail(e, ENOMEM, "%s: too large for this machine's memory", file);
	r = write_report(opt, data, o, e);
	if (r)
		return r;
	json_add_text(o, "trace", file);
	json_add_int(o, "faults", (int64_t)(t.records - t.count[TRACE_OUT]));
	output(opt->json, o, print_reported);
	return 0;
}

static const struct option_spec specs[] = {
	OPTION(report_options, output, "output", OPTION_STRING, "DIR", .letter = 'o',
	       .help = "where index.html and the recording go; made if it is not there"),
	OPTION(report_options, seconds, "seconds", OPTION_DURATION, "N", .min = 1,
	       .help = "how long to record, such as 10 or 500ms [until ^C]"),
	OPTION(report_options, trace, "trace", OPTION_STRING, "FILE",
	       .help = "show this recording instead of a new one"),
	OPTION(report_options, partial, "partial", OPTION_FLAG, NULL,
	       .help = "take what is whole of a truncated trace"),
	OPTION_JSON,
	OPTIONS_END
};

const struct command command_report = {
	.object = "report", .arguments = "[CGROUP]",
	.help = "Shows what paging does to an attached cgroup, as a page for a browser",
	.options = specs, .example = "  ebbctl report spark.slice --seconds 10 -o spark\n",
	.options_size = sizeof(struct report_options), .run = run, .max_args = 1,
};
