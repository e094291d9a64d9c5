// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Count, mean and variance of the values of each key.  Worker 0 has the rows, in chunks; all
 * workers aggregate their share of them, once for the means and once more for the variances.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"

/* With a header, a chunk fits in 512 KiB. */
enum { KEYS = 1000, CHUNK = 65528, CHUNKS = 256 };
enum { KIND_CHUNKS = KIND_PROGRAM, KIND_PART, KIND_MEANS };

struct row {
	uint32_t key, value;
};

struct groups {
	uint64_t count[KEYS], sum[KEYS];
};

static void make_chunk(struct worker *w, uint64_t first, uint32_t n, struct row *rows,
		       struct object *o)
{
	for (uint32_t i = 0; i < n; i++) {
		uint64_t x = hash(first + i);

		rows[i] = (struct row){ (uint32_t)(x % KEYS), (uint32_t)(x >> 32) % 10000 };
	}
	w->share->make(w, rows, n * (uint32_t)sizeof(*rows), o);
}

/* Sums the values, or, with @mean, the squares of their distances from the means. */
static void aggregate(const struct row *rows, uint32_t n, const uint64_t *mean, struct groups *g)
{
	for (uint32_t i = 0; i < n; i++) {
		uint64_t v = rows[i].value;

		if (mean)
			v = (v - mean[rows[i].key]) * (v - mean[rows[i].key]);
		g->count[rows[i].key]++;
		g->sum[rows[i].key] += v;
	}
}

static void add(struct groups *sum, const struct groups *part)
{
	for (uint32_t k = 0; k < KEYS; k++) {
		sum->count[k] += part->count[k];
		sum->sum[k] += part->sum[k];
	}
}

/* One pass over the worker's chunks; worker 0 has the sum over all workers. */
static void pass(struct worker *w, const struct object *chunks, uint32_t n, const uint64_t *mean,
		 struct groups *sum)
{
	struct object part;
	const void *content;

	memset(sum, 0, sizeof(*sum));
	for (uint32_t i = 0; i < n; i++) {
		content = w->share->read(w, &chunks[i]);
		aggregate(content, chunks[i].size / (uint32_t)sizeof(struct row), mean, sum);
		w->share->done(w, &chunks[i], content);
	}
	if (w->rank) {
		w->share->make(w, sum, sizeof(*sum), &part);
		share_send(w, 0, KIND_PART, &part, 1);
		barrier();
		w->share->drop(w, &part, 1);
		return;
	}
	for (uint32_t i = 1; i < w->workers; i++) {
		share_receive(w, KIND_PART, &part, 1);
		content = w->share->read(w, &part);
		add(sum, content);
		w->share->done(w, &part, content);
		share_forget(w, &part);
	}
	barrier();
}

static void send_means(struct worker *w, uint64_t *mean)
{
	struct object o;
	const void *content;

	if (w->rank) {
		share_receive(w, KIND_MEANS, &o, 1);
		content = w->share->read(w, &o);
		memcpy(mean, content, KEYS * sizeof(*mean));
		w->share->done(w, &o, content);
		share_forget(w, &o);
		barrier();
		return;
	}
	w->share->make(w, mean, KEYS * sizeof(*mean), &o);
	for (uint32_t i = 1; i < w->workers; i++)
		share_send(w, i, KIND_MEANS, &o, 1);
	barrier();
	w->share->drop(w, &o, 1);
}

/* Worker 0 makes all chunks in @all; each worker gets its @n ones. */
static uint32_t deal(struct worker *w, uint64_t rows, struct object *all, struct object *mine)
{
	uint32_t chunks = (uint32_t)((rows + CHUNK - 1) / CHUNK), n = 0;
	struct row *buffer = malloc(CHUNK * sizeof(*buffer));

	if (!buffer || chunks > CHUNKS)
		give_up("%lu rows; give at most %d", rows, CHUNK * CHUNKS);
	for (uint32_t i = 0; i < chunks && !w->rank; i++) {
		uint64_t first = (uint64_t)i * CHUNK;
		uint64_t some = rows - first < CHUNK ? rows - first : CHUNK;

		make_chunk(w, first, (uint32_t)some, buffer, &all[i]);
		if (i % w->workers)
			share_send(w, i % w->workers, KIND_CHUNKS, &all[i], 1);
		else
			mine[n++] = all[i];
	}
	free(buffer);
	if (!w->rank)
		return n;
	return share_receive(w, KIND_CHUNKS, mine,
			     (chunks + w->workers - 1 - w->rank) / w->workers);
}

static uint64_t run(struct worker *w, uint64_t rows)
{
	struct object *all = calloc(2 * CHUNKS, sizeof(*all)), *mine = all + CHUNKS;
	struct groups *g = calloc(2, sizeof(*g));
	uint64_t mean[KEYS], digest = 0;
	uint32_t n;

	if (!all || !g)
		give_up("out of memory");
	n = deal(w, rows, all, mine);
	pass(w, mine, n, NULL, &g[0]);
	for (uint32_t k = 0; k < KEYS && !w->rank; k++)
		mean[k] = g[0].count[k] ? g[0].sum[k] / g[0].count[k] : 0;
	send_means(w, mean);
	pass(w, mine, n, mean, &g[1]);
	for (uint32_t k = 0; k < KEYS && !w->rank; k++)
		digest += hash(g[0].sum[k]) + hash(g[1].sum[k] + k) + g[1].count[k];
	for (uint32_t i = 0; i < n && w->rank; i++)
		share_forget(w, &mine[i]);
	barrier();
	if (!w->rank)
		w->share->drop(w, all, (uint32_t)((rows + CHUNK - 1) / CHUNK));
	free(g);
	free(all);
	return digest;
}

const struct program program_group_by = { "group-by", NULL, run };
