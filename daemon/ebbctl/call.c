// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "lib/base/files.h"
#include "lib/base/log.h"
#include "lib/base/paths.h"
#include "lib/base/size.h"
#include "lib/control/control.h"
#include "lib/control/device.h"
#include "lib/host/cgroup_files.h"

/* Attaching a policy on an emulated machine takes seconds. */
#define ANSWER_MS 30000
#define SERVER_MS 5000

int daemon_call_within(int timeout_ms, struct json_object *request, struct json_object **answer,
		       struct error *e)
{
	return control_call(ebb_control_socket(), request, timeout_ms, answer, e);
}

int daemon_call(struct json_object *request, struct json_object **answer, struct error *e)
{
	return daemon_call_within(ANSWER_MS, request, answer, e);
}

int daemon_tell(struct json_object *request, struct error *e)
{
	struct json_object *answer = NULL;
	int r = daemon_call(request, &answer, e);

	if (!r)
		json_object_put(answer);
	return r;
}

int daemon_add_params(struct json_object *request, const char *const *words, int n,
		      struct error *e)
{
	struct json_object *params = json_object_new_object();
	static bool warned; /* words are checked before a program starts, and again later */

	json_object_object_add(request, "params", params);
	for (int i = 0; i < n; i++) {
		const char *equals = strchr(words[i], '=');
		char key[64], *end;
		long long v;

		if (!strncmp(words[i], "run=", 4)) {
			if (strcmp(words[i] + 4, "daemon") && strcmp(words[i] + 4, "kernel"))
				return fail_exit(e, EXIT_USAGE, EINVAL,
						 "parameter '%s': policies run in the kernel; omit it", words[i]);
			if (!strcmp(words[i] + 4, "daemon") && !warned)
				log_warn("run=daemon: no longer supported and ignored: the policy runs in the "
					 "kernel; omit it");
			warned = true;
			continue;
		}
		if (!strncmp(words[i], "slowdown=", 9)) {
			uint32_t tenths;
			int r = percent_parse(words[i] + 9, "slowdown", SLOWDOWN_MAX, &tenths, e);

			if (r)
				return r;
			json_add_int(params, "slowdown", tenths);
			continue;
		}
		if (!strncmp(words[i], "placement=", 10)) {
			uint64_t placement;
			int r = placement_parse(words[i] + 10, "placement", &placement, e);

			if (r)
				return r;
			json_add_int(params, "placement", (int64_t)placement);
			continue;
		}
		if (!strncmp(words[i], "benefit=", 8)) {
			uint64_t on;
			int r = switch_parse(words[i] + 8, "benefit", &on, e);

			if (r)
				return r;
			json_add_int(params, "benefit", (int64_t)on);
			continue;
		}
		errno = 0;
		v = equals ? strtoll(equals + 1, &end, 10) : 0;
		if (!equals || equals == words[i] || equals - words[i] >= (long)sizeof(key) ||
		    !equals[1] || *end || errno || v < 0)
			return fail_exit(e, EXIT_USAGE, EINVAL,
					 "parameter '%s': not KEY=NUMBER; see \"ebbctl policy list\"",
					 words[i]);
		snprintf(key, sizeof(key), "%.*s", (int)(equals - words[i]), words[i]);
		json_add_int(params, key, v);
	}
	return 0;
}

uint64_t histogram_quantile(struct json_object *histogram, double q)
{
	size_t n = json_object_is_type(histogram, json_type_array) ?
		   json_object_array_length(histogram) : 0;
	double total = 0, seen = 0;

	for (size_t i = 0; i < n; i++)
		total += json_object_get_double(json_object_array_get_idx(histogram, i));
	for (size_t i = 0; i < n; i++) {
		double count = json_object_get_double(json_object_array_get_idx(histogram, i));
		double low = i ? (double)(1ULL << i) : 0, high = (double)(2ULL << i);

		if (count > 0 && seen + count >= q * total)
			return (uint64_t)(low + (high - low) * (q * total - seen) / count);
		seen += count;
	}
	return 0;
}

static void put_ratio(struct json_object *row, const char *key, double part, double whole)
{
	if (whole > 0)
		json_add_double(row, key, part / whole);
	else
		json_object_object_add(row, key, NULL);
}

/* Adds the kernel's own counts, which a memory controller of version 1 does not show. */
static void put_kernel_zswap(struct json_object *row, struct json_object *to)
{
	static const struct { const char *name, *key; } count[] = {
		{ "kernel_in", "zswpin" }, { "kernel_out", "zswpout" },
		{ "kernel_written_back", "zswpwb" }, { "kernel_bytes", "zswap" },
	};
	char path[PATH_MAX], text[16384], key[16];

	snprintf(path, sizeof(path), "%s/memory.stat", json_text(row, "path", ""));
	file_read(path, text, sizeof(text));
	for (size_t i = 0; i < sizeof(count) / sizeof(count[0]); i++) {
		snprintf(key, sizeof(key), "\n%s ", count[i].key);
		json_object_object_add(to, count[i].name, strstr(text, key) ?
			json_object_new_int64((int64_t)cgroup_stat(text, count[i].key)) : NULL);
	}
}

void daemon_derive(struct json_object *row)
{
	struct json_object *zswap = json_member(row, "zswap");
	struct json_object *misses = json_member(row, "miss_ns_log2");
	double used = json_double(row, "hits", 0) + json_double(row, "late", 0);
	double missed = json_double(row, "misses", 0);

	put_ratio(row, "coverage", used, used + missed);
	put_ratio(row, "accuracy", used, json_double(row, "prefetched", 0));
	json_add_int(row, "miss_p50_ns", (int64_t)histogram_quantile(misses, 0.5));
	json_add_int(row, "miss_p99_ns", (int64_t)histogram_quantile(misses, 0.99));
	json_add_int(row, "lost_ns", json_int(row, "miss_ns", 0) + json_int(row, "late_ns", 0));
	if (zswap)
		put_kernel_zswap(row, zswap);
}

int server_call(const char *device, struct json_object *request, struct json_object **answer,
		struct error *e)
{
	struct error inner = { 0 };
	struct device_record d;
	int r = control_call(ebb_device_socket(device), request, SERVER_MS, answer, &inner);

	/* ebbd answers for devices of the kernel module. */
	if (r && inner.exit_status == EXIT_NO_DAEMON &&
	    (device_record_read(device, &d, NULL) || strcmp(d.frontend, "kmod") != 0))
		return fail_exit(e, EXIT_NO_DAEMON, r,
				 "device %s: ebb-swapd does not answer: %s; see \"ebbctl device list\" and %s/%s.log",
				 device, strerror(-r), ebb_device_dir(), device);
	return r ? fail_exit(e, inner.exit_status, r, "device %s: %s", device, inner.text) : 0;
}

int server_tell(const char *device, struct json_object *request, struct error *e)
{
	struct json_object *answer;
	int r = server_call(device, request, &answer, e);

	if (!r)
		json_object_put(answer);
	return r;
}

struct asking {
	const char *verb;
	int (*each)(const char *device, struct json_object *answer, void *data);
	void *data;
};

static int ask_one(const struct device_record *d, void *data)
{
	struct asking *a = data;
	struct json_object *answer;
	struct error e = { 0 };
	int r = server_call(d->name, control_request(a->verb), &answer, &e);

	if (r) {
		fprintf(stderr, "ebbctl: %s\n", e.text);
		return 0;
	}
	r = a->each(d->name, answer, a->data);
	json_object_put(answer);
	return r;
}

int servers_ask(const char *verb, int (*each)(const char *device, struct json_object *answer,
					      void *data),
		void *data)
{
	struct asking a = { verb, each, data };

	return device_record_each(ask_one, &a);
}
