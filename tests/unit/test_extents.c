// SPDX-License-Identifier: GPL-2.0-or-later
/* What an allocation of far memory costs beside 511 other clients, against FineMem's bitmaps. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/draw.h"
#include "lib/base/error.h"
#include "sim/extents.h"

#include <cmocka.h>

static struct extents_config config(uint32_t sections, double fill)
{
	return (struct extents_config){ .clients = 512,
					.sections = sections,
					.fill = fill,
					.burst = 8,
					.rounds = 5,
					.seed = 1 };
}

static struct extents_result run_config(const struct extents_scheme *scheme,
					const struct extents_config *c)
{
	struct extents_result r;
	struct error e = { 0 };

	/* Fails if an extent has two owners. */
	assert_int_equal(extents_run(c, scheme, &r, &e), 0);
	return r;
}

static struct extents_result run(const struct extents_scheme *scheme, uint32_t sections,
				 double fill, bool blind)
{
	struct extents_config c = config(sections, fill);
	struct extents_result r;

	c.blind = blind;
	r = run_config(scheme, &c);
	/* A client frees no more than it has. */
	if (fill * sections >= 8)
		assert_int_equal(r.allocate.operations, 512 * 5 * 8);
	assert_int_equal(r.free.operations, r.allocate.operations);
	return r;
}

static double mean(uint64_t sum, const struct extents_cost *c)
{
	return (double)sum / (double)c->operations;
}

static const double fills[] = { 0.05, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.99 };
static const uint32_t sizes[] = { 64, 512 };
enum { FILLS = sizeof(fills) / sizeof(*fills) };

/* The bitmap is the better one of two. */
static void words_need_fewer_round_trips(void **state)
{
	for (int i = 0; i < 2; i++) {
		for (int f = 0; f < FILLS; f += getenv("EBB_TEST_LONG") ? 1 : 3) {
			uint32_t n = sizes[i];
			struct extents_result words = run(&extents_words, n, fills[f], false);
			struct extents_result blind = run(&extents_words, n, fills[f], true);
			struct extents_result scattered =
				run(&extents_scattered, n, fills[f], false);
			struct extents_result released = run(&extents_bitmap, n, fills[f], false);
			const struct extents_result *other = &scattered;

			if (released.allocate.trips < other->allocate.trips)
				other = &released;
			assert_int_equal(words.allocate.refused, 0);
			assert_true(words.allocate.trips <= other->allocate.trips);
			assert_true(blind.allocate.trips <= other->allocate.trips);
			assert_true(words.free.trips <= other->free.trips);
			if (fills[f] <= 0.9)
				assert_true(mean(words.allocate.swaps, &words.allocate) <= 1.1);
		}
	}
}

/* Where each client frees one extent and allocates one, the mean use is close to that before. */
static void nine_tenths_in_use(void **state)
{
	for (int i = 0; i < 2; i++)
		for (uint64_t seed = 1; seed <= 3; seed++) {
			struct extents_config c = config(sizes[i], 0.92);
			struct extents_result r;

			c.burst = 1;
			c.rounds = 40;
			c.seed = seed;
			r = run_config(&extents_words, &c);
			assert_true(r.used >= 0.9 && r.used < 0.92);
			assert_true(mean(r.allocate.swaps, &r.allocate) <= 1.1);
		}
}

/* During bursts less is in use than before them. */
static void mean_use(void **state)
{
	struct extents_result r = run(&extents_words, 64, 0.9, false);

	/* 512 * 8 of 64 * 512 extents are freed and allocated: half of them are free on average. */
	assert_true(r.used > 0.9 - 0.125 && r.used < 0.9 - 0.03);
	r = run(&extents_words, 512, 0.9, false);
	assert_true(r.used > 0.88 && r.used < 0.9);
}

/* Each client has an extent to free, or the run is refused. */
static void few_extents(void **state)
{
	struct extents_config c = config(2, 0.51);
	struct extents_result r = run_config(&extents_words, &c);
	struct error e = { 0 };

	/* 522 of them: ten clients have two. */
	assert_int_equal(r.allocate.operations, 522 * 5);
	c.fill = 0.49;
	assert_int_equal(extents_run(&c, &extents_words, &r, &e), -EINVAL);
	assert_int_equal(e.exit_status, EXIT_USAGE);
	assert_non_null(strstr(e.text, "clients: 512 are more than the extents in use, 501;"));
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* No two clients, of any two seeds, have one stream of random numbers. */
static void streams_are_unrelated(void **state)
{
	enum { SEEDS = 100, STREAMS = EXTENTS_CLIENTS + 1 };
	static uint64_t states[SEEDS * STREAMS];
	uint32_t high = 0;

	for (uint32_t seed = 0; seed < SEEDS; seed++)
		for (uint32_t i = 0; i < STREAMS; i++) {
			uint64_t s = draw_stream(seed, i);

			states[seed * STREAMS + i] = s;
			high += draw_below(&s, 2);
		}
	qsort(states, SEEDS * STREAMS, sizeof(*states), by_value);
	for (uint32_t i = 1; i < SEEDS * STREAMS; i++)
		assert_true(states[i] != states[i - 1]);
	/* 3 standard deviations. */
	assert_in_range(high, SEEDS * STREAMS / 2 - 340, SEEDS * STREAMS / 2 + 340);
}

/* FineMem's table 2: 1.333 on average, 142 at most, in the paper's workload. */
static void published_retries(void **state)
{
	struct extents_config c = config(1024, 0.7);
	struct extents_result next, scattered;

	c.burst = 358;
	c.rounds = 1;
	next = run_config(&extents_bitmap, &c);
	scattered = run_config(&extents_scattered, &c);
	assert_true(mean(next.allocate.last_swaps, &next.allocate) > 1.333);
	assert_true(mean(scattered.allocate.last_swaps, &scattered.allocate) < 1.333);
	/* Not 142, if of one span. */
	assert_true(next.allocate.most_last_swaps < 142 / 2);
}

/* The released search: all clients go to the same next section. */
static void bitmaps_convoy(void **state)
{
	struct extents_result next = run(&extents_bitmap, 64, 0.99, false);
	struct extents_result scattered = run(&extents_scattered, 64, 0.99, false);

	assert_true(next.allocate.swaps > 4 * scattered.allocate.swaps);
}

static void equal_seeds_give_equal_results(void **state)
{
	const struct extents_scheme *schemes[] = { &extents_words, &extents_bitmap };

	for (int i = 0; i < 2; i++) {
		struct extents_result a = run(schemes[i], 64, 0.9, false);
		struct extents_result b = run(schemes[i], 64, 0.9, false);

		assert_memory_equal(&a, &b, sizeof(a));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(words_need_fewer_round_trips),
		cmocka_unit_test(nine_tenths_in_use),
		cmocka_unit_test(mean_use),
		cmocka_unit_test(few_extents),
		cmocka_unit_test(streams_are_unrelated),
		cmocka_unit_test(published_retries),
		cmocka_unit_test(bitmaps_convoy),
		cmocka_unit_test(equal_seeds_give_equal_results),
	};

	return cmocka_run_group_tests_name("extents", tests, NULL, NULL);
}
