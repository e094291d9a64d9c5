// SPDX-License-Identifier: GPL-2.0-or-later
/* Arrays and matrices: orders that a compiler could tell from the source. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "../walk.h"
#include "walks.h"

/* --- a[i] = b[i] + c[i] + ... -------------------------------------------- */

#define MAX_ARRAYS 64

struct sum {
	uint64_t *array[MAX_ARRAYS];    /* array[0] is the target */
	uint64_t length;
	uint64_t factor;                /* of i in the sum of all sources */
};

static uint64_t sum_factor(const struct walks *w, uint64_t array)
{
	return (w->seed << 16 | (2 * array + 1)) * MIX;
}

static int sum_prepare(struct walks *w)
{
	struct sum *s = calloc(1, sizeof(*s));

	if (!s || w->param < 2 || w->param > MAX_ARRAYS) {
		fprintf(stderr, "walks: sum: 2 to %d arrays\n", MAX_ARRAYS);
		return -EINVAL;
	}
	w->data = s;
	s->length = w->bytes / w->param / sizeof(uint64_t);
	for (uint64_t k = 0; k < w->param; k++) {
		uint64_t factor = k ? sum_factor(w, k) : 0;

		s->array[k] = walks_map(s->length * sizeof(uint64_t));
		if (!s->array[k])
			return -ENOMEM;
		for (uint64_t i = 0; i < s->length; i++)
			s->array[k][i] = i * factor;
		s->factor += factor;
	}
	/* As the pass before the first would have left it. */
	for (uint64_t i = 0; i < s->length; i++)
		s->array[0][i] = i * s->factor;
	return 0;
}

static void sum_pass(struct walks *w, uint64_t number)
{
	const struct sum *s = w->data;
	uint64_t *a = s->array[0];

	for (uint64_t i = 0; i < s->length; i++) {
		uint64_t sum = 0;

		for (uint64_t k = 1; k < w->param; k++)
			sum += s->array[k][i];
		w->bad += (sum != i * s->factor) + (a[i] != i * s->factor + number);
		a[i] = sum + number + 1;
	}
}

const struct walk_kind walk_sum = {
	"sum", "N arrays walked together, the first becoming the sum of the others (3)", 3,
	sum_prepare, sum_pass,
};

/* --- threads with a stream each ------------------------------------------ */

struct worker {
	struct crowd *crowd;
	const uint64_t *words;
	uint64_t factor, bad;
	pthread_t thread;
};

struct crowd {
	uint64_t length;        /* words of each */
	pthread_barrier_t begin, end;
	struct worker worker[];
};

/* Lives as long as the program, as a pool's threads do. */
static void *work(void *data)
{
	struct worker *me = data;

	for (;;) {
		pthread_barrier_wait(&me->crowd->begin);
		for (uint64_t i = 0; i < me->crowd->length; i++)
			me->bad += me->words[i] != i * me->factor;
		pthread_barrier_wait(&me->crowd->end);
	}
	return NULL;
}

static int threads_prepare(struct walks *w)
{
	struct crowd *c = calloc(1, sizeof(*c) + w->param * sizeof(c->worker[0]));

	if (!c)
		return -ENOMEM;
	w->data = c;
	c->length = w->bytes / w->param / sizeof(uint64_t);
	pthread_barrier_init(&c->begin, NULL, w->param + 1);
	pthread_barrier_init(&c->end, NULL, w->param + 1);
	for (uint64_t k = 0; k < w->param; k++) {
		struct worker *one = &c->worker[k];
		uint64_t *words = walks_map(c->length * sizeof(*words));

		if (!words)
			return -ENOMEM;
		one->crowd = c;
		one->factor = sum_factor(w, k);
		for (uint64_t i = 0; i < c->length; i++)
			words[i] = i * one->factor;
		one->words = words;
		if (pthread_create(&one->thread, NULL, work, one)) {
			fprintf(stderr, "walks: cannot start a thread\n");
			return -EAGAIN;
		}
	}
	return 0;
}

static void threads_pass(struct walks *w, uint64_t number)
{
	struct crowd *c = w->data;

	pthread_barrier_wait(&c->begin);
	pthread_barrier_wait(&c->end);
	for (uint64_t k = 0; k < w->param; k++) {
		w->bad += c->worker[k].bad;
		c->worker[k].bad = 0;
	}
}

const struct walk_kind walk_threads = {
	"threads", "N threads, each its own array front to back (8)", 8,
	threads_prepare, threads_pass,
};

/* --- column walk ---------------------------------------------------------- */

/* A row is eight pages. */
#define COLUMNS (8 * PAGE / sizeof(double))

static double cell(uint64_t row, uint64_t column)
{
	return (double)(3 * row + 5 * column);
}

static int column_prepare(struct walks *w)
{
	uint64_t rows = w->bytes / (COLUMNS * sizeof(double));
	double *m = walks_map(rows * COLUMNS * sizeof(*m));

	if (!m)
		return -ENOMEM;
	w->data = m;
	for (uint64_t r = 0; r < rows; r++)
		for (uint64_t c = 0; c < COLUMNS; c++)
			m[r * COLUMNS + c] = cell(r, c);
	return 0;
}

static void column_pass(struct walks *w, uint64_t number)
{
	uint64_t rows = w->bytes / (COLUMNS * sizeof(double));
	const double *m = w->data;

	for (uint64_t c = 0; c < COLUMNS; c++)
		for (uint64_t r = 0; r < rows; r++)
			w->bad += m[r * COLUMNS + c] != cell(r, c);
}

const struct walk_kind walk_column = {
	"column", "every column of a row-major matrix, top to bottom; a row is 8 pages", 0,
	column_prepare, column_pass,
};

/* --- blocked matrix multiply ---------------------------------------------- */

#define BLOCK 64

/* c = a * b, n x n each; a and b of rank 1, so that c is known cell by cell. */
struct multiply {
	double *a, *b, *c;
	double inner;           /* the inner product of a's row and b's column factors */
	uint64_t n;
};

/* Small whole numbers: every sum is exact. */
static double row_factor(uint64_t i)
{
	return (double)(i % 13 + 1);
}

static double column_factor(uint64_t j)
{
	return (double)(j % 11 + 1);
}

static int multiply_prepare(struct walks *w)
{
	struct multiply *m = calloc(1, sizeof(*m));
	uint64_t n = (uint64_t)sqrt((double)w->bytes / 3 / sizeof(double)) / BLOCK * BLOCK;

	if (!m || !n)
		return -ENOMEM;
	w->data = m;
	m->n = n;
	m->a = walks_map(n * n * sizeof(double));
	m->b = walks_map(n * n * sizeof(double));
	m->c = walks_map(n * n * sizeof(double));
	if (!m->a || !m->b || !m->c)
		return -ENOMEM;
	for (uint64_t i = 0; i < n; i++) {
		for (uint64_t j = 0; j < n; j++) {
			m->a[i * n + j] = row_factor(i) * (double)(j % 7 + 1);
			m->b[i * n + j] = (double)(i % 5 + 1) * column_factor(j);
			m->c[i * n + j] = 0;
		}
		m->inner += (double)(i % 7 + 1) * (double)(i % 5 + 1);
	}
	return 0;
}

/* One block of c, corner (@i0, @j0). */
static uint64_t multiply_block(const struct multiply *m, uint64_t i0, uint64_t j0)
{
	uint64_t n = m->n, bad = 0;

	for (uint64_t i = i0; i < i0 + BLOCK; i++)
		memset(&m->c[i * n + j0], 0, BLOCK * sizeof(double));
	for (uint64_t k0 = 0; k0 < n; k0 += BLOCK) {
		for (uint64_t i = i0; i < i0 + BLOCK; i++) {
			double *restrict c = &m->c[i * n + j0];

			for (uint64_t k = k0; k < k0 + BLOCK; k++) {
				const double *restrict b = &m->b[k * n + j0];
				double a = m->a[i * n + k];

				for (uint64_t j = 0; j < BLOCK; j++)
					c[j] += a * b[j];
			}
		}
	}
	for (uint64_t i = i0; i < i0 + BLOCK; i++)
		for (uint64_t j = j0; j < j0 + BLOCK; j++)
			bad += m->c[i * n + j] != row_factor(i) * column_factor(j) * m->inner;
	return bad;
}

static void multiply_pass(struct walks *w, uint64_t number)
{
	const struct multiply *m = w->data;

	for (uint64_t i = 0; i < m->n; i += BLOCK)
		for (uint64_t j = 0; j < m->n; j += BLOCK)
			w->bad += multiply_block(m, i, j);
}

const struct walk_kind walk_multiply = {
	"multiply", "matrix multiply in blocks of 64 x 64", 0, multiply_prepare, multiply_pass,
};
