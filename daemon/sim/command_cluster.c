// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "cluster.h"
#include "commands.h"
#include "lib/base/size.h"
#include "lib/base/text.h"
#include "lib/rules/placement.h"
#include "mixes.h"
#include "store.h"

#define MOST_SEEDS 100
#define MANY 1000 /* machines, from which on small slabs take minutes */

struct cluster_options {
	bool json, still;
	uint64_t nodes, choices, seed, seeds, hours, memory, slab, headroom, hot;
	uint64_t mixes, churn, run, miss, device;
	const char *order;
};

static const struct placer {
	const char *name;
	enum cluster_placer placer;
	struct place_rule rule;
} placers[] = {
	/* The first one is the reference for the others. */
	{ "omniscient", CLUSTER_OMNISCIENT, { 0 } },
	{ "1 choice", CLUSTER_CHOICES, { 1, PLACE_SPREAD } },
	{ "2 choices", CLUSTER_CHOICES, { 2, PLACE_SPREAD } },
	{ "3 choices", CLUSTER_CHOICES, { 3, PLACE_SPREAD } },
	/* M_new first however many machines a device is on. */
	{ "2, paper", CLUSTER_CHOICES, { 2, 0 } },
	{ "infiniswap", CLUSTER_RELEASED, { 0 } },
};
#define PLACERS (sizeof(placers) / sizeof(placers[0]))

/* A figure over the seeds. */
struct figure { double sum, low, high; uint32_t n; };

enum {
	USE,
	GAIN,
	GAIN_PAGES,
	MAX_MIN,
	DROP,
	DONORS_MAX_MEAN,
	DONORS_DEVIATION,
	TO_OMNISCIENT,
	SERVED,
	PRESSED,
	EVICTED_RANK,
	MAPS,
	UNMAPS,
	EVICTIONS,
	MIGRATIONS,
	TO_DISK,
	READY,
	MESSAGES,
	FIGURES
};
static const char *const figure_names[FIGURES] = {
	"use", "gain", "gain_pages", "max_min", "drop", "donors_max_mean", "donors_deviation", "to_omniscient",
	"served", "pressed", "evicted_rank", "maps_per_hour", "unmaps_per_hour",
	"evictions_per_hour", "migrations_per_hour", "to_disk_per_hour", "ready",
	"messages_per_second",
};

enum { DEMAND, ALONE_USE, ALONE_MAX_MIN, SEVERE, STABLE_10, STABLE_20, STABLE_40, ALONE };
static const char *const alone_names[ALONE] = {
	"demand", "use", "max_min", "severe", "stable_10s", "stable_20s", "stable_40s",
};

struct table {
	struct figure alone[ALONE], of[PLACERS][FIGURES];
};

static void take(struct figure *f, double v)
{
	if (!f->n || v < f->low)
		f->low = v;
	if (!f->n || v > f->high)
		f->high = v;
	f->sum += v;
	f->n++;
}

static double mean(const struct figure *f)
{
	return f->n ? f->sum / f->n : 0;
}

/* Adds results; rates are per machine. */
static void take_all(struct figure of[FIGURES], const struct cluster_result *x,
		     const struct cluster_config *c, double omniscient)
{
	double seconds = (double)(c->seconds - CLUSTER_WARMUP) * c->nodes, hours = seconds / 3600;
	double placed = (double)(x->maps + x->migrations);

	take(&of[USE], x->use);
	take(&of[GAIN], x->use / x->alone_use);
	/* Excludes mapped slabs that have no pages. */
	take(&of[GAIN_PAGES], 1 + x->served * (x->demand - x->alone_use) / x->alone_use);
	take(&of[MAX_MIN], x->max_min);
	take(&of[DROP], x->alone_max_min / x->max_min);
	take(&of[DONORS_MAX_MEAN], x->donors_max_mean);
	take(&of[DONORS_DEVIATION], x->donors_deviation);
	take(&of[TO_OMNISCIENT], omniscient > 0 ? x->donors_max_mean / omniscient : 0);
	take(&of[SERVED], x->served);
	take(&of[PRESSED], x->pressed);
	take(&of[EVICTED_RANK], x->evicted_rank);
	take(&of[MAPS], (double)x->maps / hours);
	take(&of[UNMAPS], (double)x->unmaps / hours);
	take(&of[EVICTIONS], (double)x->evictions / hours);
	take(&of[MIGRATIONS], (double)x->migrations / hours);
	take(&of[TO_DISK], (double)x->to_disk / hours);
	take(&of[READY], placed > 0 ? (double)x->ready / placed : 0);
	take(&of[MESSAGES], (double)x->messages / seconds);
}

static void take_alone(struct figure alone[ALONE], const struct cluster_result *x)
{
	take(&alone[DEMAND], x->demand);
	take(&alone[ALONE_USE], x->alone_use);
	take(&alone[ALONE_MAX_MIN], x->alone_max_min);
	take(&alone[SEVERE], x->severe);
	for (int i = 0; i < 3; i++)
		take(&alone[STABLE_10 + i], x->stable[i]);
}

static bool wanted(const struct cluster_options *o, size_t placer)
{
	const struct placer *p = &placers[placer];

	return !o->choices || p->placer == CLUSTER_OMNISCIENT ||
	       (p->placer == CLUSTER_CHOICES && p->rule.choices == (int)o->choices);
}

static int simulate(const struct cluster_options *o, struct cluster_config *c, struct table *t,
		    struct error *e)
{
	for (uint64_t seed = o->seed; seed < o->seed + o->seeds; seed++) {
		double omniscient = 0;

		for (size_t i = 0; i < PLACERS; i++) {
			struct cluster_result x;
			int r;

			if (!wanted(o, i))
				continue;
			c->seed = seed;
			c->placer = placers[i].placer;
			c->rule = placers[i].rule;
			r = cluster_run(c, &x, e);
			if (r)
				return r;
			if (!i) {
				omniscient = x.donors_max_mean;
				take_alone(t->alone, &x);
			}
			take_all(t->of[i], &x, c, omniscient);
		}
	}
	return 0;
}

static void add_figure(struct json_object *o, const char *name, const struct figure *f)
{
	struct json_object *v = json_object_new_object();

	json_add_double(v, "mean", mean(f));
	json_add_double(v, "low", f->low);
	json_add_double(v, "high", f->high);
	json_object_object_add(o, name, v);
}

static void print_json(const struct cluster_options *o, const struct table *t)
{
	struct json_object *answer = json_object_new_object(), *alone = json_object_new_object(),
			   *rows = json_object_new_object();
	const struct json_number numbers[] = {
		{ "nodes", o->nodes }, { "hours", o->hours }, { "memory", o->memory },
		{ "slab", o->slab }, { "headroom", o->headroom }, { "hot_slab", o->hot },
		{ "seed", o->seed }, { "seeds", o->seeds }, { NULL },
	};

	json_add_numbers(answer, numbers);
	for (int i = 0; i < ALONE; i++)
		add_figure(alone, alone_names[i], &t->alone[i]);
	json_add_bool(answer, "still", o->still);
	json_object_object_add(answer, "alone", alone);
	for (size_t p = 0; p < PLACERS; p++) {
		struct json_object *row;

		if (!wanted(o, p))
			continue;
		row = json_object_new_object();
		for (int i = 0; i < FIGURES; i++)
			add_figure(row, figure_names[i], &t->of[p][i]);
		json_object_object_add(rows, placers[p].name, row);
	}
	json_object_object_add(answer, "placers", rows);
	output_json(stdout, answer, JSON_C_TO_STRING_PRETTY);
	json_object_put(answer);
}

static void print_plain(const struct cluster_options *o, const struct table *t)
{
	const struct figure *a = t->alone;
	char memory[16], slab[16];

	printf("%u machines of %s, slabs of %s, %u h, seeds %u to %u\n", (unsigned)o->nodes,
	       size_format(o->memory, memory, sizeof(memory)),
	       size_format(o->slab, slab, sizeof(slab)), (unsigned)o->hours, (unsigned)o->seed,
	       (unsigned)(o->seed + o->seeds - 1));
	printf("alone: demand %.1f %%, memory use %.1f %% (%.1f to %.1f), max/min %.1f (%.1f to %.1f)\n",
	       100 * mean(&a[DEMAND]), 100 * mean(&a[ALONE_USE]), 100 * a[ALONE_USE].low,
	       100 * a[ALONE_USE].high, mean(&a[ALONE_MAX_MIN]), a[ALONE_MAX_MIN].low,
	       a[ALONE_MAX_MIN].high);
	printf("       severely imbalanced %.0f %% of the time; within 10 %% after 10, 20, 40 s: %.2f, %.2f, %.2f\n\n",
	       100 * mean(&a[SEVERE]), mean(&a[STABLE_10]), mean(&a[STABLE_20]),
	       mean(&a[STABLE_40]));
	printf("%-11s %5s  %-19s %-5s  %-20s  %-18s  %-22s %s\n", "", "use %", "gain", "pages", "max/min",
	       "max/mean of donors", "to omniscient", "deviation");
	for (size_t p = 0; p < PLACERS; p++) {
		const struct figure *f = t->of[p];

		if (!wanted(o, p))
			continue;
		printf("%-11s %5.1f  %.2f (%.2f to %.2f) %5.2f   %5.2f (%5.2f to %5.2f)  %.3f (%.3f to %.3f)  %.3f (%.3f to %.3f)  %.3f\n",
		       placers[p].name, 100 * mean(&f[USE]), mean(&f[GAIN]), f[GAIN].low,
		       f[GAIN].high, mean(&f[GAIN_PAGES]), mean(&f[MAX_MIN]), f[MAX_MIN].low,
		       f[MAX_MIN].high, mean(&f[DONORS_MAX_MEAN]), f[DONORS_MAX_MEAN].low,
		       f[DONORS_MAX_MEAN].high, mean(&f[TO_OMNISCIENT]), f[TO_OMNISCIENT].low,
		       f[TO_OMNISCIENT].high, mean(&f[DONORS_DEVIATION]));
	}
	printf("\n%-11s %8s %9s | %8s %8s %8s %8s | %8s %8s %8s\n", "", "served %", "pressed %",
	       "maps", "evicted", "migrated", "to disk", "ready %", "activity", "messages");
	for (size_t p = 0; p < PLACERS; p++) {
		const struct figure *f = t->of[p];

		if (!wanted(o, p))
			continue;
		printf("%-11s %8.2f %9.4f | %8.1f %8.2f %8.2f %8.2f | %8.1f %8.2f %8.3f\n",
		       placers[p].name, 100 * mean(&f[SERVED]), 100 * mean(&f[PRESSED]),
		       mean(&f[MAPS]), mean(&f[EVICTIONS]), mean(&f[MIGRATIONS]),
		       mean(&f[TO_DISK]), 100 * mean(&f[READY]), mean(&f[EVICTED_RANK]),
		       mean(&f[MESSAGES]));
	}
	printf("\nMaps, evictions, migrations and slabs to disk an hour, messages a second: of one machine.\n"
	       "Activity: of evicted slabs, against that of all whose owners were asked.\n");
}

/* Options of one of the two simulations alone. */
static const struct only {
	const char *name;
	size_t offset;
} of_machines[] = {
	{ "nodes", offsetof(struct cluster_options, nodes) },
	{ "choices", offsetof(struct cluster_options, choices) },
	{ "hours", offsetof(struct cluster_options, hours) },
	{ "seeds", offsetof(struct cluster_options, seeds) },
	{ "memory", offsetof(struct cluster_options, memory) },
	{ "slab", offsetof(struct cluster_options, slab) },
	{ "headroom", offsetof(struct cluster_options, headroom) },
	{ "hot", offsetof(struct cluster_options, hot) },
}, of_mixes[] = {
	{ "run", offsetof(struct cluster_options, run) },
	{ "miss", offsetof(struct cluster_options, miss) },
	{ "device", offsetof(struct cluster_options, device) },
};

static const struct cluster_options defaults;

static int refuse(const char *name, const char *of, struct error *e)
{
	return fail_exit(e, EXIT_USAGE, EINVAL, "%s: has no effect on %s; leave out --%s", name, of,
			 name);
}

/* Refuses options that the simulation at hand does not have. */
static int check_options(const struct cluster_options *o, struct error *e)
{
	bool mixes = o->mixes || o->churn;
	const struct only *only = mixes ? of_machines : of_mixes;
	size_t n = mixes ? sizeof(of_machines) / sizeof(*only) : sizeof(of_mixes) / sizeof(*only);
	const char *of = mixes ? "mixes" : "machines without --mixes or --churn";

	for (size_t i = 0; i < n; i++)
		if (*(const uint64_t *)((const char *)o + only[i].offset) !=
		    *(const uint64_t *)((const char *)&defaults + only[i].offset))
			return refuse(only[i].name, of, e);
	if (mixes && o->still)
		return refuse("still", of, e);
	if (!mixes && strcmp(o->order, defaults.order))
		return refuse("order", of, e);
	return 0;
}

static int run_mixes(const struct cluster_options *o, struct error *e)
{
	const struct mixes_options m = {
		.mixes = o->mixes, .churn = o->churn, .seed = o->seed, .run = o->run,
		.miss = o->miss, .device = o->device, .columns = !strcmp(o->order, "columns"),
		.json = o->json,
	};

	return mixes_run(&m, e);
}

static int run_cluster(int argc, char **argv, void *options, struct error *e)
{
	struct cluster_options *o = options;
	struct cluster_config c = {
		.nodes = (uint32_t)o->nodes, .seconds = (uint32_t)o->hours * 3600,
		.memory = o->memory, .headroom = o->headroom,
		.hot_slab = (double)o->hot, .still = o->still,
	};
	struct table t = { 0 };
	int r = check_options(o, e);

	if (r)
		return r;
	if (o->mixes || o->churn)
		return run_mixes(o, e);
	if (!o->slab)
		o->slab = o->nodes > MANY ? 1ull << 30 : 64 << 20;
	c.slab = o->slab;
	if (o->slab > o->memory / 4)
		return fail_exit(e, EXIT_USAGE, EINVAL, "slab: larger than a quarter of a machine; give a smaller --slab");
	if (o->headroom >= o->memory)
		return fail_exit(e, EXIT_USAGE, EINVAL, "headroom: not less than the memory of a machine; give a smaller --headroom");
	r = simulate(o, &c, &t, e);
	if (r)
		return r;
	if (o->json)
		print_json(o, &t);
	else
		print_plain(o, &t);
	return 0;
}

#define CLUSTER_OPTION(field, name, type, metavar, text, ...) \
	OPTION(cluster_options, field, name, type, metavar, .help = text, __VA_ARGS__)

static const struct option_spec specs[] = {
	CLUSTER_OPTION(nodes, "nodes", OPTION_UINT, "N", "machines, each a borrower and a donor, 2 to 20000 [32]",
	       .letter = 'n', .min = 2, .max = CLUSTER_NODES),
	CLUSTER_OPTION(choices, "choices", OPTION_UINT, "D", "simulate only D choices and the omniscient placer [all]",
	       .letter = 'd', .min = 1, .max = 3),
	CLUSTER_OPTION(hours, "hours", OPTION_UINT, "H", "simulated hours, 1 to 1000 [1]", .min = 1, .max = 1000),
	CLUSTER_OPTION(seeds, "seeds", OPTION_UINT, "N", "number of runs, each with the next seed [1]", .min = 1,
	       .max = MOST_SEEDS),
	CLUSTER_OPTION(seed, "seed", OPTION_UINT, "S", "first seed [1]", .max = UINT32_MAX),
	CLUSTER_OPTION(memory, "memory", OPTION_SIZE, "SIZE", "memory of a machine, 4G to 16T [64G]", .min = 4ull << 30,
	       .max = 1ull << 44),
	CLUSTER_OPTION(slab, "slab", OPTION_SIZE, "SIZE", "unit of lending [64M, or 1G with more than 1000 machines]", .min = 1 << 20,
	       .max = 1ull << 30),
	CLUSTER_OPTION(headroom, "headroom", OPTION_SIZE, "SIZE", "memory that a donor keeps free [larger of 1G and 10 %]"),
	CLUSTER_OPTION(hot, "hot", OPTION_UINT, "N", "map a slab at N page I/Os per second; 0: at first use [0]",
	       .max = 1000000),
	CLUSTER_OPTION(still, "still", OPTION_FLAG, NULL, "constant memory demand"),
	CLUSTER_OPTION(mixes, "mixes", OPTION_UINT, "N", "instead: memory used at the first refusal in N mixes of programs",
	       .min = 1, .max = MIXES_MOST),
	CLUSTER_OPTION(churn, "churn", OPTION_UINT, "N", "instead: lent and live memory in N mixes, to their end",
	       .min = 1, .max = MIXES_MOST),
	CLUSTER_OPTION(run, "run", OPTION_SIZE, "SIZE", "of a mix: largest run of pages swapped out and freed together [2M]",
	       .min = EBB_PAGE, .max = STORE_RUN * EBB_PAGE),
	CLUSTER_OPTION(miss, "miss", OPTION_DURATION, "TIME", "of a mix: cost of a page in and out; 0: programs do not page [40us]",
	       .max = 1000000000),
	CLUSTER_OPTION(device, "device", OPTION_SIZE, "SIZE", "of a mix: swap device of each machine [160G]",
	       .min = MIX_LOCAL, .max = 1ull << 42),
	CLUSTER_OPTION(order, "order", OPTION_STRING, "sequential|columns", "of a mix: kernel's first use of swap clusters [sequential]"),
	OPTION_JSON,
	OPTIONS_END
};

static const struct cluster_options defaults = {
	.nodes = 32, .hours = 1, .seeds = 1, .seed = 1, .memory = 64ull << 30,
	.run = STORE_RUN * EBB_PAGE, .miss = 40000, .device = MIX_LENT, .order = "sequential",
};

const struct command sim_command_cluster = {
	.object = "cluster",
	.help = "Simulate placement on machines that lend each other memory",
	.example = "  ebb-sim cluster --nodes 32 --seeds 20\n"
		   "  ebb-sim cluster --mixes 500 --churn 10\n",
	.options = specs, .options_size = sizeof(struct cluster_options), .defaults = &defaults,
	.run = run_cluster,
};
