// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdio.h>
#include <string.h>

#include "device_view.h"
#include "ebbctl/call.h"
#include "ebbctl/device/list.h"
#include "lib/base/paths.h"
#include "lib/base/size.h"
#include "lib/base/text.h"
#include "lib/control/control.h"
#include "lib/host/cgroup.h"
#include "verbs.h"

#define LENDER_MS 1000

/* Formats {"leap": 1, "x": 2} as "leap=1 x=2". */
static void flatten_params(struct json_object *row)
{
	struct json_object *params = json_member(row, "params");
	char text[256] = "";
	size_t len = 0;

	if (!params)
		return;
	json_object_object_foreach(params, key, value) {
		if (len < sizeof(text))
			len += snprintf(text + len, sizeof(text) - len, "%s%s=%s", len ? " " : "",
					key, json_object_get_string(value));
	}
	json_add_text(row, "params", text);
}

/* Adds "together on CPU 1" or why not. */
static void name_placement(struct json_object *row)
{
	struct json_object *placement = json_member(row, "placement");
	const char *state = placement ? json_text(placement, "state", "?") : "?";
	char text[64];

	if (placement && json_member(placement, "cpu"))
		snprintf(text, sizeof(text), "%s on CPU %lld", state,
			 (long long)json_int(placement, "cpu", 0));
	else
		snprintf(text, sizeof(text), "%s", state);
	json_add_text(row, "placed", text);
}

/* Adds "measuring, without near", "off" or such. */
static void name_benefit(struct json_object *row)
{
	struct json_object *benefit = json_member(row, "benefit"), *sources = json_member(row, "sources");
	size_t n = sources ? json_object_array_length(sources) : 0, len;
	char text[96];

	snprintf(text, sizeof(text), "%s", benefit ? json_text(benefit, "state", "?") : "?");
	len = strlen(text);
	for (size_t i = 0; i < n && len < sizeof(text); i++) {
		struct json_object *s = json_object_array_get_idx(sources, i);

		if (!strcmp(json_text(s, "state", ""), "backs off"))
			len += snprintf(text + len, sizeof(text) - len, "%s%s",
					strstr(text, "without") ? ", " : ", without ",
					json_text(s, "source", "?"));
	}
	json_add_text(row, "judged", text);
}

/* Sections of the configuration whose policy the kernel rejects. */
static void print_inactive(struct json_object *list)
{
	for (size_t i = 0; list && i < json_object_array_length(list); i++) {
		struct json_object *o = json_object_array_get_idx(list, i);

		printf("%s: [cgroup \"%s\"] is inactive: %s\n", json_text(o, "by", "?"),
		       json_text(o, "cgroup", "?"), json_text(o, "reason", "?"));
	}
}

static void print_frozen(struct json_object *donors)
{
	if (donors && json_object_get_boolean(json_member(donors, "frozen")))
		printf("donors: %lld of %lld are missing in etcd, and the list is frozen; see \"ebbctl donor list\"\n",
		       (long long)json_int(donors, "missing", 0),
		       (long long)json_int(donors, "known", 0));
}

/* Far memory that the donor on this machine lends. */
static void print_far(struct json_object *far)
{
	struct json_object *pools = json_member(far, "pools");
	char used[16], limit[16];

	printf("far memory: %s of %s in use, %zu pools; see \"ebbctl donor list\"\n",
	       size_format((uint64_t)json_int(far, "used", 0), used, sizeof(used)),
	       size_format((uint64_t)json_int(far, "limit", 0), limit, sizeof(limit)),
	       pools ? json_object_array_length(pools) : 0);
}

/* Prints the devices on which prefetches are limited: misses wait there. */
static void print_pacing(struct json_object *list)
{
	for (size_t i = 0; list && i < json_object_array_length(list); i++) {
		struct json_object *o = json_object_array_get_idx(list, i);

		if (json_member(o, "limit"))
			printf("device %s: limit of %lld prefetched pages in flight; misses take %.0f us, without prefetches %.0f us (median)\n",
			       json_text(o, "device", "?"), (long long)json_int(o, "limit", 0),
			       (double)json_int(o, "miss_ns", 0) / 1000,
			       (double)json_int(o, "idle_miss_ns", 0) / 1000);
	}
}

static void print_status(struct json_object *o)
{
	static const struct column columns[] = {
		{ "policy", "POLICY", COLUMN_TEXT }, { "outstanding", "OUTSTANDING", COLUMN_COUNT },
		{ "placed", "PLACEMENT", COLUMN_TEXT }, { "judged", "BENEFIT", COLUMN_TEXT },
		{ "cgroup", "CGROUP", COLUMN_TEXT },
		{ "params", "PARAMETERS", COLUMN_TEXT }, { NULL },
	};
	struct json_object *list = json_member(o, "attachments"), *x = json_member(o, "executor");
	size_t n = list ? json_object_array_length(list) : 0;

	printf("ebbd %s, pid %d, up %lld s\n", json_text(o, "version", "?"),
	       (int)json_int(o, "pid", 0), (long long)json_int(o, "uptime_s", 0));
	printf("hooks: %s\n", json_text(o, "hooks", "?"));
	if (x)
		printf("prefetch: %lld requests, %lld pages in %lld calls, %lld failed\n",
		       (long long)json_int(x, "requests", 0), (long long)json_int(x, "pages", 0),
		       (long long)json_int(x, "calls", 0), (long long)json_int(x, "failed", 0));
	print_pacing(json_member(o, "pacing"));
	print_frozen(json_member(o, "donors"));
	if (json_member(o, "far"))
		print_far(json_member(o, "far"));
	printf("\n");
	for (size_t i = 0; i < n; i++) {
		flatten_params(json_object_array_get_idx(list, i));
		name_placement(json_object_array_get_idx(list, i));
		name_benefit(json_object_array_get_idx(list, i));
	}
	output_table(list, columns, "no cgroup has a policy; see \"ebbctl policy attach\"");
	print_inactive(json_member(o, "inactive"));
	printf("\n");
	device_print_table(json_member(o, "devices"));
}

/* Adds the donor's object, if there is a donor with far memory. */
static void add_far(struct json_object *o)
{
	_cleanup_json_ struct json_object *lender = control_ask(ebb_donor_socket(), "status",
								LENDER_MS);
	struct json_object *far = json_member(lender, "far");

	if (far)
		json_object_object_add(o, "far", json_object_get(far));
}

static int run_status(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *answer = NULL;
	const struct common_options *c = options;
	int r = daemon_call(control_request("status"), &answer, e);

	if (r)
		return r;
	json_object_object_add(answer, "devices", device_describe_all());
	add_far(answer);
	output(c->json, answer, print_status);
	return 0;
}

/* A table of the member @name of those cgroups that have one. */
static void print_members(struct json_object *rows, const char *name, const struct column *columns)
{
	_cleanup_json_ struct json_object *list = json_object_new_array();
	size_t n = rows ? json_object_array_length(rows) : 0;

	for (size_t i = 0; i < n; i++) {
		struct json_object *row = json_object_array_get_idx(rows, i);
		struct json_object *member = json_member(row, name);

		if (!member)
			continue;
		json_add_text(member, "path", json_text(row, "path", "?"));
		json_object_array_add(list, json_object_get(member));
	}
	if (!json_object_array_length(list))
		return;
	printf("\n");
	output_table(list, columns, "");
}

/* The sources of those cgroups whose sources are judged. */
static void print_sources(struct json_object *rows)
{
	static const struct column columns[] = {
		{ "path", "BENEFIT OF", COLUMN_TEXT }, { "source", "SOURCE", COLUMN_TEXT },
		{ "pages", "PAGES", COLUMN_COUNT }, { "used", "USED", COLUMN_COUNT },
		{ "wasted", "WASTED", COLUMN_COUNT }, { "state", "STATE", COLUMN_TEXT },
		{ "gain", "GAIN", COLUMN_PERCENT }, { "error", "ERROR", COLUMN_PERCENT },
		{ "trials", "TRIALS", COLUMN_COUNT }, { NULL },
	};
	_cleanup_json_ struct json_object *list = json_object_new_array();

	for (size_t i = 0; rows && i < json_object_array_length(rows); i++) {
		struct json_object *row = json_object_array_get_idx(rows, i);
		struct json_object *benefit = json_member(row, "benefit");
		struct json_object *sources = json_member(row, "sources");

		if (!benefit || strcmp(json_text(benefit, "setting", "off"), "on"))
			continue;
		for (size_t k = 0; sources && k < json_object_array_length(sources); k++) {
			struct json_object *s = json_object_array_get_idx(sources, k);

			json_add_text(s, "path", json_text(row, "path", "?"));
			json_object_array_add(list, json_object_get(s));
		}
	}
	if (!json_object_array_length(list))
		return;
	printf("\n");
	output_table(list, columns, "");
}

static void print_offload(struct json_object *rows)
{
	static const struct column columns[] = {
		{ "path", "OFFLOADED", COLUMN_TEXT }, { "target", "TARGET", COLUMN_PERCENT },
		{ "slowdown", "SLOWDOWN", COLUMN_PERCENT }, { "resident", "RESIDENT", COLUMN_BYTES },
		{ "saved", "SAVED", COLUMN_BYTES }, { "swapped", "SWAPPED", COLUMN_BYTES },
		{ "reclaimed_pages", "RECLAIMED", COLUMN_COUNT }, { "state", "STATE", COLUMN_TEXT },
		{ NULL },
	};

	print_members(rows, "offload", columns);
}

static void print_collapse(struct json_object *rows)
{
	static const struct column columns[] = {
		{ "path", "COLLAPSED", COLUMN_TEXT }, { "state", "STATE", COLUMN_TEXT },
		{ "reason", "LAST REASON", COLUMN_TEXT }, { "retry_s", "RETRY s", COLUMN_COUNT },
		{ "windows", "WINDOWS", COLUMN_COUNT }, { "rejected", "REJECTED", COLUMN_COUNT },
		{ "whole", "WHOLE", COLUMN_COUNT }, { "returned", "RETURNED", COLUMN_COUNT },
		{ NULL },
	};

	print_members(rows, "collapse", columns);
}

static void print_zswap(struct json_object *rows)
{
	static const struct column columns[] = {
		{ "path", "ZSWAP OF", COLUMN_TEXT }, { "hits", "HITS", COLUMN_COUNT },
		{ "misses", "MISSES", COLUMN_COUNT }, { "stored", "STORED", COLUMN_COUNT },
		{ "direct", "DIRECT", COLUMN_COUNT },
		{ "written_back", "WRITTEN BACK", COLUMN_COUNT },
		{ "kernel_bytes", "POOL", COLUMN_BYTES }, { NULL },
	};

	print_members(rows, "zswap", columns);
}

static void print_stats(struct json_object *o)
{
	static const struct column columns[] = {
		{ "path", "CGROUP", COLUMN_TEXT }, { "policy", "POLICY", COLUMN_TEXT },
		{ "misses", "MISSES", COLUMN_COUNT }, { "hits", "HITS", COLUMN_COUNT },
		{ "late", "LATE", COLUMN_COUNT }, { "wasted", "WASTED", COLUMN_COUNT },
		{ "coverage", "COVERAGE", COLUMN_PERCENT },
		{ "accuracy", "ACCURACY", COLUMN_PERCENT },
		{ "miss_p50_ns", "MISS p50", COLUMN_NS }, { "miss_p99_ns", "p99", COLUMN_NS },
		{ "swapped_in", "IN", COLUMN_COUNT }, { "swapped_out", "OUT", COLUMN_COUNT },
		{ "epochs", "EPOCHS", COLUMN_COUNT }, { NULL },
	};

	output_table(json_member(o, "cgroups"), columns,
		     "no cgroup has a policy; see \"ebbctl policy attach\"");
	print_sources(json_member(o, "cgroups"));
	print_offload(json_member(o, "cgroups"));
	print_collapse(json_member(o, "cgroups"));
	print_zswap(json_member(o, "cgroups"));
}

static int run_stats(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *answer = NULL, *request = control_request("stats");
	const struct common_options *c = options;
	struct json_object *rows;
	struct cgroup_ref ref;
	int r = argc ? cgroup_resolve(argv[0], &ref, e) : 0;

	if (!r && argc)
		json_add_text(request, "cgroup", ref.path);
	if (!r)
		r = daemon_call(json_object_get(request), &answer, e);
	if (r)
		return r;
	rows = json_member(answer, "cgroups");
	for (size_t i = 0; rows && i < json_object_array_length(rows); i++)
		daemon_derive(json_object_array_get_idx(rows, i));
	output(c->json, answer, print_stats);
	return 0;
}

const struct command command_status = {
	.object = "status", .help = "Show ebbd, attached policies and devices",
	JSON_OPTIONS, .run = run_status,
};

const struct command command_stats = {
	.object = "stats", .arguments = "[CGROUP]",
	.help = "Show misses, hits, coverage and accuracy of attached cgroups", JSON_OPTIONS, .run = run_stats, .max_args = 1,
};
