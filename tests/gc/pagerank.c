// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * PageRank over a graph of linked objects, as Neo4j in the MemLiner paper's table 4.1: -n vertices
 * with EDGES edges on average, -r iterations.  Each iteration allocates a new boxed rank for every
 * vertex, whose old one is garbage, and an object for every edge that it follows, as Neo4j does.
 *
 * Vertices are in the order of a crawl: most edges lead to near vertices, few to popular ones.
 */
#include <math.h>
#include "system.h"

#define EDGES 8
#define NEAR 1000		/* vertices, each way */
#define FAR_EVERY 16		/* edges */
#define DAMPING 0.85

struct vertex {
	ref edges, rank, next;
	uint64_t id;
};

struct box {
	double value;
};

struct relation {
	ref to;
	double share;
};

static struct type vertex_type = { .name = "vertex", .size = sizeof(struct vertex), .bitmap = 7 };
static struct type box_type = { .name = "box", .size = sizeof(struct box) };
static struct type relation_type = {
	.name = "relation", .size = sizeof(struct relation), .bitmap = 1,
};

static ref box_new(ctx c, double value)
{
	ref r = object_new(c, &box_type);

	((struct box *)PTR(r))->value = value;
	return r;
}

static double unbox(ref r)
{
	return ((struct box *)PTR(r))->value;
}

static void build_vertices(ctx c, ref parts, size_t n)
{
	ref slots[2] = { parts, NONE };

	ROOTS(c, slots, 2);
	for (size_t i = 0; i < n; i++) {
		struct vertex *v;
		ref rank;

		slots[1] = object_new(c, &vertex_type);
		rank = box_new(c, 1.0 / (double)n);
		v = PTR(slots[1]);
		v->id = i;
		STORE(c, slots[1], &v->rank, rank);
		parts_put(c, slots[0], i, slots[1]);
	}
	UNROOT(c);
}

static size_t target(size_t i, size_t n, uint64_t *seed)
{
	double u = next_unit(seed);

	if (next_random(seed) % FAR_EVERY)
		return (i + n + (size_t)(long)((2 * u - 1) * NEAR)) % n;
	/* Most of these lead to few vertices. */
	return (size_t)((double)n * u * u * u) % n;
}

static void build_edges(ctx c, ref parts, size_t n, uint64_t *seed)
{
	ref slots[3] = { parts, NONE, NONE };

	ROOTS(c, slots, 3);
	for (size_t i = 0; i < n; i++) {
		size_t degree = 1 + next_random(seed) % (2 * EDGES - 1);

		slots[1] = refs_new(c, degree);
		for (size_t j = 0; j < degree; j++) {
			ref to = parts_at(c, parts, target(i, n, seed));

			STORE(c, slots[1], &((struct refs *)PTR(slots[1]))->at[j], to);
		}
		slots[2] = parts_at(c, parts, i);
		STORE(c, slots[2], &((struct vertex *)PTR(slots[2]))->edges, slots[1]);
	}
	UNROOT(c);
}

/* To what a slot of @edges refers to, which is in a root. */
static ref relation_new(ctx c, ref edges, const ref *slot, double share)
{
	ref r = object_new(c, &relation_type);

	INIT(&((struct relation *)PTR(r))->to, LOAD(c, edges, slot));
	((struct relation *)PTR(r))->share = share;
	return r;
}

/* Adds to the boxed rank that a vertex will have. */
static void give(ctx c, ref relation)
{
	struct relation *r = PTR(relation);
	ref to = LOAD(c, relation, &r->to);
	ref box = LOAD(c, to, &((struct vertex *)PTR(to))->next);

	((struct box *)WRITTEN(box))->value += r->share;
}

static void iterate(ctx c, ref parts, size_t n)
{
	ref slots[3] = { parts, NONE, NONE };
	double leak = (1 - DAMPING) / (double)n;

	ROOTS(c, slots, 3);
	for (size_t i = 0; i < n; i++) {
		slots[1] = parts_at(c, parts, i);
		slots[2] = box_new(c, leak);
		STORE(c, slots[1], &((struct vertex *)PTR(slots[1]))->next, slots[2]);
	}
	for (size_t i = 0; i < n; i++) {
		struct vertex *v;
		struct refs *edges;
		double share;

		POLL(c);
		slots[1] = parts_at(c, parts, i);
		v = PTR(slots[1]);
		slots[2] = LOAD(c, slots[1], &v->edges);
		edges = PTR(slots[2]);
		share = DAMPING * unbox(LOAD(c, slots[1], &v->rank)) / (double)edges->length;
		for (size_t j = 0; j < edges->length; j++)
			give(c, relation_new(c, slots[2], &edges->at[j], share));
	}
	for (size_t i = 0; i < n; i++) {
		struct vertex *v;

		POLL(c);
		slots[1] = parts_at(c, parts, i);
		v = PTR(slots[1]);
		STORE(c, slots[1], &v->rank, LOAD(c, slots[1], &v->next));
	}
	UNROOT(c);
}

static double work(ctx c, unsigned int thread)
{
	uint64_t seed = 7046029254386353131u + thread * 1000003u;
	size_t n = size / threads;
	ref parts[1] = { NONE };
	double sum = 0, odd = 0;

	ROOTS(c, parts, 1);
	parts[0] = parts_new(c, n);
	build_vertices(c, parts[0], n);
	build_edges(c, parts[0], n, &seed);
	built(c);
	for (unsigned int i = 0; i < rounds; i++)
		iterate(c, parts[0], n);
	for (size_t i = 0; i < n; i++) {
		double rank;
		ref v;

		POLL(c);
		v = parts_at(c, parts[0], i);
		rank = unbox(LOAD(c, v, &((struct vertex *)PTR(v))->rank));
		expect(((struct vertex *)PTR(v))->id == i, "a vertex is not where it was put");
		sum += rank;
		odd += i % 2 ? rank : 0;
	}
	expect(fabs(sum - 1) < 1e-6, "ranks do not add up to 1");
	UNROOT(c);
	return odd;
}

int main(int argc, char **argv)
{
	static struct type *types[] = { &vertex_type, &box_type, &relation_type, NULL };
	struct program p = {
		.name = "pagerank", .types = types, .size = 100000, .rounds = 10, .work = work,
	};

	return program_main(&p, argc, argv);
}
