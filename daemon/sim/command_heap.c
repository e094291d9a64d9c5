// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "heap_world.h"
#include "lib/base/cleanup.h"
#include "lib/base/size.h"
#include "lib/base/text.h"
#include "picture.h"
#include "utilisation.h"

#define PS 1e12
#define MIB (1 << 20)
#define LOCAL_LEAST MIB

struct heap_options {
	bool json;
	const char *output;
	uint64_t donors, local, sparse, ghosts, write_through, full, region;
	uint64_t touch, translate, test;           /* ps */
	uint64_t page, fetch, trip, poll, stop;    /* ns */
	uint64_t bandwidth, tracing, copying;
};

static const struct heap_scheme *const schemes[] = { &heap_mako, &heap_semeru, &heap_ebb };
static const char *const colours[] = { "#d1495b", "#edae49", "#2a9d8f" };
enum { SCHEMES = sizeof(schemes) / sizeof(*schemes) };

enum unit { COUNT, SECONDS, MILLISECONDS, MEBIBYTES, PERCENT };

/* The plain view: members of a scheme's object, in groups. */
static const struct row {
	const char *key, *label;
	enum unit unit;
} rows[] = {
	{ "time_s", "time of the program, s", SECONDS },
	{ NULL, "names", COUNT },
	{ "loads", "references loaded", COUNT },
	{ "tests", "state bytes tested", COUNT },
	{ "translations", "places looked up", COUNT },
	{ "translation_percent", "time of both, %", PERCENT },
	{ NULL, "memory", COUNT },
	{ "misses", "page faults from donors", COUNT },
	{ "table_misses", "... on the table's pages", COUNT },
	{ "fetches", "objects fetched", COUNT },
	{ "homes", "regions fetched", COUNT },
	{ "miss_s", "waits for these, s", SECONDS },
	{ "bytes_in", "in, MiB", MEBIBYTES },
	{ "bytes_out", "out, MiB", MEBIBYTES },
	{ "rescues", "objects moved by the mutator", COUNT },
	{ NULL, "collector", COUNT },
	{ "cycles", "cycles", COUNT },
	{ "skipped", "... not begun, as one ran", COUNT },
	{ "full", "full or far cycles", COUNT },
	{ "messages", "messages", COUNT },
	{ "polls", "... of them polls", COUNT },
	{ "rounds", "... ghosts or TRACE; regions", COUNT },
	{ "control_bytes", "... all, MiB", MEBIBYTES },
	{ "traced", "traced by donors, MiB", MEBIBYTES },
	{ "traced_here", "traced by the borrower, MiB", MEBIBYTES },
	{ "moved", "moved by donors, MiB", MEBIBYTES },
	{ "moved_here", "moved by the borrower, MiB", MEBIBYTES },
	{ "discarded", "traces discarded", COUNT },
	{ NULL, "stops and waits", COUNT },
	{ "stops", "stops of the world", COUNT },
	{ "stop_p90_ms", "... p90, ms", MILLISECONDS },
	{ "stop_max_ms", "... longest, ms", MILLISECONDS },
	{ "stop_ms", "... all, ms", MILLISECONDS },
	{ "waits", "waits for an evacuation", COUNT },
	{ "wait_max_ms", "... longest, ms", MILLISECONDS },
	{ "wait_ms", "... all, ms", MILLISECONDS },
	{ NULL, "space", COUNT },
	{ "overhead_percent", "tables when most, %", PERCENT },
	{ "local_most", "local memory when most, MiB", MEBIBYTES },
	{ "used_most", "regions when most, MiB", MEBIBYTES },
	{ "floating", "dead and not freed, MiB", MEBIBYTES },
};

static int by_length(const void *a, const void *b)
{
	const struct heap_pause *x = a, *y = b;

	return x->length < y->length ? -1 : x->length > y->length;
}

/* Returns the p90 of stops of the world, in ms. */
static double stop_p90(const struct heap_result *r)
{
	struct heap_pause *stops = calloc(r->pauses + 1, sizeof(*stops));
	uint32_t n = 0;
	uint64_t p90 = 0;

	for (uint32_t i = 0; stops && i < r->pauses; i++)
		if (r->pause[i].kind == HEAP_STOP_WORLD)
			stops[n++] = r->pause[i];
	if (n) {
		qsort(stops, n, sizeof(*stops), by_length);
		p90 = stops[(n - 1) * 9 / 10].length;
	}
	free(stops);
	return (double)p90 / 1e9;
}

static struct json_object *curve_json(const struct utilisation *u)
{
	struct json_object *curve = json_object_new_array();

	for (uint32_t i = 0; i < u->count; i++) {
		struct json_object *at = json_object_new_object();

		json_add_double(at, "window_s", u->window[i]);
		json_add_double(at, "mmu", u->mmu[i]);
		json_add_double(at, "bmu", u->bmu[i]);
		json_object_array_add(curve, at);
	}
	return curve;
}

static double percent(uint64_t part, uint64_t of)
{
	return of ? 100 * (double)part / (double)of : 0;
}

static struct json_object *result_json(const struct heap_result *r, const struct utilisation *u)
{
	struct json_object *o = json_object_new_object();
	const struct json_number numbers[] = {
		{ "touches", r->touches },       { "loads", r->loads },
		{ "tests", r->tests },           { "translations", r->translations },
		{ "misses", r->misses },         { "table_misses", r->table_misses },
		{ "fetches", r->fetches },       { "homes", r->homes },
		{ "rescues", r->rescues },       { "bytes_in", r->bytes_in },
		{ "bytes_out", r->bytes_out },   { "messages", r->messages },
		{ "polls", r->polls },           { "rounds", r->rounds },
		{ "control_bytes", r->control }, { "cycles", r->cycles },
		{ "skipped", r->skipped },       { "full", r->full },
		{ "traced", r->traced },         { "traced_here", r->traced_here },
		{ "moved", r->moved },           { "moved_here", r->moved_here },
		{ "discarded", r->discarded },   { "stops", r->stops },
		{ "waits", r->waits },           { "used_most", r->used_most },
		{ "local_most", r->local_most }, { "floating", r->floating },
		{ "lost", r->lost },             { "overhead_bytes", r->overhead },
		{ NULL },
	};

	json_add_double(o, "time_s", (double)r->time / PS);
	json_add_numbers(o, numbers);
	json_add_double(o, "translation_percent", percent(r->translate_time, r->time));
	json_add_double(o, "miss_s", (double)r->miss_time / PS);
	json_add_double(o, "stop_p90_ms", stop_p90(r));
	json_add_double(o, "stop_max_ms", (double)r->stop_most / 1e9);
	json_add_double(o, "stop_ms", (double)r->stop_time / 1e9);
	json_add_double(o, "wait_max_ms", (double)r->wait_most / 1e9);
	json_add_double(o, "wait_ms", (double)r->wait_time / 1e9);
	json_add_double(o, "overhead_percent", percent(r->overhead, r->overhead_of));
	json_object_object_add(o, "utilisation", curve_json(u));
	return o;
}

static struct json_object *config_json(const struct heap_options *o, const struct heap_file *f)
{
	struct json_object *config = json_object_new_object();
	const struct json_number numbers[] = {
		{ "donors", o->donors },       { "local_percent", o->local },
		{ "region", o->region },       { "sparse_percent", o->sparse },
		{ "ghosts", o->ghosts },       { "write_through", o->write_through },
		{ "full_percent", o->full },   { "touch_ps", o->touch },
		{ "translate_ps", o->translate }, { "test_ps", o->test },
		{ "page_ns", o->page },        { "fetch_ns", o->fetch },
		{ "trip_ns", o->trip },        { "poll_ns", o->poll },
		{ "stop_ns", o->stop },        { "bandwidth", o->bandwidth },
		{ "tracing", o->tracing },     { "copying", o->copying },
		{ "objects", f->objects },     { "peak_bytes", f->head.peak_bytes },
		{ "born_bytes", f->head.born_bytes }, { "collections", f->collections },
		{ NULL },
	};

	json_add_numbers(config, numbers);
	return config;
}

static void print_cell(struct json_object *scheme, const struct row *row)
{
	double v = json_double(scheme, row->key, 0);

	switch (row->unit) {
	case COUNT:
		printf(" %12" PRId64, json_int(scheme, row->key, 0));
		break;
	case MEBIBYTES:
		printf(" %12.2f", v / MIB);
		break;
	case SECONDS:
	case MILLISECONDS:
		printf(" %12.3f", v);
		break;
	case PERCENT:
		printf(" %12.2f", v);
		break;
	}
}

/* BMU at a window for each power of ten. */
static void print_utilisation(struct json_object *all)
{
	struct json_object *curves[SCHEMES], *at;
	static const char *const windows[] = { "10 us", "100 us", "1 ms", "10 ms", "100 ms", "1 s",
					       "10 s", "100 s" };
	size_t length = 0;

	for (int i = 0; i < SCHEMES; i++) {
		curves[i] = json_member(json_member(all, schemes[i]->name), "utilisation");
		length = json_object_array_length(curves[i]) > length ?
				 json_object_array_length(curves[i]) : length;
	}
	printf("\nutilisation (BMU), %%\n");
	for (size_t k = 0; k < length && k < 80; k += UTILISATION_DECADE) {
		printf("  windows of %-18s", windows[k / UTILISATION_DECADE]);
		for (int i = 0; i < SCHEMES; i++) {
			at = json_object_array_get_idx(curves[i], k);
			if (at)
				printf(" %12.2f", 100 * json_double(at, "bmu", 0));
			else
				printf(" %12s", "-");
		}
		putchar('\n');
	}
}

static void print_plain(struct json_object *o)
{
	struct json_object *config = json_member(o, "config"), *all = json_member(o, "schemes");
	char live[16], region[16];

	size_format((uint64_t)json_int(config, "peak_bytes", 0), live, sizeof(live));
	size_format((uint64_t)json_int(config, "region", 0), region, sizeof(region));
	printf("%s: %s live, %" PRId64 " %% of it local, %" PRId64 " donors, regions of %s (ebb: 64.0 KiB)\n"
	       "Modelled, not measured: see ebb-sim(1), Heaps.\n\n%-31s", json_text(o, "file", ""), live,
	       json_int(config, "local_percent", 0), json_int(config, "donors", 0), region, "");
	for (int i = 0; i < SCHEMES; i++)
		printf(" %12s", schemes[i]->title);
	putchar('\n');
	for (size_t k = 0; k < sizeof(rows) / sizeof(*rows); k++) {
		if (!rows[k].key) {
			printf("\n%s\n", rows[k].label);
			continue;
		}
		printf("  %-29s", rows[k].label);
		for (int i = 0; i < SCHEMES; i++)
			print_cell(json_member(all, schemes[i]->name), &rows[k]);
		putchar('\n');
	}
	print_utilisation(all);
	if (json_text(o, "picture", NULL))
		printf("\n%s: utilisation by window\n", json_text(o, "picture", NULL));
}

static int make_config(const struct heap_options *o, const struct heap_file *f,
		       struct heap_config *c, struct error *e)
{
	char live[16], local[16];

	*c = (struct heap_config){
		.servers = (uint32_t)o->donors,
		.local = f->head.peak_bytes * o->local / 100,
		.region = o->region, .sparse = (uint32_t)o->sparse, .ghosts = (uint32_t)o->ghosts,
		.write_through = (uint32_t)o->write_through, .full = (uint32_t)o->full,
		.touch = o->touch, .translate = o->translate, .test = o->test,
		.page = o->page * HEAP_PS_PER_NS, .fetch = o->fetch * HEAP_PS_PER_NS,
		.trip = o->trip * HEAP_PS_PER_NS, .poll = o->poll * HEAP_PS_PER_NS,
		.stop = o->stop * HEAP_PS_PER_NS,
		.bandwidth = o->bandwidth, .tracing = o->tracing, .copying = o->copying,
	};
	if (o->region % (1 << 16))
		return fail_exit(e, EXIT_USAGE, EINVAL, "--region: not a multiple of 64K; give 64K, 1M or 16M");
	if (c->local >= LOCAL_LEAST)
		return 0;
	size_format(f->head.peak_bytes, live, sizeof(live));
	size_format(c->local, local, sizeof(local));
	return fail_exit(e, EXIT_USAGE, EINVAL,
			 "--local: %u %% of %s are %s, less than 1 MiB; give more, or record a larger program",
			 (unsigned)o->local, live, local);
}

static int draw(const char *file, const char *output, const struct utilisation u[SCHEMES],
		struct error *e)
{
	const char *base = strrchr(file, '/') ? strrchr(file, '/') + 1 : file;
	struct utilisation_curve curves[SCHEMES];
	_cleanup_free_ char *svg = NULL;
	char title[128];
	size_t size;
	FILE *to = open_memstream(&svg, &size);

	if (!to)
		return fail(e, ENOMEM, "%s: out of memory", output);
	for (int i = 0; i < SCHEMES; i++)
		curves[i] = (struct utilisation_curve){ schemes[i]->title, colours[i], &u[i] };
	snprintf(title, sizeof(title), "%.80s: the collector's stops and waits", base);
	utilisation_svg(curves, SCHEMES, title, to);
	if (fclose(to))
		return fail(e, ENOMEM, "%s: out of memory", output);
	return picture_write(svg, output, e);
}

static int simulate(const struct heap_file *f, const struct heap_config *c,
		    struct utilisation u[SCHEMES], struct json_object *all, struct error *e)
{
	for (int i = 0; i < SCHEMES; i++) {
		struct heap_result r;
		uint64_t lost;

		heap_run(f, c, schemes[i], &r);
		utilisation_of(&r, &u[i]);
		json_object_object_add(all, schemes[i]->name, result_json(&r, &u[i]));
		lost = r.lost;
		heap_result_free(&r);
		if (lost)
			return fail(e, EIO, "heap: %s freed %" PRIu64 " live objects; report this defect",
				    schemes[i]->title, lost);
	}
	return 0;
}

static void close_file(struct heap_file *f)
{
	heap_file_close(f);
}

static int run_heap(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *answer = json_object_new_object();
	__attribute__((cleanup(close_file))) struct heap_file f = { 0 };
	struct json_object *all = json_object_new_object();
	const struct heap_options *o = options;
	struct utilisation u[SCHEMES];
	struct heap_config c;
	int r;

	json_object_object_add(answer, "schemes", all);
	r = o->output ? picture_check("heap", o->output, e) : 0;
	if (!r)
		r = heap_file_open(&f, argv[0], e);
	if (!r)
		r = make_config(o, &f, &c, e);
	if (!r)
		r = simulate(&f, &c, u, all, e);
	if (!r && o->output)
		r = draw(argv[0], o->output, u, e);
	if (r)
		return r;
	json_add_text(answer, "file", argv[0]);
	if (o->output)
		json_add_text(answer, "picture", o->output);
	json_object_object_add(answer, "config", config_json(o, &f));
	output(o->json, answer, print_plain);
	return 0;
}

#define HEAP_OPTION(field, name, type, metavar, text, ...) \
	OPTION(heap_options, field, name, type, metavar, .help = text, __VA_ARGS__)

static const struct option_spec specs[] = {
	{ .name = "output", .letter = 'o', .type = OPTION_STRING,
	  .offset = offsetof(struct heap_options, output), .metavar = "FILE",
	  .help = "draw utilisation by length of the window: OUT.svg or OUT.png" },
	HEAP_OPTION(donors, "donors", OPTION_UINT, "N", "donors [2]", .min = 1, .max = HEAP_SERVERS),
	HEAP_OPTION(local, "local", OPTION_UINT, "PERCENT", "local memory, in percent of the most live bytes [25]",
		    .min = 1, .max = 100),
	HEAP_OPTION(region, "region", OPTION_SIZE, "SIZE", "regions of Mako and Semeru [1M]", .min = 1 << 16, .max = 1 << 26),
	HEAP_OPTION(sparse, "sparse", OPTION_UINT, "PERCENT", "evacuate regions with at most this share of live bytes [50]",
		    .min = 1, .max = 100),
	HEAP_OPTION(ghosts, "ghosts", OPTION_UINT, "N", "Mako: references in a full ghost buffer [512]", .min = 1, .max = 1 << 20),
	HEAP_OPTION(write_through, "write-through", OPTION_UINT, "N", "Mako: pages in a full write-through buffer [256]",
		    .min = 1, .max = 1 << 20),
	HEAP_OPTION(full, "full", OPTION_UINT, "PERCENT", "Semeru: heap size, 101 to 10000 percent of the most live bytes [200]",
		    .min = 101, .max = 10000),
	HEAP_OPTION(touch, "touch", OPTION_UINT, "PS", "picoseconds between two recorded accesses [20000]",
		    .min = 1, .max = 100000000),
	HEAP_OPTION(translate, "translate", OPTION_UINT, "PS", "picoseconds to look up the place of an object [3000]",
		    .max = 100000000),
	HEAP_OPTION(test, "test", OPTION_UINT, "PS", "picoseconds to test a state byte [150]", .max = 100000000),
	HEAP_OPTION(page, "page", OPTION_DURATION, "TIME", "time of a page fault that a donor serves [46us]",
		    .max = 1000000000),
	HEAP_OPTION(fetch, "fetch", OPTION_DURATION, "TIME", "time of a READ of one object [2us]", .max = 1000000000),
	HEAP_OPTION(trip, "trip", OPTION_DURATION, "TIME", "time of a message and its reply [42us]", .max = 1000000000),
	HEAP_OPTION(poll, "poll", OPTION_DURATION, "TIME", "Mako: time between two cycles of polls [100us]",
		    .max = 1000000000),
	HEAP_OPTION(stop, "stop", OPTION_DURATION, "TIME", "time to stop and start the world [50us]", .max = 1000000000),
	HEAP_OPTION(bandwidth, "bandwidth", OPTION_SIZE, "SIZE", "bytes per second of the network [5000000000]", .min = 1 << 20),
	HEAP_OPTION(tracing, "tracing", OPTION_SIZE, "SIZE", "bytes of objects that a machine traces per second [922000000]",
		    .min = 1 << 20),
	HEAP_OPTION(copying, "copying", OPTION_SIZE, "SIZE", "bytes that a machine evacuates per second [3300000000]",
		    .min = 1 << 20),
	OPTION_JSON,
	OPTIONS_END
};

static const struct heap_options defaults = {
	.donors = 2, .local = 25, .region = 1 << 20, .sparse = 50, .ghosts = 512,
	.write_through = 256, .full = 200, .touch = 20000, .translate = 3000, .test = 150,
	.page = 46000, .fetch = 2000,
	.trip = 42000, .poll = 100000, .stop = 50000, .bandwidth = 5000000000,
	.tracing = 922000000, .copying = 3300000000,
};

const struct command sim_command_heap = {
	.object = "heap", .arguments = "FILE",
	.help = "Simulate a heap on donors with Mako, Semeru and the far generation",
	.example = "  ebb-sim heap kv.heap --local 13 -o kv.svg\n",
	.options = specs, .options_size = sizeof(struct heap_options), .defaults = &defaults,
	.run = run_heap, .min_args = 1, .max_args = 1,
};
