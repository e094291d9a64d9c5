// SPDX-License-Identifier: GPL-2.0-or-later
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/rules/placement.h"

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

static double spread(int choices, uint64_t seed)
{
	enum { DONORS = 16, SLABS = 320 };
	struct place_donor d[DONORS];
	int most = 0;

	for (int i = 0; i < DONORS; i++)
		d[i] = (struct place_donor){ .usable = true, .total = 1000 * SLAB,
					     .free = 1000 * SLAB };
	for (int i = 0; i < SLABS; i++) {
		struct place_rule rule = { choices, 0 };
		int at = place_choose_by(d, DONORS, SLAB, &rule, &seed);

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
	double one = 0, two = 0, three = 0;

	for (uint64_t seed = 1; seed <= 20; seed++) {
		one += spread(1, seed);
		two += spread(PLACE_CHOICES, seed);
		three += spread(3, seed);
	}
	assert_true(three <= two);
	assert_true(two <= 20 * 22);
	assert_true(one >= 20 * 25);
}

/*
 * Where the donor tells it, use is the machine's: its programs and the slabs
 * mapped there.  A donor that lends little of a full machine is not an idle one.
 */
static void machine_use_counts(void **state)
{
	struct place_donor d[2] = {
		/* 1 of 10 lent, yet 95 % in use */
		{ .usable = true, .total = 10 * G, .free = 9 * G, .memory = 64 * G,
		  .used = 61 * G },
		/* 5 of 10 lent, 50 % in use */
		{ .usable = true, .total = 10 * G, .free = 5 * G, .memory = 64 * G,
		  .used = 32 * G },
	};
	uint64_t seed = 11;

	for (int i = 0; i < 100; i++)
		assert_int_equal(place_choose(d, 2, SLAB, &seed), 1);
	assert_true(place_busier(&d[0], &d[1]));
	assert_false(place_busier(&d[1], &d[0]));
	assert_false(place_busier(&d[0], &d[0]));
}

/* With as many choices as donors the emptiest one always wins; none is sampled twice. */
static void choices_are_different_donors(void **state)
{
	struct place_donor d[PLACE_CHOICES_MAX];
	struct place_rule rule = { PLACE_CHOICES_MAX + 1, 0 };
	int chosen[PLACE_CHOICES_MAX];
	uint64_t seed = 13;

	for (int i = 0; i < PLACE_CHOICES_MAX; i++)
		d[i] = (struct place_donor){ .usable = true, .total = 100 * G,
					     .free = (uint64_t)(10 + i) * G, .slabs = i % 2 };
	for (int round = 0; round < 100; round++) {
		unsigned seen = 0;

		/* One more than there are. */
		assert_int_equal(place_draw(d, PLACE_CHOICES_MAX, SLAB, rule.choices,
					    PLACE_NEW_FIRST, &seed, chosen),
				 PLACE_CHOICES_MAX);
		for (int i = 0; i < PLACE_CHOICES_MAX; i++) {
			seen |= 1u << chosen[i];
			/* M_new comes first. */
			assert_int_equal(d[chosen[i]].slabs, i >= PLACE_CHOICES_MAX / 2);
		}
		assert_int_equal(seen, (1u << PLACE_CHOICES_MAX) - 1);
		assert_int_equal(place_choose_by(d, PLACE_CHOICES_MAX, SLAB, &rule, &seed),
				 PLACE_CHOICES_MAX - 1);
	}
	assert_int_equal(place_lowest(d, chosen, 0), -1);
}

/*
 * Once a device uses as many donors as the rule says, the emptiest wins, with or without its slabs.
 */
static void spread_is_a_knob(void **state)
{
	struct place_donor d[3] = {
		{ .usable = true, .total = 10 * G, .free = 9 * G, .slabs = 4 },
		{ .usable = true, .total = 10 * G, .free = 2 * G },
		{ .usable = true, .total = 10 * G, .free = 3 * G },
	};
	struct place_rule rule = { 3, 1 };
	uint64_t seed = 19;
	int first = 0;

	for (int i = 0; i < 300; i++)
		assert_int_equal(place_choose_by(d, 3, SLAB, &rule, &seed), 0);
	rule.choices = 1;
	for (int i = 0; i < 3000; i++)
		first += place_choose_by(d, 3, SLAB, &rule, &seed) == 0;
	assert_in_range(first, 900, 1100);
	/* On one of two donors that it is to be on, and always for the paper. */
	rule.choices = 2;
	for (rule.spread = 0; rule.spread <= 2; rule.spread += 2)
		for (int i = 0; i < 300; i++)
			assert_int_equal(place_choose_by(d, 3, SLAB, &rule, &seed), 2);
}

/* Of many donors each device is on PLACE_SPREAD before any has a second slab of it. */
static void a_device_is_spread_first(void **state)
{
	struct place_donor d[PLACE_SPREAD + 8];
	uint64_t seed = 23;

	for (size_t i = 0; i < sizeof(d) / sizeof(d[0]); i++)
		d[i] = (struct place_donor){ .usable = true, .total = 100 * G, .free = i * G };
	for (int i = 0; i < PLACE_SPREAD; i++) {
		int at = place_choose(d, sizeof(d) / sizeof(d[0]), SLAB, &seed);

		assert_int_equal(d[at].slabs++, 0);
	}
}

/* Many donors are sampled by rejection; rare ones must be found, evenly. */
static void many_donors(void **state)
{
	enum { DONORS = 3000 };
	static struct place_donor d[DONORS];
	struct place_rule one = { 1, 0 };
	int seen[3] = { 0 };
	uint64_t seed = 17;

	for (int i = 0; i < DONORS; i++)
		d[i] = (struct place_donor){ .usable = i % 1000 == 7, .total = G, .free = G };
	for (int i = 0; i < 3000; i++) {
		int at = place_choose_by(d, DONORS, SLAB, &one, &seed);

		assert_int_equal(at % 1000, 7);
		seen[at / 1000]++;
	}
	for (int i = 0; i < 3; i++)
		assert_in_range(seen[i], 900, 1100);
	for (int i = 0; i < 3; i++)
		d[i * 1000 + 7].usable = false;
	assert_int_equal(place_choose(d, DONORS, SLAB, &seed), -1);
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
		cmocka_unit_test(machine_use_counts),
		cmocka_unit_test(choices_are_different_donors),
		cmocka_unit_test(spread_is_a_knob),
		cmocka_unit_test(a_device_is_spread_first),
		cmocka_unit_test(many_donors),
		cmocka_unit_test(seeded),
	};

	return cmocka_run_group_tests_name("place", tests, NULL, NULL);
}
