// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "ebbctl/run/record.h"
#include "ebbctl/sim_exec.h"
#include "lib/base/files.h"
#include "lib/host/cgroup.h"
#include "verbs.h"

#define RECORDING "faults.trace"

struct report_options {
	struct sim_report sim;
	const char *trace;
	uint64_t seconds; /* ns */
};

static int check(int argc, const struct report_options *o, struct error *e)
{
	if (!o->sim.output)
		return fail_exit(e, EXIT_USAGE, EINVAL, "report: directory missing; give -o DIR");
	if (argc && o->trace)
		return fail_exit(e, EXIT_USAGE, EINVAL, "report: --trace excludes a CGROUP; drop one");
	if (!argc && !o->trace)
		return fail_exit(e, EXIT_USAGE, EINVAL, "report: no input; give a CGROUP or --trace FILE");
	if (o->trace && o->seconds)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "report: --trace excludes --seconds; drop one");
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

static int run(int argc, char **argv, void *options, struct error *e)
{
	const struct report_options *opt = options;
	char recorded[PATH_MAX];
	int r = check(argc, opt, e);

	if (!r && argc) {
		if ((size_t)snprintf(recorded, sizeof(recorded), "%s/" RECORDING, opt->sim.output) >=
		    sizeof(recorded))
			return fail(e, ENAMETOOLONG, "%.200s...: name too long; give a shorter one",
				    opt->sim.output);
		r = file_make_dirs(opt->sim.output, 0755);
		if (r)
			return fail(e, r, "%s: cannot create: %s; give another directory",
				    opt->sim.output, strerror(-r));
		r = record(argv[0], recorded, opt->seconds, e);
	}
	if (r)
		return r;
	return sim_exec("report", sim_report_options, &opt->sim, argc ? recorded : opt->trace, e);
}

static const struct option_spec specs[] = {
	OPTION(report_options, sim.output, "output", OPTION_STRING, "DIR", .letter = 'o',
	       .help = "directory for index.html and the trace, created if missing; required"),
	OPTION(report_options, seconds, "seconds", OPTION_DURATION, "TIME", .min = 1000,
	       .help = "duration of the recording, such as 10s or 500ms [until ^C]"),
	OPTION(report_options, trace, "trace", OPTION_STRING, "FILE",
	       .help = "use this trace instead of recording a new one"),
	OPTION(report_options, sim.partial, "partial", OPTION_FLAG, NULL,
	       .help = "accept a truncated or unfinished trace"),
	OPTION_JSON,
	OPTIONS_END
};

const struct command command_report = {
	.object = "report", .arguments = "[CGROUP]",
	.help = "Write an HTML report about the faults of an attached cgroup or a trace",
	.options = specs, .example = "  ebbctl report spark.slice --seconds 10 -o spark\n",
	.options_size = sizeof(struct report_options), .run = run, .max_args = 1,
};
