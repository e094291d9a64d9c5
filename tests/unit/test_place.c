// SPDX-License-Identifier: GPL-2.0-or-later
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "swapd/place.h"

#include <cmocka.h>

#define G (1ull << 30)
#define SLAB (64ull << 20)

static void one_donor(void **state)
{
	struct place_donor d = { .usable = true, .total = 4 * G, .free = SLAB };
	uint64_t seed = 1;

	for (int i = 0; i < 100; i++)
		assert_int_equal(place_choose(&d, 1, SLAB, &seed), 0);
	d.slabs = 5;
	assert_int_equal(place_choose(&d, 1, SLAB, &seed), 0);
	d.free = SLAB - 1;
	assert_int_equal(place_choose(&d, 1, SLAB, &seed), -1);
	d.free = G;
	d.usable = false;
	assert_int_equal(place_choose(&d, 1, SLAB, &seed), -1);
	assert_int_equal(place_choose(&d, 0, SLAB, &seed), -1);
}

/* Of two, the one with the lower use always wins: it is a fraction, not bytes. */
static void lower_use_wins(void **state)
{
	struct place_donor d[2] = {
		{ .usable = true, .total = 100 * G, .free = 40 * G }, /* 60 % in use */
		{ .usable = true, .total = 10 * G, .free = 5 * G },   /* 50 % in use */
	};
	uint64_t seed = 3;

	for (int i = 0; i < 100; i++)
		assert_int_equal(place_choose(d, 2, SLAB, &seed), 1);
}

/* M_new comes before M_old, however full. */
static void new_machines_first(void **state)
{
	struct place_donor d[3] = {
		{ .usable = true, .total = 10 * G, .free = 10 * G, .slabs = 1 },
		{ .usable = true, .total = 10 * G, .free = G },
		{ .usable = true, .total = 10 * G, .free = 2 * G },
	};
	uint64_t seed = 5;

	for (int i = 0; i < 100; i++)
		assert_int_equal(place_choose(d, 3, SLAB, &seed), 2);
	/* With one new machine, the second candidate comes from the old ones. */
	d[2].slabs = 1;
	for (int i = 0; i < 100; i++)
		assert_int_not_equal(place_choose(d, 3, SLAB, &seed), 1);
}

static int spread(int choices_of_one, uint64_t seed)
{
	enum { DONORS = 16, SLABS = 320 };
	struct place_donor d[DONORS];
	int most = 0;

	for (int i = 0; i < DONORS; i++)
		d[i] = (struct place_donor){ .usable = true, .total = 1000 * SLAB,
					     .free = 1000 * SLAB };
	for (int i = 0; i < SLABS; i++) {
		int at = -1;

		if (choices_of_one) {
			/* One candidate: hide the others. */
			struct place_donor one[DONORS];
			uint64_t pick;

			seed = seed * 6364136223846793005ull + 1442695040888963407ull;
			pick = seed >> 33;

			for (int j = 0; j < DONORS; j++) {
				one[j] = d[j];
				one[j].usable = j == (int)(pick % DONORS);
			}
			at = place_choose(one, DONORS, SLAB, &seed);
		} else {
			at = place_choose(d, DONORS, SLAB, &seed);
		}
		assert_in_range(at, 0, DONORS - 1);
		d[at].free -= SLAB;
		d[at].slabs++;
	}
	for (int i = 0; i < DONORS; i++)
		if ((int)d[i].slabs > most)
			most = (int)d[i].slabs;
	return most;
}

/*
 * The point of two choices: 320 slabs on 16 donors are 20 each; one choice
 * leaves about log n / log log n more on the fullest, two a constant.
 */
static void two_choices_balance(void **state)
{
	int one = 0, two = 0;

	for (uint64_t seed = 1; seed <= 20; seed++) {
		one += spread(1, seed);
		two += spread(0, seed);
	}
	assert_true(two <= 20 * 22);
	assert_true(one >= 20 * 25);
}

/* Every donor gets its turn, and a seed says which. */
static void seeded(void **state)
{
	struct place_donor d[4];
	uint64_t a = 9, b = 9;
	int seen[4] = { 0 };

	for (int i = 0; i < 4; i++)
		d[i] = (struct place_donor){ .usable = true, .total = G, .free = G };
	for (int i = 0; i < 4000; i++) {
		int at = place_choose(d, 4, SLAB, &a);

		assert_int_equal(at, place_choose(d, 4, SLAB, &b));
		seen[at]++;
	}
	for (int i = 0; i < 4; i++)
		assert_in_range(seen[i], 850, 1150);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_donor),
		cmocka_unit_test(lower_use_wins),
		cmocka_unit_test(new_machines_first),
		cmocka_unit_test(two_choices_balance),
		cmocka_unit_test(seeded),
	};

	return cmocka_run_group_tests_name("place", tests, NULL, NULL);
}
