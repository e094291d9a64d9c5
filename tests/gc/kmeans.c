// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * K-means over boxed rows, as Spark MLlib in the MemLiner paper's table 4.1: -n points around
 * CENTRES places, each an object with a vector, -r passes of Lloyd's algorithm. Each pass
 * allocates a box with every point's centre, as a map to pairs does; the boxes of the pass before
 * are garbage.
 */
#include <math.h>
#include "system.h"

#define DIMENSIONS 8
#define CENTRES 10
#define SPREAD 0.2		/* of points around their place; places are about 10 apart */
#define BLOCK 1000		/* points in one array */

struct point {
	ref at, belongs;
};

struct pair {
	uint64_t centre;
	double distance;
};

static struct type point_type = { .name = "point", .size = sizeof(struct point), .bitmap = 3 };
static struct type pair_type = { .name = "pair", .size = sizeof(struct pair) };

/* Where points of a place are: two places agree in one dimension, the fifth, and in no other. */
static double place(size_t centre, size_t dimension)
{
	return 10.0 * (double)((centre * 7 + dimension * (centre + 1)) % (CENTRES + 1));
}

static ref point_new(ctx c, size_t i, uint64_t *seed)
{
	ref slots[1] = { NONE }, r;
	struct doubles *x;

	ROOTS(c, slots, 1);
	slots[0] = doubles_new(c, DIMENSIONS);
	x = PTR(slots[0]);
	for (size_t d = 0; d < DIMENSIONS; d++)
		x->at[d] = place(i % CENTRES, d) + SPREAD * (2 * next_unit(seed) - 1);
	r = object_new(c, &point_type);
	INIT(&((struct point *)PTR(r))->at, slots[0]);
	UNROOT(c);
	return r;
}

static ref point_at(ctx c, ref blocks, size_t i)
{
	ref block = LOAD(c, blocks, &((struct refs *)PTR(blocks))->at[i / BLOCK]);

	return LOAD(c, block, &((struct refs *)PTR(block))->at[i % BLOCK]);
}

struct means {
	double at[CENTRES][DIMENSIONS];
};

static void assign(ctx c, ref point, const struct means *means)
{
	ref slots[1] = { point }, made;
	struct pair best = { 0, INFINITY };
	const struct doubles *x;

	ROOTS(c, slots, 1);
	x = PTR(LOAD(c, point, &((struct point *)PTR(point))->at));
	for (size_t k = 0; k < CENTRES; k++) {
		double sum = 0;

		for (size_t d = 0; d < DIMENSIONS; d++)
			sum += (x->at[d] - means->at[k][d]) * (x->at[d] - means->at[k][d]);
		if (sum < best.distance)
			best = (struct pair){ k, sum };
	}
	made = object_new(c, &pair_type);
	*(struct pair *)PTR(made) = best;
	STORE(c, slots[0], &((struct point *)PTR(slots[0]))->belongs, made);
	UNROOT(c);
}

/* Computes the means of the clusters; returns the sum of squared distances. */
static double update(ctx c, ref blocks, size_t n, struct means *means)
{
	struct means sums = { 0 };
	size_t counts[CENTRES] = { 0 };
	double cost = 0;

	for (size_t i = 0; i < n; i++) {
		ref point = point_at(c, blocks, i);
		const struct point *p = PTR(point);
		const struct doubles *x = PTR(LOAD(c, point, &p->at));
		const struct pair *pair = PTR(LOAD(c, point, &p->belongs));

		for (size_t d = 0; d < DIMENSIONS; d++)
			sums.at[pair->centre][d] += x->at[d];
		counts[pair->centre]++;
		cost += pair->distance;
		POLL(c);
	}
	for (size_t k = 0; k < CENTRES; k++)
		for (size_t d = 0; d < DIMENSIONS; d++)
			if (counts[k])
				means->at[k][d] = sums.at[k][d] / (double)counts[k];
	return cost;
}

static double work(ctx c, unsigned int thread)
{
	uint64_t seed = 9265358979323846433u + thread * 1000003u;
	ref slots[3] = { NONE, NONE, NONE };
	size_t n = size / threads;
	struct means means;
	double cost = INFINITY;

	ROOTS(c, slots, 3);
	slots[0] = refs_new(c, (n + BLOCK - 1) / BLOCK);
	for (size_t i = 0; i < n; i++) {
		if (i % BLOCK == 0) {
			slots[1] = refs_new(c, n - i < BLOCK ? n - i : BLOCK);
			STORE(c, slots[0], &((struct refs *)PTR(slots[0]))->at[i / BLOCK],
			      slots[1]);
		}
		slots[2] = point_new(c, i, &seed);
		STORE(c, slots[1], &((struct refs *)PTR(slots[1]))->at[i % BLOCK], slots[2]);
	}
	/* One point of each place is a good guess, as by the farthest-first rule. */
	for (size_t k = 0; k < CENTRES; k++) {
		ref point = point_at(c, slots[0], k % n);

		memcpy(means.at[k], ((struct doubles *)PTR(LOAD(c, point,
		       &((struct point *)PTR(point))->at)))->at, sizeof(means.at[k]));
	}
	built(c);
	for (unsigned int i = 0; i < rounds; i++) {
		double was = cost;

		for (size_t j = 0; j < n; j++) {
			POLL(c);
			assign(c, point_at(c, slots[0], j), &means);
		}
		cost = update(c, slots[0], n, &means);
		expect(cost <= was * (1 + 1e-9), "a pass made it worse");
	}
	for (size_t j = 0; j < n; j++) {
		const struct pair *pair;
		ref point;

		POLL(c);
		point = point_at(c, slots[0], j);
		pair = PTR(LOAD(c, point, &((struct point *)PTR(point))->belongs));
		expect(pair->centre == j % CENTRES, "a point belongs to another's place");
	}
	for (size_t k = 0; k < CENTRES && n > 100 * CENTRES; k++)
		for (size_t d = 0; d < DIMENSIONS; d++)
			expect(fabs(means.at[k][d] - place(k, d)) < SPREAD, "a mean is not at its place");
	UNROOT(c);
	return cost;
}

int main(int argc, char **argv)
{
	static struct type *types[] = { &point_type, &pair_type, NULL };
	struct program p = {
		.name = "kmeans", .types = types, .size = 200000, .rounds = 8, .work = work,
	};

	return program_main(&p, argc, argv);
}
