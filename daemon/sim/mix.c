// SPDX-License-Identifier: GPL-2.0-or-later
#include <math.h>
#include <stdlib.h>

#include "lib/base/draw.h"
#include "mix.h"

#define WEIGHT_LEAST 1.0
#define WEIGHT_MOST 4.5
#define PERCENT 100 /* weights are rounded to percents of the programs */
#define MIB(n) ((uint64_t)(n) << 20)

/* The released simulator's workloads_simu.py: ideal_mem, min_ratio, cpu_req, y. */
const struct mix_kind mix_kinds[MIX_KINDS] = {
	{ "xgboost", MIB(16300), 0.5, 6, { 338.45, 341.90, 347.52, 349.21, 352.98, 356.92 } },
	{ "snappy", MIB(34000), 0.8, 1, { 134.88, 143.15, 155.37, 211.18, 274.42 } },
	{ "redis", MIB(31800), 0.6, 2,
	  { 1327.74, 1390.33, 1450.85, 1505.63, 1579.72, 1794.631, 1949.36 } },
};

double mix_seconds(const struct mix_kind *kind, double ratio)
{
	double tenths = (1 - ratio) * 10;
	int below = (int)tenths;

	if (tenths <= 0)
		return kind->seconds[0];
	/* Beyond the last point nothing is scheduled but by rounding. */
	if (below >= 6 || kind->seconds[below + 1] == 0)
		return kind->seconds[below > 6 ? 6 : below];
	return kind->seconds[below] +
	       (tenths - below) * (kind->seconds[below + 1] - kind->seconds[below]);
}

static double uniform(uint64_t *seed, double low, double high)
{
	return low + (high - low) * draw32(seed) / 4294967296.0;
}

static int by_arrival(const void *a, const void *b)
{
	double x = ((const struct mix_program *)a)->arrives;
	double y = ((const struct mix_program *)b)->arrives;

	return (x > y) - (x < y);
}

void mix_make(struct mix *m, uint64_t seed, bool shares)
{
	double weight[MIX_KINDS], all = 0;
	int percent[MIX_KINDS], sum = 0;

	*m = (struct mix){ .shares = shares };
	for (int k = 0; k < MIX_KINDS; k++)
		all += weight[k] = uniform(&seed, WEIGHT_LEAST, WEIGHT_MOST);
	for (int k = 0; k < MIX_KINDS; k++)
		sum += percent[k] = (int)lround(PERCENT * weight[k] / all);
	/* What rounding adds is the most frequent kind's, what it omits the rarest's. */
	for (int most, least; sum != PERCENT; sum = sum > PERCENT ? sum - 1 : sum + 1) {
		most = least = 0;
		for (int k = 1; k < MIX_KINDS; k++) {
			most = percent[k] > percent[most] ? k : most;
			least = percent[k] < percent[least] ? k : least;
		}
		if (sum > PERCENT)
			percent[most]--;
		else
			percent[least]++;
	}
	for (int k = 0; k < MIX_KINDS; k++)
		for (int i = 0; i < percent[k] * MIX_PROGRAMS / PERCENT; i++)
			m->programs[m->count++] = (struct mix_program){
				.kind = &mix_kinds[k], .arrives = uniform(&seed, 0, MIX_ARRIVE),
				.ratio = 1,
			};
	qsort(m->programs, m->count, sizeof(m->programs[0]), by_arrival);
}

static uint64_t least_bytes(const struct mix_kind *kind)
{
	return (uint64_t)(kind->least * (double)kind->bytes);
}

uint64_t mix_away(const struct mix_node *node)
{
	return node->bytes > MIX_LOCAL ? node->bytes - MIX_LOCAL : 0;
}

static uint64_t all_away(const struct mix *m)
{
	uint64_t sum = 0;

	for (int i = 0; i < MIX_NODES; i++)
		sum += mix_away(&m->nodes[i]);
	return sum;
}

/* Returns a machine for a program of @kind, first one with local memory alone; -1 if none. */
static int fits(struct mix *m, const struct mix_kind *kind)
{
	uint64_t away = all_away(m);
	bool short_of_donors = false;

	for (int i = 0; i < MIX_NODES; i++)
		/* Without memory away no processor is set aside for reclaim. */
		if (m->nodes[i].cpus + kind->cpus <= MIX_CPUS + 1 &&
		    m->nodes[i].bytes + kind->bytes <= MIX_LOCAL)
			return i;
	for (int i = 0; i < MIX_NODES; i++) {
		struct mix_node n = m->nodes[i];
		uint64_t others = away - mix_away(&n);

		n.bytes += kind->bytes;
		n.least += least_bytes(kind);
		n.cpus += kind->cpus;
		if (n.cpus > MIX_CPUS || n.least > MIX_LOCAL)
			continue;
		if (m->shares ? mix_away(&n) <= MIX_SHARE : others + mix_away(&n) <= MIX_LENT)
			return i;
		short_of_donors = true;
	}
	m->refused |= short_of_donors;
	return -1;
}

static void leave(struct mix *m, struct mix_program *p)
{
	struct mix_node *n = &m->nodes[p->node];

	n->bytes -= p->kind->bytes;
	n->least -= least_bytes(p->kind);
	n->cpus -= p->kind->cpus;
	p->state = MIX_ENDED;
	p->away = 0;
	m->ended++;
}

static void start(struct mix *m, struct mix_program *p, uint32_t node)
{
	struct mix_node *n = &m->nodes[node];

	n->bytes += p->kind->bytes;
	n->least += least_bytes(p->kind);
	n->cpus += p->kind->cpus;
	p->state = MIX_RUNNING;
	p->node = node;
}

/* Starts the programs that fit; a program that waits holds back later ones of its kind alone. */
static void start_waiting(struct mix *m)
{
	bool held[MIX_KINDS] = { false };

	for (uint32_t i = 0; i < m->count; i++) {
		struct mix_program *p = &m->programs[i];
		bool *kind = &held[p->kind - mix_kinds];
		int node;

		if (p->state != MIX_WAITING || *kind)
			continue;
		node = fits(m, p->kind);
		if (node < 0)
			*kind = true;
		else
			start(m, p, (uint32_t)node);
	}
}

void mix_second(struct mix *m, uint32_t now)
{
	for (uint32_t i = 0; i < m->count; i++) {
		struct mix_program *p = &m->programs[i];

		if (p->state == MIX_COMING && p->arrives <= now)
			p->state = MIX_WAITING;
		if (p->state != MIX_RUNNING)
			continue;
		p->progress += 1 / mix_seconds(p->kind, p->ratio);
		if (p->progress >= 1)
			leave(m, p);
	}
	start_waiting(m);
	for (uint32_t i = 0; i < m->count; i++) {
		struct mix_program *p = &m->programs[i];
		const struct mix_node *n = &m->nodes[p->node];
		double spare, all_spare;

		if (p->state != MIX_RUNNING)
			continue;
		spare = (double)(p->kind->bytes - least_bytes(p->kind));
		all_spare = (double)(n->bytes - n->least);
		p->away = (uint64_t)(spare / all_spare * (double)mix_away(n));
		p->ratio = 1 - (double)p->away / (double)p->kind->bytes;
	}
}
