// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Sweeps over a random graph as PageRank does them (Brin and Page 1998), pulled
 * along the edges: the edges front to back, the ranks at random.
 */
#include <errno.h>
#include <stdlib.h>

#include "../walk.h"
#include "walks.h"

/* Whole numbers modulo 2^32, so that a word is right or wrong. */
struct rank {
	uint32_t value, check;
};

struct graph {
	uint32_t vertices;
	uint32_t *first;        /* edges of v are first[v] to first[v + 1] */
	uint32_t *target;
	struct rank *rank, *next;
};

static uint32_t check_of(uint32_t vertex, uint32_t value, uint64_t sweep)
{
	return value ^ (uint32_t)((vertex + 1 + (sweep << 32)) * MIX >> 32);
}

/* The upper half of a product spreads evenly over any range. */
static uint32_t target_of(const struct walks *w, uint32_t edge, uint32_t vertices)
{
	uint64_t hash = (edge + 1 + (w->seed << 32)) * MIX;

	hash = (hash ^ hash >> 29) * MIX;
	return (uint32_t)((hash >> 32) * vertices >> 32);
}

/* Between half and one and a half of the mean. */
static uint32_t degree_of(const struct walks *w, uint32_t vertex)
{
	uint64_t hash = (vertex + 1) * MIX;

	return (uint32_t)(w->param / 2 + (hash >> 32) % (w->param + 1));
}

static int pagerank_prepare(struct walks *w)
{
	struct graph *g = calloc(1, sizeof(*g));
	uint64_t each = sizeof(uint32_t) * (w->param + 1) + 2 * sizeof(struct rank);
	uint64_t edges = 0;

	if (!g || w->bytes / each * w->param > UINT32_MAX / 2) {
		fprintf(stderr, "walks: pagerank: too large for 32-bit edges\n");
		return -EINVAL;
	}
	w->data = g;
	g->vertices = (uint32_t)(w->bytes / each);
	g->first = walks_map((g->vertices + 1) * sizeof(*g->first));
	if (!g->first)
		return -ENOMEM;
	for (uint32_t v = 0; v < g->vertices; v++) {
		g->first[v] = (uint32_t)edges;
		edges += degree_of(w, v);
	}
	g->first[g->vertices] = (uint32_t)edges;
	g->target = walks_map(edges * sizeof(*g->target));
	g->rank = walks_map(g->vertices * sizeof(*g->rank));
	g->next = walks_map(g->vertices * sizeof(*g->next));
	if (!g->target || !g->rank || !g->next)
		return -ENOMEM;
	for (uint32_t v = 0; v < g->vertices; v++)
		g->rank[v] = (struct rank){ v, check_of(v, v, 0) };
	for (uint32_t e = 0; e < edges; e++)
		g->target[e] = target_of(w, e, g->vertices);
	return 0;
}

static void pagerank_pass(struct walks *w, uint64_t number)
{
	struct graph *g = w->data;
	struct rank *done = g->rank;

	for (uint32_t v = 0; v < g->vertices; v++) {
		uint32_t sum = 0;

		for (uint32_t e = g->first[v]; e < g->first[v + 1]; e++) {
			uint32_t t = g->target[e];

			if (t != target_of(w, e, g->vertices)) {
				w->bad++;
				continue;
			}
			w->bad += g->rank[t].check != check_of(t, g->rank[t].value, number);
			sum += g->rank[t].value;
		}
		g->next[v] = (struct rank){ sum, check_of(v, sum, number + 1) };
	}
	g->rank = g->next;
	g->next = done;
}

const struct walk_kind walk_pagerank = {
	"pagerank", "sweeps over a random graph with N edges a vertex (16)", 16,
	pagerank_prepare, pagerank_pass,
};
