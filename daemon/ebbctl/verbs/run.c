// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ebbctl/call.h"
#include "ebbctl/run/run.h"
#include "lib/base/text.h"
#include "lib/base/cleanup.h"
#include "lib/base/privilege.h"
#include "verbs.h"

static int check_options(const struct run_options *o, struct error *e)
{
	struct json_object *params = json_object_new_object();
	int r = daemon_add_params(params, o->params.v, o->params.n, e);

	json_object_put(params);
	if (r)
		return r;
	if (!o->mem)
		return fail_exit(e, EXIT_USAGE, EINVAL, "run: limit missing; give --mem, such as --mem 256M");
	if (o->no_track && (o->record || o->params.n))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "run: --no-track excludes --record and --param; drop one");
	if (o->name &&
	    (strchr(o->name, '/') || !*o->name || *o->name == '.' || strlen(o->name) > 40))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "run: '%.64s': invalid name of a cgroup; use at most 40 characters without '/', the first not '.'",
				 o->name);
	return need_root("run", e);
}

static const char *cell(struct json_object *row, const char *key, enum column_format format,
			char *buf)
{
	const struct column column = { key, NULL, format };

	return output_cell(row, &column, buf, 32);
}

static void print_summary(const struct run *run)
{
	struct json_object *o = run->summary, *s = json_member(o, "stats");
	char a[32], b[32], c[32], d[32];

	fprintf(stderr, "ebbctl: %s: %.2f s, peak %s of %s", json_text(o, "program", ""),
		run->end.seconds, cell(o, "peak", COLUMN_BYTES, a), cell(o, "limit", COLUMN_BYTES, b));
	if (run->end.signal)
		fprintf(stderr, ", killed by signal %d (%s)", run->end.signal,
			strsignal(run->end.signal));
	else
		fprintf(stderr, ", exit status %d", run->end.status);
	fprintf(stderr, "\n");
	if (s)
		fprintf(stderr,
			"ebbctl: %s misses, %s hits, %s late, %s wasted; coverage %s, accuracy %s; %s lost to misses\n",
			cell(s, "misses", COLUMN_COUNT, a), cell(s, "hits", COLUMN_COUNT, b),
			cell(s, "late", COLUMN_COUNT, c), cell(s, "wasted", COLUMN_COUNT, d),
			cell(s, "coverage", COLUMN_PERCENT, (char[32]){ 0 }),
			cell(s, "accuracy", COLUMN_PERCENT, (char[32]){ 0 }),
			cell(s, "lost_ns", COLUMN_NS, (char[32]){ 0 }));
	if (json_int(o, "oom_kills", 0))
		fprintf(stderr,
			"ebbctl: %lld OOM kills in %s: limit too small or swap full; raise --mem or the device's --size\n",
			(long long)json_int(o, "oom_kills", 0), run->cgroup.rel);
}

static int write_json(const struct run *run, struct error *e)
{
	_cleanup_file_ FILE *f = fopen(run->o->json_file, "we");

	if (f)
		output_json(f, run->summary, JSON_C_TO_STRING_PRETTY);
	if (!f || fflush(f) || ferror(f))
		return fail(e, errno, "--json %s: cannot write: %s", run->o->json_file, strerror(errno));
	return 0;
}

static int run_run(int argc, char **argv, void *options, struct error *e)
{
	struct run run = { .o = options };
	int r = check_options(run.o, e);

	if (r)
		return r;
	r = run_begin(&run, argv, e);
	if (!r && !run.o->quiet)
		print_summary(&run);
	if (!r && run.o->json_file)
		r = write_json(&run, e);
	run_end(&run);
	/* The failure is the program's: print nothing, and return its status. */
	if (!r && run.end.status)
		r = fail_exit(e, run.end.status, ECHILD, "%s", "");
	return r;
}

static const struct option_spec specs[] = {
	OPTION(run_options, mem, "mem", OPTION_SIZE, "SIZE", .letter = 'm',
	       .help = "local memory limit; required", .min = 1 << 20, .max = 1ULL << 44),
	OPTION(run_options, policy, "policy", OPTION_STRING, "POLICY", .letter = 'p',
	       .help = "prefetch policy; none: count faults only [auto]"),
	OPTION(run_options, params, "param", OPTION_LIST, "KEY=NUMBER",
	       .help = "parameter of the policy; may be repeated"),
	OPTION(run_options, start, "start", OPTION_FLAG, NULL,
	       .help = "start ebbd, a donor on loopback and a device as needed"),
	OPTION(run_options, donor_memory, "donor-memory", OPTION_SIZE, "SIZE",
	       .help = "memory of the donor of --start [16 times --mem, at least 1G, at most half of available memory]",
	       .min = 64 << 20, .max = 1ULL << 44),
	OPTION(run_options, record, "record", OPTION_STRING, "FILE",
	       .help = "record every fault in FILE"),
	OPTION(run_options, name, "name", OPTION_STRING, "NAME",
	       .help = "name the cgroup ebb-NAME [ebb-run-PID]"),
	OPTION(run_options, keep, "keep", OPTION_FLAG, NULL,
	       .help = "keep the cgroup, its processes and what --start started"),
	OPTION(run_options, no_track, "no-track", OPTION_FLAG, NULL,
	       .help = "set the memory limit only, without ebbd, as a baseline"),
	OPTION(run_options, as_root, "root", OPTION_FLAG, NULL,
	       .help = "with sudo, run the program as root"),
	OPTION(run_options, quiet, "quiet", OPTION_FLAG, NULL, .letter = 'q',
	       .help = "print no summary to stderr"),
	OPTION(run_options, json_file, "json", OPTION_STRING, "FILE",
	       .help = "write the summary to FILE as JSON"),
	OPTIONS_END
};

static const struct run_options defaults = { .policy = "auto" };

const struct command command_run = {
	.object = "run", .arguments = "-- PROGRAM [ARG...]",
	.help = "Run a program with limited local memory",
	.example = "  sudo ebbctl run --mem 256M --start -- sort -S 1G big.txt -o sorted.txt\n",
	.options = specs, .options_size = sizeof(struct run_options), .defaults = &defaults,
	.run = run_run, .min_args = 1, .max_args = -1,
};
