// SPDX-License-Identifier: GPL-2.0-or-later
/* `policy show`: counters and cost of one policy or attachment. */
#include <bpf/bpf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "ebbctl/call.h"
#include "lib/base/text.h"
#include "lib/base/cleanup.h"
#include "lib/control/control.h"
#include "verbs.h"

struct show_options {
	struct common_options common;
	uint64_t time_ns;
};

static long long number(struct json_object *o, const char *key)
{
	return (long long)json_int(o, key, 0);
}

/* Reads the run time and the calls of the program @id since it was loaded. */
static int run_time(uint32_t id, uint64_t *ns, uint64_t *calls)
{
	_cleanup_close_ int fd = bpf_prog_get_fd_by_id(id);
	struct bpf_prog_info info = { 0 };
	uint32_t size = sizeof(info);

	if (fd < 0 || bpf_obj_get_info_by_fd(fd, &info, &size))
		return -errno;
	*ns = info.run_time_ns;
	*calls = info.run_cnt;
	return 0;
}

/* Measures for @time_ns and adds "run_ns" and "runs" to each of @programs. */
static int add_times(struct json_object *programs, uint64_t time_ns, struct error *e)
{
	_cleanup_close_ int stats = bpf_enable_stats(BPF_STATS_RUN_TIME);
	struct timespec t = { time_ns / 1000000000, time_ns % 1000000000 };
	size_t n = json_object_array_length(programs);
	uint64_t ns, calls;

	if (stats < 0)
		return fail_exit(e, EXIT_UNSUPPORTED, stats,
				 "--time: cannot measure: %s; use root and Linux 5.8 or later",
				 strerror(-stats));
	for (size_t i = 0; i < n; i++) {
		struct json_object *p = json_object_array_get_idx(programs, i);

		if (!run_time((uint32_t)json_int(p, "id", 0), &ns, &calls)) {
			json_add_int(p, "run_ns", -(int64_t)ns);
			json_add_int(p, "runs", -(int64_t)calls);
		}
	}
	nanosleep(&t, NULL);
	for (size_t i = 0; i < n; i++) {
		struct json_object *p = json_object_array_get_idx(programs, i);

		if (!run_time((uint32_t)json_int(p, "id", 0), &ns, &calls)) {
			json_add_int(p, "run_ns", json_int(p, "run_ns", 0) + (int64_t)ns);
			json_add_int(p, "runs", json_int(p, "runs", 0) + (int64_t)calls);
		}
	}
	return 0;
}

static void print_params(struct json_object *o)
{
	struct json_object *params = json_member(o, "params"), *values = json_member(o, "values");
	size_t n = params ? json_object_array_length(params) : 0;

	for (size_t i = 0; i < n; i++) {
		struct json_object *p = json_object_array_get_idx(params, i);
		const char *name = json_text(p, "name", "?");
		char left[64];

		snprintf(left, sizeof(left), "%s=%lld", name,
			 (long long)json_int(values ?: p, values ? name : "initial", 0));
		printf("  %-22s  %s (%lld to %lld)\n", left, json_text(p, "help", ""),
		       number(p, "min"), number(p, "max"));
	}
}

static void print_cgroup(struct json_object *o)
{
	struct json_object *s = json_member(o, "stats"), *offload;

	printf("%s: %s, in the %s, by %s\n", json_text(o, "cgroup", ""), json_text(o, "name", ""),
	       json_text(o, "run", ""), json_text(o, "by", ""));
	if (s)
		printf("  %lld requests for %lld pages; %lld prefetched, %lld hits, %lld late, %lld wasted, %lld misses\n",
		       number(s, "requests"), number(s, "request_pages"), number(s, "prefetched"),
		       number(s, "hits"), number(s, "late"), number(s, "wasted"), number(s, "misses"));
	offload = s ? json_member(s, "offload") : NULL;
	if (offload)
		printf("  offloading: %.1f %% of %.1f %% slowdown, %lld MiB saved, %lld MiB swapped, %s\n",
		       100 * json_double(offload, "slowdown", 0),
		       100 * json_double(offload, "target", 0),
		       number(offload, "saved") >> 20, number(offload, "swapped") >> 20,
		       json_text(offload, "state", "?"));
}

static void print_show(struct json_object *o)
{
	struct json_object *cost = json_member(o, "cost"), *list = json_member(o, "cgroups"), *p;
	bool attachment = json_text(o, "cgroup", NULL);

	if (attachment)
		print_cgroup(o);
	else
		printf("%s: %s\n  %s, from %s\n", json_text(o, "name", "?"),
		       json_text(o, "help", ""),
		       !strcmp(json_text(o, "origin", ""), "ebb") ? "comes with ebb" : "loaded",
		       json_text(o, "file", ""));
	print_params(o);
	if (cost && number(cost, "instructions"))
		printf("  %lld instructions (%lld verified), %lld bytes of machine code\n",
		       number(cost, "instructions"), number(cost, "verified"), number(cost, "machine_bytes"));
	if (cost && number(cost, "calls"))
		printf("  trial: %lld ns per call (median), %lld for the slowest access pattern, %lld at most\n",
		       number(cost, "median_ns"), number(cost, "slowest_ns"), number(cost, "max_ns"));
	list = attachment ? NULL : list;
	for (size_t i = 0; list && i < json_object_array_length(list); i++)
		printf("  attached to %s\n", json_object_get_string(json_object_array_get_idx(list, i)));
	list = json_member(o, "programs");
	for (size_t i = 0; list && i < json_object_array_length(list); i++) {
		p = json_object_array_get_idx(list, i);
		if (json_member(p, "runs"))
			printf("  %s: %lld calls, %lld ns each, policies included\n",
			       json_text(p, "name", ""), number(p, "runs"),
			       number(p, "runs") ? number(p, "run_ns") / number(p, "runs") : 0);
	}
}

static int run_show(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *answer = NULL;
	struct json_object *request = control_request("policy.show");
	const struct show_options *o = options;
	int r;

	json_add_text(request, "what", argv[0]);
	r = daemon_call(request, &answer, e);
	if (!r && o->time_ns && json_member(answer, "programs"))
		r = add_times(json_member(answer, "programs"), o->time_ns, e);
	if (r)
		return r;
	output(o->common.json, answer, print_show);
	return 0;
}

static const struct option_spec specs[] = {
	OPTION_JSON,
	OPTION(show_options, time_ns, "time", OPTION_DURATION, "TIME",
	       .help = "measure the cost of ebb's BPF programs for TIME"),
	OPTIONS_END
};

const struct command command_policy_show = {
	.object = "policy", .action = "show", .arguments = "POLICY|CGROUP",
	.help = "Show parameters, counters and cost of a policy or an attachment",
	.example = "  ebbctl policy show spark.slice --time 5\n", .options = specs,
	.options_size = sizeof(struct show_options), .run = run_show, .min_args = 1, .max_args = 1,
};
