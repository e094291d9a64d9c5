// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdlib.h>
#include <string.h>

#include "lib/base/text.h"
#include "lib/base/cleanup.h"
#include "page_axis.h"
#include "report_data.h"

#define LEVEL_MAX 7

static struct json_object *numbers(const uint64_t *v, size_t n)
{
	struct json_object *o = json_object_new_array();

	for (size_t i = 0; i < n; i++)
		json_object_array_add(o, json_object_new_int64((int64_t)v[i]));
	return o;
}

/* Returns a counter's growth; attaching another policy resets it. */
static uint64_t growth(uint64_t now, uint64_t before)
{
	return now > before ? now - before : 0;
}

static uint32_t log2_of(uint64_t v)
{
	return v ? 63 - (uint32_t)__builtin_clzll(v) : 0;
}

/*
 * Returns in which of @n equal parts of the trace's time @r is.  The last nanosecond of a long one
 * belongs to the last part, despite rounding.
 */
static uint32_t part_of(const struct loaded_trace *t, const struct trace_record *r, uint32_t n)
{
	uint32_t part = (uint32_t)((double)r->time_ns / ((double)t->span_ns + 1) * n);

	return part < n ? part : n - 1;
}

/* --- figures ------------------------------------------------------------- */

static struct json_object *about(const struct loaded_trace *t)
{
	struct json_object *o = json_object_new_object();

	trace_add_about(o, &t->info);
	json_add_text(o, "machine", *t->info.machine ? t->info.machine : NULL);
	json_add_int(o, "cpus", t->info.cpus);
	json_add_text(o, "ebb", EBB_VERSION);
	return o;
}

static int by_number(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Returns the known durations of one kind, sorted, *@n of them, owned by the caller. */
static uint64_t *durations(const struct loaded_trace *t, enum trace_kind kind, size_t *n)
{
	uint64_t *d = malloc((t->count[kind] + 1) * sizeof(*d));

	*n = 0;
	for (size_t i = 0; d && i < t->records; i++)
		if (t->record[i].kind == kind && t->record[i].duration_ns)
			d[(*n)++] = t->record[i].duration_ns;
	if (d)
		qsort(d, *n, sizeof(*d), by_number);
	return d;
}

/*
 * Adds the histogram of one kind to @histograms, and its median and 99th percentile to @quantiles.
 */
static int put_latency(const struct loaded_trace *t, enum trace_kind kind,
		       struct json_object *histograms, struct json_object *quantiles)
{
	const char *name = trace_kind_names[kind];
	uint64_t bucket[REPORT_LATENCIES] = { 0 };
	struct json_object *o = json_object_new_object();
	_cleanup_free_ uint64_t *d = NULL;
	size_t n;

	d = durations(t, kind, &n);
	for (size_t i = 0; d && i < n; i++) {
		uint32_t b = log2_of(d[i]);

		bucket[b < REPORT_LATENCIES ? b : REPORT_LATENCIES - 1]++;
	}
	json_object_object_add(histograms, name, numbers(bucket, REPORT_LATENCIES));
	json_object_object_add(quantiles, name, o);
	if (d && n) {
		json_add_int(o, "p50", (int64_t)d[n / 2]);
		json_add_int(o, "p99", (int64_t)d[n - 1 - n / 100]);
		json_add_int(o, "max", (int64_t)d[n - 1]);
	}
	return d ? 0 : -1;
}

static struct json_object *summary(const struct loaded_trace *t)
{
	struct json_object *o = json_object_new_object();
	uint64_t used = t->count[TRACE_HIT] + t->count[TRACE_LATE];

	trace_add_counts(o, t);
	json_object_object_add(o, "coverage", NULL);
	if (used + t->count[TRACE_MISS])
		json_add_double(o, "coverage",
				(double)used / (double)(used + t->count[TRACE_MISS]));
	json_object_object_add(o, "accuracy", NULL);
	if (t->samples > 1) {
		const struct trace_sample *first = t->sample, *last = first + t->samples - 1;
		uint64_t prefetched = growth(last->prefetched, first->prefetched);

		json_add_int(o, "prefetched", (int64_t)prefetched);
		json_add_int(o, "wasted", (int64_t)growth(last->wasted, first->wasted));
		/* Some pages were prefetched before the recording began. */
		if (prefetched)
			json_add_double(o, "accuracy", used < prefetched ?
					(double)used / (double)prefetched : 1);
	}
	return o;
}

/* --- the map ------------------------------------------------------------- */

struct region {
	uint64_t first, last, low, high; /* pages; heights */
	uint32_t tgid;
};

static int by_size(const void *a, const void *b)
{
	const struct region *x = a, *y = b;
	uint64_t m = x->last - x->first, n = y->last - y->first;

	return m != n ? (m > n ? -1 : 1) : x->low < y->low ? -1 : x->low > y->low;
}

static int by_height(const void *a, const void *b)
{
	const struct region *x = a, *y = b;

	return x->low < y->low ? -1 : x->low > y->low;
}

/* Returns the ranges of addresses between holes: the largest ones, from bottom to top. */
static struct json_object *regions(const struct page_axis *axis, uint32_t page_shift)
{
	_cleanup_free_ struct region *all = calloc(axis->pages + 1, sizeof(*all));
	struct json_object *rows = json_object_new_array();
	size_t n = 0;

	for (uint64_t i = 0; all && i < axis->pages; i++) {
		if (!i || page_axis_cut(axis, i))
			all[n++] = (struct region){ .tgid = axis->page[i].tgid,
						    .first = axis->page[i].vpn,
						    .low = axis->height[i] };
		all[n - 1].last = axis->page[i].vpn;
		all[n - 1].high = axis->height[i] + 1;
	}
	if (n > REPORT_REGIONS) {
		qsort(all, n, sizeof(*all), by_size);
		n = REPORT_REGIONS;
		qsort(all, n, sizeof(*all), by_height);
	}
	for (size_t i = 0; i < n; i++) {
		struct json_object *o = json_object_new_object();

		json_add_int(o, "tgid", all[i].tgid);
		json_add_int(o, "from", (int64_t)(all[i].first << page_shift));
		json_add_int(o, "to", (int64_t)((all[i].last + 1) << page_shift));
		json_add_int(o, "low", (int64_t)all[i].low);
		json_add_int(o, "high", (int64_t)all[i].high);
		json_object_array_add(rows, o);
	}
	return rows;
}

typedef uint32_t map_cell[TRACE_KINDS];

static map_cell *count_cells(const struct loaded_trace *t, const struct page_axis *axis)
{
	map_cell *cell = calloc(REPORT_COLUMNS * REPORT_ROWS, sizeof(*cell));

	for (size_t i = 0; cell && i < t->records; i++) {
		const struct trace_record *r = &t->record[i];
		uint32_t x = part_of(t, r, REPORT_COLUMNS);
		uint32_t y = (uint32_t)((double)page_axis_height(axis, r) / (double)axis->top *
					REPORT_ROWS);

		cell[y * REPORT_COLUMNS + x][r->kind]++;
	}
	return cell;
}

/*
 * Returns the cells in use, row by row from the bottom: how many to skip, then the kind of most of
 * its faults, or out, plus 4 times the logarithm of their number.
 */
static struct json_object *cells(const map_cell *cell)
{
	struct json_object *o = json_object_new_array();
	uint32_t skip = 0;

	for (uint32_t i = 0; i < REPORT_COLUMNS * REPORT_ROWS; i++) {
		uint32_t kind = TRACE_OUT, most = 0, faults = 0, level;

		for (uint32_t k = 0; k < TRACE_OUT; k++) {
			faults += cell[i][k];
			if (cell[i][k] > most) {
				most = cell[i][k];
				kind = k;
			}
		}
		faults = faults ? faults : cell[i][TRACE_OUT];
		if (!faults) {
			skip++;
			continue;
		}
		level = log2_of(faults);
		json_object_array_add(o, json_object_new_int((int)skip));
		json_object_array_add(o, json_object_new_int((int)(kind + 4 *
			(level < LEVEL_MAX ? level : LEVEL_MAX))));
		skip = 0;
	}
	return o;
}

static struct json_object *fault_map(const struct loaded_trace *t)
{
	struct json_object *o = NULL;
	struct page_axis axis;
	map_cell *cell = NULL;

	if (!page_axis_init(&axis, t))
		cell = count_cells(t, &axis);
	if (cell) {
		o = json_object_new_object();
		json_add_int(o, "columns", REPORT_COLUMNS);
		json_add_int(o, "rows", REPORT_ROWS);
		json_add_int(o, "top", (int64_t)axis.top);
		json_object_object_add(o, "cells", cells((const map_cell *)cell));
		json_object_object_add(o, "regions", regions(&axis, t->info.page_shift));
	}
	free(cell);
	page_axis_free(&axis);
	return o;
}

/* --- over time ----------------------------------------------------------- */

static struct json_object *rates(const struct loaded_trace *t)
{
	uint64_t bin[TRACE_KINDS][REPORT_BINS] = { { 0 } };
	struct json_object *o = json_object_new_object();

	for (size_t i = 0; i < t->records; i++)
		bin[t->record[i].kind][part_of(t, &t->record[i], REPORT_BINS)]++;
	for (int k = 0; k < TRACE_KINDS; k++)
		json_object_object_add(o, trace_kind_names[k], numbers(bin[k], REPORT_BINS));
	return o;
}

static void add_point(struct json_object *o, const char *key, struct json_object *value)
{
	json_object_array_add(json_member(o, key), value);
}

static struct json_object *whole(uint64_t v)
{
	return json_object_new_int64((int64_t)v);
}

/* Returns samples, the last of each bin; counters since the recording began. */
static struct json_object *samples(const struct loaded_trace *t)
{
	static const char *const keys[] = { "time_ns", "resident", "swapped", "window", "prefetched",
					    "wasted", "epochs" };
	struct json_object *o = json_object_new_object();
	const struct trace_sample *first = t->sample, *last = t->sample;
	size_t step = t->samples / REPORT_SAMPLES + 1;

	for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++)
		json_object_object_add(o, keys[k], json_object_new_array());
	for (size_t i = 0; i < t->samples; i++) {
		const struct trace_sample *s = &t->sample[i];
		uint64_t requests = growth(s->requests, last->requests);
		uint64_t pages = growth(s->request_pages, last->request_pages);

		if (i && (t->samples - 1 - i) % step)
			continue;
		add_point(o, "time_ns", whole(s->time_ns));
		add_point(o, "resident", whole(s->resident));
		add_point(o, "swapped", whole(s->swapped));
		add_point(o, "window", requests ? whole((pages + requests / 2) / requests) : NULL);
		add_point(o, "prefetched", whole(growth(s->prefetched, first->prefetched)));
		add_point(o, "wasted", whole(growth(s->wasted, first->wasted)));
		add_point(o, "epochs", whole(growth(s->epochs, first->epochs)));
		last = s;
	}
	return o;
}

struct json_object *report_data(const struct loaded_trace *t)
{
	static const char *const roles[2] = { "program", "collector" };
	struct json_object *o = json_object_new_object(), *histograms = json_object_new_object(),
			   *quantiles = json_object_new_object(), *map = fault_map(t);
	int r = map ? 0 : -1;

	json_object_object_add(o, "about", about(t));
	json_object_object_add(o, "summary", summary(t));
	json_object_object_add(o, "map", map);
	json_object_object_add(o, "rates", rates(t));
	for (enum trace_kind k = TRACE_MISS; k < TRACE_OUT; k++)
		r = put_latency(t, k, histograms, quantiles) ? -1 : r;
	json_object_object_add(o, "latency_ns_log2", histograms);
	json_object_object_add(o, "latency_ns", quantiles);
	json_object_object_add(o, "samples", samples(t));
	json_object_object_add(o, "threads", trace_threads_json(t, REPORT_THREADS, roles));
	json_add_int(o, "all_threads", (int64_t)t->threads);
	if (r) {
		json_object_put(o);
		return NULL;
	}
	return o;
}
