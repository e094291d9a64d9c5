// SPDX-License-Identifier: GPL-2.0-or-later
/* The cluster simulator, and what the daemon's placement does in it. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/base/draw.h"
#include "sim/cluster.h"
#include "sim/lowest.h"

#include <cmocka.h>

static struct cluster_config config(enum cluster_placer placer, int choices)
{
	return (struct cluster_config){
		.nodes = 32, .seconds = 1800, .memory = 64ull << 30, .slab = 1ull << 30,
		.placer = placer, .rule = { choices, PLACE_SPREAD }, .seed = 1,
	};
}

static struct cluster_result run(const struct cluster_config *c)
{
	struct cluster_result x;
	struct error e = { 0 };

	assert_int_equal(cluster_run(c, &x, &e), 0);
	return x;
}

static void a_seed_says_all(void **state)
{
	struct cluster_config c = config(CLUSTER_CHOICES, 2);
	struct cluster_result a = run(&c), b = run(&c);

	assert_memory_equal(&a, &b, sizeof(a));
	c.seed = 2;
	b = run(&c);
	assert_true(a.maps != b.maps);
}

/* What the generator was fitted to: docs/placement.md. */
static void demand_as_published(void **state)
{
	struct cluster_config c = config(CLUSTER_CHOICES, 2);
	struct cluster_result x;

	c.nodes = 500;
	x = run(&c);
	assert_true(fabs(x.alone_use - 0.408) < 0.015);
	assert_true(fabs(x.alone_max_min - 22.5) < 1);
	assert_true(x.severe > 0.7);
	assert_true(fabs(x.stable[0] - 0.74) < 0.02);
	assert_true(fabs(x.stable[1] - 0.58) < 0.02);
	assert_true(fabs(x.stable[2] - 0.42) < 0.03);
}

static void same_demand_for_every_placer(void **state)
{
	struct cluster_config c = config(CLUSTER_CHOICES, 1);
	struct cluster_result one = run(&c), other;

	c = config(CLUSTER_OMNISCIENT, 0);
	other = run(&c);
	assert_true(one.demand == other.demand);
	assert_true(one.alone_use == other.alone_use);
	c = config(CLUSTER_RELEASED, 0);
	other = run(&c);
	assert_true(one.demand == other.demand);
}

static void placers_compare(void **state)
{
	double omniscient = 0, one = 0, two = 0, gain = 0, drop_one = 0, drop_two = 0;
	uint64_t evicted_one = 0, evicted_two = 0;

	for (uint64_t seed = 1; seed <= 8; seed++) {
		struct cluster_config c = config(CLUSTER_OMNISCIENT, 0);
		struct cluster_result x;

		c.seed = seed;
		x = run(&c);
		omniscient += x.donors_max_mean;
		c.placer = CLUSTER_CHOICES;
		c.rule.choices = 1;
		x = run(&c);
		one += x.donors_deviation;
		evicted_one += x.evictions;
		drop_one += x.alone_max_min / x.max_min;
		c.rule.choices = 2;
		x = run(&c);
		two += x.donors_deviation;
		evicted_two += x.evictions;
		drop_two += x.alone_max_min / x.max_min;
		gain += x.use / x.alone_use / 8;
		assert_true(x.donors_max_mean > 1);
		/* An evicted slab has somewhere to go, and less activity than its peers. */
		assert_int_equal(x.to_disk, 0);
		assert_int_equal(x.evictions, x.migrations);
		assert_true(x.evictions > 100);
		assert_true(x.evicted_rank < 0.9);
		assert_true(x.served > 0.999);
	}
	assert_true(two < 0.9 * one);
	assert_true(evicted_two < 0.9 * (double)evicted_one);
	assert_true(drop_two > 1.05 * drop_one);
	assert_true(gain > 1.47);
}

/* With ebb's own slabs and rule: the paper's figures, and near the omniscient placer. */
static void imbalance_drops(void **state)
{
	struct cluster_config c = config(CLUSTER_OMNISCIENT, PLACE_CHOICES);
	double drop = 0, gain = 0, omniscient = 0, two = 0;
	enum { SEEDS = 20 };

	c.seconds = 3600;
	c.slab = 64 << 20;
	for (c.seed = 1; c.seed <= SEEDS; c.seed++) {
		struct cluster_result x;

		c.placer = CLUSTER_OMNISCIENT;
		x = run(&c);
		omniscient += x.donors_max_mean;
		c.placer = CLUSTER_CHOICES;
		x = run(&c);
		two += x.donors_max_mean;
		drop += x.alone_max_min / x.max_min / SEEDS;
		gain += x.use / x.alone_use / SEEDS;
	}
	assert_true(gain >= 1.47);
	assert_true(drop >= 22.5 / 2.7);
	assert_true(two <= 1.15 * omniscient);
}

/* The released code evicts whatever it draws, to the disk. */
static void released_code(void **state)
{
	struct cluster_config c = config(CLUSTER_RELEASED, 0);
	struct cluster_result x = run(&c);

	assert_true(x.evictions > 100);
	assert_int_equal(x.to_disk, x.evictions);
	assert_int_equal(x.migrations, 0);
	assert_true(fabs(x.evicted_rank - 1) < 0.1);
	assert_true(x.served < 0.999);
}

/* HotSlab: what is rarely used stays on the disk. */
static void cold_slabs_stay(void **state)
{
	struct cluster_config c = config(CLUSTER_CHOICES, 2);
	struct cluster_result all = run(&c), hot;

	c.hot_slab = 20;
	hot = run(&c);
	assert_true(hot.served < 0.9 * all.served);
	assert_true(hot.served > 0.4);
	assert_true(hot.use < all.use);
}

/* Donors that keep more free lend less, and are pressed less often. */
static void headroom_protects(void **state)
{
	struct cluster_config c = config(CLUSTER_CHOICES, 2);
	struct cluster_result little, much;

	c.headroom = 1ull << 30;
	little = run(&c);
	c.headroom = 16ull << 30;
	much = run(&c);
	assert_true(much.pressed < 0.5 * little.pressed);
	assert_true(little.pressed > 0);
}

static void still_cluster(void **state)
{
	struct cluster_config c = config(CLUSTER_CHOICES, 2);
	struct cluster_result x;

	c.still = true;
	x = run(&c);
	assert_true(x.stable[2] == 1);
	/* Everything was placed while warming up. */
	assert_int_equal(x.maps, 0);
	assert_int_equal(x.evictions, 0);
}

static void too_many_slabs(void **state)
{
	struct cluster_config c = config(CLUSTER_CHOICES, 2);
	struct cluster_result x;
	struct error e = { 0 };

	c.nodes = CLUSTER_NODES;
	c.slab = 1 << 20;
	assert_int_equal(cluster_run(&c, &x, &e), -EINVAL);
	assert_true(strstr(e.text, "larger slabs"));
}

static void lowest_of_many(void **state)
{
	enum { COUNT = 37 };
	uint64_t v[COUNT], seed = 5;
	struct lowest *l = NULL;

	assert_int_equal(lowest_new(&l, COUNT), 0);
	assert_int_equal(lowest_get(l), UINT32_MAX);
	memset(v, 0xff, sizeof(v));
	for (int round = 0; round < 20000; round++) {
		uint32_t i = draw_below(&seed, COUNT), best = UINT32_MAX;

		v[i] = draw_below(&seed, 4) ? draw_below(&seed, 100) : UINT64_MAX;
		lowest_set(l, i, v[i]);
		for (uint32_t j = 0; j < COUNT; j++)
			if (v[j] != UINT64_MAX && (best == UINT32_MAX || v[j] < v[best]))
				best = j;
		assert_int_equal(lowest_get(l), best);
	}
	lowest_free(&l);
	assert_null(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_seed_says_all),
		cmocka_unit_test(demand_as_published),
		cmocka_unit_test(same_demand_for_every_placer),
		cmocka_unit_test(placers_compare),
		cmocka_unit_test(imbalance_drops),
		cmocka_unit_test(released_code),
		cmocka_unit_test(cold_slabs_stay),
		cmocka_unit_test(headroom_protects),
		cmocka_unit_test(still_cluster),
		cmocka_unit_test(too_many_slabs),
		cmocka_unit_test(lowest_of_many),
	};

	return cmocka_run_group_tests_name("cluster", tests, NULL, NULL);
}
