// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lending.h"
#include "lib/base/json.h"
#include "lib/base/size.h"
#include "lib/base/text.h"
#include "mixes.h"
#include "tables.h"

#define NORMAL_95 1.96 /* standard errors on either side of a mean */
#define GIB ((double)(1ull << 30))

static const struct row {
	const char *name;
	enum lending_unit unit;
	uint64_t slab;
} rows[] = {
	{ "fixed shares", LENDING_SHARES, 0 },
	{ "64M slabs", LENDING_SLABS, 64 << 20 },
	{ "8M slabs", LENDING_SLABS, 8 << 20 },
	{ "2M slabs", LENDING_SLABS, 2 << 20 },
	{ "extents, rounded", LENDING_ROUNDED, 0 },
	{ "extents, split", LENDING_SPLIT, 0 },
	{ "extents, 4K", LENDING_SINGLE, 0 },
	{ "pages, discard", LENDING_DISCARD, 0 },
	{ "bytes", LENDING_BYTES, 0 },
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

/* A figure over the mixes. */
struct figure { double sum, squares; uint32_t n; };

enum {
	REFUSAL, UNIT_REFUSED, USE, LIVE_LENT, LIVE_LENT_LOW, LIVE_LENT_SUM,
	LENT, MAPS, UNMAPS, ON_DISK, HOURS,
	FIGURES
};
static const char *const figure_names[FIGURES] = {
	"utilisation", "refused_by_unit", "use", "live_lent", "live_lent_p5", "live_lent_of_means",
	"lent_bytes", "maps_per_second", "unmaps_per_second", "on_disk", "hours",
};

struct table {
	struct figure of[ROWS][FIGURES], parts[ROWS][LENDING_PARTS];
};

static void take(struct figure *f, double v)
{
	f->sum += v;
	f->squares += v * v;
	f->n++;
}

static double mean(const struct figure *f)
{
	return f->n ? f->sum / f->n : 0;
}

/* Half of the 95 % interval of the mean. */
static double margin(const struct figure *f)
{
	double m = mean(f), variance;

	if (f->n < 2)
		return 0;
	variance = (f->squares - f->n * m * m) / (f->n - 1);
	return variance > 0 ? NORMAL_95 * sqrt(variance / f->n) : 0;
}

static void take_all(struct figure of[FIGURES], struct figure parts[LENDING_PARTS],
		     const struct lending_result *x)
{
	if (x->refused_at) {
		take(&of[REFUSAL], x->refusal);
		take(&of[UNIT_REFUSED], x->unit_refused);
	}
	take(&of[USE], x->use);
	take(&of[LIVE_LENT], x->live_lent);
	take(&of[LIVE_LENT_LOW], x->live_lent_low);
	take(&of[LIVE_LENT_SUM], x->live_lent_sum);
	take(&of[LENT], x->lent);
	take(&of[MAPS], x->maps);
	take(&of[UNMAPS], x->unmaps);
	take(&of[ON_DISK], x->on_disk);
	take(&of[HOURS], x->seconds / 3600.0);
	for (int i = 0; i < LENDING_PARTS; i++)
		if (x->parts[i] >= 0)
			take(&parts[i], x->parts[i]);
}

static int simulate(const struct mixes_options *o, uint64_t mixes, bool to_refusal,
		    struct table *t, struct error *e)
{
	for (size_t i = 0; i < ROWS; i++)
		for (uint64_t seed = o->seed; seed < o->seed + mixes; seed++) {
			const struct lending_config c = {
				.unit = rows[i].unit, .slab = rows[i].slab, .device = o->device,
				.run = (uint32_t)(o->run / EBB_PAGE), .miss = o->miss,
				.columns = o->columns ? STORE_COLUMNS : 1, .seed = seed,
				.to_refusal = to_refusal,
			};
			struct lending_result x;
			int r = lending_run(&c, &x);

			if (r)
				return fail(e, r, "mixes: %s; give a smaller --device", strerror(-r));
			take_all(t->of[i], t->parts[i], &x);
		}
	return 0;
}

/* Bytes of tables for each GiB that is lent on average. */
static double per_lent(uint64_t tables, const struct figure *lent)
{
	return mean(lent) > 0 ? (double)tables / (mean(lent) / GIB) : 0;
}

static double borrower_tables(const struct mixes_options *o, size_t row, const struct figure *lent)
{
	return per_lent(MIX_NODES * tables_borrower(o->device, rows[row].slab), lent);
}

static double donor_tables(size_t row, const struct figure *lent)
{
	return per_lent(tables_donor(MIX_LENT, rows[row].slab), lent);
}

static void add_figure(struct json_object *o, const char *name, const struct figure *f)
{
	struct json_object *v = json_object_new_object();

	json_add_double(v, "mean", mean(f));
	json_add_double(v, "low", mean(f) - margin(f));
	json_add_double(v, "high", mean(f) + margin(f));
	json_object_object_add(v, "mixes", json_object_new_int64(f->n));
	json_object_object_add(o, name, v);
}

static void add_refusals(struct json_object *answer, const struct table *t)
{
	struct json_object *all = json_object_new_object();

	for (size_t i = 0; i < ROWS; i++) {
		struct json_object *row = json_object_new_object();

		for (int f = REFUSAL; f <= UNIT_REFUSED; f++)
			add_figure(row, figure_names[f], &t->of[i][f]);
		json_object_object_add(all, rows[i].name, row);
	}
	json_object_object_add(answer, "first_refusal", all);
}

static void add_churn(struct json_object *answer, const struct mixes_options *o,
		      const struct table *t)
{
	struct json_object *all = json_object_new_object();

	for (size_t i = 0; i < ROWS; i++) {
		struct json_object *row = json_object_new_object(),
				   *parts = json_object_new_array();
		const struct figure *lent = &t->of[i][LENT];

		for (int f = USE; f < FIGURES; f++)
			add_figure(row, figure_names[f], &t->of[i][f]);
		for (int k = 0; k < LENDING_PARTS; k++)
			json_object_array_add(parts, json_object_new_double(mean(&t->parts[i][k])));
		json_object_object_add(row, "live_lent_by_tenth", parts);
		if (rows[i].slab) {
			json_add_double(row, "borrower_table_bytes_per_lent_gib",
					borrower_tables(o, i, lent));
			json_add_double(row, "donor_table_bytes_per_lent_gib", donor_tables(i, lent));
		}
		json_object_object_add(all, rows[i].name, row);
	}
	json_object_object_add(answer, "churn", all);
}

static void print_json(const struct mixes_options *o, const struct table *refusals,
		       const struct table *churn)
{
	struct json_object *answer = json_object_new_object();
	const struct json_number numbers[] = {
		{ "mixes", o->mixes }, { "churn_mixes", o->churn }, { "seed", o->seed },
		{ "programs", MIX_PROGRAMS }, { "machines", MIX_NODES }, { "local", MIX_LOCAL },
		{ "donors_memory", MIX_LENT }, { "run", o->run }, { "miss_ns", o->miss },
		{ "device", o->device }, { NULL },
	};

	json_add_numbers(answer, numbers);
	json_add_text(answer, "order", o->columns ? "columns" : "sequential");
	if (o->mixes)
		add_refusals(answer, refusals);
	if (o->churn)
		add_churn(answer, o, churn);
	output_json(stdout, answer, JSON_C_TO_STRING_PRETTY);
	json_object_put(answer);
}

static void print_refusals(const struct mixes_options *o, const struct table *t)
{
	printf("\nFirst refusal, seeds %u to %u: live / donors' memory, mean and 95 %% interval\n\n"
	       "%-17s %6s  %-17s %6s %s\n", (unsigned)o->seed, (unsigned)(o->seed + o->mixes - 1), "",
	       "%", "", "mixes", "refused by a unit %");
	for (size_t i = 0; i < ROWS; i++) {
		const struct figure *f = &t->of[i][REFUSAL];

		printf("%-17s %6.2f  (%5.2f to %5.2f) %7u %10.1f\n", rows[i].name, 100 * mean(f),
		       100 * (mean(f) - margin(f)), 100 * (mean(f) + margin(f)), (unsigned)f->n,
		       100 * mean(&t->of[i][UNIT_REFUSED]));
	}
}

static void print_churn(const struct mixes_options *o, const struct table *t)
{
	printf("\nUntil all programs have ended, seeds %u to %u\n\n"
	       "%-17s %-15s  %-16s %5s %5s %6s %8s %8s %8s %8s %6s\n", (unsigned)o->seed,
	       (unsigned)(o->seed + o->churn - 1), "", "live %", "live/lent", "p5", "means", "disk %",
	       "maps/s", "unmaps/s", "lent GiB", "borrower", "donor");
	for (size_t i = 0; i < ROWS; i++) {
		const struct figure *f = t->of[i];

		printf("%-17s %5.1f (+-%4.1f)   %.3f (+-%.3f) %5.3f %5.3f %6.2f "
		       "%8.1f %8.1f %8.1f",
		       rows[i].name, 100 * mean(&f[USE]), 100 * margin(&f[USE]),
		       mean(&f[LIVE_LENT]), margin(&f[LIVE_LENT]), mean(&f[LIVE_LENT_LOW]),
		       mean(&f[LIVE_LENT_SUM]), 100 * mean(&f[ON_DISK]), mean(&f[MAPS]),
		       mean(&f[UNMAPS]), mean(&f[LENT]) / GIB);
		if (rows[i].slab)
			printf(" %8.0f %6.0f", borrower_tables(o, i, &f[LENT]),
			       donor_tables(i, &f[LENT]));
		puts("");
	}
	printf("\nlive/lent in each tenth of the time\n\n");
	for (size_t i = 0; i < ROWS; i++) {
		printf("%-17s", rows[i].name);
		for (int k = 0; k < LENDING_PARTS; k++)
			printf(" %5.2f", mean(&t->parts[i][k]));
		puts("");
	}
	puts("\nLive: of donors' memory.  Live/lent: mean and 5th percentile of the seconds in which any\n"
	     "memory is lent; means: mean live by mean lent.  Disk: part of the swapped-out pages for\n"
	     "which no unit was free.  Borrower, donor: bytes of slab tables for each lent GiB.");
}

static void print_plain(const struct mixes_options *o, const struct table *refusals,
			const struct table *churn)
{
	char local[16], lent[16], run[16], device[16], miss[24];

	printf("%d programs on %d machines of %s; donors lend %s; runs up to %s; %s a miss; devices of %s\n",
	       MIX_PROGRAMS, MIX_NODES, size_format(MIX_LOCAL, local, sizeof(local)),
	       size_format(MIX_LENT, lent, sizeof(lent)), size_format(o->run, run, sizeof(run)),
	       duration_format(o->miss, miss, sizeof(miss)),
	       size_format(o->device, device, sizeof(device)));
	if (o->mixes)
		print_refusals(o, refusals);
	if (o->churn)
		print_churn(o, churn);
}

int mixes_run(const struct mixes_options *options, struct error *e)
{
	struct table *refusals = calloc(2, sizeof(*refusals)), *churn = refusals + 1;
	int r;

	if (!refusals)
		return fail(e, ENOMEM, "mixes: out of memory; close other programs");
	r = simulate(options, options->mixes, true, refusals, e);
	if (!r)
		r = simulate(options, options->churn, false, churn, e);
	if (!r && options->json)
		print_json(options, refusals, churn);
	else if (!r)
		print_plain(options, refusals, churn);
	free(refusals);
	return r;
}
