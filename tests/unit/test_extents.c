// SPDX-License-Identifier: GPL-2.0-or-later
/* What an allocation of far memory costs beside 511 other clients, against FineMem's bitmaps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "sim/extents.h"

#include <cmocka.h>

static struct extents_result run(const struct extents_scheme *scheme, uint32_t sections,
				 double fill, bool blind)
{
	struct extents_config c = { .clients = 512,
				    .sections = sections,
				    .fill = fill,
				    .burst = 8,
				    .rounds = 5,
				    .blind = blind,
				    .seed = 1 };
	struct extents_result r;
	struct error e = { 0 };

	/* Fails if an extent has two owners. */
	assert_int_equal(extents_run(&c, scheme, &r, &e), 0);
	assert_int_equal(r.allocate.operations, 512 * 5 * 8);
	assert_int_equal(r.free.operations, 512 * 5 * 8);
	return r;
}

static const double fills[] = { 0.5, 0.9, 0.99 };
static const uint32_t sizes[] = { 64, 512 };

/* The bitmap is the better one of two. */
static void words_need_fewer_round_trips(void **state)
{
	for (int i = 0; i < 2; i++) {
		for (int f = 0; f < 3; f++) {
			uint32_t n = sizes[i];
			struct extents_result words = run(&extents_words, n, fills[f], false);
			struct extents_result blind = run(&extents_words, n, fills[f], true);
			struct extents_result other = run(&extents_scattered, n, fills[f], false);

			assert_int_equal(words.allocate.refused, 0);
			assert_true(words.allocate.trips <= other.allocate.trips);
			assert_true(blind.allocate.trips <= other.allocate.trips);
			assert_true(words.free.trips <= other.free.trips);
			/* 1.1 compare-and-swaps. */
			if (fills[f] <= 0.9)
				assert_true(words.allocate.swaps * 10 <=
					    words.allocate.operations * 11);
		}
	}
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
		cmocka_unit_test(bitmaps_convoy),
		cmocka_unit_test(equal_seeds_give_equal_results),
	};

	return cmocka_run_group_tests_name("extents", tests, NULL, NULL);
}
