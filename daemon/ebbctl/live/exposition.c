// SPDX-License-Identifier: GPL-2.0-or-later
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "exposition.h"
#include "exposition_table.h"
#include "lib/base/utf8.h"
#include "lib/control/control.h"

/* Log2 buckets with a le: 1 us to 2 s.  The first includes shorter times. */
#define BUCKET_FIRST 10
#define BUCKET_LAST 30

struct writer {
	FILE *f;
	enum exposition_format format;
	const struct metric *metric;
	bool headed;           /* head of the metric written */
	const char *suffix;    /* of the sample: "_bucket" */
	struct json_object *row;
};

const char *exposition_type(enum exposition_format format)
{
	return format == EXPOSITION_OPENMETRICS ?
	       "application/openmetrics-text; version=1.0.0; charset=utf-8" :
	       "text/plain; version=0.0.4; charset=utf-8";
}

static struct json_object *find(struct json_object *row, const char *path)
{
	char word[48];

	while (row && path) {
		size_t len = strcspn(path, ".");

		snprintf(word, sizeof(word), "%.*s", (int)len, path);
		if (!json_object_is_type(row, json_type_object))
			return NULL;
		row = json_member(row, word);
		path = path[len] ? path + len + 1 : NULL;
	}
	return row;
}

static void write_head(struct writer *w)
{
	const struct metric *m = w->metric;
	bool counter = m->type == METRIC_COUNTER;
	const char *suffix = counter && w->format == EXPOSITION_PROMETHEUS ? "_total" : "";

	if (w->headed)
		return;
	w->headed = true;
	fprintf(w->f, "# HELP %s%s %s\n# TYPE %s%s %s\n", m->name, suffix, m->help, m->name, suffix,
		counter ? "counter" : m->type == METRIC_HISTOGRAM ? "histogram" : "gauge");
}

/* Names of cgroups may be any bytes; replace invalid text. */
static void write_text(FILE *f, const char *text)
{
	const unsigned char *c = (const unsigned char *)text;

	while (*c) {
		int len = utf8_length(c);

		if (!len || utf8_control(c))
			fputc('?', f);
		else if (*c == '"' || *c == '\\')
			fprintf(f, "\\%c", *c);
		else
			fwrite(c, 1, (size_t)len, f);
		c += len ?: 1;
	}
}

static void write_label(struct writer *w, const char *name, const char *value, bool *any)
{
	fprintf(w->f, "%s%s=\"", *any ? "," : "{", name);
	write_text(w->f, value);
	fputc('"', w->f);
	*any = true;
}

/* Writes name and labels of a sample of the row, and @extra="@value" unless NULL. */
static void write_name(struct writer *w, const char *extra, const char *value)
{
	const struct metric *m = w->metric;
	bool any = false;

	write_head(w);
	fprintf(w->f, "%s%s", m->name, w->suffix);
	if (m->rows == ROWS_CGROUP)
		write_label(w, "cgroup", json_text(w->row, "name", "?"), &any);
	if (m->rows == ROWS_DEVICE)
		write_label(w, "device", json_text(w->row, "name", "?"), &any);
	if (m->rows == ROWS_DONOR) {
		write_label(w, "device", json_text(w->row, "device", "?"), &any);
		write_label(w, "donor", json_text(w->row, "address", "?"), &any);
	}
	for (int i = 0; m->type == METRIC_INFO && i < 4 && m->labels[i]; i++) {
		struct json_object *v = json_member(w->row, m->labels[i]);

		write_label(w, m->labels[i], v ? json_object_get_string(v) : "", &any);
	}
	if (extra)
		write_label(w, extra, value, &any);
	fputs(any ? "} " : " ", w->f);
}

static void write_value(struct writer *w, struct json_object *v)
{
	double scale = w->metric->scale;

	if (!scale && json_object_is_type(v, json_type_int))
		fprintf(w->f, "%" PRId64 "\n", json_object_get_int64(v));
	else
		fprintf(w->f, "%.15g\n", json_object_get_double(v) * (scale ?: 1));
}

static void write_histogram(struct writer *w, struct json_object *buckets)
{
	struct json_object *sum = w->metric->sum ? find(w->row, w->metric->sum) : NULL;
	size_t n = json_object_array_length(buckets);
	uint64_t seen = 0;
	char le[32];

	w->suffix = "_bucket";
	for (size_t i = 0; i < n; i++) {
		seen += (uint64_t)json_object_get_int64(json_object_array_get_idx(buckets, i));
		/* The last bucket includes longer times. */
		if (i + 1 < BUCKET_FIRST || i + 1 > BUCKET_LAST || i + 1 == n)
			continue;
		snprintf(le, sizeof(le), "%.9g", (double)(2ull << i) / 1e9);
		write_name(w, "le", le);
		fprintf(w->f, "%" PRIu64 "\n", seen);
	}
	write_name(w, "le", "+Inf");
	fprintf(w->f, "%" PRIu64 "\n", seen);
	/* OpenMetrics requires both or none. */
	if (!sum)
		return;
	w->suffix = "_sum";
	write_name(w, NULL, NULL);
	fprintf(w->f, "%.15g\n", json_object_get_double(sum) / 1e9);
	w->suffix = "_count";
	write_name(w, NULL, NULL);
	fprintf(w->f, "%" PRIu64 "\n", seen);
}

static void write_states(struct writer *w, struct json_object *states)
{
	json_object_object_foreach(states, key, value) {
		write_name(w, "state", key);
		write_value(w, value);
	}
}

static bool is_so(const struct metric *m, struct json_object *v)
{
	if (m->is)
		return v && !strcmp(json_object_get_string(v), m->is);
	return json_object_is_type(v, json_type_boolean) ? json_object_get_boolean(v) : v != NULL;
}

static void write_row(struct writer *w)
{
	const struct metric *m = w->metric;
	struct json_object *v = m->path ? find(w->row, m->path) : NULL;
	/* An absent member of the row is false; a member of an absent object is unknown. */
	bool told = v || (m->type == METRIC_IS && !strchr(m->path, '.'));

	w->suffix = m->type == METRIC_COUNTER ? "_total" : "";
	if (m->type == METRIC_INFO) {
		write_name(w, NULL, NULL);
		fputs("1\n", w->f);
	} else if (!told) {
		return;
	} else if (m->type == METRIC_HISTOGRAM) {
		if (json_object_is_type(v, json_type_array))
			write_histogram(w, v);
	} else if (m->type == METRIC_STATES) {
		if (json_object_is_type(v, json_type_object))
			write_states(w, v);
	} else {
		write_name(w, NULL, NULL);
		if (m->type == METRIC_IS)
			fprintf(w->f, "%d\n", is_so(m, v));
		else
			write_value(w, v);
	}
}

static void write_metric(struct writer *w, struct json_object *snapshot)
{
	static const char *const members[] = {
		[ROWS_DAEMON] = "ebbd", [ROWS_CGROUP] = "cgroups", [ROWS_DEVICE] = "devices",
		[ROWS_DONOR] = "donors", [ROWS_LENDER] = "lender",
	};
	struct json_object *rows = json_member(snapshot, members[w->metric->rows]);

	w->headed = false;
	if (json_object_is_type(rows, json_type_array)) {
		for (size_t i = 0; i < json_object_array_length(rows); i++) {
			w->row = json_object_array_get_idx(rows, i);
			write_row(w);
		}
	} else if (rows) {
		w->row = rows;
		write_row(w);
	}
}

void exposition_write(FILE *f, struct json_object *snapshot, enum exposition_format format)
{
	struct writer w = { .f = f, .format = format };

	fprintf(f, "# HELP ebb_up Whether ebbd answers.\n# TYPE ebb_up gauge\nebb_up %d\n",
		json_member(snapshot, "ebbd") != NULL);
	for (w.metric = metrics; w.metric->name; w.metric++)
		write_metric(&w, snapshot);
	if (format == EXPOSITION_OPENMETRICS)
		fprintf(f, "# EOF\n");
}
