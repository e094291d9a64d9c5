// SPDX-License-Identifier: GPL-2.0-or-later
/* Which pages are mapped ahead, and what the others tell about them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#undef fail

#include "ebbd/map_ahead.h"

static void walk(uint64_t first, int64_t stride, uint32_t n, uint64_t *vpn)
{
	for (uint32_t i = 0; i < n; i++)
		vpn[i] = first + (uint64_t)(stride * (int64_t)i);
}

/* Some three quarters are mapped, never more than a few in a row, and never the last. */
static void sentinels_stay(void **unused)
{
	static const int64_t stride[] = { 1, -1, 2, 7, 64, 512 };

	for (size_t k = 0; k < sizeof(stride) / sizeof(stride[0]); k++) {
		uint64_t vpn[MAP_AHEAD_PAGES], mask;
		uint32_t mapped = 0, run = 0, gaps[MAP_AHEAD_GROUP + 2] = { 0 }, kinds = 0;

		for (uint32_t batch = 0; batch < 64; batch++) {
			walk((1 << 20) + batch * 64 * (uint64_t)(stride[k] < 0 ? -stride[k] : stride[k]) +
			     65536, stride[k], MAP_AHEAD_PAGES, vpn);
			mask = map_ahead_choose(vpn, MAP_AHEAD_PAGES);
			assert_false(mask >> (MAP_AHEAD_PAGES - 1) & 1);
			for (uint32_t i = 0; i < MAP_AHEAD_PAGES; i++) {
				if (mask >> i & 1) {
					mapped++;
					run++;
					continue;
				}
				assert_true(run <= MAP_AHEAD_GROUP);
				gaps[run]++;
				run = 0;
			}
		}
		assert_true(mapped > 64 * MAP_AHEAD_PAGES / 2);
		assert_true(mapped < 64 * MAP_AHEAD_PAGES * 7 / 8);
		/* Irregular: else a policy takes the sentinels for a walk of longer steps. */
		for (uint32_t i = 0; i <= MAP_AHEAD_GROUP; i++)
			kinds += gaps[i] > 10;
		assert_true(kinds >= 4);
	}
}

static void short_batches(void **unused)
{
	uint64_t vpn[2] = { 10, 11 };

	assert_int_equal(map_ahead_choose(vpn, 0), 0);
	assert_int_equal(map_ahead_choose(vpn, 1), 0);
	assert_false(map_ahead_choose(vpn, 2) & ~1ULL);
}

/* 0 to 9; 3, 6 and 9 are sentinels. */
static void a_touched_sentinel_tells_of_those_before_it(void **unused)
{
	uint64_t chosen = 0x1b7, mapped = chosen;

	assert_int_equal(map_ahead_passed(chosen, mapped, 0, 10), 0);
	assert_int_equal(map_ahead_passed(chosen, mapped, 1 << 3, 10), 0x007);
	assert_int_equal(map_ahead_passed(chosen, mapped, 1 << 6, 10), 0x030);
	assert_int_equal(map_ahead_passed(chosen, mapped, 1 << 3 | 1 << 9, 10), 0x187);
	assert_int_equal(map_ahead_passed(chosen, mapped, 0x248, 10), chosen);
	/* Page 1 was hit before it could be mapped: that hit is counted elsewhere. */
	assert_int_equal(map_ahead_passed(chosen, mapped & ~2ULL, 0x248, 10), chosen & ~2ULL);
	/* That a mapped page is present means nothing. */
	assert_int_equal(map_ahead_passed(chosen, mapped, chosen, 10), 0);
}

/* Each mapped page is counted once, in whatever order sentinels are touched. */
static void nothing_is_counted_twice(void **unused)
{
	uint64_t random = 1;

	for (int round = 0; round < 1000; round++) {
		uint64_t vpn[MAP_AHEAD_PAGES], chosen, mapped, seen = 0, counted = 0;

		walk((uint64_t)round * 977, 1, MAP_AHEAD_PAGES, vpn);
		chosen = map_ahead_choose(vpn, MAP_AHEAD_PAGES);
		mapped = chosen;
		while (mapped) {
			uint64_t used;

			random = random * 6364136223846793005ULL + 1442695040888963407ULL;
			seen |= ~chosen & (random ^ random >> 31);
			used = map_ahead_passed(chosen, mapped, seen, MAP_AHEAD_PAGES);
			assert_int_equal(used & counted, 0);
			counted |= used;
			mapped &= ~used;
		}
		assert_int_equal(counted, chosen);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sentinels_stay),
		cmocka_unit_test(short_batches),
		cmocka_unit_test(a_touched_sentinel_tells_of_those_before_it),
		cmocka_unit_test(nothing_is_counted_twice),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
