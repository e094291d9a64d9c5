// SPDX-License-Identifier: GPL-2.0-or-later
/* Mixes of programs, and how well each unit of lending serves them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "donord/pool/pool.h"
#include "lib/base/draw.h"
#include "sim/lending.h"
#include "sim/tables.h"
#include "swapd/page/slab.h"

#include <cmocka.h>

#define MIB (1ull << 20)
#define CLUSTER (STORE_RUN * EBB_PAGE)

static struct lending_config config(enum lending_unit unit)
{
	return (struct lending_config){
		.unit = unit, .slab = 2 * MIB, .device = MIX_LENT, .run = STORE_RUN,
		.miss = 40000, .columns = 1, .seed = 1,
	};
}

static struct lending_result run(const struct lending_config *c)
{
	struct lending_result x;

	assert_int_equal(lending_run(c, &x), 0);
	return x;
}

static struct store *slabs(uint64_t slab, uint32_t columns, bool pages)
{
	const struct store_slabs_config c = {
		.slab = slab, .device = MIX_LENT, .columns = columns, .pages = pages, .seed = 1,
	};
	struct store *s = NULL;

	assert_int_equal(store_slabs_new(&s, &c), 0);
	return s;
}

static struct store *extents(enum store_extents kind)
{
	struct store *s = NULL;

	assert_int_equal(store_extents_new(&s, kind, 1), 0);
	return s;
}

static void a_seed_says_all(void **state)
{
	struct lending_config c = config(LENDING_SLABS);
	struct lending_result a, b;

	c.to_refusal = true;
	a = run(&c);
	b = run(&c);
	assert_memory_equal(&a, &b, sizeof(a));
	c.seed = 2;
	b = run(&c);
	assert_true(a.refusal != b.refusal);
}

static void mix_as_described(void **state)
{
	static struct mix m;
	double least = 1, most = 0;

	for (uint64_t seed = 1; seed <= 200; seed++) {
		uint32_t n[MIX_KINDS] = { 0 };

		mix_make(&m, seed * 0x9E3779B97F4A7C15ull | 1, false);
		assert_int_equal(m.count, MIX_PROGRAMS);
		for (uint32_t i = 0; i < m.count; i++) {
			const struct mix_program *p = &m.programs[i];

			n[p->kind - mix_kinds]++;
			assert_true(p->arrives >= 0 && p->arrives < MIX_ARRIVE);
			assert_true(!i || p->arrives >= p[-1].arrives);
		}
		for (int k = 0; k < MIX_KINDS; k++) {
			double part = n[k] / (double)MIX_PROGRAMS;

			least = part < least ? part : least;
			most = part > most ? part : most;
		}
	}
	/* Weights in [1, 4.5]: 1 / (1 + 4.5 + 4.5) to 4.5 / (4.5 + 1 + 1). */
	assert_true(least >= 0.09 && least < 0.15);
	assert_true(most <= 0.70 && most > 0.6);
}

static void run_times(void **state)
{
	const struct mix_kind *redis = &mix_kinds[2];

	assert_true(mix_seconds(redis, 1) == 1327.74);
	assert_true(fabs(mix_seconds(redis, 0.85) - (1390.33 + 1450.85) / 2) < 1e-6);
	assert_true(fabs(mix_seconds(redis, 0.6) - 1579.72) < 1e-6);
}

/* No machine is given more than it has, at any second. */
static void admission_keeps_limits(void **state)
{
	static struct mix m;

	for (int shares = 0; shares < 2; shares++) {
		uint32_t now = 0;

		mix_make(&m, 77, shares);
		while (m.ended < m.count) {
			uint64_t away = 0, of_programs = 0;

			mix_second(&m, ++now);
			for (int i = 0; i < MIX_NODES; i++) {
				assert_true(m.nodes[i].cpus <= MIX_CPUS + 1);
				assert_true(m.nodes[i].least <= MIX_LOCAL);
				assert_true(!shares || mix_away(&m.nodes[i]) <= MIX_SHARE);
				away += mix_away(&m.nodes[i]);
			}
			assert_true(away <= MIX_LENT);
			for (uint32_t i = 0; i < m.count; i++) {
				const struct mix_program *p = &m.programs[i];

				of_programs += p->away;
				if (p->state == MIX_RUNNING)
					assert_true(p->ratio >= p->kind->least - 1e-3);
			}
			assert_true(of_programs <= away);
			assert_true(away - of_programs < MIX_PROGRAMS);
		}
		assert_true(m.refused);
	}
}

/* FineMem's figure 16: fixed shares 41.39 %, of a testbed; pooled memory 74.06 %. */
static void published_utilisation(void **state)
{
	struct lending_config shares = config(LENDING_SHARES), bytes = config(LENDING_BYTES);
	double fixed = 0, pooled = 0, queue = 0;
	const int seeds = getenv("EBB_TEST_LONG") ? 8 : 3;

	/* Without paging, which changes neither. */
	shares.miss = bytes.miss = 0;
	shares.run = bytes.run = STORE_RUN;
	for (uint64_t seed = 1; seed <= (uint64_t)seeds; seed++) {
		struct lending_result x;

		shares.seed = bytes.seed = seed;
		x = run(&shares);
		fixed += x.use / seeds;
		queue += x.parts[5] / seeds;
		x = run(&bytes);
		pooled += x.use / seeds;
		/* All that is lent is live, in each tenth in which anything is lent. */
		for (int i = 0; i < LENDING_PARTS; i++)
			assert_true(x.parts[i] == 1 || x.parts[i] < 0);
	}
	assert_true(pooled > 0.74);
	assert_true(fixed < 0.75 * pooled);
	/* Where Redis waits alone, a machine has three: 13 of 32 GiB. */
	assert_true(fabs(queue - 0.4139) < 0.1);
}

/* What is taken is live; what is freed is returned. */
static void stores_balance(void **state)
{
	enum { RUNS = 20000, SLABS = 4 };
	static struct { uint32_t node, at, pages; } runs[RUNS];
	struct store *stores[] = {
		slabs(64 * MIB, 1, false), slabs(64 * MIB, STORE_COLUMNS, false),
		slabs(2 * MIB, 1, false), slabs(2 * MIB, 1, true), extents(STORE_ROUNDED),
		extents(STORE_SPLIT), extents(STORE_SINGLE), NULL, NULL,
	};

	assert_int_equal(store_bytes_new(&stores[7], false), 0);
	assert_int_equal(store_bytes_new(&stores[8], true), 0);
	for (size_t i = 0; i < sizeof(stores) / sizeof(stores[0]); i++) {
		struct store *s = stores[i];
		uint64_t live = 0, seed = 9;
		uint32_t n = 0;

		for (uint32_t step = 0; step < 4 * RUNS; step++) {
			uint32_t k = draw_below(&seed, RUNS);

			if (k >= n && n < RUNS) {
				uint32_t pages = 1 + draw_below(&seed, STORE_RUN);

				runs[n].node = draw_below(&seed, MIX_NODES);
				pages = s->ops->take(s, runs[n].node, draw_below(&seed, 4), pages,
						     &runs[n].at);
				if (!pages)
					continue;
				runs[n++].pages = pages;
				live += pages;
			} else if (n) {
				k %= n;
				s->ops->put(s, runs[k].node, runs[k].at, runs[k].pages);
				live -= runs[k].pages;
				runs[k] = runs[--n];
			}
			assert_true(s->live <= live);
			assert_true(s->live <= s->lent);
			assert_true(s->lent <= STORE_PAGES);
			if (!s->refused)
				assert_int_equal(s->live, live);
			if (s->ops->second && step % 64 == 0)
				s->ops->second(s, step / 64);
		}
		while (n--)
			s->ops->put(s, runs[n].node, runs[n].at, runs[n].pages);
		for (uint32_t now = 4 * RUNS; s->ops->second && now < 4 * RUNS + 10; now++)
			s->ops->second(s, now);
		assert_int_equal(s->live, 0);
		/* The slabs of clusters that processors have at hand stay. */
		if (i < SLABS)
			assert_true(s->lent <= MIX_NODES * 4 * 64 * MIB / EBB_PAGE);
		else
			assert_int_equal(s->lent, i == 8 ? STORE_PAGES : 0);
		store_free(&stores[i]);
		assert_null(stores[i]);
	}
}

static uint64_t lent_by(struct store *s, uint32_t clusters)
{
	uint64_t lent;
	uint32_t at;

	for (uint32_t i = 0; i < clusters; i++)
		assert_int_equal(s->ops->take(s, 0, 0, STORE_RUN, &at), STORE_RUN);
	lent = s->lent * EBB_PAGE;
	store_free(&s);
	return lent;
}

/* Kernels before 6.18 fill a cluster of each 64 MiB first. */
static void columns_spread(void **state)
{
	assert_int_equal(lent_by(slabs(64 * MIB, 1, false), 64), 128 * MIB);
	assert_int_equal(lent_by(slabs(64 * MIB, STORE_COLUMNS, false), 64), 64 * 64 * MIB);
	assert_int_equal(lent_by(slabs(8 * MIB, STORE_COLUMNS, false), 64), 64 * 8 * MIB);
	assert_int_equal(lent_by(slabs(2 * MIB, STORE_COLUMNS, false), 64), 64 * 2 * MIB);
}

/* A slab stays lent for one page; it is released 5 s after its last one. */
static void one_page_keeps_a_slab(void **state)
{
	struct store *s = slabs(8 * MIB, 1, false);
	uint32_t at[5], pages[5];

	for (int i = 0; i < 5; i++)
		pages[i] = s->ops->take(s, 0, 0, i < 4 ? STORE_RUN : 1, &at[i]);
	assert_int_equal(s->lent * EBB_PAGE, 16 * MIB);
	s->ops->second(s, 1);
	for (int i = 0; i < 3; i++)
		s->ops->put(s, 0, at[i], pages[i]);
	s->ops->put(s, 0, at[3], pages[3] - 1);
	s->ops->second(s, 100);
	assert_int_equal(s->lent * EBB_PAGE, 16 * MIB);
	s->ops->put(s, 0, at[3], 1);
	s->ops->second(s, 104);
	assert_int_equal(s->lent * EBB_PAGE, 16 * MIB);
	s->ops->second(s, 105);
	assert_int_equal(s->lent * EBB_PAGE, 8 * MIB);
	assert_int_equal(s->unmaps, 1);
	store_free(&s);
}

/* Free clusters come before holes, the one that has been free for longest first. */
static void clusters_in_turn(void **state)
{
	const struct store_slabs_config c = {
		.slab = 2 * MIB, .device = 3 * CLUSTER, .columns = 1, .seed = 1,
	};
	struct store *s = NULL;
	uint32_t at;

	assert_int_equal(store_slabs_new(&s, &c), 0);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(s->ops->take(s, 0, 0, STORE_RUN, &at), STORE_RUN);
		assert_int_equal(at, i);
	}
	/* A hole in 0; a processor still has 1. */
	s->ops->put(s, 0, 0, 100);
	assert_int_equal(s->ops->take(s, 0, 0, STORE_RUN, &at), STORE_RUN);
	assert_int_equal(at, 2);
	assert_int_equal(s->ops->take(s, 0, 0, STORE_RUN, &at), 100);
	assert_int_equal(at, 0);
	assert_int_equal(s->refused, 0);
	assert_int_equal(s->ops->take(s, 0, 0, STORE_RUN, &at), 0);
	assert_int_equal(s->refused, 1);
	store_free(&s);
}

/* A machine swaps out as much as it has locally at most: each device of --device has room. */
static void devices_suffice(void **state)
{
	for (uint64_t seed = 1; seed <= 20; seed++) {
		static struct mix m;
		uint32_t now = 0;

		mix_make(&m, seed * 0x9E3779B97F4A7C15ull | 1, false);
		while (m.ended < m.count) {
			mix_second(&m, ++now);
			for (int i = 0; i < MIX_NODES; i++)
				assert_true(mix_away(&m.nodes[i]) <= MIX_LOCAL);
		}
	}
}

/* Without a free slab pages go to the disk, and to donors when there is one again. */
static void full_donors(void **state)
{
	struct store *s = slabs(64 * MIB, 1, false);
	uint32_t clusters = MIX_LENT / CLUSTER, at;

	for (uint32_t i = 0; i < clusters; i++)
		assert_int_equal(s->ops->take(s, 0, 0, STORE_RUN, &at), STORE_RUN);
	assert_int_equal(s->refused, 0);
	assert_int_equal(s->lent, STORE_PAGES);
	assert_int_equal(s->ops->take(s, 1, 0, 8, &at), 8);
	assert_int_equal(s->refused, 1);
	assert_int_equal(s->live, STORE_PAGES);
	for (uint32_t i = 0; i < 32; i++)
		s->ops->put(s, 0, i, STORE_RUN);
	s->ops->second(s, 10);
	assert_int_equal(s->live, STORE_PAGES - 32 * STORE_RUN + 8);
	store_free(&s);
}

/* Only a notice for each slot returns the pages of a used cluster. */
static void discards_come_by_cluster(void **state)
{
	struct store *by_cluster = slabs(2 * MIB, 1, true), *at_once = extents(STORE_SINGLE);
	uint32_t at, first;

	assert_int_equal(by_cluster->ops->take(by_cluster, 0, 0, STORE_RUN, &first), STORE_RUN);
	assert_int_equal(by_cluster->ops->take(by_cluster, 0, 0, 3, &at), 3);
	assert_int_equal(by_cluster->lent, STORE_RUN + 3);
	by_cluster->ops->put(by_cluster, 0, first, STORE_RUN - 1);
	assert_int_equal(by_cluster->lent, STORE_RUN + 3);
	by_cluster->ops->put(by_cluster, 0, first, 1);
	assert_int_equal(by_cluster->lent, 3);
	store_free(&by_cluster);

	assert_int_equal(at_once->ops->take(at_once, 0, 0, STORE_RUN, &at), STORE_RUN);
	at_once->ops->put(at_once, 0, at, STORE_RUN);
	assert_int_equal(at_once->lent, 0);
	store_free(&at_once);
}

static void rounding_and_sections(void **state)
{
	struct store *s = extents(STORE_ROUNDED);
	uint32_t at, section;

	/* 64 slots of 8 pages in a section. */
	assert_int_equal(s->ops->take(s, 0, 0, 5, &section), 5);
	for (int i = 1; i < 64; i++) {
		assert_int_equal(s->ops->take(s, 1, 0, 5, &at), 5);
		assert_int_equal(at, section);
	}
	assert_int_equal(s->lent, STORE_RUN);
	assert_int_equal(s->live, 64 * 5);
	/* The 65th, and another class, need sections of their own. */
	s->ops->take(s, 0, 0, 5, &at);
	assert_int_equal(s->lent, 2 * STORE_RUN);
	s->ops->take(s, 0, 0, 9, &at);
	assert_int_equal(s->lent, 3 * STORE_RUN);
	store_free(&s);

	s = extents(STORE_SPLIT);
	assert_int_equal(s->ops->take(s, 0, 0, 5, &at), 4);
	assert_int_equal(s->ops->take(s, 0, 0, 1, &at), 1);
	assert_int_equal(s->live, 5);
	store_free(&s);
}

/* Sparse use: what keeps slabs lent does not keep extents. */
static void units_compare(void **state)
{
	struct lending_config c = config(LENDING_SLABS);
	struct lending_result split;
	double two, sixty_four, discard;

	two = run(&c).live_lent;
	c.slab = 64 * MIB;
	sixty_four = run(&c).live_lent;
	c.unit = LENDING_DISCARD;
	discard = run(&c).live_lent;
	c.unit = LENDING_SPLIT;
	split = run(&c);
	assert_true(two > 1.2 * sixty_four);
	assert_true(fabs(two - discard) < 0.05);
	assert_true(split.live_lent > 1.5 * two);
	assert_true(split.live_lent > 0.9);
	/* Seconds count alike in one mean, by what is lent in the other: ends are sparse. */
	assert_true(fabs(split.live_lent_sum - split.use * MIX_LENT / split.lent) < 1e-9);
	assert_true(split.live_lent_sum > split.live_lent);
	assert_true(split.live_lent > split.live_lent_low);
}

/* At the first refusal, what is lost is rounding and fragments. */
static void first_refusals(void **state)
{
	double shares = 0, bytes = 0, rounded = 0, split = 0;
	const int seeds = getenv("EBB_TEST_LONG") ? 20 : 6;

	for (uint64_t seed = 1; seed <= (uint64_t)seeds; seed++) {
		struct lending_config c = config(LENDING_SHARES);

		c.seed = seed;
		c.to_refusal = true;
		shares += run(&c).refusal / seeds;
		c.unit = LENDING_BYTES;
		bytes += run(&c).refusal / seeds;
		c.unit = LENDING_ROUNDED;
		rounded += run(&c).refusal / seeds;
		c.unit = LENDING_SPLIT;
		split += run(&c).refusal / seeds;
	}
	assert_true(shares < 0.8 * bytes);
	assert_true(split >= 0.74);
	assert_true(split <= bytes);
	/* Log-uniform sizes fill their class to 1 / (2 ln 2); the tables take a 32nd. */
	assert_true(fabs(rounded - 31 / 32.0 / (2 * log(2))) < 0.01);
}

static void tables_of_slabs(void **state)
{
	uint32_t pages = 1 << 20, few = 1 << 14, many = 1 << 9;
	uint64_t more = pages / many - pages / few;
	uint64_t borrower = tables_borrower((uint64_t)pages * EBB_PAGE, (uint64_t)many * EBB_PAGE) -
			    tables_borrower((uint64_t)pages * EBB_PAGE, (uint64_t)few * EBB_PAGE);

	assert_int_equal(borrower, page_map_size(pages, many) - page_map_size(pages, few) +
				   more * sizeof(struct slab));
	assert_int_equal(tables_donor(1ull << 30, 2 * MIB),
			 512 * (sizeof(struct lend_slab) + sizeof(uint32_t)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_seed_says_all),
		cmocka_unit_test(mix_as_described),
		cmocka_unit_test(run_times),
		cmocka_unit_test(admission_keeps_limits),
		cmocka_unit_test(published_utilisation),
		cmocka_unit_test(stores_balance),
		cmocka_unit_test(columns_spread),
		cmocka_unit_test(one_page_keeps_a_slab),
		cmocka_unit_test(clusters_in_turn),
		cmocka_unit_test(devices_suffice),
		cmocka_unit_test(full_donors),
		cmocka_unit_test(discards_come_by_cluster),
		cmocka_unit_test(rounding_and_sections),
		cmocka_unit_test(units_compare),
		cmocka_unit_test(first_refusals),
		cmocka_unit_test(tables_of_slabs),
	};

	return cmocka_run_group_tests_name("lending", tests, NULL, NULL);
}
