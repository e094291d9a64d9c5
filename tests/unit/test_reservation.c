// SPDX-License-Identifier: GPL-2.0-or-later
/* How a device spreads its reservation over its donors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/base/draw.h"
#include "lib/rules/reservation.h"

#include <cmocka.h>

static void in_proportion_to_room(void **state)
{
	struct reservation_donor d[3] = { { .most = 10 }, { .most = 30 }, { .most = 20 } };

	assert_int_equal(reservation_spread(d, 3, 30, 1), 0);
	assert_int_equal(d[0].want, 5);
	assert_int_equal(d[1].want, 15);
	assert_int_equal(d[2].want, 10);
	/* To the last slab, and not one more. */
	assert_int_equal(reservation_spread(d, 3, 60, 1), 0);
	assert_int_equal(reservation_spread(d, 3, 61, 1), 1);
	assert_int_equal(d[0].want + d[1].want + d[2].want, 60);
	assert_int_equal(reservation_spread(d, 0, 5, 1), 5);
}

/* Replicas of a slab are at different donors. */
static void no_donor_has_more_than_the_device(void **state)
{
	struct reservation_donor d[2] = { { .most = 100 }, { .most = 9 } };

	assert_int_equal(reservation_spread(d, 2, 10, 2), 1);
	assert_int_equal(d[0].want, 10);
	assert_int_equal(d[1].want, 9);
	d[1].most = 10;
	assert_int_equal(reservation_spread(d, 2, 10, 2), 0);
}

static void on_different_machines_while_they_suffice(void **state)
{
	struct reservation_donor d[3] = {
		{ .machine = 7, .most = 64 },
		{ .machine = 7, .most = 64 },
		{ .machine = 8, .most = 64 },
	};

	assert_int_equal(reservation_spread(d, 3, 32, 2), 0);
	assert_int_equal(d[0].want, 16);
	assert_int_equal(d[1].want, 16);
	assert_int_equal(d[2].want, 32);
	d[2].most = 0;
	assert_int_equal(reservation_spread(d, 3, 32, 2), 0);
	assert_int_equal(d[0].want, 32);
	assert_int_equal(d[1].want, 32);
	/* Donors that do not tell are on machines of their own. */
	d[0].machine = d[1].machine = 0;
	d[2].most = 64;
	assert_int_equal(reservation_spread(d, 3, 32, 2), 0);
}

/* What is there stays; what a lost donor had goes to the others, and back when it is back. */
static void donors_come_and_go(void **state)
{
	struct reservation_donor d[3] = { { .most = 20 }, { .most = 20 }, { .most = 20 } };
	struct reservation_donor lost;

	assert_int_equal(reservation_spread(d, 3, 30, 1), 0);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(d[i].want, 10);
		d[i].held = d[i].want;
		d[i].has = 4;
	}
	lost = d[0];
	d[0].most = 0;
	assert_int_equal(reservation_spread(d, 3, 30, 1), 0);
	assert_int_equal(d[0].want, 0);
	assert_int_equal(d[1].want, 15);
	assert_int_equal(d[2].want, 15);
	d[0] = lost;
	d[1].held = d[1].has = d[2].held = 15;
	assert_int_equal(reservation_spread(d, 3, 30, 1), 0);
	assert_int_equal(d[1].want, 15);
	assert_int_equal(d[0].want + d[2].want, 15);
	assert_true(d[0].want >= 4 && d[2].want >= 4);
	/* Slabs beyond what was reserved count all the same. */
	d[0].has = 20;
	assert_int_equal(reservation_spread(d, 3, 30, 1), 0);
	assert_int_equal(d[0].want, 20);
}

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* Each slab gets its replicas from the donors that have most left: all do, at different donors. */
static void check_that_all_find_places(struct reservation_donor *d, int n, uint32_t slabs,
				       int replicas)
{
	uint32_t left[RESERVATION_DONORS];

	for (int i = 0; i < n; i++)
		left[i] = d[i].want;
	for (uint32_t slab = 0; slab < slabs; slab++) {
		uint64_t used = 0;

		for (int r = 0; r < replicas; r++) {
			int best = -1;

			for (int i = 0; i < n; i++)
				if (!(used >> i & 1) && left[i] &&
				    (best < 0 || left[i] > left[best]))
					best = i;
			assert_true(best >= 0);
			used |= 1ull << best;
			left[best]--;
		}
	}
}

static void whatever_there_is(void **state)
{
	uint64_t seed = 11;

	for (int number = 0; number < 20000; number++) {
		struct reservation_donor d[RESERVATION_DONORS] = { 0 }, again[RESERVATION_DONORS];
		int n = 1 + (int)draw_below(&seed, number % 2 ? 6 : RESERVATION_DONORS);
		uint32_t slabs = 1 + draw_below(&seed, number % 9 ? 60 : UINT32_MAX / 4);
		int replicas = 1 + (int)draw_below(&seed, 3);
		uint64_t sum = 0, missing, need = (uint64_t)slabs * (uint64_t)replicas, room = 0;

		for (int i = 0; i < n; i++) {
			d[i].machine = draw_below(&seed, 4);
			d[i].most = draw_below(&seed, 5) ? draw_below(&seed, 2 * slabs) : 0;
			d[i].held = draw_below(&seed, 2) ? draw_below(&seed, slabs) : 0;
			d[i].has = draw_below(&seed, least(d[i].most, slabs) / 2 + 1);
			room += least(d[i].most, slabs);
		}
		missing = reservation_spread(d, n, slabs, replicas);
		for (int i = 0; i < n; i++) {
			assert_true(d[i].want >= d[i].has);
			assert_true(d[i].want <= least(d[i].most, slabs));
			sum += d[i].want;
		}
		assert_true(missing == (room < need ? need - room : 0));
		/* Only what is there already may be more. */
		assert_true(sum + missing >= need);
		if (sum > need)
			for (int i = 0; i < n; i++)
				assert_int_equal(d[i].want, d[i].has);
		/* Reserved, it stays. */
		memcpy(again, d, sizeof(d));
		for (int i = 0; i < n; i++)
			again[i].held = d[i].want;
		assert_true(reservation_spread(again, n, slabs, replicas) == missing);
		for (int i = 0; i < n; i++)
			assert_int_equal(again[i].want, d[i].want);
		if (!missing && slabs < 1000)
			check_that_all_find_places(d, n, slabs, replicas);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(in_proportion_to_room),
		cmocka_unit_test(no_donor_has_more_than_the_device),
		cmocka_unit_test(on_different_machines_while_they_suffice),
		cmocka_unit_test(donors_come_and_go),
		cmocka_unit_test(whatever_there_is),
	};

	return cmocka_run_group_tests_name("reservation", tests, NULL, NULL);
}
