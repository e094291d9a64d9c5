// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <ebb/abi.h>
#include "lib/base/text.h"
#include "lib/trace/sim.h"
#include "trace_load.h"
#include "commands.h"

static const char *const roles[2] = { "app", "gc" };

static struct json_object *describe(const struct loaded_trace *t, const char *file)
{
	struct json_object *o = json_object_new_object();

	json_add_text(o, "file", file);
	trace_add_about(o, &t->info);
	trace_add_counts(o, t);
	json_add_int(o, "samples", t->samples);
	json_object_object_add(o, "threads", trace_threads_json(t, t->threads, roles));
	return o;
}

static const char *cell(struct json_object *o, const char *key, enum column_format format,
			char *buf)
{
	const struct column column = { key, NULL, format };

	return output_cell(o, &column, buf, 32);
}

static void print_plain(struct json_object *o)
{
	static const struct column columns[] = {
		{ "tid", "THREAD", COLUMN_COUNT }, { "tgid", "PROCESS", COLUMN_COUNT },
		{ "comm", "NAME", COLUMN_TEXT }, { "role", "ROLE", COLUMN_TEXT },
		{ "misses", "MISSES", COLUMN_COUNT }, { "hits", "HITS", COLUMN_COUNT },
		{ "late", "LATE", COLUMN_COUNT }, { NULL, NULL, COLUMN_TEXT },
	};
	char a[32], b[32], c[32], d[32];

	printf("%s in %s, %s of memory, policy %s, page-cluster %s\n",
	       cell(o, "comm", COLUMN_TEXT, a), json_text(o, "cgroup", ""),
	       json_int(o, "memory", 0) ? cell(o, "memory", COLUMN_BYTES, b) : "any amount",
	       json_text(o, "policy", ""), cell(o, "page_cluster", COLUMN_COUNT, c));
	printf("%s on Linux %s, for %s\n", json_text(o, "start", ""),
	       json_text(o, "kernel", ""), cell(o, "span_ns", COLUMN_NS, a));
	printf("%s misses, %s hits, %s late, %s swap-outs; ", cell(o, "misses", COLUMN_COUNT, a),
	       cell(o, "hits", COLUMN_COUNT, b), cell(o, "late", COLUMN_COUNT, c),
	       cell(o, "outs", COLUMN_COUNT, d));
	printf("%s pages; %s in misses\n", cell(o, "pages", COLUMN_COUNT, a),
	       cell(o, "miss_ns", COLUMN_NS, b));
	if (json_int(o, "lost", 0))
		printf("%s faults missing: their rate was too high\n", cell(o, "lost", COLUMN_COUNT, a));
	if (json_text(o, "stopped", NULL))
		printf("recording ended early: %s\n", json_text(o, "stopped", ""));
	else if (!json_object_get_boolean(json_member(o, "finished")))
		printf("recording was not ended: summary of its complete part\n");
	printf("\n");
	output_table(json_member(o, "threads"), columns, "no faults");
}

static void print_csv(const struct loaded_trace *t)
{
	printf("time_ns,duration_ns,vpn,tgid,tid,kind,role,cluster,ip\n");
	for (size_t i = 0; i < t->records; i++) {
		const struct trace_record *r = &t->record[i];

		printf("%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%u,%u,%s,%s,%u,0x%" PRIx64 "\n",
		       r->time_ns, r->duration_ns, r->vpn, r->tgid, r->tid,
		       trace_kind_names[r->kind], roles[r->role == EBB_ROLE_GC], r->cluster, r->ip);
	}
}

static int run(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = NULL;
	_cleanup_loaded_ struct loaded_trace t = { 0 };
	const struct sim_show *opt = options;
	int r;

	if (opt->json && opt->csv)
		return fail_exit(e, EXIT_USAGE, EINVAL, "show: --json excludes --csv; drop one");
	r = trace_load(&t, argv[0], opt->partial ? TRACE_PARTIAL : TRACE_WHOLE, e);
	if (r)
		return r;
	if (opt->csv) {
		print_csv(&t);
		return 0;
	}
	o = describe(&t, argv[0]);
	output(opt->json, o, print_plain);
	return 0;
}

const struct command sim_command_show = {
	.object = "show", .arguments = "FILE", .help = "Summarize a trace, or print its records",
	.example = "  ebb-sim show faults.trace\n", .options = sim_show_options,
	.options_size = sizeof(struct sim_show), .run = run, .min_args = 1, .max_args = 1,
};
