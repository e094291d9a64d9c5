// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "advise_subject.h"
#include "ebbctl/text.h"
#include "lib/base/cleanup.h"
#include "lib/base/privilege.h"
#include "lib/base/size.h"
#include "lib/control/control.h"
#include "sim/advice.h"
#include "verbs.h"

#define HEADROOM 8      /* ebb.conf(5), [prefetch] */
#define PERCENT_MAX 400

/* The sizes that were asked for, and those of them of which the recording tells. */
struct sizes {
	uint64_t percent[ADVISE_SIZES];
	uint32_t n;
	uint64_t known_percent[ADVISE_SIZES], memory[ADVISE_SIZES];
	uint32_t known;
};

static int parse_sizes(const char *text, struct sizes *s, struct error *e)
{
	const char *at = text;
	char *end;

	do {
		unsigned long v = strtoul(at, &end, 10);

		if (end == at || (*end && *end != ',') || !v || v > PERCENT_MAX || s->n == ADVISE_SIZES)
			return fail_exit(e, EXIT_USAGE, EINVAL,
					 "--sizes: '%.64s' is no list of at most %d shares in per cent; write 100,75,50,25",
					 text, ADVISE_SIZES);
		s->percent[s->n++] = v;
		at = end + 1;
	} while (*end);
	return 0;
}

static uint64_t smallest(const struct sizes *s)
{
	uint64_t least = s->percent[0];

	for (uint32_t i = 1; i < s->n; i++)
		least = s->percent[i] < least ? s->percent[i] : least;
	return least;
}

static int check(int argc, const struct advise_options *o, const struct sizes *s, struct error *e)
{
	int subjects = (argc > 0) + !!o->cgroup + !!o->trace;

	if (subjects != 1)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "advise: about what; give one of -- PROGRAM, --cgroup and --trace");
	if (o->cgroup && !o->seconds)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "advise: --cgroup records for a time; give --seconds, such as --seconds 30");
	if (!o->cgroup && (o->seconds || o->full))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "advise: --seconds and --full go with --cgroup only; drop them");
	if (argc == 0 && (o->floor || o->start || o->as_root))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "advise: --floor, --start and --root go with a PROGRAM only; drop them");
	if (o->trace && o->output)
		return fail_exit(e, EXIT_USAGE, EINVAL, "advise: --trace records nothing; drop --output");
	if (o->floor > smallest(s))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "--floor: nothing is known below the size that is recorded, and --sizes asks for %llu %%; give at most that",
				 (unsigned long long)smallest(s));
	return o->trace ? 0 : need_root("advise", e);
}

/* --- the answer ---------------------------------------------------------- */

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

/* @kept: the file that the recording stays in, or NULL. */
static struct json_object *describe(const struct subject *s, const struct sim_history *h,
				    const char *kept)
{
	struct json_object *o = json_object_new_object(), *recorded = json_object_new_object();

	json_add_text(o, "subject", s->name);
	json_add_text(o, "kernel", h->info.kernel);
	json_add_text(o, "machine", *h->info.machine ? h->info.machine : NULL);
	json_add_int(o, "page_cluster", h->info.page_cluster);
	json_add_int(o, "needed", (int64_t)s->needed);
	json_object_object_add(o, "seconds", NULL);
	if (s->full_seconds > 0)
		json_add_double(o, "seconds", s->full_seconds);
	json_add_int(recorded, "memory", (int64_t)h->info.memory);
	json_add_text(recorded, "policy", h->info.policy);
	json_add_int(recorded, "misses", (int64_t)h->recorded[TRACE_MISS]);
	json_add_int(recorded, "lost", (int64_t)h->info.lost);
	json_add_int(recorded, "latency_ns", (int64_t)advice_latency(h));
	json_object_object_add(recorded, "seconds", NULL);
	if (s->recorded_seconds > 0)
		json_add_double(recorded, "seconds", s->recorded_seconds);
	json_add_text(recorded, "trace", kept);
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

/* One size as rows of a table; a star marks what to choose. */
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
	output_table(rows, columns, "no size that the recording tells of");
	json_object_put(rows);
	printf("\n* what to choose.  TIME: as a multiple of that with all the memory.\n");
	for (size_t i = 0; i < json_object_array_length(unknown); i++)
		printf("%lld %%: less than was recorded, of which it tells nothing\n",
		       (long long)json_object_get_int64(json_object_array_get_idx(unknown, i)));
}

/* --- from the recording to the answer ------------------------------------ */

/* With which memory nothing would have been out. */
static uint64_t needed(const struct sim_history *h)
{
	return h->info.memory + (h->beyond << h->info.page_shift);
}

static struct json_object *sort_out_sizes(struct sizes *s, const struct subject *subject,
					  const struct sim_history *h)
{
	struct json_object *unknown = json_object_new_array();
	uint64_t page = 1ULL << h->info.page_shift;

	for (uint32_t i = 0; i < s->n; i++) {
		uint64_t memory = subject->needed * s->percent[i] / 100 / page * page;

		if (memory < h->info.memory) {
			json_object_array_add(unknown, json_object_new_int64((int64_t)s->percent[i]));
			continue;
		}
		s->known_percent[s->known] = s->percent[i];
		s->memory[s->known++] = memory;
	}
	return unknown;
}

static int compute(struct subject *s, struct sizes *sizes, struct json_object **answer,
		   struct error *e)
{
	_cleanup_trace_ struct trace_reader *reader = NULL;
	_cleanup_history_ struct sim_history h = { 0 };
	struct advice_plan plan = { .memory = sizes->memory, .headroom = HEADROOM };
	_cleanup_free_ struct advice *advice = NULL;
	const char *kept = s->temporary ? NULL : s->trace;
	struct json_object *o, *unknown;
	int r = trace_open(&reader, s->trace, TRACE_WHOLE, e);

	/* Whoever stops it from here on leaves nothing behind. */
	subject_end(s);
	if (!r)
		r = sim_history_read(&h, reader, e);
	if (!r)
		r = sim_memory_check(&h, h.info.memory, e);
	if (r)
		return r;
	s->needed = s->needed ? s->needed : needed(&h);
	unknown = sort_out_sizes(sizes, s, &h);
	plan.sizes = sizes->known;
	if (s->full_seconds > 0)
		plan.recorded_slowdown = s->recorded_seconds / s->full_seconds;
	advice = calloc(advice_rows(&plan) + 1, sizeof(*advice));
	r = advice ? advise(&h, &plan, advice, e) : fail(e, ENOMEM, "advise: out of memory");
	if (r) {
		json_object_put(unknown);
		return r;
	}
	o = describe(s, &h, kept);
	json_object_object_add(o, "sizes", describe_sizes(advice, &plan, sizes));
	json_object_object_add(o, "unknown", unknown);
	*answer = o;
	return 0;
}

static int run(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_subject_ struct subject s = { .name = NULL };
	_cleanup_json_ struct json_object *o = NULL;
	const struct advise_options *opt = options;
	struct sizes sizes = { .n = 0 };
	int r = parse_sizes(opt->sizes, &sizes, e);

	if (!r)
		r = check(argc, opt, &sizes, e);
	if (r)
		return r;
	if (opt->trace) {
		s.name = opt->trace;
		snprintf(s.trace, sizeof(s.trace), "%s", opt->trace);
	} else {
		r = opt->cgroup ? subject_record(&s, opt, e) :
				  subject_run(&s, opt, opt->floor ?: smallest(&sizes), argv, e);
	}
	if (!r)
		r = compute(&s, &sizes, &o, e);
	if (r)
		return r;
	output(opt->json, o, print_advice);
	return 0;
}

static const struct option_spec specs[] = {
	OPTION(advise_options, sizes, "sizes", OPTION_STRING, "PERCENT,...",
	       .help = "shares of the memory it needs [100,75,50,25]"),
	OPTION(advise_options, floor, "floor", OPTION_UINT, "PERCENT", .min = 1, .max = 100,
	       .help = "the share it is recorded with [the smallest of --sizes]"),
	OPTION(advise_options, start, "start", OPTION_FLAG, NULL,
	       .help = "start what is missing: ebbd, a donor on loopback, a device"),
	OPTION(advise_options, as_root, "root", OPTION_FLAG, NULL, .help = "under sudo, stay root"),
	OPTION(advise_options, cgroup, "cgroup", OPTION_STRING, "CGROUP",
	       .help = "about what runs in an attached cgroup"),
	OPTION(advise_options, seconds, "seconds", OPTION_DURATION, "N", .min = 1,
	       .help = "how long to record it"),
	OPTION(advise_options, full, "full", OPTION_SIZE, "SIZE", .min = 1 << 20, .max = 1ULL << 44,
	       .help = "leave it only SIZE meanwhile, to know about all above"),
	OPTION(advise_options, trace, "trace", OPTION_STRING, "FILE",
	       .help = "about what was recorded before"),
	OPTION(advise_options, output, "output", OPTION_STRING, "FILE", .letter = 'o',
	       .help = "keep the recording"),
	OPTION_JSON,
	OPTIONS_END
};

static const struct advise_options defaults = { .sizes = "100,75,50,25" };

const struct command command_advise = {
	.object = "advise", .arguments = "[-- PROGRAM [ARG...]]",
	.help = "Says what less memory and which policy would mean for a program",
	.example = "  sudo ebbctl advise --start -- sort -S 1G big.txt -o sorted.txt\n",
	.options = specs, .options_size = sizeof(struct advise_options), .defaults = &defaults,
	.run = run, .max_args = -1,
};
