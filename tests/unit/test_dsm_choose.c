// SPDX-License-Identifier: GPL-2.0-or-later
/* Which worker gets a task, which donor a box; names of desks and seats. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "userlib/dsm/choose.h"
#include "userlib/dsm/desk.h"

#include <cmocka.h>

static void workers(void **state)
{
	struct choose_worker w[] = {
		{ .donor = 0, .cpu = 100, .memory = 100, .tasks = 3, .has_room = true },
		{ .donor = 1, .cpu = 100, .memory = 100, .tasks = 5, .has_room = true },
		{ .donor = 1, .cpu = 300, .memory = 100, .tasks = 4, .has_room = true },
		{ .donor = 1, .cpu = 200, .memory = 100, .tasks = 4, .has_room = true },
	};

	assert_int_equal(choose_worker(w, 0, 0), -1);
	/* The fewest tasks, then the most idle processor. */
	assert_int_equal(choose_worker(w, 4, CHOOSE_ANY), 0);
	assert_int_equal(choose_worker(w, 4, 1), 3);
	w[3].has_room = false;
	assert_int_equal(choose_worker(w, 4, 1), 2);
	/* 90 % is not above 90 %. */
	w[2].cpu = w[1].memory = 900;
	assert_int_equal(choose_worker(w, 4, 1), 2);
	w[2].cpu = 901;
	assert_int_equal(choose_worker(w, 4, 1), 1);
	w[1].memory = 901;
	assert_int_equal(choose_worker(w, 4, 1), 0);
	/* All are full: there after all. */
	w[0].cpu = 1000;
	assert_int_equal(choose_worker(w, 4, 1), 2);
	w[1].has_room = w[2].has_room = false;
	assert_int_equal(choose_worker(w, 4, 1), 0);
	w[0].has_room = false;
	assert_int_equal(choose_worker(w, 4, 1), -1);
	/* No worker at the donor. */
	w[0].has_room = true;
	assert_int_equal(choose_worker(w, 4, 5), 0);
}

static void donors(void **state)
{
	struct choose_donor d[] = { { 1000, 850 }, { 2000, 1700 }, { 0, 0 } };

	assert_int_equal(choose_donor(d, 3, 0), 1);
	assert_int_equal(choose_donor(d, 3, 1u << 1), 0);
	assert_int_equal(choose_donor(d, 3, 3), -1);
	assert_int_equal(choose_donor(d, 0, 0), -1);
	assert_false(choose_is_full(&d[0]));
	d[0].used = 900;
	assert_false(choose_is_full(&d[0]));
	d[0].used = 901;
	assert_true(choose_is_full(&d[0]));
	/* Counts of different moments. */
	d[1].used = 2100;
	assert_int_equal(choose_donor(d, 3, 0), 0);
}

static void desks(void **state)
{
	struct desk d = { .magic = DESK_MAGIC, .generation = 7, .donors = 2, .home = 1 };
	uint64_t place = (uint64_t)4095 << 32 | (0x40000000 - DESK_BYTES);
	uint64_t word = seat_record(7, 256, place, DESK_RECORDS - 1);
	struct seat_record r = seat_parse(word | SEAT_TAKEN);

	assert_int_equal(word & SEAT_BITS, 0);
	assert_int_equal(r.donor, 7);
	assert_int_equal(r.member, 256);
	assert_true(r.desk == place);
	assert_int_equal(r.offset, DESK_BYTES - sizeof(struct desk_record));
	r = seat_parse(seat_record(0, 1, 0, 0));
	assert_true(!r.donor && r.member == 1 && !r.desk);
	/* Any word is a record's name that can be read. */
	for (uint64_t bit = 1; bit; bit <<= 1) {
		r = seat_parse(~bit);
		assert_true(r.offset <= DESK_BYTES - sizeof(struct desk_record));
		assert_int_equal(r.desk % DESK_BYTES, 0);
	}
	assert_true(seat_ticket((1ull << 30) - 1, SEAT_NUMBERS - 1) == ~(uint64_t)SEAT_BITS);
	/* Generations of 44 bits. */
	assert_true(seat_ticket((1ull << 43) + 5, 7) == seat_ticket(5, 7));
	assert_true(desk_place(place | DESK_VERSION) == place);
	assert_int_equal(desk_place(place), 0);
	assert_int_equal(desk_place(place + DESK_VERSION + 1), 0);
	d.check = desk_check(place, 7);
	assert_true(desk_is_valid(&d, place));
	assert_false(desk_is_valid(&d, place - DESK_BYTES));
	d.home = 2;
	assert_false(desk_is_valid(&d, place));
	d.home = 1;
	memset(d.build, 'x', sizeof(d.build));
	assert_false(desk_is_valid(&d, place));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(workers),
		cmocka_unit_test(donors),
		cmocka_unit_test(desks),
	};

	return cmocka_run_group_tests_name("dsm choose", tests, NULL, NULL);
}
