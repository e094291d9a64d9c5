// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "advice.h"
#include "commands.h"
#include "lib/base/cleanup.h"
#include "lib/base/size.h"
#include "lib/base/text.h"
#include "lib/trace/sim.h"

#define HEADROOM 8      /* ebb.conf(5), [prefetch] */
#define STDIN "/dev/stdin" /* a recording without a name */

/* The requested sizes, and those that the recording supports. */
struct sizes {
	uint64_t percent[SHARES_MAX];
	uint32_t n;
	uint64_t known_percent[SHARES_MAX], memory[SHARES_MAX];
	uint32_t known;
};

static struct json_object *describe_row(const struct advice *a)
{
	struct json_object *o = json_object_new_object();
	uint64_t used = a->result.hits + a->result.late;

	json_add_text(o, "policy", a->policy->info->name);
	json_add_int(o, "misses", (int64_t)a->result.misses);
	json_add_int(o, "misses_low", (int64_t)a->misses_low);
	json_add_int(o, "misses_high", (int64_t)a->misses_high);
	json_add_int(o, "hits", (int64_t)a->result.hits);
	json_add_int(o, "late", (int64_t)a->result.late);
	json_add_int(o, "prefetched", (int64_t)a->result.prefetched);
	json_object_object_add(o, "coverage", NULL);
	if (used + a->result.misses)
		json_add_double(o, "coverage", (double)used / (double)(used + a->result.misses));
	json_add_double(o, "slowdown", a->slowdown);
	json_add_double(o, "slowdown_low", a->slowdown_low);
	json_add_double(o, "slowdown_high", a->slowdown_high);
	return o;
}

static struct json_object *describe_sizes(const struct advice *advice,
					  const struct advice_plan *plan, const struct sizes *s)
{
	struct json_object *rows = json_object_new_array();
	uint32_t policies = advice_policy_count();

	for (uint32_t i = 0; i < s->known; i++) {
		struct json_object *o = json_object_new_object(), *list = json_object_new_array();

		json_add_int(o, "percent", (int64_t)s->known_percent[i]);
		json_add_int(o, "memory", (int64_t)s->memory[i]);
		json_add_text(o, "best", advice_best(advice, plan, i)->policy->info->name);
		for (uint32_t k = 0; k < policies; k++)
			json_object_array_add(list, describe_row(&advice[i * policies + k]));
		json_object_object_add(o, "policies", list);
		json_object_array_add(rows, o);
	}
	return rows;
}

static struct json_object *describe(const char *file, const struct sim_advise *s,
				    const struct sim_history *h)
{
	struct json_object *o = json_object_new_object(), *recorded = json_object_new_object();

	json_add_text(o, "subject", s->subject ?: file);
	json_add_text(o, "kernel", h->info.kernel);
	json_add_text(o, "machine", *h->info.machine ? h->info.machine : NULL);
	json_add_int(o, "page_cluster", h->info.page_cluster);
	json_add_int(o, "needed", (int64_t)s->needed);
	json_object_object_add(o, "seconds", NULL);
	if (s->full_time)
		json_add_double(o, "seconds", (double)s->full_time / 1e9);
	json_add_int(recorded, "memory", (int64_t)h->info.memory);
	json_add_text(recorded, "policy", h->info.policy);
	json_add_int(recorded, "misses", (int64_t)h->recorded[TRACE_MISS]);
	json_add_int(recorded, "lost", (int64_t)h->info.lost);
	json_add_int(recorded, "latency_ns", (int64_t)advice_latency(h));
	json_object_object_add(recorded, "seconds", NULL);
	if (s->recorded_time)
		json_add_double(recorded, "seconds", (double)s->recorded_time / 1e9);
	json_add_text(recorded, "trace", strcmp(file, STDIN) ? file : NULL);
	json_object_object_add(o, "recorded", recorded);
	return o;
}

static const char *cell(struct json_object *o, const char *key, enum column_format format,
			char *buf)
{
	const struct column column = { key, NULL, format };

	return output_cell(o, &column, buf, 32);
}

static void print_head(struct json_object *o)
{
	struct json_object *r = json_member(o, "recorded");
	char a[32], b[32], c[32], d[32];

	printf("%s needs %s; recorded with %s: %s misses of %s each", json_text(o, "subject", ""),
	       cell(o, "needed", COLUMN_BYTES, a), cell(r, "memory", COLUMN_BYTES, b),
	       cell(r, "misses", COLUMN_COUNT, c), cell(r, "latency_ns", COLUMN_NS, d));
	if (json_double(o, "seconds", 0) > 0)
		printf(", in %.2f s instead of %.2f s", json_double(r, "seconds", 0),
		       json_double(o, "seconds", 0));
	printf("\n\n");
}

/* Adds one size as rows of a table; a star marks the recommended policy. */
static void add_rows(struct json_object *rows, struct json_object *size)
{
	struct json_object *policies = json_member(size, "policies");
	const char *best = json_text(size, "best", "");
	char text[64];

	for (size_t i = 0; i < json_object_array_length(policies); i++) {
		struct json_object *p = json_object_array_get_idx(policies, i);
		struct json_object *row = json_object_new_object();
		const char *policy = json_text(p, "policy", "");
		char memory[32];

		snprintf(text, sizeof(text), "%lld %%", (long long)json_int(size, "percent", 0));
		json_add_text(row, "percent", i ? "" : text);
		json_add_text(row, "memory", i ? "" : cell(size, "memory", COLUMN_BYTES, memory));
		snprintf(text, sizeof(text), "%s%s", policy, strcmp(policy, best) ? "" : " *");
		json_add_text(row, "policy", text);
		json_add_int(row, "misses", json_int(p, "misses", 0));
		snprintf(text, sizeof(text), "%lld - %lld", (long long)json_int(p, "misses_low", 0),
			 (long long)json_int(p, "misses_high", 0));
		json_add_text(row, "range", text);
		snprintf(text, sizeof(text), "%.2fx", json_double(p, "slowdown", 1));
		json_add_text(row, "slowdown", text);
		snprintf(text, sizeof(text), "%.2f - %.2f", json_double(p, "slowdown_low", 1),
			 json_double(p, "slowdown_high", 1));
		json_add_text(row, "slow_range", text);
		json_object_array_add(rows, row);
	}
}

static void print_advice(struct json_object *o)
{
	static const struct column columns[] = {
		{ "percent", "SIZE", COLUMN_TEXT }, { "memory", "MEMORY", COLUMN_TEXT },
		{ "policy", "POLICY", COLUMN_TEXT }, { "misses", "MISSES", COLUMN_COUNT },
		{ "range", "BETWEEN", COLUMN_TEXT }, { "slowdown", "TIME", COLUMN_TEXT },
		{ "slow_range", "BETWEEN", COLUMN_TEXT }, { NULL, NULL, COLUMN_TEXT },
	};
	struct json_object *rows = json_object_new_array(), *sizes = json_member(o, "sizes");
	struct json_object *unknown = json_member(o, "unknown");

	print_head(o);
	for (size_t i = 0; i < json_object_array_length(sizes); i++)
		add_rows(rows, json_object_array_get_idx(sizes, i));
	output_table(rows, columns, "the trace supports none of the sizes");
	json_object_put(rows);
	printf("\n* recommended.  TIME: multiple of the run time with all memory.\n");
	for (size_t i = 0; i < json_object_array_length(unknown); i++)
		printf("%lld %%: below the recorded size, not predictable\n",
		       (long long)json_object_get_int64(json_object_array_get_idx(unknown, i)));
}

/* Returns the memory with which no page would have been swapped out. */
static uint64_t needed_by(const struct sim_history *h)
{
	return h->info.memory + (h->beyond << h->info.page_shift);
}

static struct json_object *sort_out_sizes(struct sizes *s, uint64_t needed,
					  const struct sim_history *h)
{
	struct json_object *unknown = json_object_new_array();
	uint64_t page = 1ULL << h->info.page_shift;

	for (uint32_t i = 0; i < s->n; i++) {
		uint64_t memory = needed * s->percent[i] / 100 / page * page;

		if (memory < h->info.memory) {
			json_object_array_add(unknown,
					      json_object_new_int64((int64_t)s->percent[i]));
			continue;
		}
		s->known_percent[s->known] = s->percent[i];
		s->memory[s->known++] = memory;
	}
	return unknown;
}

static int run(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_trace_ struct trace_reader *reader = NULL;
	_cleanup_history_ struct sim_history h = { 0 };
	_cleanup_json_ struct json_object *o = NULL, *unknown = NULL;
	_cleanup_free_ struct advice *advice = NULL;
	struct sim_advise opt = *(const struct sim_advise *)options;
	struct sizes sizes = { .n = SHARES_MAX };
	struct advice_plan plan = { .memory = sizes.memory, .headroom = HEADROOM };
	int r = shares_parse(opt.sizes, "--sizes", sizes.percent, &sizes.n, e);

	if (!r)
		r = trace_open(&reader, argv[0], TRACE_WHOLE, e);
	if (!r)
		r = sim_history_read(&h, reader, e);
	if (!r)
		r = sim_memory_check(&h, h.info.memory, e);
	if (r)
		return r;
	opt.needed = opt.needed ?: needed_by(&h);
	unknown = sort_out_sizes(&sizes, opt.needed, &h);
	plan.sizes = sizes.known;
	if (opt.full_time)
		plan.recorded_slowdown = (double)opt.recorded_time / (double)opt.full_time;
	advice = calloc(advice_rows(&plan) + 1, sizeof(*advice));
	r = advice ? advise(&h, &plan, advice, e) : fail(e, ENOMEM, "advise: out of memory");
	if (r)
		return r;
	o = describe(argv[0], &opt, &h);
	json_object_object_add(o, "sizes", describe_sizes(advice, &plan, &sizes));
	json_object_object_add(o, "unknown", TAKE_PTR(unknown));
	output(opt.json, o, print_advice);
	return 0;
}

static const struct sim_advise defaults = { .sizes = "100,75,50,25" };

const struct command sim_command_advise = {
	.object = "advise", .arguments = "FILE",
	.help = "Predict misses and run time for other memory sizes and policies",
	.example = "  ebb-sim advise sort.trace --sizes 100,50\n", .options = sim_advise_options,
	.options_size = sizeof(struct sim_advise), .defaults = &defaults, .run = run,
	.min_args = 1, .max_args = 1,
};
