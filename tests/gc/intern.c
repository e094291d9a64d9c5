// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A table of interned strings: weak references to -n of them at twice as many places, as a language
 * runtime has for symbols.  Each of -r operations per string interns a random key, small ones more
 * often than large ones, and keeps the string in a strong table, which drops the oldest.  Needs
 * libebbgc.
 */
#include "system.h"

#define KEYS 4			/* keys per kept string: most must be created again */
#define LEAST 24
#define SPREAD 40

static ebbgc_type_t weak_type;

static int prepare(void)
{
	static const struct ebbgc_run all = { sizeof(uint64_t), EBBGC_COUNT_LENGTH, 8 };
	const struct ebbgc_layout weak = {
		.name = "weak references", .flags = EBBGC_WEAK, .size = 8, .element_size = 8,
		.length_width = 8, .runs = &all, .run_count = 1,
	};

	return ebbgc_type_register(heap, &weak, &weak_type);
}

/* Parts of PART weak references, as parts_new() has of strong ones. */
static ref table_new(ctx c, size_t n)
{
	ref slots[1] = { NONE };

	ROOTS(c, slots, 1);
	slots[0] = refs_new(c, (n + PART - 1) / PART);
	for (size_t i = 0; i < n; i += PART) {
		ref part = checked(ebbgc_alloc_length(c, weak_type, n - i < PART ? n - i : PART));

		STORE(c, slots[0], &((struct refs *)PTR(slots[0]))->at[i / PART], part);
	}
	UNROOT(c);
	return slots[0];
}

static uint64_t key_of(ref string)
{
	uint64_t key;

	memcpy(&key, ((struct bytes *)PTR(string))->at, sizeof(key));
	return key;
}

static ref string_new(ctx c, uint64_t key)
{
	size_t n = LEAST + key % SPREAD;
	ref r = leaf_new(c, n);
	unsigned char *at = ((struct bytes *)PTR(r))->at;

	memcpy(at, &key, sizeof(key));
	memset(at + sizeof(key), (unsigned char)key, n - sizeof(key));
	return r;
}

/* Returns the string of a key: that of the table, or a new one in its place. */
static ref intern(ctx c, ref table, size_t places, uint64_t key)
{
	size_t i = key * UINT64_C(0xff51afd7ed558ccd) % places;
	ref slots[2] = { table, NONE }, *slot;

	slots[1] = LOAD(c, table, &((struct refs *)PTR(table))->at[i / PART]);
	slot = &((struct refs *)PTR(slots[1]))->at[i % PART];
	ref found = ebbgc_load_weak(c, slots[1], slot);

	if (!IS_NULL(found) && key_of(found) == key)
		return found;
	ROOTS(c, slots, 2);
	found = string_new(c, key);
	STORE(c, slots[1], slot, found);
	UNROOT(c);
	return found;
}

static double work(ctx c, unsigned int thread)
{
	uint64_t seed = 88172645463325252u + thread * 1000003u, n = size / threads;
	uint64_t operations = operations_of(n);
	ref slots[2] = { NONE, NONE };
	double sum = 0;

	ROOTS(c, slots, 2);
	slots[0] = parts_new(c, n);
	slots[1] = table_new(c, 2 * n);
	for (uint64_t i = 0; i < n; i++)
		parts_put(c, slots[0], i, intern(c, slots[1], 2 * n, i));
	built(c);
	for (uint64_t i = 0; i < operations; i++) {
		double skewed = next_unit(&seed) * next_unit(&seed);
		uint64_t key = (uint64_t)(skewed * (double)(KEYS * n));
		ref string = intern(c, slots[1], 2 * n, key);
		const struct bytes *b = PTR(string);

		expect(key_of(string) == key && b->length == LEAST + key % SPREAD &&
		       b->at[b->length - 1] == (unsigned char)key, "a string is not what was interned");
		sum += (double)(key % 1000);
		parts_put(c, slots[0], i % n, string);
		POLL(c);
	}
	UNROOT(c);
	return sum;
}

int main(int argc, char **argv)
{
	static struct type *types[] = { NULL };
	struct program p = {
		.name = "intern", .types = types, .prepare = prepare, .size = 200000, .rounds = 4,
		.work = work,
	};

	return program_main(&p, argc, argv);
}
