// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>

#include "commands.h"
#include "extents.h"
#include "lib/base/text.h"

struct extents_options {
	bool json, blind;
	uint64_t clients, sections, fill, burst, rounds, seed;
};

static const struct extents_scheme *const schemes[] = {
	&extents_words, &extents_bitmap, &extents_scattered,
};
enum { SCHEMES = sizeof(schemes) / sizeof(*schemes) };

static double per(uint64_t sum, const struct extents_cost *c)
{
	return c->operations ? (double)sum / (double)c->operations : 0;
}

static struct json_object *cost_json(const struct extents_cost *c)
{
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
	json_add_double(o, "last_swaps", per(c->last_swaps, c));
	json_add_double(o, "trips", per(c->trips, c));
	json_add_double(o, "bytes", per(c->bytes, c));
	json_add_double(o, "posted", per(c->posted, c));
	return o;
}

static void print_json(const struct extents_options *o, const struct extents_result *results)
{
	struct json_object *answer = json_object_new_object(), *rows = json_object_new_object();
	const struct json_number numbers[] = {
		{ "clients", o->clients }, { "sections", o->sections }, { "fill", o->fill },
		{ "burst", o->burst },     { "rounds", o->rounds },     { "seed", o->seed },
		{ NULL },
	};

	json_add_numbers(answer, numbers);
	json_add_bool(answer, "blind", o->blind);
	for (int i = 0; i < SCHEMES; i++) {
		struct json_object *row = json_object_new_object();

		json_object_object_add(row, "allocate", cost_json(&results[i].allocate));
		json_object_object_add(row, "free", cost_json(&results[i].free));
		json_object_object_add(rows, schemes[i]->name, row);
	}
	json_object_object_add(answer, "schemes", rows);
	output_json(stdout, answer, JSON_C_TO_STRING_PRETTY);
	json_object_put(answer);
}

static void print_row(const char *name, const char *operation, const struct extents_cost *c)
{
	printf("%-10s %-9s %7.3f %5u %9.3f %5u %7.3f %5u %8.0f %7.2f %8u\n", name, operation,
	       per(c->swaps, c), (unsigned)c->most_swaps, per(c->last_swaps, c),
	       (unsigned)c->most_last_swaps, per(c->trips, c), (unsigned)c->most_trips,
	       per(c->bytes, c), per(c->posted, c), (unsigned)c->refused);
}

static void print_plain(const struct extents_options *o, const struct extents_result *results)
{
	printf("%u clients, %u sections, %u %% used, %u frees then as many allocations\n\n",
	       (unsigned)o->clients, (unsigned)o->sections, (unsigned)o->fill, (unsigned)o->burst);
	printf("%-10s %-9s %7s %5s %9s %5s %7s %5s %8s %7s %8s\n", "", "", "CAS", "most",
	       "last word", "most", "trips", "most", "bytes", "posted", "refused");
	for (int i = 0; i < SCHEMES; i++) {
		print_row(schemes[i]->name, "allocate", &results[i].allocate);
		print_row("", "free", &results[i].free);
	}
	printf("\nCompare-and-swaps, those on the word that gave the extent, round trips, bytes, and\n"
	       "verbs that nothing waits for: means of an operation.\n");
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
		.seed = o->seed,
	};
	struct extents_result results[SCHEMES];

	if (o->clients > o->sections * EBB_FAR_SLOTS * o->fill / 100)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "clients: more than extents in use; give a larger --sections or --fill");
	for (int i = 0; i < SCHEMES; i++) {
		int r = extents_run(&c, schemes[i], &results[i], e);

		if (r)
			return r;
	}
	if (o->json)
		print_json(o, results);
	else
		print_plain(o, results);
	return 0;
}

#define EXTENTS_OPTION(field, name, type, metavar, text, ...) \
	OPTION(extents_options, field, name, type, metavar, .help = text, __VA_ARGS__)

static const struct option_spec specs[] = {
	EXTENTS_OPTION(clients, "clients", OPTION_UINT, "N", "clients that allocate [512]", .min = 1,
		       .max = EXTENTS_CLIENTS),
	EXTENTS_OPTION(sections, "sections", OPTION_UINT, "N", "sections of 2 MiB [64]", .min = 1,
		       .max = EBB_FAR_ARENA_SECTIONS),
	EXTENTS_OPTION(fill, "fill", OPTION_UINT, "PERCENT", "extents in use [90]", .min = 1, .max = 99),
	EXTENTS_OPTION(burst, "burst", OPTION_UINT, "N", "frees before as many allocations [8]",
		       .min = 1, .max = 1000),
	EXTENTS_OPTION(rounds, "rounds", OPTION_UINT, "N", "measured bursts of each client [20]",
		       .min = 1, .max = 10000),
	EXTENTS_OPTION(seed, "seed", OPTION_UINT, "S", "seed [1]", .min = 1, .max = UINT32_MAX),
	EXTENTS_OPTION(blind, "blind", OPTION_FLAG, NULL, "clients learn nothing from their own frees"),
	OPTION_JSON,
	OPTIONS_END
};

static const struct extents_options defaults = {
	.clients = 512, .sections = 64, .fill = 90, .burst = 8, .rounds = 20, .seed = 1,
};

const struct command sim_command_extents = {
	.object = "extents",
	.help = "Simulate clients that allocate far memory at the same time",
	.example = "  ebb-sim extents --sections 512 --fill 99\n",
	.options = specs, .options_size = sizeof(struct extents_options), .defaults = &defaults,
	.run = run_extents,
};
