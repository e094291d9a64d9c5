// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "cluster.h"
#include "lib/base/draw.h"
#include "lib/rules/activity.h"
#include "lib/rules/headroom.h"
#include "lowest.h"
#include "spread.h"

#define NOWHERE UINT32_MAX
#define GIVE_BACK 10 /* seconds until a slab that is not needed is back at its donor */
/* Page I/O a second of a slab: log-normal; some slabs are never hot. */
#define HEAT_MEDIAN 40.0
#define HEAT_SIGMA 1.5
/* Infiniswap's released daemon, of 64 GB: below 8 it evicts, above 16 it allocates, 32 at most. */
#define RELEASED_HEADROOM(memory) ((memory) / 8)
#define RELEASED_EXPAND(memory) ((memory) / 4)
#define RELEASED_MOST(memory) ((memory) / 2)
#define RELEASED_BETA 0.7
#define RELEASED_EXTRA 2

struct slab {
	uint32_t donor; /* or NOWHERE */
	uint32_t at;    /* in the donor's list */
	uint32_t since; /* second of the last tick */
	float heat;     /* page I/O a second */
	struct activity activity;
};

struct node {
	uint64_t wanted, local; /* bytes; local is the part that fits */
	struct headroom room;
	uint32_t own;       /* slabs of its device: number node * most_own on */
	uint32_t unmapped;  /* of these, not mapped */
	uint32_t hosted;    /* slabs mapped here */
	uint32_t free_slabs;
	uint32_t surplus_since; /* second; NOWHERE = no surplus */
};

struct cluster {
	const struct cluster_config *config;
	struct cluster_result *result;
	struct headroom_rule rule;
	struct activity_rule activity;
	double hot_slab;    /* HotSlab, in page I/O a second; 0 = map on first use */
	uint32_t now, most_own, most_hosted;
	uint64_t demand_seed, seed;
	struct node *nodes;
	struct demand *demands;
	struct place_donor *view; /* answers of the machines */
	struct slab *slabs;
	uint32_t *hosted;         /* slabs' numbers, most_hosted a node */
	struct lowest *lowest;    /* for CLUSTER_OMNISCIENT */
	uint32_t held;            /* machines that hold slabs of the borrower at hand */
	double evicted_heat, evicted_mean;
	struct spread *spread;
};

/* Updates the answer of node @i. */
static void refresh(struct cluster *c, uint32_t i)
{
	struct node *n = &c->nodes[i];
	struct place_donor *v = &c->view[i];
	uint64_t memory = c->config->memory, slab = c->config->slab;
	uint64_t kept = c->rule.headroom, room;

	v->used = n->local + n->hosted * slab;
	if (c->config->placer == CLUSTER_RELEASED)
		kept = RELEASED_EXPAND(memory);
	room = v->used + kept < memory ? memory - v->used - kept : 0;
	/* Capacity that has just become free may be needed again: the average decides, too. */
	if (headroom_slabs(&n->room, &c->rule) <= n->hosted)
		room = 0;
	v->free = room;
	if (c->lowest)
		lowest_set(c->lowest, i, room >= slab && v->usable ? v->used : UINT64_MAX);
}

static void attach(struct cluster *c, uint32_t s, uint32_t donor)
{
	struct node *n = &c->nodes[donor];

	c->slabs[s].donor = donor;
	c->slabs[s].at = n->hosted;
	c->hosted[(size_t)donor * c->most_hosted + n->hosted++] = s;
	if (n->free_slabs) {
		n->free_slabs--;
		c->result->ready++;
	}
	c->result->messages += 2;
	refresh(c, donor);
}

static void detach(struct cluster *c, uint32_t s)
{
	uint32_t donor = c->slabs[s].donor, *list = c->hosted + (size_t)donor * c->most_hosted;
	uint32_t last = list[--c->nodes[donor].hosted];

	list[c->slabs[s].at] = last;
	c->slabs[last].at = c->slabs[s].at;
	c->slabs[s].donor = NOWHERE;
	refresh(c, donor);
}

/* Tells the placement where the slabs of @borrower are. */
static void know(struct cluster *c, uint32_t borrower)
{
	const struct slab *s = &c->slabs[(size_t)borrower * c->most_own];

	c->held = 0;
	for (uint32_t i = 0; i < c->nodes[borrower].own; i++)
		if (s[i].donor != NOWHERE)
			c->held += c->view[s[i].donor].slabs++ == 0;
}

static void forget(struct cluster *c, uint32_t borrower)
{
	const struct slab *s = &c->slabs[(size_t)borrower * c->most_own];

	for (uint32_t i = 0; i < c->nodes[borrower].own; i++)
		if (s[i].donor != NOWHERE)
			c->view[s[i].donor].slabs = 0;
}

static void set_usable(struct cluster *c, uint32_t i, bool usable)
{
	c->view[i].usable = usable;
	refresh(c, i);
}

/* Returns the donor of the next slab; NOWHERE if no candidate has free capacity. */
static uint32_t choose(struct cluster *c)
{
	int chosen[PLACE_CHOICES_MAX], n;
	uint32_t i;

	switch (c->config->placer) {
	case CLUSTER_OMNISCIENT:
		return lowest_get(c->lowest);
	case CLUSTER_RELEASED:
		i = draw_below(&c->seed, c->config->nodes);
		c->result->messages += 2;
		return c->view[i].usable && c->view[i].free >= c->config->slab ? i : NOWHERE;
	default:
		n = place_draw(c->view, (int)c->config->nodes, c->config->slab,
			       c->config->rule.choices, place_order(&c->config->rule, c->held),
			       &c->seed, chosen);
		c->result->messages += 2 * (uint64_t)n;
		return n ? (uint32_t)place_lowest(c->view, chosen, n) : NOWHERE;
	}
}

/* Brings the activity of @s up to date. */
static void measure(struct cluster *c, struct slab *s)
{
	uint32_t seconds = c->now - s->since;

	activity_read(&s->activity, (uint32_t)(s->heat * (float)seconds));
	activity_tick(&s->activity, &c->activity, seconds);
	s->since = c->now;
}

/* Maps hot slabs among @borrower's unmapped ones. */
static void map_slabs(struct cluster *c, uint32_t borrower)
{
	struct node *n = &c->nodes[borrower];
	uint32_t first = borrower * c->most_own;

	set_usable(c, borrower, false);
	know(c, borrower);
	for (uint32_t s = first; s < first + n->own && n->unmapped; s++) {
		uint32_t donor;

		if (c->slabs[s].donor != NOWHERE)
			continue;
		if (c->hot_slab > 0) {
			measure(c, &c->slabs[s]);
			if (c->slabs[s].activity.rate <= c->hot_slab)
				continue;
		}
		donor = choose(c);
		if (donor == NOWHERE && c->config->placer != CLUSTER_RELEASED)
			break; /* asks again in a second */
		if (donor == NOWHERE)
			continue;
		attach(c, s, donor);
		c->held += c->view[donor].slabs++ == 0;
		c->result->maps++;
		n->unmapped--;
	}
	forget(c, borrower);
	set_usable(c, borrower, true);
}

static void migrate(struct cluster *c, uint32_t s, uint32_t from)
{
	uint32_t borrower = s / c->most_own, donor = NOWHERE;

	c->result->messages += 2;
	if (c->config->placer != CLUSTER_RELEASED) {
		c->view[from].usable = false;
		set_usable(c, borrower, false);
		refresh(c, from);
		know(c, borrower);
		donor = choose(c);
		forget(c, borrower);
		set_usable(c, borrower, true);
		set_usable(c, from, true);
	}
	if (donor == NOWHERE) {
		c->nodes[borrower].unmapped++;
		c->result->to_disk++;
		return;
	}
	attach(c, s, donor);
	c->result->migrations++;
}

/* The second stage: asks the owners of E + E' slabs and evicts the E least active. */
static void evict(struct cluster *c, uint32_t donor, uint32_t count)
{
	uint32_t drawn[2 * HEADROOM_EVICT_MOST];
	struct headroom_candidate candidates[2 * HEADROOM_EVICT_MOST];
	struct node *n = &c->nodes[donor];
	uint32_t asked = headroom_candidates(&c->rule, count, n->hosted);
	double mean = 0;

	headroom_draw(n->hosted, asked, &c->seed, drawn);
	for (uint32_t i = 0; i < asked; i++) {
		uint32_t s = c->hosted[(size_t)donor * c->most_hosted + drawn[i]];

		measure(c, &c->slabs[s]);
		mean += c->slabs[s].activity.rate / asked;
		candidates[i].slab = s;
		/* Products never divided, wrapping in 15 s: noise. */
		candidates[i].activity = c->config->placer == CLUSTER_RELEASED ?
					 draw32(&c->seed) : c->slabs[s].activity.rate;
	}
	c->result->messages += 2 * (uint64_t)asked;
	headroom_least(candidates, asked, count);
	for (uint32_t i = 0; i < count; i++) {
		uint32_t s = candidates[i].slab;

		c->evicted_heat += c->slabs[s].activity.rate;
		c->evicted_mean += mean;
		c->result->evictions++;
		detach(c, s);
		migrate(c, s, donor);
	}
}

/* Simulates a second of the donor on node @i. */
static void donor_second(struct cluster *c, uint32_t i)
{
	struct node *n = &c->nodes[i];
	uint64_t used = n->local + (n->hosted + n->free_slabs) * c->config->slab;
	struct headroom_sample sample = {
		.memory = c->config->memory,
		.available = used < c->config->memory ? c->config->memory - used : 0,
	};
	struct headroom_plan plan;

	headroom_sample(&n->room, &c->rule, &sample, n->hosted + n->free_slabs);
	headroom_plan(&n->room, &c->rule, n->free_slabs, n->hosted, &plan);
	n->free_slabs += plan.allocate;
	n->free_slabs -= plan.release;
	refresh(c, i);
	if (plan.evict)
		evict(c, i, plan.evict);
}

/* Simulates a second of the device of node @i. */
static void borrower_second(struct cluster *c, uint32_t i)
{
	struct node *n = &c->nodes[i];
	uint64_t slab = c->config->slab, away = n->wanted - n->local;
	uint32_t needed = (uint32_t)((away + slab - 1) / slab), first = i * c->most_own;

	for (; n->own < needed; n->own++, n->unmapped++)
		c->slabs[first + n->own] = (struct slab){
			.donor = NOWHERE, .since = c->now,
			.heat = (float)demand_lognormal(&c->seed, HEAT_MEDIAN, HEAT_SIGMA),
		};
	if (n->own == needed)
		n->surplus_since = NOWHERE;
	else if (n->surplus_since == NOWHERE)
		n->surplus_since = c->now;
	else if (c->now - n->surplus_since >= GIVE_BACK) {
		while (n->own > needed) {
			uint32_t s = first + --n->own;

			if (c->slabs[s].donor == NOWHERE) {
				n->unmapped--;
				continue;
			}
			detach(c, s);
			c->result->unmaps++;
			c->result->messages += 2;
		}
		n->surplus_since = NOWHERE;
	}
	if (n->unmapped)
		map_slabs(c, i);
}

static void set_demands(struct cluster *c)
{
	uint64_t memory = c->config->memory;

	for (uint32_t i = 0; i < c->config->nodes; i++) {
		struct node *n = &c->nodes[i];

		n->wanted = (uint64_t)(demand_now(&c->demands[i]) * (double)memory);
		n->local = n->wanted < memory ? n->wanted : memory;
	}
}

static void count_second(struct cluster *c)
{
	double memory = (double)c->config->memory, slab = (double)c->config->slab;

	spread_begin(c->spread, c->now);
	for (uint32_t i = 0; i < c->config->nodes; i++) {
		const struct node *n = &c->nodes[i];
		double away = (double)(n->wanted - n->local);
		double mapped = (n->own - n->unmapped) * slab;

		spread_add(c->spread, &(struct spread_node){
			.wanted = (double)n->wanted / memory,
			.local = (double)n->local / memory,
			.hosted = n->hosted * slab / memory,
			.away = away / memory,
			.served = (mapped < away ? mapped : away) / memory,
		});
	}
	spread_end(c->spread);
}

static void second(struct cluster *c)
{
	uint32_t nodes = c->config->nodes, start;

	if (!c->config->still) {
		demand_step(c->demands, nodes, c->now, &c->demand_seed);
		set_demands(c);
	}
	/* The machine served first changes each second. */
	start = draw_below(&c->seed, nodes);
	for (uint32_t k = 0; k < nodes; k++)
		donor_second(c, k < nodes - start ? start + k : start + k - nodes);
	for (uint32_t k = 0; k < nodes; k++)
		borrower_second(c, k < nodes - start ? start + k : start + k - nodes);
}

static int set_up(struct cluster *c, struct error *e)
{
	const struct cluster_config *o = c->config;
	bool released = o->placer == CLUSTER_RELEASED;
	int r;

	c->most_hosted = (uint32_t)(o->memory / o->slab);
	c->most_own = (uint32_t)ceil((DEMAND_MOST - 1) * (double)o->memory / (double)o->slab) + 1;
	if ((uint64_t)o->nodes * c->most_own > CLUSTER_SLABS)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "%u machines: too many slabs; simulate fewer machines or larger slabs",
				 o->nodes);
	c->rule = headroom_rule_default(o->memory, o->slab);
	if (o->headroom)
		c->rule.headroom = o->headroom;
	if (released) {
		c->rule.headroom = RELEASED_HEADROOM(o->memory);
		c->rule.most = RELEASED_MOST(o->memory);
		c->rule.beta = RELEASED_BETA;
		c->rule.extra = RELEASED_EXTRA;
	}
	c->activity = (struct activity_rule)ACTIVITY_RULE_DEFAULT;
	c->hot_slab = released ? 0 : o->hot_slab;
	c->nodes = calloc(o->nodes, sizeof(*c->nodes));
	c->demands = calloc(o->nodes, sizeof(*c->demands));
	c->view = calloc(o->nodes, sizeof(*c->view));
	c->slabs = calloc((size_t)o->nodes * c->most_own, sizeof(*c->slabs));
	c->hosted = calloc((size_t)o->nodes * c->most_hosted, sizeof(*c->hosted));
	if (!c->nodes || !c->demands || !c->view || !c->slabs || !c->hosted)
		return fail(e, ENOMEM, "%u machines: out of memory; simulate fewer machines or larger slabs",
			    o->nodes);
	r = spread_new(&c->spread, o->nodes, o->seconds, CLUSTER_WARMUP);
	if (!r && o->placer == CLUSTER_OMNISCIENT)
		r = lowest_new(&c->lowest, o->nodes);
	if (r)
		return fail(e, r, "%u machines: %s; simulate fewer", o->nodes, strerror(-r));
	for (uint32_t i = 0; i < o->nodes; i++) {
		c->nodes[i].surplus_since = NOWHERE;
		c->view[i] = (struct place_donor){ .usable = true, .total = o->memory,
						   .memory = o->memory };
	}
	demand_start(c->demands, o->nodes, &c->demand_seed);
	set_demands(c);
	return 0;
}

static void tear_down(struct cluster *c)
{
	free(c->nodes);
	free(c->demands);
	free(c->view);
	free(c->slabs);
	free(c->hosted);
	spread_free(&c->spread);
	lowest_free(&c->lowest);
}

int cluster_run(const struct cluster_config *config, struct cluster_result *result,
		struct error *e)
{
	struct cluster_result x = { 0 };
	struct cluster c = {
		.config = config, .result = &x,
		/* Never 0, and not close to the other seed. */
		.demand_seed = (config->seed + 1) * 0x9E3779B97F4A7C15ull | 1,
		.seed = (config->seed + 1) * 0xD1B54A32D192ED03ull | 1,
	};
	int r = set_up(&c, e);

	for (c.now = 1; !r && c.now <= config->seconds; c.now++) {
		if (c.now == CLUSTER_WARMUP) {
			x = (struct cluster_result){ 0 };
			c.evicted_heat = c.evicted_mean = 0;
		}
		second(&c);
		count_second(&c);
	}
	if (!r) {
		spread_result(c.spread, &x);
		x.evicted_rank = c.evicted_mean > 0 ? c.evicted_heat / c.evicted_mean : 0;
		*result = x;
	}
	tear_down(&c);
	return r;
}
