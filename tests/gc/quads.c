// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Quad trees: one of -n nodes lives throughout. Each of -r rounds allocates a quarter as many
 * nodes in trees of depth 3 that die at once, then traverses the live tree. A new implementation
 * of the benchmark of that name in Wingo's whippet: the cost of a collector while live objects do
 * not change.
 *
 * Nodes are numbered by level: those below node i are 4 i + 1 to 4 i + 4, as far as there are any.
 */
#include "system.h"

#define SMALL 85		/* nodes of a tree of depth 3 */
#define GARBAGE 4		/* live nodes for one that dies in a round */

struct quad {
	ref below[4];
	uint64_t number;
};

static struct type quad_type = { .name = "quad", .size = sizeof(struct quad), .bitmap = 15 };

static ref tree_new(ctx c, uint64_t number, uint64_t n)
{
	ref slots[1] = { NONE };
	struct quad *q;

	ROOTS(c, slots, 1);
	slots[0] = object_new(c, &quad_type);
	q = PTR(slots[0]);
	q->number = number;
	for (uint64_t i = 0; i < 4 && 4 * number + 1 + i < n; i++) {
		ref below = tree_new(c, 4 * number + 1 + i, n);

		STORE(c, slots[0], &q->below[i], below);
	}
	UNROOT(c);
	return slots[0];
}

/* Checks the nodes' numbers and the tree's shape; returns the number of nodes. */
static uint64_t tree_count(ctx c, ref tree, uint64_t number, uint64_t n)
{
	struct quad *q = PTR(tree);
	ref slots[1] = { tree };
	uint64_t count = 1;

	ROOTS(c, slots, 1);
	POLL(c);
	expect(q->number == number, "a node is not where it was put");
	for (uint64_t i = 0; i < 4; i++) {
		ref below = LOAD(c, tree, &q->below[i]);
		uint64_t expected = 4 * number + 1 + i;

		expect(IS_NULL(below) == (expected >= n), "a tree has not the shape it was given");
		if (!IS_NULL(below) && expected < n)
			count += tree_count(c, below, expected, n);
	}
	UNROOT(c);
	return count;
}

static void tree_check(ctx c, ref tree, uint64_t n)
{
	expect(tree_count(c, tree, 0, n) == n, "a tree has not as many nodes as it was given");
}

static double work(ctx c, unsigned int thread)
{
	uint64_t n = size / threads, made = 0;
	ref slots[2] = { NONE, NONE };

	ROOTS(c, slots, 2);
	slots[0] = tree_new(c, 0, n);
	built(c);
	for (unsigned int i = 0; i < rounds; i++) {
		for (uint64_t dead = 0; dead < n / GARBAGE; dead += SMALL) {
			slots[1] = tree_new(c, 0, SMALL);
			tree_check(c, slots[1], SMALL);
			made += SMALL;
		}
		slots[1] = NONE;
		tree_check(c, slots[0], n);
		made += n;
	}
	UNROOT(c);
	return (double)made;
}

int main(int argc, char **argv)
{
	static struct type *types[] = { &quad_type, NULL };
	struct program p = {
		.name = "quads", .types = types, .size = 300000, .rounds = 20, .work = work,
	};

	return program_main(&p, argc, argv);
}
