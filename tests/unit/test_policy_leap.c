// SPDX-License-Identifier: GPL-2.0-or-later
/* policies/leap.bpf.c, compiled natively: the code the kernel runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "policies/leap.bpf.c"
#include "policy_world.h"

/* 32/4/8, misses alone decide, requests arrive at once. */
static struct world *paper(void)
{
	struct world *w = world_new(&leap_policy);

	w->sim.params.v[PW_MAX] = 8;
	w->sim.params.v[AHEAD] = 0;
	w->sim.params.v[SPECULATE] = 1;
	return w;
}

static struct world *defaults(unsigned int latency)
{
	struct world *w = world_new(&leap_policy);

	w->latency = latency;
	w->issue = latency / 2;
	return w;
}

/* The sixteen addresses of the paper's example (section 3.2.1), Hsize 8 and Nsplit 2. */
static void worked_example(void **unused)
{
	static const __u64 address[16] = {
		0x48, 0x45, 0x42, 0x3f, 0x3c, 0x02, 0x04, 0x06,
		0x08, 0x0a, 0x0c, 0x10, 0x39, 0x12, 0x14, 0x16,
	};
	__s64 found[16];
	struct leap s = { 0 };

	for (int t = 0; t < 16; t++) {
		leap_log(&s, address[t] - s.last);
		s.last = address[t];
		found[t] = leap_trend(&s, 8, 2);
	}
	assert_int_equal(found[3], -3);
	assert_int_equal(found[7], 0);
	assert_int_equal(found[8], 2);
	assert_int_equal(found[15], 2);
}

static __s64 majority(const __s64 *delta, int n)
{
	struct leap s = { 0 };

	for (int i = 0; i < n; i++)
		leap_log(&s, delta[i]);
	return leap_majority(&s, n);
}

static void majority_is_strict(void **unused)
{
	assert_int_equal(majority((__s64[]){ 5, 5, 7, 7 }, 4), 0);
	assert_int_equal(majority((__s64[]){ 5, 5, 7, 5 }, 4), 5);
	assert_int_equal(majority((__s64[]){ 5, 7, 5, 5 }, 4), 5);
	/* The vote alone would elect the last one. */
	assert_int_equal(majority((__s64[]){ 3, 1, 2, 9 }, 4), 0);
	assert_int_equal(majority((__s64[]){ 2, 2, 2, 4, 41, -39, 2, 2 }, 8), 2);
	assert_int_equal(majority((__s64[]){ 72, -3, -3, -3, -3, -58, 2, 2 }, 8), 0);
	assert_int_equal(majority((__s64[]){ -1, -1, 1 }, 3), -1);
}

/* Three of four in the shortest window count although the longest disagrees. */
static void shortest_window_first(void **unused)
{
	struct leap s = { 0 };

	for (int i = 0; i < HSIZE; i++)
		leap_log(&s, 3);
	for (int i = 0; i < 5; i++)
		leap_log(&s, 9);
	assert_int_equal(leap_trend(&s, HSIZE, NSPLIT), 9);
	leap_log(&s, 3);
	leap_log(&s, 3);
	leap_log(&s, 3);
	/* 5 of the last 8 are still 9. */
	assert_int_equal(leap_trend(&s, HSIZE, NSPLIT), 9);
	leap_log(&s, 3);
	/* 4 and 4 of 8; 12 of 16 are 3. */
	assert_int_equal(leap_trend(&s, HSIZE, NSPLIT), 3);
}

static void window_rule(void **unused)
{
	struct leap s = { 0 };

	assert_int_equal(leap_window(&s, 0, 0, 8), 0);
	assert_int_equal(leap_window(&s, 0, 1, 8), 1);
	assert_int_equal(leap_window(&s, 1, 1, 8), 2);
	assert_int_equal(leap_window(&s, 2, 0, 8), 4);
	assert_int_equal(leap_window(&s, 4, 0, 8), 8);
	assert_int_equal(leap_window(&s, 8, 0, 8), 8);
	assert_int_equal(leap_window(&s, 1000, 0, 1024), 1024);
	s.window = 8;
	/* A cold spell: 8, 4, 2, 1, 0. */
	assert_int_equal(leap_window(&s, 0, 0, 8), 4);
	assert_int_equal(leap_window(&s, 0, 0, 8), 2);
	assert_int_equal(leap_window(&s, 0, 0, 8), 1);
	assert_int_equal(leap_window(&s, 0, 0, 8), 0);
}

static unsigned int paper_misses(uint64_t first, int64_t stride, int wild_every)
{
	struct world *w = paper();
	unsigned int misses;

	for (int i = 0; i < 100; i++)
		world_visit(w, first + stride * i + (wild_every && !(i % wild_every) ? 116589 : 0));
	misses = w->misses;
	world_free(w);
	return misses;
}

/* Miss counts another implementation of the paper publishes for 32/4/8. */
static void conformance(void **unused)
{
	static const uint64_t random[15] = {
		1, 56, 12, 100, 124, 15550, 51, 10, 7, 4101, 23, 1, 154, 1856, 15,
	};
	struct world *w = paper();

	assert_int_equal(paper_misses(1, 1, 0), 15);
	assert_int_equal(paper_misses(1, 2, 0), 15);
	assert_int_equal(paper_misses(1000, -1, 0), 15);
	assert_int_equal(paper_misses(1000, -2, 0), 15);
	assert_int_equal(paper_misses(1, 1, 15), 25);
	for (int i = 0; i < 15; i++)
		world_visit(w, random[i]);
	assert_int_equal(w->misses, 14);
	world_free(w);
}

/* In the paper a hit asks for nothing. */
static void paper_hits_are_quiet(void **unused)
{
	struct world *w = paper();

	for (int i = 1; i <= 100; i++) {
		unsigned int hits = w->hits, before = w->requests;

		world_visit(w, i);
		if (w->hits > hits)
			assert_int_equal(w->requests, before);
	}
	assert_true(w->hits > 80);
	world_free(w);
}

/*
 * Pairs of neighbours all over the place: half of the deltas are 1, no majority.
 * The paper goes on along the last trend and catches each second page.
 */
static void speculation_is_a_choice(void **unused)
{
	unsigned int hits[2];

	for (int speculate = 0; speculate < 2; speculate++) {
		struct world *w = paper();
		uint64_t seed = 3;

		w->sim.params.v[SPECULATE] = speculate;
		world_walk(w, 1, 1, 100);
		hits[speculate] = -w->hits;
		for (int i = 0; i < 1000; i++)
			world_walk(w, 1000 + (world_random(&seed) >> 45), 1, 2);
		hits[speculate] += w->hits;
		world_free(w);
	}
	assert_true(hits[1] > 950);
	assert_true(hits[0] < 50);
}

static void regular_walks(void **unused)
{
	static const struct {
		uint64_t first;
		int64_t stride;
	} walk[] = {
		{ 100, 1 }, { 20000, -1 }, { 100, 7 }, { 100, 64 }, { 600000, -64 }, { 100, 2 },
	};
	static const unsigned int latency[] = { 0, 1, 4, 8, 16, 24 };
	static const unsigned int readahead[] = { 0, 8 };

	for (size_t i = 0; i < sizeof(walk) / sizeof(walk[0]); i++)
		for (size_t j = 0; j < sizeof(latency) / sizeof(latency[0]); j++)
			for (size_t k = 0; k < 2; k++) {
				struct world *w = defaults(latency[j]);

				w->readahead.max = readahead[k];
				world_walk(w, walk[i].first, walk[i].stride, 8192);
				assert_true(world_coverage(w) >= 0.95);
				assert_true(world_accuracy(w) >= 0.95);
				/* The kernel's readahead got a stream started, no more. */
				assert_true(w->unseen < 100);
				world_free(w);
			}
}

/* A page that has been asked for is a miss as long as it is not there. */
static void window_outgrows_latency(void **unused)
{
	struct world *w = world_new(&leap_policy);

	w->latency = w->issue = 24;
	world_walk(w, 100, 1, 8192);
	assert_true(world_coverage(w) >= 0.95);
	assert_int_equal(w->late, 0);
	world_free(w);
}

static void random_asks_for_nothing(void **unused)
{
	for (unsigned int readahead = 0; readahead <= 8; readahead += 8) {
		struct world *w = defaults(8);
		uint64_t seed = 42;

		w->readahead.max = readahead;
		for (int round = 0; round < 20; round++) {
			for (int i = 0; i < 20000; i++)
				world_visit(w, world_random(&seed) >> 47);
			memset(w->here, OUT, WORLD_PAGES);
			memset(w->asked, 0, WORLD_PAGES * sizeof(*w->asked));
		}
		assert_true(w->misses > 300000);
		assert_true(w->asked_pages * 100 <= w->misses);
		world_free(w);
	}
}

/* One wild page every 15 neither ends the stream nor moves the window to it. */
static void wild_pages_are_absorbed(void **unused)
{
	struct world *w = defaults(8);
	uint64_t seed = 7;

	for (int i = 0; i < 8192; i++)
		world_visit(w, i % 15 ? 100 + i : 300000 + (int)(world_random(&seed) >> 47));
	assert_true(w->misses < 8192 / 15 + 50);
	assert_true(world_accuracy(w) > 0.9);
	world_free(w);
}

static void resident_pages_are_skipped(void **unused)
{
	struct world *w = defaults(8);
	uint64_t seed = 7;

	for (int i = 0; i < 8192; i++)
		if (world_random(&seed) % 10 >= 2)
			world_visit(w, 100 + i);
	assert_true(world_coverage(w) >= 0.95);
	world_free(w);
}

static void no_more_than_pw_max_outstanding(void **unused)
{
	static const unsigned int pw_max[] = { 1, 2, 8, 50, 64, 1024 };

	for (size_t i = 0; i < sizeof(pw_max) / sizeof(pw_max[0]); i++) {
		struct world *w = defaults(0);

		w->sim.params.v[PW_MAX] = pw_max[i];
		for (int page = 100; page < 8292; page++) {
			world_visit(w, page);
			assert_true(w->pages - w->hits <= pw_max[i]);
		}
		assert_true(w->pages - w->hits > 0);
		world_free(w);
	}
}

/* When nothing that is asked for comes, stop asking; when it comes again, start again. */
static void lost_requests(void **unused)
{
	struct world *w = defaults(8);
	unsigned int asked;

	w->sim.params.v[PW_MAX] = 64;
	w->drop_from = 1000;
	w->drop_to = 20000;
	world_walk(w, 100, 1, 20000);
	asked = w->asked_pages;
	assert_true(asked - 1000 < 19000 / 2);
	world_walk(w, 20100, 1, 4096);
	assert_true(w->asked_pages - asked > 4000 - 9 * 64);
	assert_true(w->hits > 3000);
	world_free(w);
}

static void address_space_ends(void **unused)
{
	struct world *w = defaults(0);

	/* Down to page 1, and up to the last page there is. */
	w->base = 0;
	world_walk(w, 1000, -7, 143);
	assert_int_equal(w->outside, 0);
	assert_true(w->last.first - 7 * (uint64_t)(w->last.count - 1) >= 1);
	world_free(w);

	w = defaults(0);
	w->base = EBB_VPN_END - WORLD_PAGES;
	world_walk(w, WORLD_PAGES - 3000, 3, 1000);
	assert_int_equal(w->outside, 0);
	assert_true(w->hits > 900);
	world_free(w);
}

static void same_page_again(void **unused)
{
	struct world *w = defaults(0);
	struct ebb_fault f = { .vpn = 1000, .exec = 1 };
	struct leap *s = w->sim.state;

	for (int i = 0; i < 40; i++)
		leap_policy.run(&w->sim, &f);
	assert_int_equal(s->logged, 1);
	assert_int_equal(w->requests, 0);
	world_free(w);
}

static void exec_starts_over(void **unused)
{
	struct world *w = defaults(0);
	struct ebb_fault f = { .exec = 2 };
	struct leap *s = w->sim.state;

	world_walk(w, 100, 1, 100);
	assert_int_equal(s->logged, HSIZE);
	f.vpn = w->base + 200;
	leap_policy.run(&w->sim, &f);
	assert_int_equal(s->logged, 1);
	assert_int_equal(s->window, 0);
	world_free(w);
}

static void cold_on_request_only(void **unused)
{
	struct world *w = defaults(0);

	world_walk(w, 100, 1, 2000);
	assert_int_equal(w->cold, 0);
	world_free(w);

	w = defaults(0);
	w->sim.params.v[COLD] = 1;
	w->sim.params.v[PW_MAX] = 64;
	world_walk(w, 100, 1, 2000);
	/* Every consumed page but those since the last decision, none twice. */
	assert_in_range(w->cold, 2000 - 64 - 10, 2000);
	world_free(w);
}

static void info(void **unused)
{
	const struct ebb_policy_info *i = leap_policy.info;

	assert_int_equal(i->abi, EBB_ABI);
	assert_string_equal(i->name, "leap");
	assert_int_equal(i->params, 4);
	for (unsigned int p = 0; p < i->params; p++) {
		assert_true(i->param[p].name[0] && i->param[p].help[0]);
		assert_in_range(i->param[p].initial, i->param[p].min, i->param[p].max);
	}
	assert_string_equal(i->param[PW_MAX].name, "pw_max");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(worked_example),
		cmocka_unit_test(majority_is_strict),
		cmocka_unit_test(shortest_window_first),
		cmocka_unit_test(window_rule),
		cmocka_unit_test(conformance),
		cmocka_unit_test(paper_hits_are_quiet),
		cmocka_unit_test(speculation_is_a_choice),
		cmocka_unit_test(regular_walks),
		cmocka_unit_test(window_outgrows_latency),
		cmocka_unit_test(random_asks_for_nothing),
		cmocka_unit_test(wild_pages_are_absorbed),
		cmocka_unit_test(resident_pages_are_skipped),
		cmocka_unit_test(no_more_than_pw_max_outstanding),
		cmocka_unit_test(lost_requests),
		cmocka_unit_test(address_space_ends),
		cmocka_unit_test(same_page_again),
		cmocka_unit_test(exec_starts_over),
		cmocka_unit_test(cold_on_request_only),
		cmocka_unit_test(info),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
