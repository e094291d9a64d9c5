// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <string.h>

#include "advice.h"
#include "policies/native.h"

#define WAKEUP_NS 20000
/* Wake-up of a daemon that waits for a CPU. */
#define WAKEUP_LATE_NS (5 * WAKEUP_NS)
/* Required agreement of misses at the recorded size, where nothing is assumed; docs/trace.md. */
#define AGREEMENT 0.05
/*
 * Share of the additional memory that page cache, page tables and freed memory may take
 * or add.
 */
#define ELSEWHERE 0.1
/* Latency of a device without misses in the recording. */
#define LATENCY_NS 80000
/*
 * Expected and least number of random pages that a device transfers during a miss: useless
 * prefetches delay misses.  docs/trace.md has the measurements.
 */
#define PAGES_A_MISS 6
#define PAGES_A_MISS_LEAST 3

uint32_t advice_policy_count(void)
{
	uint32_t n = 0;

	while (ebb_policies[n])
		n++;
	return n;
}

uint32_t advice_rows(const struct advice_plan *plan)
{
	return plan->sizes * advice_policy_count();
}

uint64_t advice_latency(const struct sim_history *h)
{
	return h->recorded[TRACE_MISS] ? h->miss_ns / h->recorded[TRACE_MISS] : 0;
}

/* Parameters of all replays of one call. */
struct advising {
	const struct sim_history *h;
	const struct advice_plan *plan;
	uint64_t latency_ns;
	uint64_t free_ns;       /* run time without misses */
	double scale;           /* from simulated to measured loss */
};

/* Unknown parameters. */
struct assumed {
	enum surplus_order order;
	uint64_t wakeup_ns;
	uint32_t pages_a_miss;  /* 0 = any number */
};

static const struct assumed expected = { SURPLUS_LINUX, WAKEUP_NS, PAGES_A_MISS };

static int replay(const struct advising *a, const struct ebb_policy *policy, uint64_t memory,
		  struct assumed assumed, struct sim_result *x, struct error *e)
{
	struct sim_config c = {
		.policy = policy,
		.memory = memory,
		.latency_ns = a->latency_ns,
		.wakeup_ns = assumed.wakeup_ns,
		.headroom = a->plan->headroom,
		.order = assumed.order,
	};

	if (assumed.pages_a_miss)
		c.busy_ns = a->latency_ns / assumed.pages_a_miss;
	ebb_policy_defaults(policy, &c.params);
	return sim_replay(a->h, &c, x, e);
}

/* Returns the time of misses and late prefetches of @x, relative to a run without any. */
static double loss(const struct advising *a, const struct sim_result *x)
{
	if (!a->free_ns || x->span_ns < a->free_ns)
		return 0;
	return (double)(x->span_ns - a->free_ns) / (double)a->free_ns;
}

static double slowdown(const struct advising *a, const struct sim_result *x)
{
	return 1 + a->scale * loss(a, x);
}

/* Sets the time without misses, and the ratio of measured to simulated loss. */
static int prepare(struct advising *a, struct error *e)
{
	const struct ebb_policy *none = ebb_policy_find("none");
	uint64_t latency_ns = advice_latency(a->h);
	struct sim_result x;
	int r;

	if (!none)
		return fail(e, ENOENT, "policy none: missing; rebuild ebb");
	a->latency_ns = 0;
	r = replay(a, none, a->h->info.memory, (struct assumed){ SURPLUS_LINUX }, &x, e);
	a->free_ns = x.span_ns;
	a->latency_ns = latency_ns ? latency_ns : LATENCY_NS;
	if (!r)
		r = replay(a, none, a->h->info.memory, expected, &x, e);
	if (r)
		return r;
	a->scale = 1;
	if (a->plan->recorded_slowdown > 1 && loss(a, &x) > 0)
		a->scale = (a->plan->recorded_slowdown - 1) / loss(a, &x);
	return 0;
}

/* A range of factors. */
struct range {
	double low, high;
};

static void widen(struct range *r, double x)
{
	r->low = x < r->low ? x : r->low;
	r->high = x > r->high ? x : r->high;
}

/*
 * Range of misses of policy none at @memory under other assumptions, relative to the expected ones.
 */
static int range_of_misses(const struct advising *a, uint64_t memory, struct range *range,
			   struct error *e)
{
	uint64_t part = (uint64_t)((double)(memory - a->h->info.memory) * ELSEWHERE);
	const struct { uint64_t memory; enum surplus_order order; } other[] = {
		{ memory, SURPLUS_LRU }, { memory, SURPLUS_RANDOM },
		{ memory - part, SURPLUS_LINUX }, { memory + part, SURPLUS_LINUX },
	};
	const struct ebb_policy *none = ebb_policy_find("none");
	struct sim_result usual, x;
	int r = replay(a, none, memory, expected, &usual, e);

	*range = (struct range){ 1 - AGREEMENT, 1 + AGREEMENT };
	for (size_t i = 0; i < sizeof(other) / sizeof(other[0]) && !r; i++) {
		r = replay(a, none, other[i].memory,
			   (struct assumed){ other[i].order, WAKEUP_NS, PAGES_A_MISS }, &x, e);
		if (!r && usual.misses)
			widen(range, (double)x.misses / (double)usual.misses);
	}
	return r;
}

static int advise_one(const struct advising *a, const struct range *range, struct advice *to,
		      struct error *e)
{
	static const struct assumed good = { SURPLUS_LINUX, WAKEUP_NS, 0 },
				    bad = { SURPLUS_LINUX, WAKEUP_LATE_NS, PAGES_A_MISS_LEAST };
	const struct assumed *other[] = { &good, &bad };
	struct sim_result x;
	uint64_t least, most;
	double best, worst;
	int r = replay(a, to->policy, to->memory, expected, &to->result, e);

	least = most = to->result.misses;
	best = worst = to->slowdown = slowdown(a, &to->result);
	for (size_t i = 0; i < sizeof(other) / sizeof(other[0]) && !r; i++) {
		r = replay(a, to->policy, to->memory, *other[i], &x, e);
		if (r)
			break;
		least = x.misses < least ? x.misses : least;
		most = x.misses > most ? x.misses : most;
		best = slowdown(a, &x) < best ? slowdown(a, &x) : best;
		worst = slowdown(a, &x) > worst ? slowdown(a, &x) : worst;
	}
	to->misses_low = (uint64_t)((double)least * range->low);
	to->misses_high = (uint64_t)((double)most * range->high + 0.5);
	to->slowdown_low = 1 + (best - 1) * range->low;
	to->slowdown_high = 1 + (worst - 1) * range->high;
	return r;
}

int advise(const struct sim_history *h, const struct advice_plan *plan, struct advice *advice,
	   struct error *e)
{
	struct advising a = { .h = h, .plan = plan };
	uint32_t n = advice_policy_count();
	struct range range;
	int r = 0;

	for (uint32_t i = 0; i < plan->sizes && !r; i++)
		r = sim_memory_check(h, plan->memory[i], e);
	if (!r)
		r = prepare(&a, e);
	for (uint32_t i = 0; i < plan->sizes && !r; i++) {
		r = range_of_misses(&a, plan->memory[i], &range, e);
		for (uint32_t k = 0; k < n && !r; k++) {
			struct advice *to = &advice[i * n + k];

			*to = (struct advice){ .policy = ebb_policies[k],
					       .memory = plan->memory[i] };
			r = advise_one(&a, &range, to, e);
		}
	}
	return r;
}

const struct advice *advice_best(const struct advice *advice, const struct advice_plan *plan,
				 uint32_t size)
{
	uint32_t n = advice_policy_count();
	const struct advice *row = &advice[size * n], *fastest = row, *best = NULL;

	for (uint32_t k = 0; k < n; k++)
		if (row[k].slowdown < fastest->slowdown)
			fastest = &row[k];
	for (uint32_t k = 0; k < n; k++) {
		if (row[k].slowdown > fastest->slowdown * (1 + ADVICE_WORTH))
			continue;
		if (!strcmp(row[k].policy->info->name, "none"))
			return &row[k];
		if (!best || row[k].result.prefetched < best->result.prefetched)
			best = &row[k];
	}
	return best;
}
