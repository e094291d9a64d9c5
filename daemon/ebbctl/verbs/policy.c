// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ebbctl/call.h"
#include "ebbctl/device/scope_all.h"
#include "ebbctl/device/swaps.h"
#include "lib/base/text.h"
#include "lib/control/control.h"
#include "lib/host/cgroup.h"
#include "verbs.h"

/* The verifier may take minutes on a busy machine. */
#define LOAD_MS 300000

static void print_params(struct json_object *params)
{
	size_t n = params ? json_object_array_length(params) : 0;

	for (size_t i = 0; i < n; i++) {
		struct json_object *p = json_object_array_get_idx(params, i);
		char left[64];

		snprintf(left, sizeof(left), "%s=%lld", json_text(p, "name", "?"),
			 (long long)json_int(p, "initial", 0));
		printf("    %-20s  %s (%lld to %lld)\n", left, json_text(p, "help", ""),
		       (long long)json_int(p, "min", 0), (long long)json_int(p, "max", 0));
	}
}

static void print_policies(struct json_object *o)
{
	struct json_object *list = json_member(o, "policies");
	size_t n = list ? json_object_array_length(list) : 0;

	for (size_t i = 0; i < n; i++) {
		struct json_object *p = json_object_array_get_idx(list, i);

		printf("%-10s  %s%s\n", json_text(p, "name", "?"), json_text(p, "help", ""),
		       !strcmp(json_text(p, "origin", ""), "loaded") ? " (loaded)" : "");
		print_params(json_member(p, "params"));
	}
}

static int run_list(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *answer = NULL;
	const struct common_options *c = options;
	int r = daemon_call(control_request("policy.list"), &answer, e);

	if (!r)
		output(c->json, answer, print_policies);
	return r;
}

static void print_done(struct json_object *o)
{
	const char *policy = json_text(o, "policy", NULL);
	const char *declared = json_text(o, "declared", NULL);

	printf("%s: %s%s\n", json_text(o, "cgroup", ""), json_text(o, "done", ""),
	       policy ? policy : "");
	if (declared)
		printf("%s\n", declared);
}

/*
 * Creates the request for @verb about the cgroup @name.  Checks the cgroup here, so that
 * the message does not depend on ebbd.
 */
static int cgroup_request(const char *verb, const char *name, struct cgroup_ref *c,
			  struct json_object **request, struct error *e)
{
	int r = cgroup_resolve(name, c, e);

	if (r)
		return r;
	*request = control_request(verb);
	json_add_text(*request, "cgroup", c->path);
	return 0;
}

/* @declared: note of ebbd about the configuration, or NULL. */
static void report(const struct common_options *c, const char *cgroup, const char *done,
		   const char *policy, const char *declared)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();

	json_add_text(o, "cgroup", cgroup);
	json_add_text(o, "done", done);
	if (policy)
		json_add_text(o, "policy", policy);
	if (declared)
		json_add_text(o, "declared", declared);
	output(c->json, o, print_done);
}

/* See `doctor`. */
static void warn_of_zram(void)
{
	struct swap_area areas[SWAPS_MAX];
	int n = swaps_read(areas);

	for (int i = 0; i < n; i++)
		if (!strncmp(areas[i].path, "/dev/zram", 9))
			fprintf(stderr, "ebbctl: warning: %s: prefetching from zram costs more than it gains; run \"swapoff %s\"\n",
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
	json_add_text(request, "policy", argv[0]);
	r = daemon_add_params(request, (const char *const *)argv + 2, argc - 2, e);
	if (!r)
		r = daemon_tell(json_object_get(request), e);
	if (r)
		return r;
	scope_apply_all(c.path);
	warn_of_zram();
	report(options, c.path, "attached ", argv[0], NULL);
	return 0;
}

static int run_detach(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *request = NULL, *answer = NULL;
	struct cgroup_ref c;
	int r;

	r = cgroup_request("policy.detach", argv[0], &c, &request, e);
	if (!r)
		r = daemon_call(json_object_get(request), &answer, e);
	if (r)
		return r;
	scope_apply_all(NULL);
	report(options, c.path, "detached", NULL, json_text(answer, "declared", NULL));
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
	report(options, c.path, "parameters set", NULL, NULL);
	return 0;
}

static void print_loaded(struct json_object *o)
{
	printf("%s: %s", json_text(o, "name", "?"), json_text(o, "done", ""));
	if (json_int(o, "instructions", 0))
		printf(", %lld instructions", (long long)json_int(o, "instructions", 0));
	if (json_int(o, "call_ns", 0))
		printf(", %lld ns a call", (long long)json_int(o, "call_ns", 0));
	printf("\n");
	if (json_text(o, "dropped", NULL))
		printf("parameters reset to their defaults: %s\n", json_text(o, "dropped", ""));
}

static int run_load(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *answer = NULL;
	const struct common_options *c = options;
	struct json_object *request;
	char file[PATH_MAX];
	int r;

	/* ebbd has another working directory. */
	if (!realpath(argv[0], file))
		return fail_exit(e, EXIT_USAGE, errno, "%.200s: %m; give the file of a compiled policy",
				 argv[0]);
	request = control_request("policy.load");
	json_add_text(request, "file", file);
	r = daemon_call_within(LOAD_MS, request, &answer, e);
	if (!r)
		output(c->json, answer, print_loaded);
	return r;
}

static void print_unloaded(struct json_object *o)
{
	printf("%s: unloaded\n", json_text(o, "name", "?"));
}

static int run_unload(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *answer = NULL;
	struct json_object *request = control_request("policy.unload");
	const struct common_options *c = options;
	int r;

	json_add_text(request, "policy", argv[0]);
	r = daemon_call(request, &answer, e);
	if (r)
		return r;
	json_add_text(answer, "name", argv[0]);
	output(c->json, answer, print_unloaded);
	return 0;
}

#define POLICY_COMMAND .object = "policy", JSON_OPTIONS

const struct command command_policy_list = {
	POLICY_COMMAND, .action = "list", .help = "List the policies and their parameters",
	.run = run_list,
};

const struct command command_policy_load = {
	POLICY_COMMAND, .action = "load", .arguments = "FILE",
	.help = "Load your own policy, NAME.bpf.o, or a new version of it",
	.example = "  make -f /usr/share/ebb/policy.mk next.bpf.o\n  ebbctl policy load next.bpf.o\n",
	.run = run_load, .min_args = 1, .max_args = 1,
};

const struct command command_policy_unload = {
	POLICY_COMMAND, .action = "unload", .arguments = "POLICY",
	.help = "Unload a policy that is neither attached nor configured", .run = run_unload,
	.min_args = 1, .max_args = 1,
};

const struct command command_policy_attach = {
	POLICY_COMMAND, .action = "attach", .arguments = "POLICY CGROUP [KEY=NUMBER...] [slowdown=PERCENT] [placement=MODE] [benefit=on|off]",
	.help = "Attach a policy to a cgroup and its descendants",
	.example = "  ebbctl policy attach leap /sys/fs/cgroup/spark.slice pw_max=64\n",
	.run = run_attach, .min_args = 2, .max_args = -1,
};

const struct command command_policy_detach = {
	POLICY_COMMAND, .action = "detach", .arguments = "CGROUP",
	.help = "Stop prefetching for a cgroup", .run = run_detach, .min_args = 1,
	.max_args = 1,
};

const struct command command_policy_set = {
	POLICY_COMMAND, .action = "set", .arguments = "CGROUP KEY=NUMBER... [slowdown=PERCENT] [placement=MODE] [benefit=on|off]",
	.example = "  ebbctl policy set spark.slice slowdown=2%\n",
	.help = "Change parameters of an attached policy", .run = run_set,
	.min_args = 2, .max_args = -1,
};
