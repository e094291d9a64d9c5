// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A key-value store, as QuickCached in the MemLiner paper's table 4.1: a hash table of chained
 * entries whose values are replaced.  Keys are sampled by Zipf's law (0.99), as in YCSB, and
 * scattered.  -n keys and -r operations per key; KV_WRITES=60 or 20 is the share of writes, %.  A
 * read returns a copy.
 */
#include <math.h>
#include "system.h"

#define THETA 0.99
#define VALUE_MIN 64
#define VALUE_SPREAD 192

struct entry {
	ref next, value;
	uint64_t key, version;
};

static struct type entry_type = { .name = "entry", .size = sizeof(struct entry), .bitmap = 3 };
static unsigned int writes = 60;

struct zipf {
	uint64_t n;
	double zeta, alpha, eta;
};

/* Gray et al., "Quickly generating billion-record synthetic databases", 1994. */
static void zipf_init(struct zipf *z, uint64_t n)
{
	double two = 1 + pow(0.5, THETA);

	z->n = n;
	z->zeta = 0;
	for (uint64_t i = 1; i <= n; i++)
		z->zeta += 1 / pow((double)i, THETA);
	z->alpha = 1 / (1 - THETA);
	z->eta = (1 - pow(2.0 / (double)n, 1 - THETA)) / (1 - two / z->zeta);
}

static uint64_t zipf_next(const struct zipf *z, uint64_t *seed)
{
	double u = next_unit(seed), uz = u * z->zeta;
	uint64_t rank;

	if (uz < 1)
		rank = 0;
	else if (uz < 1 + pow(0.5, THETA))
		rank = 1;
	else
		rank = (uint64_t)((double)z->n * pow(z->eta * u - z->eta + 1, z->alpha));
	if (rank >= z->n)
		rank = z->n - 1;
	/* Scatter popular keys. */
	return rank * UINT64_C(0x9e3779b97f4a7c15) % z->n;
}

static unsigned char content(uint64_t key, uint64_t version)
{
	return (unsigned char)((key * 31 + version * 7) >> 1);
}

static ref value_new(ctx c, uint64_t key, uint64_t version)
{
	size_t n = VALUE_MIN + (key + version) % VALUE_SPREAD;
	ref r = leaf_new(c, n);

	memset(((struct bytes *)PTR(r))->at, content(key, version), n);
	return r;
}

/* The entry of a key, or null. */
static ref find(ctx c, ref table, uint64_t key)
{
	struct refs *t = PTR(table);
	ref at = LOAD(c, table, &t->at[key * UINT64_C(0xff51afd7ed558ccd) % t->length]);

	while (!IS_NULL(at)) {
		struct entry *e = PTR(at);

		if (e->key == key)
			break;
		at = LOAD(c, at, &e->next);
	}
	return at;
}

static void insert(ctx c, ref table, uint64_t key)
{
	ref slots[3] = { table, NONE, NONE };
	struct entry *e;
	struct refs *t;
	ref *bucket;

	ROOTS(c, slots, 3);
	slots[1] = value_new(c, key, 0);
	slots[2] = object_new(c, &entry_type);
	e = PTR(slots[2]);
	e->key = key;
	t = PTR(table);
	bucket = &t->at[key * UINT64_C(0xff51afd7ed558ccd) % t->length];
	INIT(&e->value, slots[1]);
	INIT(&e->next, LOAD(c, table, bucket));
	STORE(c, table, bucket, slots[2]);
	UNROOT(c);
}

static double read_value(ctx c, ref entry)
{
	const struct entry *e = PTR(entry);
	unsigned char written = content(e->key, e->version);
	ref value[1] = { LOAD(c, entry, &e->value) };
	const struct bytes *b = PTR(value[0]);
	struct bytes *answer;

	ROOTS(c, value, 1);
	answer = PTR(leaf_new(c, b->length));
	UNROOT(c);
	memcpy(answer->at, b->at, b->length);
	expect(answer->at[0] == written && answer->at[b->length - 1] == written,
	       "a value is not what was written");
	return answer->at[b->length / 2];
}

static void write_value(ctx c, ref entry)
{
	ref slots[1] = { entry }, value;
	struct entry *e = PTR(entry);

	ROOTS(c, slots, 1);
	value = value_new(c, e->key, e->version + 1);
	e->version++;
	STORE(c, entry, &e->value, value);
	UNROOT(c);
}

static double work(ctx c, unsigned int thread)
{
	uint64_t seed = 88172645463325252u + thread * 1000003u, keys = size / threads;
	uint64_t operations = operations_of(keys);
	ref table[1] = { NONE };
	struct zipf z;
	double sum = 0;

	ROOTS(c, table, 1);
	zipf_init(&z, keys);
	table[0] = refs_new(c, keys / 2 + 1);
	for (uint64_t k = 0; k < keys; k++)
		insert(c, table[0], k);
	built(c);
	for (uint64_t i = 0; i < operations; i++) {
		ref entry = find(c, table[0], zipf_next(&z, &seed));

		expect(!IS_NULL(entry), "a key is missing");
		if (next_random(&seed) % 100 < writes)
			write_value(c, entry);
		else
			sum += read_value(c, entry);
		POLL(c);
	}
	UNROOT(c);
	return sum;
}

int main(int argc, char **argv)
{
	static struct type *types[] = { &entry_type, NULL };
	struct program p = { .name = "kv", .types = types, .size = 200000, .rounds = 10, .work = work };
	const char *share = getenv("KV_WRITES");

	if (share)
		writes = (unsigned int)strtoul(share, NULL, 10);
	return program_main(&p, argc, argv);
}
