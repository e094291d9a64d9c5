// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A key-value store: @operations gets and puts by all workers together, of keys that all share,
 * with the popularity of YCSB's Zipf distribution (exponent 0.99; Cooper et al., SoCC 2010).
 * Workloads A, B and C have 50, 95 and 100 % gets.  In workload "own", as A, each key is put by one
 * worker alone, so that the last values are known.
 */
#include <math.h>
#include <stdlib.h>

#include "bench.h"

enum { KEYS = 1024, WORDS = CELL / 8 };

struct value {
	uint64_t key, version, word[WORDS - 2];
};

static double below[KEYS]; /* share of accesses to this key and more popular ones */

static void know_popularity(void)
{
	double sum = 0;

	for (uint32_t k = 0; k < KEYS; k++)
		sum += pow(k + 1, -0.99);
	for (uint32_t k = 0; k < KEYS; k++)
		below[k] = (k ? below[k - 1] : 0) + pow(k + 1, -0.99) / sum;
}

/* Popular keys are spread over the homes. */
static uint32_t pick(uint64_t x)
{
	double u = (double)(x >> 11) / 9007199254740992.0;
	uint32_t low = 0, high = KEYS - 1;

	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (below[middle] < u)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static void fill(struct value *v, uint64_t key, uint64_t version)
{
	v->key = key;
	v->version = version;
	for (uint32_t i = 0; i < WORDS - 2; i++)
		v->word[i] = (key << 32) + version + i;
}

static void check(const struct value *v, uint64_t key)
{
	for (uint32_t i = 0; i < WORDS - 2; i++)
		if (v->key != key || v->word[i] != (key << 32) + v->version + i)
			give_up("key %lu: a value that was never put", key);
}

static void load(struct worker *w, uint64_t operations)
{
	struct value v;

	if (!w->rank)
		know_popularity();
	for (uint32_t k = w->rank; k < KEYS; k += w->workers) {
		fill(&v, k, 0);
		w->share->put(w, k, &v);
	}
	barrier();
	/* Processes do not share what worker 0 has computed. */
	if (below[KEYS - 1] == 0)
		know_popularity();
	for (uint32_t k = 0; k < KEYS && w->share->learn; k++)
		if (!is_mine(w, k % w->workers))
			w->share->learn(w, k);
}

/* Operation @i, whose kind and key do not depend on the worker. */
static void operate(struct worker *w, uint64_t i, uint32_t reads, bool own)
{
	uint64_t x = hash(i * 2), y = hash(i * 2 + 1);
	uint32_t key = pick(x);
	struct value v;

	if (y % 1000 < reads) {
		w->share->get(w, key, &v);
		check(&v, key);
		return;
	}
	/* The worker after the key's home. */
	if (own)
		key = (uint32_t)(hash(i) % (KEYS / w->workers)) * w->workers +
		      (w->rank + w->workers - 1) % w->workers;
	fill(&v, key, i + 1);
	w->share->put(w, key, &v);
}

static uint64_t run_workload(struct worker *w, uint64_t operations, uint32_t reads, bool own)
{
	uint64_t digest = 0;
	struct value v;

	for (uint64_t i = w->rank; i < operations; i += w->workers)
		operate(w, i, reads, own);
	barrier();
	for (uint32_t k = w->rank; k < KEYS && own; k += w->workers) {
		w->share->get(w, k, &v);
		check(&v, k);
		digest += hash(k ^ v.version << 16);
	}
	return digest;
}

static uint64_t run_a(struct worker *w, uint64_t operations)
{
	return run_workload(w, operations, 500, false);
}

static uint64_t run_b(struct worker *w, uint64_t operations)
{
	return run_workload(w, operations, 950, false);
}

static uint64_t run_c(struct worker *w, uint64_t operations)
{
	return run_workload(w, operations, 1000, false);
}

static uint64_t run_own(struct worker *w, uint64_t operations)
{
	return run_workload(w, operations, 500, true);
}

const struct program program_store_a = { "store-a", load, run_a };
const struct program program_store_b = { "store-b", load, run_b };
const struct program program_store_c = { "store-c", load, run_c };
const struct program program_store_own = { "store-own", load, run_own };
