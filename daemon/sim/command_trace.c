// SPDX-License-Identifier: GPL-2.0-or-later
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "choose.h"
#include "commands.h"
#include "lib/base/size.h"
#include "lib/base/text.h"
#include "replay.h"

#define HEADROOM 8      /* ebb.conf(5), [prefetch] */
#define WAKEUP_NS 20000

struct trace_options {
	bool json, partial;
	const char *policy, *order;
	uint64_t memory, latency, wakeup, bandwidth;
};

static const char *const order_names[SURPLUS_ORDERS] = { "linux", "lru", "random" };

/* Returns the order of @name; the option table accepts no other name. */
static enum surplus_order order_of(const char *name)
{
	enum surplus_order order = SURPLUS_LINUX;

	while (order < SURPLUS_ORDERS - 1 && strcmp(order_names[order], name))
		order++;
	return order;
}

static void put_ratio(struct json_object *o, const char *key, uint64_t part, uint64_t of)
{
	struct json_object *v = NULL;
	char digits[32];

	if (of) {
		snprintf(digits, sizeof(digits), "%.6f", (double)part / (double)of);
		v = json_object_new_double_s((double)part / (double)of, digits);
	}
	json_object_object_add(o, key, v);
}

static struct json_object *describe(const struct sim_history *h, const struct sim_config *c,
				    const struct sim_result *x)
{
	struct json_object *o = json_object_new_object(), *params = json_object_new_object(),
			   *recorded = json_object_new_object();
	uint64_t used = x->hits + x->late;

	json_add_text(o, "policy", c->policy->info->name);
	for (uint32_t i = 0; i < c->policy->info->params; i++)
		json_add_int(params, c->policy->info->param[i].name, c->params.v[i]);
	json_object_object_add(o, "params", params);
	json_add_int(o, "memory", c->memory);
	/* Beyond the recorded size, the eviction order is an assumption. */
	json_add_bool(o, "estimate", c->memory > h->info.memory);
	json_add_int(o, "latency_ns", c->latency_ns);
	json_add_numbers(o, (struct json_number[]){
		{ "misses", x->misses }, { "hits", x->hits }, { "late", x->late },
		{ "wasted", x->wasted }, { "prefetched", x->prefetched },
		{ "outstanding", x->outstanding }, { NULL }
	});
	put_ratio(o, "coverage", used, used + x->misses);
	put_ratio(o, "accuracy", used, x->prefetched);
	json_add_numbers(o, (struct json_number[]){
		{ "requests", x->requests }, { "request_pages", x->request_pages },
		{ "gc_misses", x->gc_misses }, { "gc_hits", x->gc_hits },
		{ "miss_ns", x->miss_ns }, { "late_ns", x->late_ns },
		{ "lost_ns", x->miss_ns + x->late_ns }, { "readahead", x->readahead },
		{ "spared", x->spared }, { "throttled", x->throttled }, { "dropped", x->dropped },
		{ "not_swapped", x->not_swapped }, { "cold_pages", x->cold_pages },
		{ "paged_out", x->paged_out }, { NULL }
	});
	put_ratio(o, "seconds", x->span_ns, 1000000000);
	for (int i = 0; i < TRACE_KINDS; i++)
		json_add_int(recorded, trace_kind_names[i], h->recorded[i]);
	json_add_int(recorded, "lost", h->info.lost);
	json_add_int(recorded, "memory", h->info.memory);
	json_add_text(recorded, "policy", h->info.policy);
	json_object_object_add(o, "recorded", recorded);
	return o;
}

static void print_percent(const char *name, uint64_t part, uint64_t of)
{
	if (of)
		printf(", %s %.1f %%", name, 100.0 * (double)part / (double)of);
}

static void print_plain(const struct sim_history *h, const struct sim_config *c,
			const struct sim_result *x)
{
	uint64_t used = x->hits + x->late;
	char memory[16], latency[16], lost[16], span[16];

	printf("policy %s, memory %s%s, latency %s\n", c->policy->info->name,
	       size_format(c->memory, memory, sizeof(memory)),
	       c->memory > h->info.memory ? " (more than recorded: an estimate)" : "",
	       duration_format(c->latency_ns, latency, sizeof(latency)));
	printf("%" PRIu64 " misses, %" PRIu64 " hits, %" PRIu64 " late, %" PRIu64 " wasted",
	       x->misses, x->hits, x->late, x->wasted);
	print_percent("coverage", used, used + x->misses);
	print_percent("accuracy", used, x->prefetched);
	printf("\n%" PRIu64 " prefetched in %" PRIu64 " requests, %" PRIu64 " found by the kernel's readahead, %" PRIu64 " spared\n",
	       x->prefetched, x->requests, x->readahead, x->spared);
	printf("%s lost to misses of %s\n",
	       duration_format(x->miss_ns + x->late_ns, lost, sizeof(lost)),
	       duration_format(x->span_ns, span, sizeof(span)));
	printf("recorded with policy %s: %" PRIu64 " misses, %" PRIu64 " hits, %" PRIu64 " late, %" PRIu64 " swap-outs\n",
	       h->info.policy, h->recorded[TRACE_MISS], h->recorded[TRACE_HIT],
	       h->recorded[TRACE_LATE], h->recorded[TRACE_OUT]);
}

static void warn_lost(const struct sim_history *h, const char *path)
{
	uint64_t faults = h->recorded[TRACE_MISS] + h->recorded[TRACE_HIT] +
			  h->recorded[TRACE_LATE];

	if (h->info.lost * 100 > faults)
		fprintf(stderr, "ebb-sim: %s: %" PRIu64 " of %" PRIu64 " faults missing: expect errors of that size\n",
			path, h->info.lost, faults + h->info.lost);
	if (h->info.stopped)
		fprintf(stderr, "ebb-sim: %s: recording ended early: %s\n", path,
			strerror(h->info.stopped));
}

static int run_trace(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_history_ struct sim_history h = { 0 };
	_cleanup_trace_ struct trace_reader *reader = NULL;
	const struct trace_options *o = options;
	struct sim_config c = {
		.latency_ns = o->latency, .wakeup_ns = o->wakeup, .bandwidth = o->bandwidth,
		.headroom = HEADROOM, .order = order_of(o->order),
	};
	struct sim_result x;
	int ret = sim_choose_policy(o->policy, &c.policy, &c.params, e);

	if (!ret)
		ret = trace_open(&reader, argv[0], o->partial ? TRACE_PARTIAL : TRACE_WHOLE, e);
	if (!ret)
		ret = sim_history_read(&h, reader, e);
	if (ret)
		return ret;
	c.memory = o->memory ? o->memory : h.info.memory;
	ret = sim_replay(&h, &c, &x, e);
	if (ret)
		return ret;
	warn_lost(&h, argv[0]);
	if (o->json) {
		struct json_object *answer = describe(&h, &c, &x);

		output_json(stdout, answer, JSON_C_TO_STRING_PRETTY);
		json_object_put(answer);
	} else {
		print_plain(&h, &c, &x);
	}
	return 0;
}

#define TRACE_OPTION(field, name, type, metavar, text, ...) \
	OPTION(trace_options, field, name, type, metavar, .help = text, __VA_ARGS__)

static const struct option_spec specs[] = {
	TRACE_OPTION(policy, "policy", OPTION_STRING, "POLICY", "policy: NAME or ./NAME.so[,KEY=NUMBER...] [none]",
	       .letter = 'p'),
	TRACE_OPTION(memory, "memory", OPTION_SIZE, "SIZE", "local memory, at least the recorded size [as recorded]",
	       .letter = 'm', .min = 1),
	TRACE_OPTION(order, "order", OPTION_STRING, "linux|lru|random",
	       "eviction order beyond the recorded size [linux]"),
	TRACE_OPTION(latency, "latency", OPTION_DURATION, "TIME", "latency of the device per page [20us]",
	       .letter = 'l'),
	TRACE_OPTION(bandwidth, "bandwidth", OPTION_SIZE, "SIZE", "bytes per second of the device [unlimited]"),
	TRACE_OPTION(wakeup, "wakeup", OPTION_DURATION, "TIME", "time from a request to its first read [20us]"),
	TRACE_OPTION(partial, "partial", OPTION_FLAG, NULL, "accept a truncated or unfinished trace"),
	OPTION_JSON,
	OPTIONS_END
};

static const struct trace_options defaults = {
	.policy = "none", .order = "linux", .latency = 20000, .wakeup = WAKEUP_NS,
};

const struct command sim_command_trace = {
	.object = "trace", .arguments = "FILE",
	.help = "Replay a trace under a policy, a memory size and a device",
	.example = "  ebb-sim trace sort.trace --policy leap,pw_max=64 --latency 20us\n",
	.options = specs, .options_size = sizeof(struct trace_options), .defaults = &defaults,
	.run = run_trace, .min_args = 1, .max_args = 1,
};
