// SPDX-License-Identifier: GPL-2.0-or-later
/* Rows found by their key: a hash join, and gets of which some are asked for often. */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../walk.h"
#include "walks.h"

/* Open addressing, at most half full; holds a row's number plus one. */
struct index {
	uint32_t *slot;
	int bits;
};

static int index_new(struct index *x, uint64_t rows)
{
	if (rows > UINT32_MAX / 4) {
		fprintf(stderr, "walks: too many rows for a 32-bit index\n");
		return -EINVAL;
	}
	for (x->bits = 1; 1ULL << x->bits < 2 * rows; x->bits++)
		;
	x->slot = walks_map(sizeof(*x->slot) << x->bits);
	return x->slot ? 0 : -ENOMEM;
}

static void index_clear(struct index *x)
{
	memset(x->slot, 0, sizeof(*x->slot) << x->bits);
}

static uint64_t index_home(const struct index *x, uint64_t key)
{
	return key * MIX >> (64 - x->bits);
}

static void index_put(struct index *x, uint64_t key, uint64_t row)
{
	uint64_t mask = (1ULL << x->bits) - 1, at = index_home(x, key);

	while (x->slot[at])
		at = (at + 1) & mask;
	x->slot[at] = (uint32_t)row + 1;
}

static uint64_t key_of(const struct walks *w, uint64_t row)
{
	return (row + 1 + (w->seed << 32)) * MIX ^ 0x5bd1e995;
}

/* --- hash join ------------------------------------------------------------ */

#define TUPLE_WORDS 32

struct tuple {
	uint64_t key, word[TUPLE_WORDS - 1];    /* word[i] = key + i + 1 */
};

struct join {
	struct tuple *build, *probe;
	uint64_t builds, probes;
	struct index index;
};

static void tuple_fill(struct tuple *t, uint64_t key)
{
	t->key = key;
	for (int i = 0; i < TUPLE_WORDS - 1; i++)
		t->word[i] = key + i + 1;
}

/* The row of the build side that probe @i belongs to. */
static uint64_t partner_of(const struct join *j, uint64_t i)
{
	uint64_t hash = (i + 1) * MIX;

	hash = (hash ^ hash >> 29) * MIX;
	return (hash >> 32) * j->builds >> 32;
}

/* Three quarters of the memory are built from, one quarter probes. */
static int join_prepare(struct walks *w)
{
	struct join *j = calloc(1, sizeof(*j));
	int r;

	if (!j)
		return -ENOMEM;
	w->data = j;
	j->builds = w->bytes / 4 * 3 / sizeof(struct tuple);
	j->probes = w->bytes / 4 / sizeof(struct tuple);
	r = index_new(&j->index, j->builds);
	if (r)
		return r;
	j->build = walks_map(j->builds * sizeof(*j->build));
	j->probe = walks_map(j->probes * sizeof(*j->probe));
	if (!j->build || !j->probe)
		return -ENOMEM;
	for (uint64_t i = 0; i < j->builds; i++)
		tuple_fill(&j->build[i], key_of(w, i));
	for (uint64_t i = 0; i < j->probes; i++)
		tuple_fill(&j->probe[i], key_of(w, partner_of(j, i)));
	return 0;
}

/* The tuple of the build side with @key, or NULL. */
static const struct tuple *join_find(const struct join *j, uint64_t key)
{
	const struct index *x = &j->index;
	uint64_t mask = (1ULL << x->bits) - 1;

	for (uint64_t at = index_home(x, key); x->slot[at]; at = (at + 1) & mask)
		if (x->slot[at] <= j->builds && j->build[x->slot[at] - 1].key == key)
			return &j->build[x->slot[at] - 1];
	return NULL;
}

static void join_pass(struct walks *w, uint64_t number)
{
	struct join *j = w->data;

	index_clear(&j->index);
	for (uint64_t i = 0; i < j->builds; i++) {
		w->bad += j->build[i].key != key_of(w, i);
		index_put(&j->index, j->build[i].key, i);
	}
	for (uint64_t i = 0; i < j->probes; i++) {
		const struct tuple *p = &j->probe[i], *b = join_find(j, p->key);

		if (!b) {
			w->bad++;
			continue;
		}
		w->bad += b != &j->build[partner_of(j, i)];
		for (int k = 0; k < TUPLE_WORDS - 1; k++)
			w->bad += p->word[k] + b->word[k] != 2 * (p->key + k + 1);
	}
}

const struct walk_kind walk_join = {
	"join", "hash join: index built front to back, then probed at random", 0,
	join_prepare, join_pass,
};

/* --- key-value gets ------------------------------------------------------- */

/* A quarter of a page. */
#define ITEM_WORDS 128
#define THETA 0.99

struct item {
	uint64_t key, word[ITEM_WORDS - 1];     /* word[i] = key + i + 1 */
};

/* Zipf's distribution by the method of Gray et al. 1994, section 3.2. */
struct zipf {
	double zeta, alpha, eta;
	uint64_t n;
};

struct store {
	struct item *item;
	struct index index;
	struct zipf zipf;
};

static void zipf_init(struct zipf *z, uint64_t n)
{
	double zeta2 = 1 + pow(0.5, THETA);

	*z = (struct zipf){ .n = n, .alpha = 1 / (1 - THETA) };
	for (uint64_t i = 1; i <= n; i++)
		z->zeta += pow(1 / (double)i, THETA);
	z->eta = (1 - pow(2 / (double)n, 1 - THETA)) / (1 - zeta2 / z->zeta);
}

/* 0 is the most frequent. */
static uint64_t zipf_draw(const struct zipf *z, uint64_t *state)
{
	double u = (double)(next_random(state) >> 11) / (double)(1ULL << 53);
	uint64_t rank;

	if (u * z->zeta < 1)
		return 0;
	if (u * z->zeta < 1 + pow(0.5, THETA))
		return 1;
	rank = (uint64_t)((double)z->n * pow(z->eta * u - z->eta + 1, z->alpha));
	return rank < z->n ? rank : z->n - 1;
}

static int zipf_prepare(struct walks *w)
{
	struct store *s = calloc(1, sizeof(*s));
	uint64_t n = w->bytes / sizeof(struct item);
	int r;

	if (!s)
		return -ENOMEM;
	w->data = s;
	zipf_init(&s->zipf, n);
	r = index_new(&s->index, n);
	if (r)
		return r;
	s->item = walks_map(n * sizeof(*s->item));
	if (!s->item)
		return -ENOMEM;
	for (uint64_t i = 0; i < n; i++) {
		struct item *t = &s->item[i];

		t->key = key_of(w, i);
		for (int k = 0; k < ITEM_WORDS - 1; k++)
			t->word[k] = t->key + k + 1;
		index_put(&s->index, t->key, i);
	}
	return 0;
}

static uint64_t get(const struct store *s, uint64_t key)
{
	const struct index *x = &s->index;
	uint64_t mask = (1ULL << x->bits) - 1, bad = 0;

	for (uint64_t at = index_home(x, key); x->slot[at]; at = (at + 1) & mask) {
		const struct item *t = &s->item[x->slot[at] - 1];

		if (t->key != key)
			continue;
		for (int k = 0; k < ITEM_WORDS - 1; k++)
			bad += t->word[k] != key + k + 1;
		return bad;
	}
	return 1;
}

/* As many gets as items; frequent ones lie anywhere. */
static void zipf_pass(struct walks *w, uint64_t number)
{
	const struct store *s = w->data;
	uint64_t state = (w->seed + number) * MIX | 1;

	for (uint64_t i = 0; i < s->zipf.n; i++) {
		uint64_t rank = zipf_draw(&s->zipf, &state) + 1, hash = rank * MIX;

		hash = (hash ^ hash >> 29) * MIX;
		w->bad += get(s, key_of(w, (hash >> 32) * s->zipf.n >> 32));
	}
}

const struct walk_kind walk_zipf = {
	"zipf", "gets of items of 1 KiB by key, Zipf 0.99, as many a pass as there are items", 0,
	zipf_prepare, zipf_pass,
};
