// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ebbctl/call.h"
#include "ebbctl/device/list.h"
#include "lib/base/clock.h"
#include "lib/base/files.h"
#include "lib/base/paths.h"
#include "lib/control/control.h"
#include "lib/host/cgroup.h"
#include "snapshot.h"

#define LOCAL_MS 1000
/* State of a donor, and reason of its drain. */
#define QUARANTINED "quarantined"

static const char *total_of(const char *text, const char *line, uint64_t *us)
{
	const char *at = strstr(text, line), *total = at ? strstr(at, "total=") : NULL;
	char *end;

	if (!total || total > at + strcspn(at, "\n"))
		return NULL;
	*us = strtoull(total + strlen("total="), &end, 10);
	return end > total + strlen("total=") ? end : NULL;
}

int pressure_parse(const char *text, uint64_t *some, uint64_t *full)
{
	return total_of(text, "some ", some) && total_of(text, "full ", full) ? 0 : -EBADMSG;
}

/* Pressure is in the v2 hierarchy, whichever hierarchy has the memory controller. */
static struct json_object *pressure_of(const struct cgroup_ref *c)
{
	char path[PATH_MAX + 32], text[512];
	struct json_object *o;
	uint64_t some, full;

	snprintf(path, sizeof(path), "%s/memory.pressure", c->twin);
	if (!*c->twin || file_read(path, text, sizeof(text)) <= 0 ||
	    pressure_parse(text, &some, &full))
		return NULL;
	o = json_object_new_object();
	json_add_int(o, "some_us", (int64_t)some);
	json_add_int(o, "full_us", (int64_t)full);
	return o;
}

static void describe_cgroup(struct json_object *row)
{
	const char *path = json_text(row, "path", "");
	struct cgroup_ref c;
	uint64_t limit;

	daemon_derive(row);
	json_add_text(row, "name", path);
	/* The cgroup may have been removed. */
	if (cgroup_resolve(path, &c, NULL))
		return;
	limit = cgroup_limit(&c);
	json_add_text(row, "name", c.rel);
	json_add_int(row, "memory", (int64_t)cgroup_usage(&c));
	if (limit != UINT64_MAX)
		json_add_int(row, "limit", (int64_t)limit);
	json_object_object_add(row, "pressure", pressure_of(&c));
}

/* Appends the sources of requests of @row to @all. */
static void take_sources(struct json_object *row, struct json_object *all)
{
	struct json_object *its = json_member(row, "sources");

	for (size_t i = 0; its && i < json_object_array_length(its); i++) {
		struct json_object *source = json_object_array_get_idx(its, i);

		json_add_text(source, "name", json_text(row, "name", "?"));
		json_object_array_add(all, json_object_get(source));
	}
}

static int ask_daemon(struct json_object *o, struct error *e)
{
	struct json_object *status = NULL, *stats = NULL, *rows, *sources;
	struct error inner = { 0 };
	int r = daemon_call(control_request("status"), &status, &inner);

	if (!r)
		r = daemon_call(control_request("stats"), &stats, &inner);
	if (r && inner.exit_status != EXIT_NO_DAEMON) {
		json_object_put(status);
		return fail_exit(e, inner.exit_status, inner.code, "%s", inner.text);
	}
	rows = stats ? json_object_get(json_member(stats, "cgroups")) : NULL;
	rows = rows ?: json_object_new_array();
	sources = json_object_new_array();
	for (size_t i = 0; i < json_object_array_length(rows); i++) {
		describe_cgroup(json_object_array_get_idx(rows, i));
		take_sources(json_object_array_get_idx(rows, i), sources);
	}
	json_object_object_add(o, "ebbd", status);
	json_object_object_add(o, "cgroups", rows);
	json_object_object_add(o, "sources", sources);
	json_object_put(stats);
	return 0;
}

static void ask_device(struct json_object *row, struct json_object *donors)
{
	const char *name = json_text(row, "name", "");
	struct json_object *server = json_member(row, "server"), *stats = NULL;
	struct json_object *its = server ? json_member(server, "donors") : NULL;

	if (server && server_call(name, control_request("stats"), &stats, NULL))
		stats = NULL;
	json_object_object_add(row, "stats", stats);
	for (size_t i = 0; its && i < json_object_array_length(its); i++) {
		struct json_object *donor = json_object_array_get_idx(its, i);

		json_add_text(donor, "device", name);
		json_add_bool(donor, "quarantined",
			      !strcmp(json_text(donor, "state", ""), QUARANTINED) ||
			 !strcmp(json_text(donor, "leaving", ""), QUARANTINED));
		json_object_array_add(donors, json_object_get(donor));
	}
}

int snapshot_take(struct json_object **out, struct error *e)
{
	struct json_object *o = json_object_new_object(), *devices, *donors;
	int r = ask_daemon(o, e);

	if (r) {
		json_object_put(o);
		return r;
	}
	json_add_int(o, "time_ns", (int64_t)now_ns());
	json_add_int(o, "wall_s", time(NULL));
	devices = device_describe_all();
	donors = json_object_new_array();
	for (size_t i = 0; i < json_object_array_length(devices); i++)
		ask_device(json_object_array_get_idx(devices, i), donors);
	json_object_object_add(o, "devices", devices);
	json_object_object_add(o, "donors", donors);
	json_object_object_add(o, "lender", control_ask(ebb_donor_socket(), "status", LOCAL_MS));
	*out = o;
	return 0;
}
