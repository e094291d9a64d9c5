// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ebbctl/call.h"
#include "lib/control/control.h"
#include "top_model.h"

static const struct { const char *name, *key; bool is_text; } sorts[] = {
	{ "misses", "misses_s", false }, { "hits", "hits_s", false }, { "late", "late_s", false },
	{ "wasted", "wasted_s", false }, { "in", "in_s", false }, { "out", "out_s", false },
	{ "coverage", "coverage", false }, { "accuracy", "accuracy", false },
	{ "lateness", "lateness", false }, { "p50", "miss_p50_ns", false },
	{ "p99", "miss_p99_ns", false }, { "some", "some", false }, { "full", "full", false },
	{ "memory", "memory", false }, { "policy", "policy", true }, { "name", "name", true },
};

#define SORTS (sizeof(sorts) / sizeof(sorts[0]))

static size_t sort_of(const char *name)
{
	for (size_t i = 0; i < SORTS; i++)
		if (!strcmp(sorts[i].name, name))
			return i;
	return 0;
}

const char *top_next_sort(const char *name)
{
	return sorts[(sort_of(name) + 1) % SORTS].name;
}

static struct json_object *row_of(struct json_object *rows, size_t i)
{
	return json_object_array_get_idx(rows, i);
}

static size_t length_of(struct json_object *rows)
{
	return rows ? json_object_array_length(rows) : 0;
}

/* The rows of the snapshot before, by their member @key. */
struct earlier {
	struct json_object *rows;
	const char *key;
	struct json_object *index; /* key: row; NULL until a row is not at its former place */
};

static void make_index(struct earlier *e)
{
	e->index = json_object_new_object();
	for (size_t i = 0; i < length_of(e->rows); i++)
		json_object_object_add(e->index, json_text(row_of(e->rows, i), e->key, ""),
				       json_object_get(row_of(e->rows, i)));
}

/* Returns what row @i, @row, was before, or NULL.  Rows mostly keep their place. */
static struct json_object *earlier_row(struct earlier *e, size_t i, struct json_object *row)
{
	const char *name = json_text(row, e->key, "");

	if (i < length_of(e->rows) && !strcmp(json_text(row_of(e->rows, i), e->key, ""), name))
		return row_of(e->rows, i);
	if (!e->index)
		make_index(e);
	return json_member(e->index, name);
}

/* Returns the growth of the counter @key, -1 if unknown. */
static double growth(struct json_object *before, struct json_object *now, const char *key)
{
	double then = before ? json_double(before, key, -1) : -1;
	double v = now ? json_double(now, key, -1) : -1;

	return then < 0 || v < then ? -1 : v - then;
}

static void put_known(struct json_object *o, const char *key, double value)
{
	if (value < 0)
		json_object_object_add(o, key, NULL);
	else
		json_add_double(o, key, value);
}

static double per(double part, double whole)
{
	return part < 0 || whole <= 0 ? -1 : part / whole;
}

static void put_copy(struct json_object *o, const char *key, struct json_object *from,
		     const char *its)
{
	json_object_object_add(o, key, from ? json_object_get(json_member(from, its)) : NULL);
}

/* Adds quantiles of the growth of a histogram; null without growth. */
static void put_quantiles(struct json_object *o, struct json_object *before,
			  struct json_object *now, const char *p50, const char *p99)
{
	struct json_object *grown = json_object_new_array();
	size_t n = length_of(now);
	double total = 0;

	for (size_t i = 0; i < n && length_of(before) == n; i++) {
		double v = json_object_get_double(row_of(now, i)) -
			   json_object_get_double(row_of(before, i));

		total = v < 0 || total < 0 ? -1 : total + v;
		json_object_array_add(grown, json_object_new_double(v));
	}
	if (p50)
		put_known(o, p50, total > 0 ? (double)histogram_quantile(grown, 0.5) : -1);
	put_known(o, p99, total > 0 ? (double)histogram_quantile(grown, 0.99) : -1);
	json_object_put(grown);
}

/* Adds the sources of requests that back off: "near", "streams, near"; null without any. */
static void put_without(struct json_object *o, struct json_object *now)
{
	struct json_object *sources = now ? json_member(now, "sources") : NULL;
	char text[64] = "";
	size_t len = 0;

	for (size_t i = 0; i < length_of(sources) && len < sizeof(text); i++)
		if (!strcmp(json_text(row_of(sources, i), "state", ""), "backs off"))
			len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%s",
						len ? ", " : "",
						json_text(row_of(sources, i), "source", "?"));
	json_object_object_add(o, "without", len ? json_object_new_string(text) : NULL);
}

static struct json_object *cgroup_row(struct json_object *before, struct json_object *now,
				      double seconds)
{
	static const struct { const char *key, *from; } rates[] = {
		{ "misses_s", "misses" }, { "hits_s", "hits" }, { "late_s", "late" },
		{ "wasted_s", "wasted" }, { "in_s", "swapped_in" }, { "out_s", "swapped_out" },
	};
	double misses = growth(before, now, "misses"), hits = growth(before, now, "hits");
	double late = growth(before, now, "late"), wasted = growth(before, now, "wasted");
	double used = hits < 0 || late < 0 ? -1 : hits + late;
	struct json_object *o = json_object_new_object();
	struct json_object *was = json_member(before, "pressure");
	struct json_object *is = json_member(now, "pressure");

	put_copy(o, "name", now, "name");
	put_copy(o, "policy", now, "policy");
	put_without(o, now);
	for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++)
		put_known(o, rates[i].key, per(growth(before, now, rates[i].from), seconds));
	put_known(o, "coverage", misses < 0 ? -1 : per(used, used + misses));
	put_known(o, "accuracy", wasted < 0 ? -1 : per(used, used + wasted));
	put_known(o, "lateness", per(late, used));
	put_quantiles(o, json_member(before, "miss_ns_log2"),
		      json_member(now, "miss_ns_log2"), "miss_p50_ns", "miss_p99_ns");
	put_known(o, "some", per(growth(was, is, "some_us"), seconds * 1e6));
	put_known(o, "full", per(growth(was, is, "full_us"), seconds * 1e6));
	put_copy(o, "memory", now, "memory");
	return o;
}

static struct json_object *device_row(struct json_object *before, struct json_object *now,
				      double seconds)
{
	struct json_object *o = json_object_new_object(), *server = json_member(now, "server");
	struct json_object *was = json_member(before, "stats");
	struct json_object *is = json_member(now, "stats");
	struct json_object *backup = json_member(server, "backup");
	struct json_object *donors = json_member(server, "donors");
	size_t up = 0;
	char text[64];

	put_copy(o, "name", now, "name");
	put_copy(o, "state", now, "state");
	put_copy(o, "used", now, "used");
	put_copy(o, "size", now, "size");
	put_known(o, "io_s", per(growth(was, is, "requests"), seconds));
	put_known(o, "read_s", per(growth(was, is, "pages_read_donor"), seconds));
	put_known(o, "written_s", per(growth(was, is, "pages_written_donor"), seconds));
	put_known(o, "failed_s", per(growth(was, is, "pages_read_failed"), seconds));
	put_copy(o, "live", server, "live");
	put_copy(o, "mapped", server, "mapped");
	put_copy(o, "missing", json_member(server, "copies"), "missing");
	put_copy(o, "waiting", is, "waiting");
	put_quantiles(o, json_member(was, "donor_read_ns_log2"),
		      json_member(is, "donor_read_ns_log2"), NULL, "read_p99_ns");
	for (size_t i = 0; i < length_of(donors); i++)
		up += !strcmp(json_text(row_of(donors, i), "state", ""), "up");
	snprintf(text, sizeof(text), "%zu/%zu", up, length_of(donors));
	json_add_text(o, "donors", donors ? text : NULL);
	if (backup)
		snprintf(text, sizeof(text), "%lld/%lld", (long long)json_int(backup, "backlog", 0),
			 (long long)json_int(backup, "backlog_most", 0));
	json_add_text(o, "queue", backup ? text : NULL);
	return o;
}

static struct json_object *donor_row(struct json_object *now)
{
	static const char *const copied[] = {
		"address", "device", "transport", "slabs", "free", "total", "read_ns", "losses",
	};
	struct json_object *o = json_object_new_object();
	const char *leaving = json_text(now, "leaving", NULL);
	char text[64];

	for (size_t i = 0; i < sizeof(copied) / sizeof(copied[0]); i++)
		put_copy(o, copied[i], now, copied[i]);
	snprintf(text, sizeof(text), "%.24s%s%.24s", json_text(now, "state", "?"),
		 leaving ? ", " : "", leaving ?: "");
	json_add_text(o, "state", text);
	return o;
}

static struct json_object *daemon_row(struct json_object *before, struct json_object *now,
				      size_t cgroups, double seconds)
{
	struct json_object *was = json_member(before, "executor"), *is, *o;

	if (!now)
		return NULL;
	is = json_member(now, "executor");
	o = json_object_new_object();
	put_copy(o, "version", now, "version");
	put_copy(o, "uptime_s", now, "uptime_s");
	json_add_int(o, "cgroups", (int64_t)cgroups);
	put_known(o, "calls_s", per(growth(was, is, "calls"), seconds));
	put_known(o, "pages_s", per(growth(was, is, "pages"), seconds));
	put_known(o, "failed_s", per(growth(was, is, "failed"), seconds));
	return o;
}

struct by {
	size_t sort;
	enum top_order order;
};

/* Rows without a value come last in both orders. */
static int compare(const void *a, const void *b, void *data)
{
	const struct by *by = data;
	struct json_object *x = json_member(*(struct json_object *const *)a, sorts[by->sort].key);
	struct json_object *y = json_member(*(struct json_object *const *)b, sorts[by->sort].key);
	double p, q;
	int r;

	if (!x || !y)
		return !x - !y;
	if (sorts[by->sort].is_text) {
		r = strcmp(json_object_get_string(x), json_object_get_string(y));
	} else {
		p = json_object_get_double(x);
		q = json_object_get_double(y);
		r = (p < q) - (p > q);
	}
	return by->order == TOP_REVERSED ? -r : r;
}

/* Consumes @rows. */
static struct json_object *sorted(struct json_object *rows, const struct top_wish *wish)
{
	struct by by = { sort_of(wish->sort), wish->order };
	struct json_object *o = json_object_new_array();
	size_t n = length_of(rows);
	struct json_object **list = calloc(n + 1, sizeof(*list));

	for (size_t i = 0; list && i < n; i++)
		list[i] = row_of(rows, i);
	if (list)
		qsort_r(list, n, sizeof(*list), compare, &by);
	for (size_t i = 0; list && i < n; i++)
		json_object_array_add(o, json_object_get(list[i]));
	free(list);
	json_object_put(rows);
	return o;
}

struct json_object *top_frame(struct json_object *before, struct json_object *now,
			      const struct top_wish *wish)
{
	double seconds = before ? growth(before, now, "time_ns") / 1e9 : -1;
	struct json_object *o = json_object_new_object(), *cgroups = json_object_new_array();
	struct json_object *devices = json_object_new_array(), *donors = json_object_new_array();
	struct json_object *from = json_member(now, "cgroups");
	struct earlier cgroup = { json_member(before, "cgroups"), "path", NULL };
	struct earlier device = { json_member(before, "devices"), "name", NULL };

	put_known(o, "seconds", seconds);
	put_copy(o, "wall_s", now, "wall_s");
	json_object_object_add(o, "ebbd", daemon_row(json_member(before, "ebbd"),
						     json_member(now, "ebbd"), length_of(from),
						     seconds));
	for (size_t i = 0; i < length_of(from); i++)
		if (strstr(json_text(row_of(from, i), "name", ""), wish->filter))
			json_object_array_add(cgroups,
					      cgroup_row(earlier_row(&cgroup, i, row_of(from, i)),
							 row_of(from, i), seconds));
	json_object_object_add(o, "cgroups", sorted(cgroups, wish));
	from = json_member(now, "devices");
	for (size_t i = 0; i < length_of(from); i++)
		json_object_array_add(devices, device_row(earlier_row(&device, i, row_of(from, i)),
							  row_of(from, i), seconds));
	json_object_object_add(o, "devices", devices);
	from = json_member(now, "donors");
	for (size_t i = 0; i < length_of(from); i++)
		json_object_array_add(donors, donor_row(row_of(from, i)));
	json_object_object_add(o, "donors", donors);
	json_object_put(cgroup.index);
	json_object_put(device.index);
	return o;
}
