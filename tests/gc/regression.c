// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Linear regression over boxed rows, as Spark MLlib in the MemLiner paper's table 4.1: -n rows,
 * each an object with a vector of features, -r passes of gradient descent. Each pass allocates a
 * vector for each row, as a mapping function does, which is garbage at once.
 */
#include <math.h>
#include "system.h"

#define FEATURES 16
#define RATE 0.5
#define BLOCK 1000		/* rows in one array */

struct row {
	ref features;
	double label;
};

static struct type row_type = { .name = "row", .size = sizeof(struct row), .bitmap = 1 };

static double truth(size_t i)
{
	return (double)(i % 7) - 3;
}

static ref row_new(ctx c, uint64_t *seed)
{
	ref slots[1] = { NONE }, r;
	struct doubles *x;
	double label = 0;

	ROOTS(c, slots, 1);
	slots[0] = doubles_new(c, FEATURES);
	x = PTR(slots[0]);
	for (size_t i = 0; i < FEATURES; i++) {
		x->at[i] = 2 * next_unit(seed) - 1;
		label += x->at[i] * truth(i);
	}
	r = object_new(c, &row_type);
	((struct row *)PTR(r))->label = label;
	INIT(&((struct row *)PTR(r))->features, slots[0]);
	UNROOT(c);
	return r;
}

/* A new vector: this row's gradient. */
static ref gradient_of(ctx c, ref row, const double *weights)
{
	ref slots[1] = { row }, result;
	const struct doubles *x;
	struct doubles *g;
	double error;

	ROOTS(c, slots, 1);
	result = doubles_new(c, FEATURES);
	x = PTR(LOAD(c, row, &((struct row *)PTR(row))->features));
	g = PTR(result);
	error = -((struct row *)PTR(row))->label;
	for (size_t i = 0; i < FEATURES; i++)
		error += x->at[i] * weights[i];
	for (size_t i = 0; i < FEATURES; i++)
		g->at[i] = error * x->at[i];
	UNROOT(c);
	return result;
}

static ref block_of(ctx c, ref blocks, size_t i)
{
	return LOAD(c, blocks, &((struct refs *)PTR(blocks))->at[i / BLOCK]);
}

static void pass(ctx c, ref blocks, size_t n, double *weights)
{
	double sum[FEATURES] = { 0 };
	ref slots[2] = { blocks, NONE };

	ROOTS(c, slots, 2);
	for (size_t i = 0; i < n; i++) {
		const struct doubles *g;
		ref row;

		if (i % BLOCK == 0)
			slots[1] = block_of(c, blocks, i);
		row = LOAD(c, slots[1], &((struct refs *)PTR(slots[1]))->at[i % BLOCK]);
		g = PTR(gradient_of(c, row, weights));
		for (size_t j = 0; j < FEATURES; j++)
			sum[j] += g->at[j];
	}
	for (size_t j = 0; j < FEATURES; j++)
		weights[j] -= RATE * sum[j] / (double)n;
	UNROOT(c);
}

static double work(ctx c, unsigned int thread)
{
	uint64_t seed = 2685821657736338717u + thread * 1000003u;
	double weights[FEATURES] = { 0 }, worst = 0, sum = 0;
	ref slots[3] = { NONE, NONE, NONE };
	size_t n = size / threads;

	ROOTS(c, slots, 3);
	slots[0] = refs_new(c, (n + BLOCK - 1) / BLOCK);
	for (size_t i = 0; i < n; i++) {
		if (i % BLOCK == 0) {
			slots[1] = refs_new(c, n - i < BLOCK ? n - i : BLOCK);
			STORE(c, slots[0], &((struct refs *)PTR(slots[0]))->at[i / BLOCK],
			      slots[1]);
		}
		slots[2] = row_new(c, &seed);
		STORE(c, slots[1], &((struct refs *)PTR(slots[1]))->at[i % BLOCK], slots[2]);
	}
	built(c);
	for (unsigned int i = 0; i < rounds; i++)
		pass(c, slots[0], n, weights);
	for (size_t i = 0; i < FEATURES; i++) {
		worst = fmax(worst, fabs(weights[i] - truth(i)));
		sum += weights[i];
	}
	/* Each pass takes the error down to 1 - RATE / 3 of itself. */
	expect(worst < 3.5 * pow(1 - RATE / 3, rounds) + 0.1, "weights do not converge to the truth");
	UNROOT(c);
	return sum;
}

int main(int argc, char **argv)
{
	static struct type *types[] = { &row_type, NULL };
	struct program p = {
		.name = "regression", .types = types, .size = 200000, .rounds = 20, .work = work,
	};

	return program_main(&p, argc, argv);
}
