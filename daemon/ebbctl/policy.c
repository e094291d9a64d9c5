// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdio.h>
#include <string.h>

#include "common/cgroup.h"
#include "common/control.h"
#include "common/files.h"
#include "daemon_call.h"
#include "output.h"
#include "scope.h"
#include "swaps.h"
#include "verbs.h"

static void print_params(struct json_object *params)
{
	size_t n = params ? json_object_array_length(params) : 0;

	for (size_t i = 0; i < n; i++) {
		struct json_object *p = json_object_array_get_idx(params, i);
		char left[64];

		snprintf(left, sizeof(left), "%s=%lld", control_str(p, "name", "?"),
			 (long long)control_int(p, "initial", 0));
		printf("    %-20s  %s (%lld to %lld)\n", left, control_str(p, "help", ""),
		       (long long)control_int(p, "min", 0), (long long)control_int(p, "max", 0));
	}
}

static void print_policies(struct json_object *o)
{
	struct json_object *list = get_member(o, "policies");
	size_t n = list ? json_object_array_length(list) : 0;

	for (size_t i = 0; i < n; i++) {
		struct json_object *p = json_object_array_get_idx(list, i);

		printf("%-10s  %s\n", control_str(p, "name", "?"), control_str(p, "help", ""));
		print_params(get_member(p, "params"));
	}
}

static int run_list(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *answer = NULL;
	const struct common_options *c = options;
	int r = daemon_call(daemon_request("policy.list"), &answer, e);

	if (!r)
		output(c->json, answer, print_policies);
	return r;
}

static void print_done(struct json_object *o)
{
	const char *policy = control_str(o, "policy", NULL);

	printf("%s: %s%s\n", control_str(o, "cgroup", ""), control_str(o, "done", ""),
	       policy ? policy : "");
}

/* The request for @verb about the cgroup called @name, checked here so that it
 * gets the same message with and without a daemon. */
static int cgroup_request(const char *verb, const char *name, struct cgroup_ref *c,
			  struct json_object **request, struct error *e)
{
	int r = cgroup_resolve(name, c, e);

	if (r)
		return r;
	*request = daemon_request(verb);
	put_str(*request, "cgroup", c->path);
	return 0;
}

static void report(const struct common_options *c, const char *cgroup, const char *done,
		   const char *policy)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();

	put_str(o, "cgroup", cgroup);
	put_str(o, "done", done);
	if (policy)
		put_str(o, "policy", policy);
	output(c->json, o, print_done);
}

/* Both serve faults behind our back, in memory: see `doctor`. */
static void warn_of_rivals(void)
{
	struct swap_area areas[SWAPS_MAX];
	int n = swaps_read(areas);
	char on[8];

	if (file_read("/sys/module/zswap/parameters/enabled", on, sizeof(on)) > 0 && *on == 'Y')
		fprintf(stderr, "ebbctl: warning: zswap: is enabled: counts will be wrong; echo N > /sys/module/zswap/parameters/enabled\n");
	for (int i = 0; i < n; i++)
		if (!strncmp(areas[i].path, "/dev/zram", 9))
			fprintf(stderr, "ebbctl: warning: %s: prefetching from it costs more than it gains; swapoff %s\n",
				areas[i].path, areas[i].path);
}

static int run_attach(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *request = NULL;
	struct cgroup_ref c;
	int r;

	r = cgroup_request("policy.attach", argv[1], &c, &request, e);
	if (r)
		return r;
	put_str(request, "policy", argv[0]);
	r = daemon_add_params(request, (const char *const *)argv + 2, argc - 2, e);
	if (!r)
		r = daemon_tell(json_object_get(request), e);
	if (r)
		return r;
	scope_apply_all(c.path);
	warn_of_rivals();
	report(options, c.path, "attached ", argv[0]);
	return 0;
}

static int run_detach(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *request = NULL;
	struct cgroup_ref c;
	int r;

	r = cgroup_request("policy.detach", argv[0], &c, &request, e);
	if (!r)
		r = daemon_tell(json_object_get(request), e);
	if (r)
		return r;
	scope_apply_all(NULL);
	report(options, c.path, "detached", NULL);
	return 0;
}

static int run_set(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *request = NULL;
	struct cgroup_ref c;
	int r;

	r = cgroup_request("policy.set", argv[0], &c, &request, e);
	if (!r)
		r = daemon_add_params(request, (const char *const *)argv + 1, argc - 1, e);
	if (!r)
		r = daemon_tell(json_object_get(request), e);
	if (r)
		return r;
	report(options, c.path, "parameters set", NULL);
	return 0;
}

static const struct option_spec specs[] = { OPTION_JSON, OPTIONS_END };

#define POLICY_COMMAND .object = "policy", .options = specs, \
	.options_size = sizeof(struct common_options)

const struct command command_policy_list = {
	POLICY_COMMAND, .action = "list", .help = "Shows the policies and their parameters",
	.run = run_list,
};

const struct command command_policy_attach = {
	POLICY_COMMAND, .action = "attach", .arguments = "POLICY CGROUP [KEY=NUMBER...]",
	.help = "Lets a policy prefetch for a cgroup and all below it",
	.example = "  ebbctl policy attach leap /sys/fs/cgroup/spark.slice window_max=16\n",
	.run = run_attach, .min_args = 2, .max_args = -1,
};

const struct command command_policy_detach = {
	POLICY_COMMAND, .action = "detach", .arguments = "CGROUP",
	.help = "Leaves the cgroup to the kernel again", .run = run_detach, .min_args = 1,
	.max_args = 1,
};

const struct command command_policy_set = {
	POLICY_COMMAND, .action = "set", .arguments = "CGROUP KEY=NUMBER...",
	.help = "Changes parameters of the cgroup's policy while it runs", .run = run_set,
	.min_args = 2, .max_args = -1,
};
