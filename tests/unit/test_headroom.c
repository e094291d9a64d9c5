// SPDX-License-Identifier: GPL-2.0-or-later
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/draw.h"
#include "lib/rules/headroom.h"

#include <cmocka.h>

#define G (1ull << 30)

/* The paper's machine: 64 GB, HeadRoom 8 GB, slabs of 1 GB. */
static struct headroom_rule paper(void)
{
	struct headroom_rule rule = headroom_rule_default(64 * G, G);

	rule.headroom = 8 * G;
	return rule;
}

static struct headroom_plan at(struct headroom *h, const struct headroom_rule *rule,
			       uint64_t available, uint32_t free_slabs, uint32_t mapped)
{
	struct headroom_sample sample = { .memory = 64 * G, .available = available };
	struct headroom_plan plan;

	headroom_sample(h, rule, &sample, free_slabs + mapped);
	headroom_plan(h, rule, free_slabs, mapped, &plan);
	return plan;
}

static void assert_plan(struct headroom_plan p, uint32_t allocate, uint32_t release,
			uint32_t evict)
{
	assert_int_equal(p.allocate, allocate);
	assert_int_equal(p.release, release);
	assert_int_equal(p.evict, evict);
}

/* The donor's own cgroup: what is there of it, and what is left, less what it needs itself. */
static void a_limit_of_its_own(void **state)
{
	struct headroom_rule rule = paper();
	struct headroom_sample s = { .memory = 64 * G, .available = 60 * G, .limited = true,
				     .limit = 8 * G, .own = 8 * G };
	struct headroom_plan plan;
	struct headroom h = { 0 };

	headroom_sample(&h, &rule, &s, 0);
	assert_int_equal(headroom_slabs(&h, &rule), 7);
	headroom_plan(&h, &rule, 0, 7, &plan);
	assert_plan(plan, 0, 0, 0);
	/* The same with six of them made. */
	s.own = 2 * G;
	headroom_sample(&h, &rule, &s, 6);
	assert_int_equal(headroom_slabs(&h, &rule), 7);
	/* Others are in there, too, or it was lowered: slabs go. */
	s.own = 0;
	headroom_sample(&h, &rule, &s, 6);
	headroom_plan(&h, &rule, 1, 5, &plan);
	assert_plan(plan, 0, 1, 0);
	/* The machine has less than it allows. */
	s.own = 50 * G;
	s.available = 10 * G;
	h = (struct headroom){ 0 };
	headroom_sample(&h, &rule, &s, 0);
	assert_int_equal(headroom_slabs(&h, &rule), 2);
}

static void defaults(void **state)
{
	assert_int_equal(headroom_default(64 * G), 64 * G / 10);
	assert_int_equal(headroom_default(4 * G), G);
	assert_int_equal(headroom_default(10 * G), G);
	/* E = 10, E' = 5 with the paper's slabs. */
	assert_int_equal(paper().evict, 10);
	assert_int_equal(paper().extra, 5);
	assert_int_equal(headroom_rule_default(64 * G, 64 << 20).evict, 32);
	assert_int_equal(headroom_rule_default(64 * G, 1 << 20).evict, HEADROOM_EVICT_MOST);
}

static void before_a_sample_nothing(void **state)
{
	struct headroom_rule rule = paper();
	struct headroom h = { 0 };
	struct headroom_plan plan;

	headroom_plan(&h, &rule, 3, 5, &plan);
	assert_plan(plan, 0, 0, 0);
	assert_int_equal(headroom_slabs(&h, &rule), 0);
}

static void allocates_ahead(void **state)
{
	struct headroom_rule rule = paper();
	struct headroom h = { 0 };
	struct headroom_sample pressed = { .memory = 64 * G, .available = 40 * G,
					   .pressure = HEADROOM_PRESSURE };
	struct headroom_plan plan;

	/* 24 in use, 8 kept: 32 slabs. */
	assert_plan(at(&h, &rule, 40 * G, 0, 0), HEADROOM_FREE_SLABS, 0, 0);
	assert_int_equal(headroom_slabs(&h, &rule), 32);
	assert_plan(at(&h, &rule, 38 * G, 2, 0), 0, 0, 0);
	assert_plan(at(&h, &rule, 38 * G, 1, 1), 1, 0, 0);
	/* The last slab there is room for. */
	assert_plan(at(&h, &rule, 9 * G, 0, 31), 1, 0, 0);
	assert_plan(at(&h, &rule, 8 * G, 0, 32), 0, 0, 0);
	/* Programs that wait for memory come first. */
	headroom_sample(&h, &rule, &pressed, 0);
	headroom_plan(&h, &rule, 0, 0, &plan);
	assert_plan(plan, 0, 0, 0);
	rule.most = 3 * G;
	assert_plan(at(&h, &rule, 37 * G, 0, 3), 0, 0, 0);
}

/* Free slabs go first, then mapped ones, E at most. */
static void two_stages(void **state)
{
	struct headroom_rule rule = paper();
	struct headroom h = { 0 };

	/* 40 of programs and 16 slabs fill all but HeadRoom; 5 too many. */
	assert_plan(at(&h, &rule, 3 * G, 7, 14), 0, 5, 0);
	h = (struct headroom){ 0 };
	assert_plan(at(&h, &rule, 3 * G, 2, 19), 0, 2, 3);
	h = (struct headroom){ 0 };
	assert_plan(at(&h, &rule, 0, 0, 40), 0, 0, 8);
	h = (struct headroom){ 0 };
	/* Programs want all of it. */
	{
		struct headroom_sample full = { .memory = 64 * G, .available = 0 };
		struct headroom_plan plan;

		rule.headroom = 32 * G;
		headroom_sample(&h, &rule, &full, 30);
		headroom_plan(&h, &rule, 0, 30, &plan);
		assert_plan(plan, 0, 0, HEADROOM_EVICT);
	}
}

/* U_current = 0.2 * U_measured + 0.8 * U_old: a short peak evicts no slab. */
static void smoothed(void **state)
{
	struct headroom_rule rule = paper();
	struct headroom h = { 0 };
	int evicted_after = 0;

	assert_plan(at(&h, &rule, 16 * G, 0, 8), HEADROOM_FREE_SLABS, 0, 0);
	assert_plan(at(&h, &rule, 6 * G, 0, 8), 0, 0, 0); /* 2 of 10 GB more count */
	assert_true(fabs(h.others - 42.0 * (double)G) < 1);
	/* One that lasts does. */
	while (!at(&h, &rule, 6 * G, 0, 8).evict && evicted_after < 100)
		evicted_after++;
	assert_in_range(evicted_after, 5, 10);
}

/* Below half of HeadRoom the rise counts at once; a fall is smoothed as ever. */
static void urgent(void **state)
{
	struct headroom_rule rule = paper();
	struct headroom h = { 0 };

	at(&h, &rule, 16 * G, 0, 8);
	assert_plan(at(&h, &rule, 3 * G, 0, 8), 0, 0, 5);
	assert_true(fabs(h.others - 53.0 * (double)G) < 1);
	at(&h, &rule, 16 * G, 0, 8);
	assert_true(fabs(h.others - 50.4 * (double)G) < 1e6);
}

/* A release is visible at once, so it is not repeated. */
static void gives_back_once(void **state)
{
	struct headroom_rule rule = paper();
	struct headroom h = { 0 };
	uint64_t programs = 40 * G;
	uint32_t mapped = 20, evicted = 0;

	for (int second = 0; second < 60; second++) {
		struct headroom_plan plan = at(&h, &rule, 64 * G - programs - mapped * G, 0,
					       mapped);

		evicted += plan.evict;
		mapped -= plan.evict;
	}
	assert_int_equal(evicted, 4);
}

/* Slabs that cannot be recalled take room, and are not asked for. */
static void pinned(void **state)
{
	struct headroom_rule rule = paper();
	struct headroom h = { .pinned = 16 };

	/* 44 in use: 16 pinned, 8 others, 20 of programs; HeadRoom leaves 36 to slabs. */
	struct headroom_sample s = { .memory = 64 * G, .available = 20 * G };
	struct headroom_plan plan;

	headroom_sample(&h, &rule, &s, 16 + 8);
	assert_int_equal(headroom_slabs(&h, &rule), 36);
	rule.most = 12 * G;
	assert_int_equal(headroom_slabs(&h, &rule), 12);
	headroom_plan(&h, &rule, 3, 5, &plan);
	assert_plan(plan, 0, 3, 5);
	rule.most = 0;
	headroom_plan(&h, &rule, 0, 8, &plan);
	assert_plan(plan, rule.free_slabs, 0, 0);
	/* Programs want more than there is: all that can be had is recalled. */
	h = (struct headroom){ .pinned = 16 };
	s.available = 2 * G;
	headroom_sample(&h, &rule, &s, 16 + 4);
	assert_int_equal(headroom_slabs(&h, &rule), 14);
	headroom_plan(&h, &rule, 0, 4, &plan);
	assert_plan(plan, 0, 0, 4);
}

/* Below half of the reserve, or below it while tasks wait for memory. */
static void emergency(void **state)
{
	static const struct { uint64_t available; double pressure; uint64_t lack; } cases[] = {
		{ 2 * G, 50, 0 }, { G, 50, 0 }, { G - 1, 50, 1 }, { G - 1, 9, 0 },
		{ G / 2, 0, 0 }, { G / 2 - 1, 0, G / 2 + 1 }, { 0, 0, G }, { 0, 50, G },
	};

	assert_int_equal(headroom_reserve(64 * G, 0), G);
	assert_int_equal(headroom_reserve(64 * G, 10 * G), G);
	assert_int_equal(headroom_reserve(64 * G, G), G / 2);
	assert_int_equal(headroom_reserve(16 * G, 0), G / 2);
	assert_int_equal(headroom_reserve(0, 0), 0);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct headroom_sample s = { .memory = 64 * G, .available = cases[i].available,
					     .pressure = cases[i].pressure };

		assert_int_equal(headroom_emergency(&s, G), cases[i].lack);
	}
	/* Before the first sample. */
	assert_int_equal(headroom_emergency(&(struct headroom_sample){ 0 }, 0), 0);
}

static void candidates(void **state)
{
	struct headroom_rule rule = paper();

	/* E' = 5, never above E, never more than there are. */
	assert_int_equal(headroom_candidates(&rule, 10, 100), 15);
	assert_int_equal(headroom_candidates(&rule, 2, 100), 4);
	assert_int_equal(headroom_candidates(&rule, 10, 12), 12);
	assert_int_equal(headroom_candidates(&rule, 1, 1), 1);
}

static void draws_are_even(void **state)
{
	uint32_t seen[20] = { 0 }, drawn[20];
	uint64_t seed = 3;

	for (int round = 0; round < 20000; round++) {
		uint32_t bits = 0;

		headroom_draw(20, 5, &seed, drawn);
		for (int i = 0; i < 5; i++) {
			assert_in_range(drawn[i], 0, 19);
			bits |= 1u << drawn[i];
			seen[drawn[i]]++;
		}
		assert_int_equal(__builtin_popcount(bits), 5);
	}
	for (int i = 0; i < 20; i++)
		assert_in_range(seen[i], 4700, 5300);
	headroom_draw(20, 20, &seed, drawn);
	headroom_draw(20, 0, &seed, drawn);
}

static void least_active_first(void **state)
{
	struct headroom_candidate c[] = {
		{ 1, 50 }, { 2, 3 }, { 3, 0 }, { 4, 20 }, { 5, 3.5 }, { 6, 100 },
	};

	headroom_least(c, 6, 3);
	assert_int_equal(c[0].slab, 3);
	assert_int_equal(c[1].slab, 2);
	assert_int_equal(c[2].slab, 5);
	headroom_least(c, 6, 9);
	assert_int_equal(c[5].slab, 6);
}

/* Mean activity, as a rank of 0 to 1, of what is evicted with E = 10 of 100 mapped slabs. */
static double evicted_rank(uint32_t extra)
{
	struct headroom_candidate c[20];
	uint32_t drawn[20];
	uint64_t seed = 7;
	double sum = 0;

	for (int round = 0; round < 2000; round++) {
		uint32_t n = 10 + extra;

		headroom_draw(100, n, &seed, drawn);
		for (uint32_t i = 0; i < n; i++)
			c[i] = (struct headroom_candidate){ drawn[i], drawn[i] / 100.0 };
		headroom_least(c, n, 10);
		for (int i = 0; i < 10; i++)
			sum += c[i].activity;
	}
	return sum / (2000 * 10);
}

/*
 * Figure 8: the more are asked, the less active are those evicted.  The E least of
 * n evenly spread numbers average (E + 1) / 2(n + 1).
 */
static void batch_eviction(void **state)
{
	double none = evicted_rank(0), five = evicted_rank(5), ten = evicted_rank(10);

	assert_true(fabs(none - 0.5) < 0.02);
	assert_true(fabs(five - 11.0 / 32) < 0.02);
	assert_true(fabs(ten - 11.0 / 42) < 0.02);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_limit_of_its_own),
		cmocka_unit_test(defaults),
		cmocka_unit_test(before_a_sample_nothing),
		cmocka_unit_test(allocates_ahead),
		cmocka_unit_test(two_stages),
		cmocka_unit_test(smoothed),
		cmocka_unit_test(urgent),
		cmocka_unit_test(gives_back_once),
		cmocka_unit_test(pinned),
		cmocka_unit_test(emergency),
		cmocka_unit_test(candidates),
		cmocka_unit_test(draws_are_even),
		cmocka_unit_test(least_active_first),
		cmocka_unit_test(batch_eviction),
	};

	return cmocka_run_group_tests_name("headroom", tests, NULL, NULL);
}
