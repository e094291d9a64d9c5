// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Triangle counting over a graph of linked objects, as Neo4j in the MemLiner paper's table 4.1: -n
 * vertices, -r counts.  A vertex's neighbours are a list of edge objects in descending order, for
 * merging two lists.  Each count allocates a box with the result of every vertex, and an object for
 * every edge that it follows, as Neo4j does.
 *
 * The graph is made of cliques joined to a ring, so the number of triangles is known.
 */
#include "system.h"

#define CLIQUE 10
#define AREA 10000u		/* vertices among which a clique's members lie apart */

struct vertex {
	ref edges, found;
	uint64_t id;
};

struct edge {
	ref next, to;
	uint64_t id;		/* of `to` */
};

struct box {
	uint64_t value;
};

struct relation {
	ref to;
	uint64_t id;
};

static struct type vertex_type = { .name = "vertex", .size = sizeof(struct vertex), .bitmap = 3 };
static struct type edge_type = { .name = "edge", .size = sizeof(struct edge), .bitmap = 3 };
static struct type box_type = { .name = "box", .size = sizeof(struct box) };
static struct type relation_type = {
	.name = "relation", .size = sizeof(struct relation), .bitmap = 1,
};

/*
 * Members of a clique lie apart: their places are a permutation of each area, as 1000003 is a
 * prime that is greater.
 */
static size_t place(size_t member, size_t n)
{
	size_t first = member / AREA * AREA, in = n - first < AREA ? n - first : AREA;

	return first + (member - first) * 1000003u % in;
}

static void add_edge(ctx c, ref parts, size_t from, size_t to)
{
	ref slots[3] = { parts, NONE, NONE };
	struct vertex *v;
	struct edge *e;
	ref at, before = NONE;

	ROOTS(c, slots, 3);
	slots[2] = object_new(c, &edge_type);
	slots[1] = parts_at(c, slots[0], from);
	v = PTR(slots[1]);
	e = PTR(slots[2]);
	e->id = to;
	INIT(&e->to, parts_at(c, slots[0], to));
	at = LOAD(c, slots[1], &v->edges);
	while (!IS_NULL(at) && ((struct edge *)PTR(at))->id > to) {
		before = at;
		at = LOAD(c, at, &((struct edge *)PTR(at))->next);
	}
	INIT(&e->next, at);
	if (IS_NULL(before))
		STORE(c, slots[1], &v->edges, slots[2]);
	else
		STORE(c, before, &((struct edge *)PTR(before))->next, slots[2]);
	UNROOT(c);
}

static void join(ctx c, ref parts, size_t a, size_t b)
{
	add_edge(c, parts, a, b);
	add_edge(c, parts, b, a);
}

static void build(ctx c, ref parts, size_t n)
{
	ref slots[1] = { parts };

	ROOTS(c, slots, 1);
	for (size_t i = 0; i < n; i++) {
		ref v = object_new(c, &vertex_type);

		((struct vertex *)PTR(v))->id = i;
		parts_put(c, slots[0], i, v);
	}
	for (size_t first = 0; first < n; first += CLIQUE) {
		size_t end = first + CLIQUE < n ? first + CLIQUE : n;

		for (size_t a = first; a < end; a++)
			for (size_t b = a + 1; b < end; b++) {
				POLL(c);
				join(c, slots[0], place(a, n), place(b, n));
			}
		if (end < n)
			join(c, slots[0], place(end - 1, n), place(end, n));
	}
	UNROOT(c);
}

/* How many lists of two have in common below `limit`. */
static uint64_t common(ctx c, ref v, ref w, uint64_t limit)
{
	ref a = LOAD(c, v, &((struct vertex *)PTR(v))->edges);
	ref b = LOAD(c, w, &((struct vertex *)PTR(w))->edges);
	uint64_t n = 0;

	while (!IS_NULL(a) && !IS_NULL(b)) {
		struct edge *x = PTR(a), *y = PTR(b);

		n += x->id == y->id && x->id < limit;
		if (x->id >= y->id)
			a = LOAD(c, a, &x->next);
		if (y->id >= x->id)
			b = LOAD(c, b, &y->next);
	}
	return n;
}

/* @edge is in a root. */
static ref relation_new(ctx c, ref edge)
{
	ref r = object_new(c, &relation_type);
	struct edge *e = PTR(edge);

	INIT(&((struct relation *)PTR(r))->to, LOAD(c, edge, &e->to));
	((struct relation *)PTR(r))->id = e->id;
	return r;
}

/* Each triangle is found once, at its vertex of the greatest number. */
static uint64_t count(ctx c, ref parts, size_t n)
{
	/* All vertices, one of them, and an edge of it. */
	ref slots[3] = { parts, NONE, NONE };
	uint64_t sum = 0;

	ROOTS(c, slots, 3);
	for (size_t i = 0; i < n; i++) {
		uint64_t here = 0;
		ref box;

		slots[1] = parts_at(c, slots[0], i);
		slots[2] = LOAD(c, slots[1], &((struct vertex *)PTR(slots[1]))->edges);
		for (; !IS_NULL(slots[2]); slots[2] = LOAD(c, slots[2],
		     &((struct edge *)PTR(slots[2]))->next)) {
			struct relation *r;
			ref made;

			POLL(c);
			made = relation_new(c, slots[2]);
			r = PTR(made);
			if (r->id < i)
				here += common(c, slots[1], LOAD(c, made, &r->to), r->id);
		}
		box = object_new(c, &box_type);
		((struct box *)PTR(box))->value = here;
		STORE(c, slots[1], &((struct vertex *)PTR(slots[1]))->found, box);
	}
	for (size_t i = 0; i < n; i++) {
		ref v = parts_at(c, slots[0], i);

		sum += ((struct box *)PTR(LOAD(c, v, &((struct vertex *)PTR(v))->found)))->value;
		POLL(c);
	}
	UNROOT(c);
	return sum;
}

static double work(ctx c, unsigned int thread)
{
	size_t n = size / threads, rest = n % CLIQUE;
	uint64_t truth = n / CLIQUE * (CLIQUE * (CLIQUE - 1) * (CLIQUE - 2) / 6);
	ref parts[1] = { NONE };
	double sum = 0;

	(void)thread;
	truth += rest > 2 ? rest * (rest - 1) * (rest - 2) / 6 : 0;
	ROOTS(c, parts, 1);
	parts[0] = parts_new(c, n);
	build(c, parts[0], n);
	built(c);
	for (unsigned int i = 0; i < rounds; i++) {
		uint64_t found = count(c, parts[0], n);

		expect(found == truth, "triangles are missing or too many");
		sum += (double)found;
	}
	UNROOT(c);
	return sum;
}

int main(int argc, char **argv)
{
	static struct type *types[] = { &vertex_type, &edge_type, &box_type, &relation_type, NULL };
	struct program p = {
		.name = "triangles", .types = types, .size = 50000, .rounds = 10, .work = work,
	};

	return program_main(&p, argc, argv);
}
