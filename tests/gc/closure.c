// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Transitive closure, as Spark's example in the MemLiner paper's table 4.1: -n vertices, -r times.
 * Paths are objects in a hash table; those found last are joined with the edges until there are no
 * new ones.  A finished closure is garbage once the next one begins.
 *
 * The graph consists of chains with shortcuts: what can be reached from where is known.  The table
 * is in parts, by where a path begins, as Spark's partitions are.
 */
#include "system.h"

#define CHAIN 16		/* vertices */
#define SHORTCUTS 2		/* of a vertex, besides the edge to the next one */
#define SOURCES 256u		/* vertices whose paths are in one part of the table */
#define BUCKETS (SOURCES * (CHAIN + 1) / 2)	/* of a part: one a path, on the average */

struct vertex {
	ref edges;		/* vertices */
	uint64_t id;
};

struct path {
	ref chained;		/* in its bucket */
	ref before;		/* among those that were found last */
	uint64_t from, to;
};

static struct type vertex_type = { .name = "vertex", .size = sizeof(struct vertex), .bitmap = 1 };
static struct type path_type = { .name = "path", .size = sizeof(struct path), .bitmap = 3 };

/* Members of a chain are as far apart as can be. */
static size_t place(size_t chain, size_t member, size_t chains)
{
	return member * chains + chain;
}

static void build(ctx c, ref parts, size_t chains, uint64_t *seed)
{
	ref slots[3] = { parts, NONE, NONE };
	size_t n = chains * CHAIN;

	ROOTS(c, slots, 3);
	for (size_t i = 0; i < n; i++) {
		ref v = object_new(c, &vertex_type);

		((struct vertex *)PTR(v))->id = i;
		parts_put(c, slots[0], i, v);
	}
	for (size_t i = 0; i < n; i++) {
		size_t member = i / chains, later = CHAIN - 1 - member;
		struct refs *edges;

		if (!later)
			continue;
		slots[1] = refs_new(c, 1 + SHORTCUTS);
		edges = PTR(slots[1]);
		for (size_t j = 0; j < 1 + SHORTCUTS; j++) {
			size_t hop = j ? 1 + next_random(seed) % later : 1;

			STORE(c, slots[1], &edges->at[j], parts_at(c, slots[0],
			      place(i % chains, member + hop, chains)));
		}
		slots[2] = parts_at(c, slots[0], i);
		STORE(c, slots[2], &((struct vertex *)PTR(slots[2]))->edges, slots[1]);
	}
	UNROOT(c);
}

/* Adds a path unless it is known; `last` is the list of new ones. */
static bool add(ctx c, ref table, ref *last, uint64_t from, uint64_t to)
{
	uint64_t hash = from * UINT64_C(0x9e3779b97f4a7c15) ^ to * UINT64_C(0xff51afd7ed558ccd);
	ref *bucket = &((struct refs *)PTR(table))->at[from / SOURCES * BUCKETS +
						       (hash >> 32) % BUCKETS];
	ref slots[2] = { table, NONE }, at = LOAD(c, table, bucket);
	struct path *p;

	for (; !IS_NULL(at); at = LOAD(c, at, &p->chained)) {
		p = PTR(at);
		if (p->from == from && p->to == to)
			return false;
	}
	ROOTS(c, slots, 2);
	slots[1] = object_new(c, &path_type);
	p = PTR(slots[1]);
	p->from = from;
	p->to = to;
	INIT(&p->before, *last);
	INIT(&p->chained, LOAD(c, table, bucket));
	STORE(c, table, bucket, slots[1]);
	*last = slots[1];
	UNROOT(c);
	return true;
}

static uint64_t closure(ctx c, ref parts, size_t n)
{
	/* Vertices, table, paths found in this step, those of the last one, a vertex's edges. */
	ref slots[5] = { parts, NONE, NONE, NONE, NONE };
	uint64_t count = 0;

	ROOTS(c, slots, 5);
	slots[1] = refs_new(c, (n + SOURCES - 1) / SOURCES * BUCKETS);
	for (size_t i = 0; i < n; i++)
		add(c, slots[1], &slots[2], i, i);
	while (!IS_NULL(slots[2])) {
		slots[3] = slots[2];
		slots[2] = NONE;
		for (; !IS_NULL(slots[3]); slots[3] = LOAD(c, slots[3],
		     &((struct path *)PTR(slots[3]))->before)) {
			const struct path *p;
			uint64_t from;
			ref v;

			POLL(c);
			p = PTR(slots[3]);
			from = p->from;
			v = parts_at(c, slots[0], p->to);
			slots[4] = LOAD(c, v, &((struct vertex *)PTR(v))->edges);
			for (size_t j = 0; !IS_NULL(slots[4]) && j < 1 + SHORTCUTS; j++) {
				struct refs *edges = PTR(slots[4]);

				POLL(c);
				v = LOAD(c, slots[4], &edges->at[j]);
				count += add(c, slots[1], &slots[2], from,
					     ((struct vertex *)PTR(v))->id);
			}
		}
	}
	UNROOT(c);
	return count;
}

static double work(ctx c, unsigned int thread)
{
	uint64_t seed = 1442695040888963407u + thread * 1000003u;
	size_t chains = size / threads / CHAIN + 1, n = chains * CHAIN;
	ref parts[1] = { NONE };
	double sum = 0;

	ROOTS(c, parts, 1);
	parts[0] = parts_new(c, n);
	build(c, parts[0], chains, &seed);
	built(c);
	for (unsigned int i = 0; i < rounds; i++) {
		uint64_t found = closure(c, parts[0], n);

		expect(found == chains * (CHAIN * (CHAIN - 1) / 2), "paths are missing or too many");
		sum += (double)found;
	}
	UNROOT(c);
	return sum;
}

int main(int argc, char **argv)
{
	static struct type *types[] = { &vertex_type, &path_type, NULL };
	struct program p = {
		.name = "closure", .types = types, .size = 30000, .rounds = 4, .work = work,
	};

	return program_main(&p, argc, argv);
}
