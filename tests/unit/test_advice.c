// SPDX-License-Identifier: GPL-2.0-or-later
/* Predictions for more memory than was recorded, against a memory of that size. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/draw.h"
#include "sim/advice.h"
#include "trace_file.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define PAGE 4096ULL
#define BASE 0x7f0000000ULL
#define US 1000ULL
#define PAGES 2000u
#define FLOOR 500u
#define TOUCHES 24000u
#define TOUCH_US 20
#define MISS_US 100

typedef uint32_t (*order_of)(uint32_t touch, uint64_t *seed);

static uint32_t sweeps(uint32_t i, uint64_t *seed)
{
	return i % PAGES;
}

static uint32_t anywhere(uint32_t i, uint64_t *seed)
{
	return draw_below(seed, PAGES);
}

/* Half of the touches to a tenth of the pages. */
static uint32_t uneven(uint32_t i, uint64_t *seed)
{
	return draw_below(seed, 2) ? draw_below(seed, PAGES / 10) : draw_below(seed, PAGES);
}

/* A memory of @room pages under LRU: the time of each page's last touch is its place. */
struct memory {
	uint32_t room, held;
	uint32_t last[PAGES];           /* 0 = never, or not there */
	bool born[PAGES];
	uint64_t misses;
};

#define NOBODY UINT32_MAX

/*
 * Touches @page at time @i; returns the page evicted for it.  Sets *@missed if @page was swapped
 * out.
 */
static uint32_t touch(struct memory *m, uint32_t page, uint32_t i, bool *missed)
{
	uint32_t oldest = NOBODY;

	*missed = !m->last[page] && m->born[page];
	m->misses += *missed;
	if (!m->last[page] && m->held++ == m->room) {
		for (uint32_t p = 0; p < PAGES; p++)
			if (m->last[p] && (oldest == NOBODY || m->last[p] < m->last[oldest]))
				oldest = p;
		m->last[oldest] = 0;
		m->held--;
	}
	m->born[page] = true;
	m->last[page] = i + 1;
	return oldest;
}

static uint64_t misses_with(uint32_t room, order_of order)
{
	struct memory *m = calloc(1, sizeof(*m));
	uint64_t seed = 5, misses;
	bool missed;

	m->room = room;
	for (uint32_t i = 0; i < TOUCHES; i++)
		touch(m, order(i, &seed), i, &missed);
	misses = m->misses;
	free(m);
	return misses;
}

/* Recorded swap-outs: all writes; the first write of each page; or none. */
enum program { WRITES, READS, UNSEEN };

static void sample(struct trace_writer *w, const struct memory *m, uint64_t us)
{
	struct trace_sample s = { .time_ns = us * US, .resident = m->held };

	for (uint32_t p = 0; p < PAGES; p++)
		s.swapped += m->born[p] && !m->last[p];
	assert_int_equal(trace_write_sample(w, &s, NULL), 0);
}

/* What would be recorded with FLOOR pages of memory. */
static void record(struct sim_history *h, order_of order, enum program program)
{
	struct trace_info info = { .page_shift = 12, .memory = FLOOR * PAGE };
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	_cleanup_trace_ struct trace_reader *r = NULL;
	struct memory *m = calloc(1, sizeof(*m));
	bool saved[PAGES] = { false };
	uint64_t seed = 5, us = 1000;
	struct trace_writer *w;

	m->room = FLOOR;
	assert_int_equal(trace_writer_new(&w, fd, path, &info, NULL), 0);
	for (uint32_t i = 0; i < TOUCHES; i++, us += TOUCH_US) {
		uint32_t page = order(i, &seed), leaves;
		struct trace_record fault = { .vpn = BASE + page,
					      .tgid = 10,
					      .tid = 10,
					      .cluster = 1,
					      .kind = TRACE_MISS,
					      .duration_ns = MISS_US * US };
		struct trace_record out = { .tgid = 10, .kind = TRACE_OUT, .cluster = 1 };
		bool missed;

		leaves = touch(m, page, i, &missed);
		out.vpn = BASE + leaves;
		out.time_ns = us * US;
		if (i % (TOUCHES / 100) == 0)
			sample(w, m, us);
		if (leaves != NOBODY && program != UNSEEN &&
		    (program == WRITES || !saved[leaves])) {
			assert_int_equal(trace_write(w, &out, NULL), 0);
			saved[leaves] = true;
		}
		us += missed ? MISS_US : 0;
		fault.time_ns = us * US;
		if (missed)
			assert_int_equal(trace_write(w, &fault, NULL), 0);
	}
	free(m);
	assert_int_equal(trace_writer_end(&w, 0, "", NULL), 0);
	assert_int_equal(trace_open(&r, path, TRACE_WHOLE, NULL), 0);
	assert_int_equal(sim_history_read(h, r, NULL), 0);
}

static const struct advice *find(const struct advice *a, const char *policy)
{
	for (uint32_t i = 0; i < advice_policy_count(); i++)
		if (!strcmp(a[i].policy->info->name, policy))
			return &a[i];
	fail_msg("no policy %s", policy);
	return NULL;
}

static struct advice *ask(const struct sim_history *h, struct advice_plan *plan)
{
	struct advice *a;

	plan->headroom = 8;
	a = calloc(advice_rows(plan), sizeof(*a));
	assert_int_equal(advise(h, plan, a, NULL), 0);
	return a;
}

static bool near(uint64_t value, uint64_t expected, double share)
{
	double difference = (double)value - (double)expected;

	return difference <= share * (double)expected + 1 &&
	       -difference <= share * (double)expected + 1;
}

/* What is said of LRU memories of several sizes is within @share of what they do. */
static void check_lru(enum program program, double share)
{
	static const order_of orders[] = { sweeps, anywhere, uneven };
	const struct ebb_policy *none = NULL;

	for (size_t k = 0; k < 3; k++) {
		_cleanup_history_ struct sim_history h = { 0 };

		record(&h, orders[k], program);
		assert_int_equal(h.recorded[TRACE_MISS], misses_with(FLOOR, orders[k]));
		for (uint32_t room = FLOOR; room <= 3 * FLOOR; room += FLOOR / 2) {
			struct advice_plan plan = { .memory = (uint64_t[]){ FLOOR * PAGE },
						    .sizes = 1 };
			struct sim_config c = { .memory = room * PAGE, .latency_ns = MISS_US * US,
						.headroom = 8, .order = SURPLUS_LRU };
			struct sim_result x;

			if (!none) {
				struct advice *a = ask(&h, &plan);

				none = find(a, "none")->policy;
				free(a);
			}
			c.policy = none;
			ebb_policy_defaults(none, &c.params);
			assert_int_equal(sim_replay(&h, &c, &x, NULL), 0);
			if (!near(x.misses, misses_with(room, orders[k]), share))
				fail_msg("order %zu, %u pages: %lu for %lu misses", k, room,
					 (unsigned long)x.misses,
					 (unsigned long)misses_with(room, orders[k]));
		}
	}
}

/* Under LRU what a small memory misses tells exactly what a larger one does. */
static void lru_is_a_stack(void **unused)
{
	check_lru(WRITES, 0.02);
}

/* Clean pages leave unseen; how many are out is sampled. */
static void clean_pages(void **unused)
{
	check_lru(READS, 0.1);
}

/* Not even the first departure is seen. */
static void unseen_pages(void **unused)
{
	check_lru(UNSEEN, 0.25);
}

static void expected_lies_between(void **unused)
{
	static const order_of orders[] = { sweeps, anywhere, uneven };

	for (size_t k = 0; k < 3; k++) {
		_cleanup_history_ struct sim_history h = { 0 };
		/* A page leaves before the one it leaves for is there. */
		uint64_t sizes[] = { (PAGES + 8) * PAGE, 2 * FLOOR * PAGE, FLOOR * PAGE };
		struct advice_plan plan = { .memory = sizes, .sizes = 3 };
		uint32_t n = advice_policy_count();
		const struct advice *none;
		struct advice *a;

		record(&h, orders[k], WRITES);
		a = ask(&h, &plan);
		for (uint32_t i = 0; i < 3 * n; i++) {
			assert_true(a[i].misses_low <= a[i].result.misses);
			assert_true(a[i].result.misses <= a[i].misses_high);
			assert_true(1 <= a[i].slowdown_low);
			assert_true(a[i].slowdown_low <= a[i].slowdown);
			assert_true(a[i].slowdown <= a[i].slowdown_high);
		}
		/* All of it, half, and what was recorded. */
		assert_int_equal(find(a, "none")->result.misses, 0);
		none = find(a + n, "none");
		assert_true(none->misses_low <= misses_with(2 * FLOOR, orders[k]));
		assert_true(misses_with(2 * FLOOR, orders[k]) <= none->misses_high);
		assert_int_equal(find(a + 2 * n, "none")->result.misses, h.recorded[TRACE_MISS]);
		free(a);
	}
}

/* Prefetching pays on a sweep, and on nothing that has no order. */
static void best_policy(void **unused)
{
	uint64_t size = FLOOR * PAGE;
	struct advice_plan plan = { .memory = &size, .sizes = 1 };
	_cleanup_history_ struct sim_history h = { 0 };
	struct advice *a;

	record(&h, sweeps, WRITES);
	a = ask(&h, &plan);
	assert_string_not_equal(advice_best(a, &plan, 0)->policy->info->name, "none");
	assert_true(find(a, "leap")->slowdown < find(a, "none")->slowdown * 0.7);
	assert_true(find(a, "leap")->result.misses * 2 < find(a, "none")->result.misses);
	free(a);
	sim_history_free(&h);

	record(&h, anywhere, WRITES);
	a = ask(&h, &plan);
	assert_string_equal(advice_best(a, &plan, 0)->policy->info->name, "none");
	free(a);
}

/* Of policies that take as long the one that brings in less, and none rather than any. */
static void as_fast_with_less(void **unused)
{
	uint64_t size = FLOOR * PAGE;
	struct advice_plan plan = { .memory = &size, .sizes = 1 };
	_cleanup_history_ struct sim_history h = { 0 };
	struct advice *a, *leap, *streams, *none;

	record(&h, sweeps, WRITES);
	a = ask(&h, &plan);
	for (uint32_t i = 0; i < advice_policy_count(); i++)
		a[i].slowdown = 9;
	leap = &a[find(a, "leap") - a];
	streams = &a[find(a, "streams") - a];
	none = &a[find(a, "none") - a];
	leap->slowdown = 2.01;
	leap->result.prefetched = 10;
	streams->slowdown = 2;
	streams->result.prefetched = 11;
	assert_ptr_equal(advice_best(a, &plan, 0), leap);
	leap->slowdown = 2.03;
	assert_ptr_equal(advice_best(a, &plan, 0), streams);
	none->slowdown = 2.01;
	assert_ptr_equal(advice_best(a, &plan, 0), none);
	free(a);
}

/* What was measured when it was recorded is what is said of that size. */
static void agrees_with_what_was_measured(void **unused)
{
	uint64_t sizes[] = { 2 * FLOOR * PAGE, FLOOR * PAGE };
	struct advice_plan plan = { .memory = sizes, .sizes = 2, .recorded_slowdown = 3.5 };
	_cleanup_history_ struct sim_history h = { 0 };
	uint32_t n = advice_policy_count();
	struct advice *a;
	double simulated;

	record(&h, anywhere, WRITES);
	assert_int_equal(advice_latency(&h), MISS_US * US);
	a = ask(&h, &plan);
	assert_true(find(a + n, "none")->slowdown > 3.49 && find(a + n, "none")->slowdown < 3.51);
	/* With half of the misses about half of the loss. */
	simulated = (find(a, "none")->slowdown - 1) / 2.5;
	assert_true(near(find(a, "none")->result.misses,
			 (uint64_t)(simulated * (double)h.recorded[TRACE_MISS]), 0.05));
	free(a);
}

static void refuses_what_was_not_recorded(void **unused)
{
	uint64_t sizes[] = { 2 * FLOOR * PAGE, FLOOR * PAGE - PAGE };
	struct advice_plan plan = { .memory = sizes, .sizes = 2, .headroom = 8 };
	_cleanup_history_ struct sim_history h = { 0 };
	struct advice *a = calloc(advice_rows(&plan), sizeof(*a));
	struct error e = { 0 };

	record(&h, anywhere, WRITES);
	assert_int_equal(advise(&h, &plan, a, &e), -EINVAL);
	assert_non_null(strstr(e.text, "below the recorded"));
	free(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lru_is_a_stack),
		cmocka_unit_test(clean_pages),
		cmocka_unit_test(unseen_pages),
		cmocka_unit_test(expected_lies_between),
		cmocka_unit_test(best_policy),
		cmocka_unit_test(as_fast_with_less),
		cmocka_unit_test(agrees_with_what_was_measured),
		cmocka_unit_test(refuses_what_was_not_recorded),
	};

	return cmocka_run_group_tests(tests, make_file, remove_file);
}
