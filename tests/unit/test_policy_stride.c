// SPDX-License-Identifier: GPL-2.0-or-later
/* policies/stride.bpf.c, compiled natively. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "policies/stride.bpf.c"
#include "policy_world.h"

static void regular_walks(void **unused)
{
	static const struct {
		uint64_t first;
		int64_t stride;
	} walk[] = { { 100, 1 }, { 20000, -1 }, { 100, 7 }, { 100, 64 }, { 600000, -64 } };

	for (size_t i = 0; i < sizeof(walk) / sizeof(walk[0]); i++)
		for (unsigned int latency = 0; latency <= 16; latency += 8) {
			struct world *w = world_new(&stride_policy);

			w->latency = latency;
			w->issue = latency / 2;
			world_walk(w, walk[i].first, walk[i].stride, 8192);
			assert_true(world_coverage(w) >= 0.95);
			assert_true(world_accuracy(w) >= 0.95);
			world_free(w);
		}
}

/* Two equal deltas, no fewer; the first request is for two pages. */
static void trust_is_earned(void **unused)
{
	struct world *w = world_new(&stride_policy);

	world_visit(w, 100);
	world_visit(w, 105);
	assert_int_equal(w->requests, 0);
	world_visit(w, 110);
	assert_int_equal(w->requests, 1);
	assert_int_equal(w->last.first, w->base + 115);
	assert_int_equal(w->last.stride, 5);
	assert_int_equal(w->last.count, 2);
	world_free(w);
}

static void random_asks_for_little(void **unused)
{
	struct world *w = world_new(&stride_policy);
	uint64_t seed = 42;

	for (int i = 0; i < 100000; i++)
		world_visit(w, world_random(&seed) >> 47);
	assert_true(w->misses > 50000);
	assert_true(w->asked_pages * 100 <= w->misses);
	world_free(w);
}

static void window_is_the_bound(void **unused)
{
	struct world *w = world_new(&stride_policy);

	w->sim.params.v[WINDOW] = 20;
	for (int page = 100; page < 4100; page++) {
		world_visit(w, page);
		assert_true(w->pages - w->hits <= 20);
	}
	world_free(w);
}

/* Each stray halves the window. */
static void shrinks(void **unused)
{
	struct world *w = world_new(&stride_policy);
	struct stride *s = w->sim.state;

	world_walk(w, 100, 1, 1000);
	assert_int_equal(s->window, 64);
	world_visit(w, 500000);
	assert_int_equal(s->window, 32);
	world_visit(w, 400000);
	assert_int_equal(s->window, 16);
	assert_int_equal(s->stride, 1);
	world_free(w);
}

/* A stride that is over is forgotten within TRUST_MAX strays. */
static void turns_around(void **unused)
{
	struct world *w = world_new(&stride_policy);
	struct stride *s = w->sim.state;

	world_walk(w, 100, 1, 1000);
	world_walk(w, 500000, -3, 20);
	assert_int_equal(s->stride, -3);
	assert_int_equal(w->last.stride, -3);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(regular_walks),
		cmocka_unit_test(trust_is_earned),
		cmocka_unit_test(random_asks_for_little),
		cmocka_unit_test(window_is_the_bound),
		cmocka_unit_test(shrinks),
		cmocka_unit_test(turns_around),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
