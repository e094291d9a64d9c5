// SPDX-License-Identifier: GPL-2.0-or-later
/* policies/replay.bpf.c, compiled natively: the code the kernel runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <cmocka.h>

#include "memory_world.h"
#include "policies/replay.bpf.c"

#define PAGES 100000

static void walk(struct memory *m, const uint32_t *order, uint32_t n)
{
	memory_count_anew(m);
	for (uint32_t i = 0; i < n; i++)
		memory_visit(m, 0, 0, order[i]);
}

/* The figures behind the assertions; unit.py shows them when one fails. */
static void show(const char *what, const struct memory *m)
{
	print_message("%-24s coverage %.4f accuracy %.4f misses %lu late %lu wasted %lu "
		      "unseen %lu\n", what, memory_coverage(m),
		      memory_accuracy(m), m->count.misses, m->count.late, m->count.wasted,
		      m->count.unseen);
}

static void assert_quiet(const char *what, const struct memory *m)
{
	show(what, m);
	assert_true(m->count.misses > 0);
	assert_true(m->count.asked * 100 <= m->count.misses);
}

static void assert_follows(const char *what, const struct memory *m, double coverage,
			   double accuracy)
{
	show(what, m);
	assert_true(memory_coverage(m) >= coverage);
	assert_true(memory_accuracy(m) >= accuracy);
	assert_int_equal(m->count.outside, 0);
}

/* The entry of a thread of a process with one thread. */
static struct replay_thread *thread_of(uint32_t id)
{
	uint32_t at = replay_slot(id, 1ULL << 32 | id);

	return at < REPLAY_THREADS ? replay_threads_at(at) : NULL;
}

static void permutation(void **unused)
{
	static const struct {
		uint32_t percent, latency;
	} row[] = { { 50, 0 }, { 50, 8 }, { 50, 64 }, { 25, 8 }, { 25, 64 }, { 2, 256 } };
	uint64_t seed = 7;
	uint32_t *order = memory_permutation(PAGES, &seed);

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct memory *m = memory_new(&replay_policy, 1, PAGES,
					      PAGES / 100 * row[i].percent);

		m->latency = row[i].latency;
		m->issue = row[i].latency / 4;
		walk(m, order, PAGES);
		assert_int_equal(m->count.misses, PAGES);
		assert_quiet("first turn", m);
		for (int turn = 2; turn <= 3; turn++) {
			walk(m, order, PAGES);
			assert_follows("permutation", m, 0.98, 0.98);
		}
		memory_free(m);
	}
	free(order);
}

/* Other pages are resident each turn: their places in the order must not be lost. */
static void other_pages_each_turn(void **unused)
{
	uint64_t seed = 7;
	uint32_t *order = memory_permutation(PAGES, &seed);

	for (uint32_t percent = 25; percent <= 75; percent += 25) {
		struct memory *m = memory_new(&replay_policy, 1, PAGES, PAGES / 100 * percent);

		m->eviction = EVICT_RANDOM;
		walk(m, order, PAGES);
		for (int turn = 2; turn <= 5; turn++) {
			walk(m, order, PAGES);
			assert_follows("random eviction", m, 0.98, 0.98);
		}
		memory_free(m);
	}
	free(order);
}

/* What is not carried is forgotten with the turn that saw it, here in the fourth. */
static void keep(void **unused)
{
	uint64_t seed = 7;
	uint32_t pages = REPLAY_CHUNKS * REPLAY_ENTRIES / 5 * 3;
	uint32_t *order = memory_permutation(pages, &seed);
	double coverage[2];

	for (int k = 0; k < 2; k++) {
		struct memory *m = memory_new(&replay_policy, 1, pages, pages / 4 * 3);

		m->eviction = EVICT_RANDOM;
		m->sim[0].params.v[KEEP] = 2 * k;
		for (int turn = 1; turn <= 4; turn++)
			walk(m, order, pages);
		show(k ? "keep=2" : "keep=0", m);
		coverage[k] = memory_coverage(m);
		memory_free(m);
	}
	assert_true(coverage[1] > 0.95);
	assert_true(coverage[1] > coverage[0] + 0.05);
	free(order);
}

/* In each turn 2.5 % of the pages swap places with as many others. */
static void changing_order(void **unused)
{
	uint64_t seed = 7;
	uint32_t *order = memory_permutation(PAGES, &seed);
	struct memory *m = memory_new(&replay_policy, 1, PAGES, PAGES / 2);

	walk(m, order, PAGES);
	for (int turn = 2; turn <= 5; turn++) {
		for (int i = 0; i < PAGES / 40; i++) {
			uint32_t a = memory_random(&seed) % PAGES, b = memory_random(&seed) % PAGES;
			uint32_t was = order[a];

			order[a] = order[b];
			order[b] = was;
		}
		walk(m, order, PAGES);
		assert_follows("5 % changed", m, 0.95, 0.95);
	}
	memory_free(m);
	free(order);
}

/* Two neighbours in the order come either way round, as with two cores at it. */
static void swapped_neighbours(void **unused)
{
	uint64_t seed = 7;
	uint32_t *order = memory_permutation(PAGES, &seed);
	struct memory *m = memory_new(&replay_policy, 1, PAGES, PAGES / 4);

	for (int turn = 1; turn <= 3; turn++) {
		memory_count_anew(m);
		for (uint32_t i = 0; i < PAGES; i += 2) {
			uint32_t first = memory_random(&seed) & 1;

			memory_visit(m, 0, 0, order[i + first]);
			memory_visit(m, 0, 0, order[i + 1 - first]);
		}
	}
	assert_follows("swapped neighbours", m, 0.95, 0.95);
	memory_free(m);
	free(order);
}

/* One visit in five goes to a random page of another part. */
static void strays(void **unused)
{
	uint64_t seed = 7;
	uint32_t half = PAGES / 2, *order = memory_permutation(half, &seed);
	struct memory *m = memory_new(&replay_policy, 1, PAGES, PAGES / 4);

	for (int turn = 1; turn <= 5; turn++) {
		memory_count_anew(m);
		for (uint32_t i = 0; i < half;)
			if (memory_random(&seed) % 5)
				memory_visit(m, 0, 0, order[i++]);
			else
				memory_visit(m, 0, 0, half + memory_random(&seed) % half);
	}
	assert_follows("a fifth is random", m, 0.8, 0.8);
	memory_free(m);
	free(order);
}

/* Two threads with chains of their own, in turns of random length. */
static void two_threads(void **unused)
{
	uint64_t seed = 7;
	uint32_t half = PAGES / 2;
	uint32_t *a = memory_permutation(half, &seed), *b = memory_permutation(half, &seed);
	struct memory *m = memory_new(&replay_policy, 1, PAGES, PAGES / 4);

	for (int turn = 1; turn <= 3; turn++) {
		uint32_t i = 0, j = 0;

		memory_count_anew(m);
		while (i < half || j < half)
			if (j == half || (i < half && memory_random(&seed) & 1))
				memory_visit(m, 0, 1, a[i++]);
			else
				memory_visit(m, 0, 2, half + b[j++]);
		if (turn > 1)
			assert_follows("two threads", m, 0.98, 0.98);
	}
	memory_free(m);
	free(a);
	free(b);
}

/* Every turn another thread does this part of the work. */
static void threads_that_exchange(void **unused)
{
	uint64_t seed = 7;
	uint32_t part = PAGES / 4, *order = memory_permutation(PAGES, &seed);
	struct memory *m = memory_new(&replay_policy, 1, PAGES, PAGES / 4);

	for (uint32_t turn = 1; turn <= 3; turn++) {
		memory_count_anew(m);
		for (uint32_t i = 0; i < PAGES; i++)
			memory_visit(m, 0, i % 4 + 4 * turn,
				     order[(i + turn) % 4 * part + i / 4]);
		if (turn > 1)
			assert_follows("threads that exchange", m, 0.98, 0.98);
	}
	memory_free(m);
	free(order);
}

/* The same virtual pages, in other orders. */
static void two_processes(void **unused)
{
	uint64_t seed = 7;
	uint32_t half = PAGES / 2;
	uint32_t *a = memory_permutation(half, &seed), *b = memory_permutation(half, &seed);
	struct memory *m = memory_new(&replay_policy, 2, half, PAGES / 4);

	for (int turn = 1; turn <= 3; turn++) {
		memory_count_anew(m);
		for (uint32_t i = 0; i < half; i++) {
			memory_visit(m, 0, 0, a[i]);
			memory_visit(m, 1, 0, b[i]);
		}
		if (turn > 1)
			assert_follows("two processes", m, 0.98, 0.98);
	}
	memory_free(m);
	free(a);
	free(b);
}

/* An exec is another program: nothing of the old one is used. */
static void exec_forgets(void **unused)
{
	uint64_t seed = 7;
	uint32_t *order = memory_permutation(PAGES, &seed);
	struct memory *m = memory_new(&replay_policy, 1, PAGES, PAGES / 4);

	walk(m, order, PAGES);
	m->exec = 2;
	walk(m, order, PAGES);
	assert_quiet("after exec", m);
	memory_free(m);
	free(order);
}

/* The log starts over in the second turn, and holds on to no page it has not. */
static void log_wraps(void **unused)
{
	uint64_t seed = 7;
	uint32_t most = REPLAY_CHUNKS * REPLAY_ENTRIES + 1000, fits = most / 5 * 3;
	uint32_t *order = memory_permutation(fits, &seed);
	struct memory *m = memory_new(&replay_policy, 1, fits, fits / 4);

	assert_true(REPLAY_CHUNKS * REPLAY_ENTRIES >= 512 * 1024);
	walk(m, order, fits);
	for (int turn = 2; turn <= 3; turn++) {
		walk(m, order, fits);
		assert_follows("log wraps", m, 0.98, 0.98);
	}
	memory_free(m);
	free(order);

	order = memory_permutation(most, &seed);
	m = memory_new(&replay_policy, 1, most, most / 4);
	for (int turn = 1; turn <= 2; turn++) {
		walk(m, order, most);
		assert_quiet("longer than the log", m);
	}
	memory_free(m);
	free(order);
}

static void uniform(void **unused)
{
	static const uint32_t pages[] = { 100000, 10000, 1000, 100 };

	for (int k = 0; k < 4; k++) {
		struct memory *m = memory_new(&replay_policy, 1, pages[k], pages[k] / 2);
		uint64_t seed = 42;

		for (int i = 0; i < 500000; i++)
			memory_visit(m, 0, 0, memory_random(&seed) % pages[k]);
		assert_quiet("uniform", m);
		memory_free(m);
	}
}

static void zipf(void **unused)
{
	uint64_t seed = 42;
	uint32_t *where = memory_permutation(PAGES, &seed);
	double *sum = malloc(PAGES * sizeof(*sum)), total = 0;

	for (uint32_t i = 0; i < PAGES; i++)
		sum[i] = total += pow(i + 1, -0.99);
	for (int k = 2; k <= 4; k *= 2) {
		struct memory *m = memory_new(&replay_policy, 1, PAGES, PAGES / k);

		for (int i = 0; i < 500000; i++) {
			double u = total * (memory_random(&seed) & 0xffffffff) / 0x1p32;
			uint32_t low = 0, high = PAGES - 1;

			while (low < high) {
				uint32_t mid = (low + high) / 2;

				if (sum[mid] < u)
					low = mid + 1;
				else
					high = mid;
			}
			memory_visit(m, 0, 0, where[low]);
		}
		assert_quiet("zipf", m);
		memory_free(m);
	}
	free(sum);
	free(where);
}

/* Nothing at first, for nothing repeats; then like any order. */
static void sequential(void **unused)
{
	struct memory *m = memory_new(&replay_policy, 1, PAGES, PAGES / 2);

	for (int turn = 1; turn <= 2; turn++) {
		memory_count_anew(m);
		for (uint32_t i = 0; i < PAGES; i++)
			memory_visit(m, 0, 0, i);
		if (turn == 1)
			assert_quiet("sequential", m);
		else
			assert_follows("sequential again", m, 0.98, 0.98);
	}
	memory_free(m);
}

/* Chains in a random order of chains: short ones do not pay, long ones do. */
static void chains(void **unused)
{
	for (uint32_t length = 2; length <= 512; length *= 2) {
		struct memory *m = memory_new(&replay_policy, 1, PAGES, PAGES / 4);
		uint64_t seed = 3;
		uint32_t *order = memory_permutation(PAGES, &seed);

		for (uint32_t i = 0; i < 500000 / length; i++) {
			uint32_t at = memory_random(&seed) % (PAGES / length) * length;

			for (uint32_t j = 0; j < length; j++)
				memory_visit(m, 0, 0, order[at + j]);
		}
		print_message("chains of %3u: ", length);
		if (length <= 8)
			assert_quiet("", m);
		else if (length >= 256)
			assert_follows("", m, 0.6, 0.75);
		else
			show("", m);
		memory_free(m);
		free(order);
	}
}

/* PageRank: edges in sequence, ranks of neighbours at random, the same each turn. */
static void pagerank(void **unused)
{
	const uint32_t ranks = 20000, edges = 40000;
	struct memory *m = memory_new(&replay_policy, 1, ranks + edges, (ranks + edges) / 4);

	for (int turn = 1; turn <= 3; turn++) {
		uint64_t seed = 11;

		memory_count_anew(m);
		for (uint32_t i = 0; i < edges; i++) {
			memory_visit(m, 0, 0, ranks + i);
			for (uint32_t j = 0; j < 20; j++)
				memory_visit(m, 0, 0, memory_random(&seed) % ranks);
		}
		if (turn > 1)
			assert_follows("pagerank", m, 0.98, 0.98);
	}
	memory_free(m);
}

/* What the kernel reads ahead well is left to it; the rest is not. */
static void beside_readahead(void **unused)
{
	const uint32_t edges = PAGES / 2, objects = PAGES / 8;
	uint64_t seed = 7;
	uint32_t *order = memory_permutation(objects, &seed);
	struct memory *m = memory_new(&replay_policy, 1, PAGES, PAGES / 4);
	uint64_t misses = 0;

	m->readahead.max = 8;
	for (int turn = 1; turn <= 3; turn++) {
		memory_count_anew(m);
		for (uint32_t i = 0; i < PAGES; i++)
			memory_visit(m, 0, 0, i);
		show("sequential", m);
		if (turn == 1)
			misses = m->count.misses;
		else
			assert_in_range(m->count.misses, 1, misses + misses / 20);
		assert_true(m->count.asked <= misses / 20);
	}
	memory_free(m);

	/* Objects of four pages, in a random order. */
	m = memory_new(&replay_policy, 1, PAGES, PAGES / 4);
	m->readahead.max = 8;
	for (int turn = 1; turn <= 5; turn++) {
		memory_count_anew(m);
		for (uint32_t i = 0; i < objects; i++)
			for (uint32_t k = 0; k < 4; k++)
				memory_visit(m, 0, 0, order[i] * 4 + k);
		show("objects", m);
		if (turn == 1)
			misses = m->count.misses;
	}
	assert_follows("objects", m, 0.9, 0.9);
	assert_true(m->count.misses < misses / 5);
	memory_free(m);

	/* A sequence, and random pages that come again: the misses are of these. */
	m = memory_new(&replay_policy, 1, PAGES, PAGES / 4);
	m->readahead.max = 8;
	for (int turn = 1; turn <= 4; turn++) {
		memory_count_anew(m);
		for (uint32_t i = 0; i < edges; i++) {
			memory_visit(m, 0, 0, i);
			if (!(i & 3))
				memory_visit(m, 0, 0, edges + order[i / 4] * 4);
		}
		show("sequence and random", m);
		if (turn == 1)
			misses = m->count.misses;
	}
	assert_true(m->count.misses < misses / 2);
	memory_free(m);
	free(order);
}

/* Far away devices: the distance grows until pages come in time, and no further. */
static void distance(void **unused)
{
	uint64_t seed = 7;
	uint32_t *order = memory_permutation(PAGES, &seed);
	struct memory *m = memory_new(&replay_policy, 1, PAGES, PAGES / 4);
	struct replay_thread *t;

	walk(m, order, PAGES);
	t = thread_of(1);
	assert_int_equal(t->distance, REPLAY_START);
	m->latency = 200;
	walk(m, order, PAGES);
	assert_in_range(t->distance, 200, 512);
	m->sim[0].params.v[AHEAD] = 64;
	walk(m, order, PAGES);
	assert_true(m->count.late > PAGES / 2);
	assert_true(t->ahead <= 64);
	memory_free(m);
	free(order);
}

/* Requests that come to nothing are given up, and tried again now and then. */
static void futile_requests(void **unused)
{
	uint64_t seed = 7;
	uint32_t *order = memory_permutation(PAGES, &seed);
	struct memory *m = memory_new(&replay_policy, 1, PAGES, PAGES / 4);

	walk(m, order, PAGES);
	m->futile = 1;
	walk(m, order, PAGES);
	assert_true(m->count.asked > 0);
	assert_true(m->count.asked * 4 <= m->count.misses);
	m->futile = 0;
	walk(m, order, PAGES);
	assert_follows("requests work again", m, 0.9, 0.95);
	memory_free(m);
	free(order);
}

static uint32_t lanes_of(uint64_t owner)
{
	return replay_count(owner + 1);
}

/* @n misses of another cgroup, on random pages of a large program. */
static void miss(struct memory *m, uint64_t owner, uint32_t n, uint64_t *now)
{
	static uint64_t seed = 99;
	struct ebb_policy_sim sim = { .params = m->sim[0].params };

	for (uint32_t i = 0; i < n; i++) {
		struct ebb_fault f = { .tgid = (uint32_t)owner, .tid = (uint32_t)owner, .exec = 1,
				       .owner = owner, .time_ns = *now += 1000 };

		seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
		f.vpn = (seed >> 33) + 1;
		m->policy->run(&sim, &f);
	}
}

/* What one cgroup repeats outlives any number of another's misses. */
static void another_cgroup_that_misses(void **unused)
{
	uint64_t seed = 7, now = 0;
	uint32_t *order = memory_permutation(PAGES, &seed);
	struct memory *m = memory_new(&replay_policy, 1, PAGES, PAGES / 4);

	walk(m, order, PAGES);
	walk(m, order, PAGES);
	assert_follows("alone", m, 0.98, 0.98);
	miss(m, 99, 3000000, &now);
	walk(m, order, PAGES);
	assert_follows("beside another", m, 0.95, 0.95);
	memory_free(m);
	free(order);
}

static void lanes_are_shared_equally(void **unused)
{
	struct memory *m = memory_new(&replay_policy, 1, 64, 8);
	uint64_t now = 0;

	/* One cgroup alone fills all of the log, in sequence. */
	miss(m, 50, REPLAY_CHUNKS * REPLAY_ENTRIES, &now);
	assert_int_equal(lanes_of(50), REPLAY_LANES);
	for (uint32_t i = 0; i < REPLAY_LANES; i++)
		assert_int_equal(replay_lanes_at(i)->begun, i + 1);
	for (uint32_t i = 0; i < REPLAY_CHUNKS; i++)
		assert_int_equal(replay_log_at(i)->used, REPLAY_ENTRIES);
	/* Each other one takes its share, and no more. */
	miss(m, 60, 1, &now);
	assert_int_equal(lanes_of(60), 1);
	for (uint32_t i = 0; i < REPLAY_LANES; i++) {
		miss(m, 60, REPLAY_LANE_CHUNKS * REPLAY_ENTRIES, &now);
		miss(m, 50, REPLAY_LANE_CHUNKS * REPLAY_ENTRIES, &now);
	}
	assert_int_equal(lanes_of(60), REPLAY_LANES / 2);
	assert_int_equal(lanes_of(50), REPLAY_LANES / 2);
	/* As many as there are lanes have one each; others have none. */
	for (uint64_t owner = 100; owner < 100 + REPLAY_LANES; owner++) {
		miss(m, owner, 1000, &now);
		assert_int_equal(lanes_of(owner), owner < 100 + REPLAY_LANES - 2);
	}
	assert_int_equal(lanes_of(50), 1);
	assert_int_equal(lanes_of(60), 1);
	/* What a cgroup leaves alone for long is another's, at once. */
	now += 2 * REPLAY_LANE_IDLE;
	miss(m, 100 + REPLAY_LANES - 1, 1, &now);
	assert_int_equal(lanes_of(100 + REPLAY_LANES - 1), 1);
	miss(m, 60, REPLAY_CHUNKS * REPLAY_ENTRIES, &now);
	assert_int_equal(lanes_of(60), REPLAY_LANES - 1);
	now += 2 * REPLAY_LANE_IDLE;
	miss(m, 60, 2 * REPLAY_LANE_CHUNKS * REPLAY_ENTRIES, &now);
	assert_int_equal(lanes_of(60), REPLAY_LANES);
	memory_free(m);
}

static uint64_t parts_of(uint64_t owner)
{
	uint64_t parts = 0;

	for (uint32_t i = 0; i < REPLAY_LANES; i++)
		if (replay_lanes_at(i)->tenant == owner + 1)
			parts |= 1ULL << replay_part(i);
	return parts;
}

/* One with a fault every 2 s keeps all lanes that it has filled. */
static void slow_cgroup_keeps_its_lanes(void **unused)
{
	struct memory *m = memory_new(&replay_policy, 1, 64, 8);
	const uint32_t lane = REPLAY_LANE_CHUNKS * REPLAY_ENTRIES;
	uint64_t now = 0, begun[3];

	miss(m, 50, 2 * lane + 1, &now);
	assert_int_equal(lanes_of(50), 3);
	for (uint32_t i = 0; i < 3; i++)
		begun[i] = replay_lanes_at(i)->begun;
	for (uint32_t second = 0; second < 200; second += 2) {
		miss(m, 60, lane, &now);
		now += 2000000000;
		miss(m, 50, 1, &now);
		assert_int_equal(lanes_of(50), 3);
	}
	assert_int_equal(lanes_of(60), REPLAY_LANES - 3);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(replay_lanes_at(i)->begun, begun[i]);
	memory_free(m);
}

/* How many lanes' pages each part of the index has, of those that a cgroup uses. */
static void parts_used(uint64_t owner, uint32_t used[REPLAY_LANES])
{
	memset(used, 0, REPLAY_LANES * sizeof(*used));
	for (uint32_t i = 0; i < REPLAY_LANES; i++) {
		uint32_t part = replay_choose_part(i, parts_of(owner), owner + 1);

		if (part < REPLAY_LANES)
			used[part]++;
	}
}

/* A cgroup uses what is unused of the index or its own, and no part of its own is overloaded. */
static void index_is_shared_as_the_lanes(void **unused)
{
	struct memory *m = memory_new(&replay_policy, 1, 64, 8);
	const uint32_t lane = REPLAY_LANE_CHUNKS * REPLAY_ENTRIES;
	uint32_t used[2][REPLAY_LANES];
	uint64_t now = 0;

	miss(m, 50, 1, &now);
	parts_used(50, used[0]);
	for (uint32_t i = 0; i < REPLAY_LANES; i++)
		assert_int_equal(used[0][i], 1);
	miss(m, 50, REPLAY_LANES * lane, &now);
	for (uint32_t n = 0; n < 2 * REPLAY_LANES; n++) {
		miss(m, 50, lane, &now);
		miss(m, 60, lane, &now);
		parts_used(50, used[0]);
		parts_used(60, used[1]);
		for (uint32_t i = 0; i < REPLAY_LANES; i++)
			assert_false(used[0][i] && used[1][i]);
	}
	for (uint32_t i = 0; i < REPLAY_LANES; i++) {
		assert_in_range(used[0][i] + used[1][i], 1, 4);
		assert_true((parts_of(50) | parts_of(60)) >> i & 1);
	}
	/* One without a lane has no part of it. */
	parts_used(70, used[0]);
	for (uint32_t i = 0; i < REPLAY_LANES; i++)
		assert_int_equal(used[0][i], 0);
	memory_free(m);
}

#define LOOP 5000       /* pages that each of many cgroups repeats */

/* Each of processes from..to-1 visits its pages once, in turns; sets the coverage of each. */
static void turns(struct memory *m, uint32_t **order, uint32_t from, uint32_t to, double *coverage)
{
	uint64_t *hits = calloc(to, sizeof(*hits)), *faults = calloc(to, sizeof(*faults));

	for (uint32_t i = 0; i < LOOP; i++)
		for (uint32_t p = from; p < to; p++) {
			memory_count_anew(m);
			memory_visit(m, p, 0, order[p][i]);
			hits[p] += m->count.hits;
			faults[p] += m->count.hits + m->count.late + m->count.misses;
		}
	for (uint32_t p = from; p < to; p++)
		coverage[p] = (double)hits[p] / faults[p];
	free(hits);
	free(faults);
}

static void assert_all_follow(const char *what, const double *coverage, uint32_t from, uint32_t to)
{
	double least = 1;

	for (uint32_t p = from; p < to; p++)
		if (coverage[p] < least)
			least = coverage[p];
	print_message("%-24s least coverage %.4f\n", what, least);
	assert_true(least > 0.9);
}

/* Each process repeats a permutation of its own, in a cgroup of its own. */
static struct memory *many_cgroups(uint32_t n, uint32_t **order)
{
	struct memory *m = memory_new(&replay_policy, n, LOOP, n * (LOOP / 4));
	uint64_t seed = 7;

	m->apart = 1;
	for (uint32_t p = 0; p < n; p++)
		order[p] = memory_permutation(LOOP, &seed);
	return m;
}

static void free_many(struct memory *m, uint32_t **order)
{
	for (uint32_t p = 0; p < m->processes; p++)
		free(order[p]);
	memory_free(m);
}

/* Nine: the cgroups numbered 1 and 9 are equal modulo eight. */
static void several_cgroups(void **unused)
{
	double coverage[9];
	uint32_t *order[9];
	struct memory *m = many_cgroups(9, order);

	for (int pass = 1; pass <= 5; pass++) {
		turns(m, order, 0, 9, coverage);
		if (pass >= 3)
			assert_all_follow("nine cgroups", coverage, 0, 9);
	}
	free_many(m, order);
}

/* Eight that have learned, and others that come later: the eight still follow, and soon all. */
static void many_more_cgroups(void **unused)
{
	double coverage[REPLAY_LANES];
	uint32_t *order[REPLAY_LANES];
	struct memory *m = many_cgroups(REPLAY_LANES, order);

	for (int pass = 1; pass <= 2; pass++)
		turns(m, order, 0, 8, coverage);
	for (int pass = 1; pass <= 4; pass++) {
		turns(m, order, 0, REPLAY_LANES, coverage);
		assert_all_follow("eight old ones", coverage, 0, 8);
		if (pass >= 3)
			assert_all_follow("all", coverage, 0, REPLAY_LANES);
	}
	free_many(m, order);
}

/* More cgroups than lanes, of which most miss all the time. */
static void more_cgroups_than_lanes(void **unused)
{
	double coverage[8];
	uint32_t *order[8];
	struct memory *m = many_cgroups(8, order);

	for (int pass = 1; pass <= 2; pass++)
		turns(m, order, 0, 8, coverage);
	for (int pass = 1; pass <= 3; pass++) {
		uint64_t now = m->now * 1000;

		for (uint64_t owner = 100; owner < 200; owner++)
			miss(m, owner, 2 * REPLAY_LANE_CHUNKS * REPLAY_ENTRIES / 10, &now);
		m->now = now / 1000;
		turns(m, order, 0, 8, coverage);
		assert_all_follow("beside 100 others", coverage, 0, 8);
	}
	for (uint64_t owner = 1; owner <= 8; owner++)
		assert_int_equal(lanes_of(owner), 1);
	assert_int_equal(lanes_of(199), 0);
	free_many(m, order);
}

static void fault_of(struct memory *m, uint32_t tid, uint64_t owner, uint64_t now)
{
	struct ebb_policy_sim sim = { .params = m->sim[0].params };
	struct ebb_fault f = { .vpn = 1 + now % 1000, .tgid = tid, .tid = tid, .exec = m->exec,
			       .owner = owner, .time_ns = now };

	m->policy->run(&sim, &f);
}

/* Walks three times, and before each @every-th visit @n threads of @cgroups others fault once. */
static void walk_beside_threads(struct memory *m, const uint32_t *order, uint32_t every,
				uint32_t first, uint32_t n, uint32_t cgroups)
{
	for (int pass = 1; pass <= 3; pass++) {
		memory_count_anew(m);
		for (uint32_t i = 0; i < PAGES; i++) {
			for (uint32_t k = 0; k < n && !(i % every); k++)
				fault_of(m, first + k, 100 + k % cgroups, m->now * 1000 + k);
			memory_visit(m, 0, 0, order[i]);
		}
	}
}

/* Threads whose ids are equal modulo the size of the table, or more than it has entries. */
static void threads_of_other_cgroups(void **unused)
{
	static const struct {
		uint32_t every, first, n, cgroups;
	} row[] = { { 50, 1 + REPLAY_THREADS, 1, 1 },
		    { 1000, 2, 2 * REPLAY_THREADS, 1 },
		    { 1000, 2, 2 * REPLAY_THREADS, REPLAY_WAYS - 1 } };
	uint64_t seed = 7;
	uint32_t *order = memory_permutation(PAGES, &seed);

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct memory *m = memory_new(&replay_policy, 1, PAGES, PAGES / 4);

		walk_beside_threads(m, order, row[i].every, row[i].first, row[i].n, row[i].cgroups);
		assert_follows("beside threads", m, 0.98, 0.98);
		memory_free(m);
	}
	free(order);
}

static void threads_of_a_set(void **unused)
{
	struct memory *m = memory_new(&replay_policy, 1, 64, 8);
	uint32_t id[8];
	uint64_t now = 1;

	for (uint32_t k = 0; k < 8; k++)
		id[k] = 7 + k * REPLAY_THREADS;
	/* One cgroup uses all of it; its new thread replaces its oldest. */
	for (uint32_t k = 0; k < REPLAY_WAYS + 1; k++)
		fault_of(m, id[k], 1, now++);
	assert_null(thread_of(id[0]));
	for (uint32_t k = 1; k < REPLAY_WAYS + 1; k++)
		assert_non_null(thread_of(id[k]));
	/* Other cgroups take equal shares of it, each from the one with most. */
	fault_of(m, id[5], 2, now++);
	fault_of(m, id[6], 2, now++);
	assert_null(thread_of(id[1]));
	assert_null(thread_of(id[2]));
	fault_of(m, id[7], 2, now++);
	assert_null(thread_of(id[5]));
	assert_non_null(thread_of(id[3]));
	assert_non_null(thread_of(id[4]));
	fault_of(m, id[0], 3, now++);
	fault_of(m, id[1], 4, now++);
	assert_non_null(thread_of(id[0]));
	assert_non_null(thread_of(id[1]));
	assert_non_null(thread_of(id[4]));
	assert_non_null(thread_of(id[7]));
	/* A fifth one gets none until a thread has been idle. */
	fault_of(m, id[2], 5, now++);
	assert_null(thread_of(id[2]));
	now += REPLAY_THREAD_IDLE;
	fault_of(m, id[4], 1, now++);
	fault_of(m, id[2], 5, now++);
	assert_non_null(thread_of(id[2]));
	assert_non_null(thread_of(id[4]));
	/* A process that called exec has the entry that it had before. */
	for (m->exec = 2; m->exec < 10; m->exec++)
		fault_of(m, id[2], 5, now++);
	assert_null(thread_of(id[2]));
	assert_int_equal(replay_slots(replay_set(7), 6), 1);
	memory_free(m);
}

static void asks_in_the_address_space_only(void **unused)
{
	struct memory *m = memory_new(&replay_policy, 1, 64, 8);
	uint64_t odd[] = { 0, ~0ULL, EBB_VPN_END, EBB_VPN_END - 1, 1 };

	for (int i = 0; i < 100000; i++) {
		struct ebb_fault f = { .vpn = odd[i % 5], .tgid = 1, .tid = 1, .exec = 1 };

		m->policy->run(&m->sim[0], &f);
	}
	/* Three that come round are a loop like any other. */
	assert_int_equal(thread_of(1)->last, 1);
	assert_int_equal(replay_find(1ULL << 32 | 1, EBB_VPN_END, parts_of(0), 1), 0);
	assert_true(replay_find(1ULL << 32 | 1, EBB_VPN_END - 1, parts_of(0), 1));
	memory_free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(permutation),
		cmocka_unit_test(other_pages_each_turn),
		cmocka_unit_test(keep),
		cmocka_unit_test(changing_order),
		cmocka_unit_test(swapped_neighbours),
		cmocka_unit_test(strays),
		cmocka_unit_test(two_threads),
		cmocka_unit_test(threads_that_exchange),
		cmocka_unit_test(two_processes),
		cmocka_unit_test(exec_forgets),
		cmocka_unit_test(log_wraps),
		cmocka_unit_test(uniform),
		cmocka_unit_test(zipf),
		cmocka_unit_test(sequential),
		cmocka_unit_test(chains),
		cmocka_unit_test(pagerank),
		cmocka_unit_test(beside_readahead),
		cmocka_unit_test(distance),
		cmocka_unit_test(futile_requests),
		cmocka_unit_test(another_cgroup_that_misses),
		cmocka_unit_test(lanes_are_shared_equally),
		cmocka_unit_test(slow_cgroup_keeps_its_lanes),
		cmocka_unit_test(index_is_shared_as_the_lanes),
		cmocka_unit_test(several_cgroups),
		cmocka_unit_test(many_more_cgroups),
		cmocka_unit_test(more_cgroups_than_lanes),
		cmocka_unit_test(threads_of_other_cgroups),
		cmocka_unit_test(threads_of_a_set),
		cmocka_unit_test(asks_in_the_address_space_only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
