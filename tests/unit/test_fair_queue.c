// SPDX-License-Identifier: GPL-2.0-or-later
/* Turns of cgroups with requests, whatever number and size these have. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#undef fail

#include "ebbd/prefetch/fair_queue.h"

enum { CGROUPS = 4, TURNS = 20000 };

static bool put(struct fair_queue *q, uint64_t owner, uint32_t count, uint64_t first)
{
	struct ebb_list_request r = { .head = { .owner = owner, .count = count, .first = first } };

	return fair_put(q, &r, FAIR_WEIGHT);
}

static bool put_weighted(struct fair_queue *q, uint64_t owner, uint32_t count, uint32_t weight)
{
	struct ebb_list_request r = { .head = { .owner = owner, .count = count } };

	return fair_put(q, &r, weight);
}

static uint64_t owner_of(struct fair_queue *q, int flow)
{
	return fair_request(q, flow)->asked.head.owner;
}

/*
 * All have requests at any time: of @count pages, executed in slices of at most 64.  Returns the
 * pages of each in @pages, and asserts that none of them waits for long.
 */
static void compete(const uint32_t *count, const uint32_t *weight, uint64_t *pages)
{
	struct fair_queue *q = fair_queue_new();
	uint64_t last[CGROUPS] = { 0 };

	for (int i = 0; i < CGROUPS; i++)
		pages[i] = 0;
	for (uint64_t turn = 1; turn <= TURNS; turn++) {
		struct fair_request *r;
		uint32_t n;
		int flow;

		for (uint64_t i = 0; i < CGROUPS; i++)
			put_weighted(q, i, count[i], weight[i]);
		flow = fair_first(q);
		r = fair_request(q, flow);
		n = r->asked.head.count - r->done < 64 ? r->asked.head.count - r->done : 64;
		r->done += n;
		pages[r->asked.head.owner] += n;
		last[r->asked.head.owner] = turn;
		fair_charge(q, flow, n);
		if (r->done == r->asked.head.count)
			fair_done(q, flow);
		for (int i = 0; i < CGROUPS; i++)
			assert_true(turn - last[i] < 2000);
	}
	fair_queue_free(&q);
	assert_null(q);
}

static void sizes_do_not_matter(void **unused)
{
	static const uint32_t count[CGROUPS] = { 1, 16, 100, 1024 };
	static const uint32_t weight[CGROUPS] = { 100, 100, 100, 100 };
	uint64_t pages[CGROUPS];

	compete(count, weight, pages);
	for (int i = 1; i < CGROUPS; i++)
		assert_in_range(pages[i], pages[0] - 128, pages[0] + 128);
}

static void weights_do(void **unused)
{
	static const uint32_t count[CGROUPS] = { 64, 64, 7, 200 };
	static const uint32_t weight[CGROUPS] = { 100, 10, 200, 1 };
	uint64_t pages[CGROUPS];

	compete(count, weight, pages);
	assert_in_range(pages[0], pages[1] * 10 - 2000, pages[1] * 10 + 2000);
	assert_in_range(pages[2], pages[0] * 2 - 200, pages[0] * 2 + 200);
	assert_in_range(pages[0], pages[3] * 100 - 10000, pages[3] * 100 + 10000);
}

/* One request at a time, as of a program that waits for its pages, gains nothing. */
static void debts_outlast_requests(void **unused)
{
	struct fair_queue *q = fair_queue_new();
	uint64_t pages[2] = { 0 };
	bool has = false;

	for (int turn = 0; turn < TURNS; turn++) {
		int flow;

		put(q, 0, 64, 0);
		has = has || put_weighted(q, 1, 64, 10);
		flow = fair_first(q);
		pages[owner_of(q, flow)] += 64;
		has = has && owner_of(q, flow) != 1;
		fair_charge(q, flow, 64);
		fair_done(q, flow);
	}
	assert_in_range(pages[0], pages[1] * 9, pages[1] * 11);
	/* While no other cgroup waits, it does not either. */
	while (fair_first(q) >= 0)
		fair_done(q, fair_first(q));
	put_weighted(q, 1, 64, 10);
	assert_int_equal(owner_of(q, fair_first(q)), 1);
	fair_queue_free(&q);
}

/* Cgroups in debt, whose requests are done, take no room of others. */
static void debtors_make_room(void **unused)
{
	struct fair_queue *q = fair_queue_new();
	int flow;

	for (uint64_t owner = 0; owner < 3 * FAIR_REQUESTS; owner++) {
		assert_true(put_weighted(q, owner, 1, 1));
		/* The first has a request all the time. */
		flow = owner ? fair_next(q, fair_first(q)) : fair_first(q);
		assert_int_equal(owner_of(q, flow), owner);
		if (!owner)
			continue;
		fair_charge(q, flow, 1024);
		fair_done(q, flow);
		assert_int_equal(fair_next(q, fair_first(q)), -1);
	}
	assert_int_equal(owner_of(q, fair_first(q)), 0);
	fair_done(q, fair_first(q));
	assert_int_equal(fair_first(q), -1);
	fair_queue_free(&q);
}

static void requests_of_a_cgroup_stay_in_order(void **unused)
{
	struct fair_queue *q = fair_queue_new();
	uint64_t next[2] = { 0 };
	int flow;

	assert_int_equal(fair_first(q), -1);
	for (uint64_t i = 0; i < 100; i++)
		for (uint64_t owner = 0; owner < 2; owner++)
			assert_true(put(q, owner, 10, i));
	while ((flow = fair_first(q)) >= 0) {
		uint64_t owner = owner_of(q, flow);

		assert_int_equal(fair_request(q, flow)->asked.head.first, next[owner]++);
		assert_false(fair_request(q, flow)->begun);
		fair_request(q, flow)->begun = true;
		fair_charge(q, flow, 10);
		fair_done(q, flow);
	}
	assert_int_equal(next[0], 100);
	assert_int_equal(next[1], 100);
	fair_queue_free(&q);
}

/* One whose device has enough to read lets others pass, and keeps its turn. */
static void the_turn_stays(void **unused)
{
	struct fair_queue *q = fair_queue_new();
	int flow;

	for (uint64_t owner = 1; owner <= 3; owner++)
		for (int i = 0; i < 10; i++)
			put(q, owner, 64, 0);
	flow = fair_first(q);
	assert_int_equal(owner_of(q, flow), 1);
	for (int i = 0; i < 8; i++) {
		flow = fair_next(q, fair_first(q));
		assert_int_equal(owner_of(q, fair_first(q)), 1);
		fair_charge(q, flow, 64);
		fair_done(q, flow);
	}
	assert_int_equal(fair_next(q, fair_next(q, fair_next(q, fair_first(q)))), -1);
	fair_queue_free(&q);
}

/* However much one requests, there is room for another. */
static void a_flood_leaves_entries(void **unused)
{
	struct fair_queue *q = fair_queue_new();
	uint32_t n[3] = { 0 };
	int flow;

	for (uint64_t owner = 0; owner < 3; owner++)
		while (put(q, owner, 1, 0))
			n[owner]++;
	assert_int_equal(n[0], FAIR_REQUESTS / 2);
	assert_int_equal(n[1], FAIR_REQUESTS / 4);
	assert_int_equal(n[2], FAIR_REQUESTS / 8);
	while ((flow = fair_first(q)) >= 0)
		fair_done(q, flow);
	for (uint64_t owner = 0; owner < FAIR_REQUESTS; owner++)
		assert_true(put(q, owner, 1, 0));
	assert_false(put(q, FAIR_REQUESTS, 1, 0));
	assert_false(put(q, 5, 1, 0));
	fair_queue_free(&q);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes_do_not_matter),
		cmocka_unit_test(weights_do),
		cmocka_unit_test(debts_outlast_requests),
		cmocka_unit_test(debtors_make_room),
		cmocka_unit_test(requests_of_a_cgroup_stay_in_order),
		cmocka_unit_test(the_turn_stays),
		cmocka_unit_test(a_flood_leaves_entries),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
