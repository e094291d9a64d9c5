// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>

#include "commands.h"
#include "extents.h"
#include "lib/base/text.h"

struct extents_options {
	bool json, blind;
	uint64_t clients, sections, fill, burst, rounds, seed, seeds;
};

#define MOST_SEEDS 100

static const struct extents_scheme *const schemes[] = {
	&extents_words, &extents_bitmap, &extents_scattered,
};
enum { SCHEMES = sizeof(schemes) / sizeof(*schemes) };

/* A mean of each seed, over the seeds. */
struct range { double low, high; };

/* Operations of one kind, of all seeds. */
struct operations {
	struct extents_cost cost;
	struct range swaps, trips;
};

struct row {
	struct operations allocate, free;
	double used; /* sum over the seeds */
};

static double per(uint64_t sum, const struct extents_cost *c)
{
	return c->operations ? (double)sum / (double)c->operations : 0;
}

static void widen(struct range *r, double v, bool first)
{
	r->low = first || v < r->low ? v : r->low;
	r->high = first || v > r->high ? v : r->high;
}

static uint64_t more(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static void take(struct operations *to, const struct extents_cost *c)
{
	struct extents_cost *sum = &to->cost;
	bool first = !sum->operations;

	widen(&to->swaps, per(c->swaps, c), first);
	widen(&to->trips, per(c->trips, c), first);
	sum->operations += c->operations;
	sum->refused += c->refused;
	sum->swaps += c->swaps;
	sum->last_swaps += c->last_swaps;
	sum->trips += c->trips;
	sum->bytes += c->bytes;
	sum->posted += c->posted;
	sum->most_swaps = more(sum->most_swaps, c->most_swaps);
	sum->most_last_swaps = more(sum->most_last_swaps, c->most_last_swaps);
	sum->most_trips = more(sum->most_trips, c->most_trips);
}

static struct json_object *cost_json(const struct operations *operations)
{
	const struct extents_cost *c = &operations->cost;
	struct json_object *o = json_object_new_object();
	const struct json_number numbers[] = {
		{ "operations", c->operations },
		{ "refused", c->refused },
		{ "swaps_most", c->most_swaps },
		{ "last_swaps_most", c->most_last_swaps },
		{ "trips_most", c->most_trips },
		{ NULL },
	};

	json_add_numbers(o, numbers);
	json_add_double(o, "swaps", per(c->swaps, c));
	json_add_double(o, "swaps_low", operations->swaps.low);
	json_add_double(o, "swaps_high", operations->swaps.high);
	json_add_double(o, "last_swaps", per(c->last_swaps, c));
	json_add_double(o, "trips", per(c->trips, c));
	json_add_double(o, "trips_low", operations->trips.low);
	json_add_double(o, "trips_high", operations->trips.high);
	json_add_double(o, "bytes", per(c->bytes, c));
	json_add_double(o, "posted", per(c->posted, c));
	return o;
}

static void print_json(const struct extents_options *o, const struct row *rows_of)
{
	struct json_object *answer = json_object_new_object(), *rows = json_object_new_object();
	const struct json_number numbers[] = {
		{ "clients", o->clients }, { "sections", o->sections }, { "fill", o->fill },
		{ "burst", o->burst },     { "rounds", o->rounds },     { "seed", o->seed },
		{ "seeds", o->seeds },
		{ NULL },
	};

	json_add_numbers(answer, numbers);
	json_add_bool(answer, "blind", o->blind);
	for (int i = 0; i < SCHEMES; i++) {
		struct json_object *row = json_object_new_object();

		json_add_double(row, "used", 100 * rows_of[i].used / (double)o->seeds);
		json_object_object_add(row, "allocate", cost_json(&rows_of[i].allocate));
		json_object_object_add(row, "free", cost_json(&rows_of[i].free));
		json_object_object_add(rows, schemes[i]->name, row);
	}
	json_object_object_add(answer, "schemes", rows);
	output_json(stdout, answer, JSON_C_TO_STRING_PRETTY);
	json_object_put(answer);
}

static void print_row(const char *name, const char *operation, const struct operations *o)
{
	const struct extents_cost *c = &o->cost;

	printf("%-9s %-8s %6.3f %5.2f-%-5.2f %4u %6.3f %4u %6.3f %5.2f-%-5.2f %4u %5.0f %5.2f %4u\n",
	       name, operation, per(c->swaps, c), o->swaps.low, o->swaps.high,
	       (unsigned)c->most_swaps, per(c->last_swaps, c), (unsigned)c->most_last_swaps,
	       per(c->trips, c), o->trips.low, o->trips.high, (unsigned)c->most_trips,
	       per(c->bytes, c), per(c->posted, c), (unsigned)c->refused);
}

static void print_plain(const struct extents_options *o, const struct row *rows)
{
	printf("%u clients, %u sections, %u rounds, seeds %llu to %llu%s\n"
	       "%u %% used before each burst of %u frees and as many allocations; on average:",
	       (unsigned)o->clients, (unsigned)o->sections, (unsigned)o->rounds,
	       (unsigned long long)o->seed, (unsigned long long)(o->seed + o->seeds - 1),
	       o->blind ? ", blind" : "", (unsigned)o->fill, (unsigned)o->burst);
	for (int i = 0; i < SCHEMES; i++)
		printf("%s %s %.1f %%", i ? "," : "", schemes[i]->name,
		       100 * rows[i].used / (double)o->seeds);
	printf("\n\n%-18s %6s %-11s %4s %6s %4s %6s %-11s %4s %5s %5s %4s\n", "", "CAS", " of a seed",
	       "most", "last", "most", "trips", " of a seed", "most", "bytes", "post", "ref.");
	for (int i = 0; i < SCHEMES; i++) {
		print_row(schemes[i]->name, "allocate", &rows[i].allocate);
		print_row("", "free", &rows[i].free);
	}
	printf("\nMeans of an operation, and the most of one: compare-and-swaps; last: those in a row on\n"
	       "the word that ended the operation; round trips; bytes of words; post: verbs that nothing\n"
	       "waits for.  Ref.: allocations that found nothing.\n");
}

static int run_extents(int argc, char **argv, void *options, struct error *e)
{
	struct extents_options *o = options;
	struct extents_config c = {
		.clients = (uint32_t)o->clients,
		.sections = (uint32_t)o->sections,
		.fill = (double)o->fill / 100,
		.burst = (uint32_t)o->burst,
		.rounds = (uint32_t)o->rounds,
		.blind = o->blind,
	};
	struct row rows[SCHEMES] = { 0 };

	for (int i = 0; i < SCHEMES; i++)
		for (c.seed = o->seed; c.seed < o->seed + o->seeds; c.seed++) {
			struct extents_result result;
			int r = extents_run(&c, schemes[i], &result, e);

			if (r)
				return r;
			take(&rows[i].allocate, &result.allocate);
			take(&rows[i].free, &result.free);
			rows[i].used += result.used;
		}
	if (o->json)
		print_json(o, rows);
	else
		print_plain(o, rows);
	return 0;
}

#define EXTENTS_OPTION(field, name, type, metavar, text, ...) \
	OPTION(extents_options, field, name, type, metavar, .help = text, __VA_ARGS__)

static const struct option_spec specs[] = {
	EXTENTS_OPTION(clients, "clients", OPTION_UINT, "N", "clients that allocate, 1 to 512 [512]", .min = 1,
		       .max = EXTENTS_CLIENTS),
	EXTENTS_OPTION(sections, "sections", OPTION_UINT, "N", "sections of 2 MiB, 1 to 512 [64]", .min = 1,
		       .max = EBB_FAR_ARENA_SECTIONS),
	EXTENTS_OPTION(fill, "fill", OPTION_UINT, "PERCENT", "extents in use before each burst, 1 to 99 [90]", .min = 1, .max = 99),
	EXTENTS_OPTION(burst, "burst", OPTION_UINT, "N", "extents that a client frees, then allocates again [8]",
		       .min = 1, .max = 1000),
	EXTENTS_OPTION(rounds, "rounds", OPTION_UINT, "N", "measured bursts of each client [20]",
		       .min = 1, .max = 10000),
	EXTENTS_OPTION(seed, "seed", OPTION_UINT, "S", "first seed [1]", .min = 1, .max = UINT32_MAX),
	EXTENTS_OPTION(seeds, "seeds", OPTION_UINT, "N", "number of runs, each with the next seed [1]",
		       .min = 1, .max = MOST_SEEDS),
	EXTENTS_OPTION(blind, "blind", OPTION_FLAG, NULL, "clients learn nothing from their own frees"),
	OPTION_JSON,
	OPTIONS_END
};

static const struct extents_options defaults = {
	.clients = 512, .sections = 64, .fill = 90, .burst = 8, .rounds = 20, .seed = 1, .seeds = 1,
};

const struct command sim_command_extents = {
	.object = "extents",
	.help = "Simulate clients that allocate far memory at the same time",
	.example = "  ebb-sim extents --sections 512 --fill 99\n",
	.options = specs, .options_size = sizeof(struct extents_options), .defaults = &defaults,
	.run = run_extents,
};
