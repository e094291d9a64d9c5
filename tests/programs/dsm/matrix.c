// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A matrix product C = A B of size x size numbers, in tiles.  Worker r makes each workers-th row of
 * tiles of A and B, and computes that row of C; it reads all tiles of B.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { TILES = 8, TILE_MOST = 256, KIND_TILES = KIND_PROGRAM };

struct tiles {
	uint32_t tile; /* side of a tile, in numbers */
	struct object a[TILES][TILES], b[TILES][TILES];
};

/* Small whole numbers: all sums are exact. */
static float element(uint32_t which, uint32_t i, uint32_t k)
{
	return (float)((int)(hash((uint64_t)which << 40 | (uint64_t)i << 20 | k) % 9) - 4);
}

static void make_tile(struct worker *w, uint32_t which, uint32_t tile, uint32_t i, uint32_t k,
		      float *numbers, struct object *o)
{
	for (uint32_t y = 0; y < tile; y++)
		for (uint32_t x = 0; x < tile; x++)
			numbers[y * tile + x] = element(which, i * tile + y, k * tile + x);
	w->share->make(w, numbers, tile * tile * (uint32_t)sizeof(float), o);
}

/* c += a b */
static void multiply(float *restrict c, const float *restrict a, const float *restrict b,
		     uint32_t tile)
{
	for (uint32_t y = 0; y < tile; y++)
		for (uint32_t k = 0; k < tile; k++) {
			float f = a[y * tile + k];

			for (uint32_t x = 0; x < tile; x++)
				c[y * tile + x] += f * b[k * tile + x];
		}
}

static uint64_t digest_of(const float *c, uint32_t tile, uint32_t i, uint32_t j)
{
	uint64_t sum = 0;

	for (uint32_t y = 0; y < tile; y++)
		for (uint32_t x = 0; x < tile; x++)
			sum += (uint64_t)(int64_t)c[y * tile + x] *
			       (31 * (i * tile + y) + 17 * (j * tile + x) + 1);
	return sum;
}

/* Computes a tile of C. */
static uint64_t compute(struct worker *w, const struct tiles *t, uint32_t i, uint32_t j, float *c)
{
	memset(c, 0, (size_t)t->tile * t->tile * sizeof(*c));
	for (uint32_t k = 0; k < TILES; k++) {
		const float *a = w->share->read(w, &t->a[i][k]);
		const float *b = w->share->read(w, &t->b[k][j]);

		multiply(c, a, b, t->tile);
		w->share->done(w, &t->b[k][j], b);
		w->share->done(w, &t->a[i][k], a);
	}
	return digest_of(c, t->tile, i, j);
}

static void exchange(struct worker *w, struct tiles *t)
{
	struct object received[TILES * TILES];
	uint32_t n = 0, own = 0;

	for (uint32_t i = w->rank; i < TILES; i += w->workers, own++)
		for (uint32_t to = 0; to < w->workers; to++)
			if (to != w->rank)
				share_send(w, to, KIND_TILES + i, t->b[i], TILES);
	for (uint32_t i = 0; i < TILES; i++)
		if (i % w->workers != w->rank)
			n += share_receive(w, KIND_TILES + i, &received[n], TILES);
	n = 0;
	for (uint32_t i = 0; i < TILES; i++)
		for (uint32_t k = 0; k < TILES && i % w->workers != w->rank; k++)
			t->b[i][k] = received[n++];
}

static void delete_all(struct worker *w, struct tiles *t)
{
	struct object own[2 * TILES * TILES];
	uint32_t n = 0;

	for (uint32_t i = 0; i < TILES; i++)
		for (uint32_t k = 0; k < TILES; k++) {
			if (i % w->workers != w->rank) {
				share_forget(w, &t->b[i][k]);
				continue;
			}
			own[n++] = t->a[i][k];
			own[n++] = t->b[i][k];
		}
	w->share->drop(w, own, n);
}

static uint64_t run(struct worker *w, uint64_t size)
{
	struct tiles *t = calloc(1, sizeof(*t));
	float *numbers = malloc(TILE_MOST * TILE_MOST * sizeof(*numbers));
	uint64_t sum = 0;

	if (!t || !numbers)
		give_up("out of memory");
	t->tile = (uint32_t)size / TILES;
	if (!t->tile || t->tile > TILE_MOST || size % TILES)
		give_up("a matrix of %lu; give a multiple of %d up to %d", size, TILES,
			TILES * TILE_MOST);
	for (uint32_t i = w->rank; i < TILES; i += w->workers)
		for (uint32_t k = 0; k < TILES; k++) {
			make_tile(w, 0, t->tile, i, k, numbers, &t->a[i][k]);
			make_tile(w, 1, t->tile, i, k, numbers, &t->b[i][k]);
		}
	exchange(w, t);
	for (uint32_t i = w->rank; i < TILES; i += w->workers)
		for (uint32_t j = 0; j < TILES; j++)
			sum += compute(w, t, i, j, numbers);
	barrier();
	delete_all(w, t);
	free(numbers);
	free(t);
	return sum;
}

const struct program program_matrix = { "matrix", NULL, run };
