// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

#include "ebbctl/run/record.h"
#include "lib/base/text.h"
#include "lib/base/size.h"
#include "verbs.h"

struct record_options {
	bool json;
	const char *output;
	uint64_t seconds; /* ns */
	uint64_t full;    /* bytes */
};

static void print_recorded(struct json_object *o)
{
	char size[16];

	printf("%s: %lld records, %s", json_text(o, "file", ""),
	       (long long)json_int(o, "records", 0),
	       size_format(json_int(o, "bytes", 0), size, sizeof(size)));
	if (json_int(o, "lost", 0))
		printf(", %lld faults lost", (long long)json_int(o, "lost", 0));
	printf("\n");
}

static int run(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = NULL;
	const struct record_options *opt = options;
	char file[PATH_MAX];
	struct cgroup_ref c;
	struct stat st;
	int r;

	if (!opt->output)
		return fail_exit(e, EXIT_USAGE, EINVAL, "record: file missing; give -o FILE");
	r = cgroup_resolve(argv[0], &c, e);
	if (!r)
		r = record_path(opt->output, file, sizeof(file), e);
	if (r)
		return r;
	r = record_for(&c, &(struct record_plan){ file, opt->seconds, opt->full }, &o, e);
	if (r)
		return r;
	json_add_text(o, "file", file);
	json_add_int(o, "bytes", stat(file, &st) == 0 ? st.st_size : 0);
	output(opt->json, o, print_recorded);
	return 0;
}

static const struct option_spec specs[] = {
	OPTION(record_options, output, "output", OPTION_STRING, "FILE", .letter = 'o',
	       .help = "file for the trace; required"),
	OPTION(record_options, seconds, "seconds", OPTION_DURATION, "TIME", .min = 1000,
	       .help = "duration, such as 10s or 500ms [until ^C]"),
	OPTION(record_options, full, "full", OPTION_SIZE, "SIZE", .min = 1 << 20, .max = 1ULL << 44,
	       .help = "limit the cgroup to SIZE while recording, so that more accesses are faults"),
	OPTION_JSON,
	OPTIONS_END
};

const struct command command_record = {
	.object = "record", .arguments = "CGROUP",
	.help = "Record every fault of an attached cgroup", .options = specs,
	.example = "  ebbctl record spark.slice -o faults.trace --seconds 10\n",
	.options_size = sizeof(struct record_options), .run = run, .min_args = 1, .max_args = 1,
};
