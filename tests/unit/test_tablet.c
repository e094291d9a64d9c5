// SPDX-License-Identifier: GPL-2.0-or-later
/* Tablets of far regions against the same questions asked bit by bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/base/draw.h"
#include "lib/rules/tablet.h"

#include <cmocka.h>

enum { ROUNDS = 200 };

struct tablet {
	uint32_t slot_bytes, slots;
	uint64_t live[TABLET_WORDS];
	uint16_t before[TABLET_WORDS];
};

/* Fills @t at random: round 0 leaves it empty, round 1 fills it. */
static void fill(struct tablet *t, uint64_t *seed, uint32_t slot_bytes, int round)
{
	memset(t, 0, sizeof(*t));
	t->slot_bytes = slot_bytes;
	t->slots = tablet_slots(slot_bytes);
	for (uint32_t i = 0; i < t->slots; i++)
		if (round == 1 || (round && draw_below(seed, (uint32_t)round) < 2))
			t->live[i / 64] |= UINT64_C(1) << i % 64;
}

static void check(struct tablet *t)
{
	uint32_t n = tablet_index(t->live, t->slots, t->before), rank = 0, next = 0;

	assert_true(tablet_fits(t->live, t->slots));
	assert_int_equal(tablet_live(t->live, t->slots), n);
	assert_int_equal(tablet_bytes(t->live, t->slots, t->slot_bytes), n * t->slot_bytes);
	assert_true(n * t->slot_bytes <= TABLET_REGION);
	for (uint32_t i = 0; i < t->slots; i++) {
		assert_int_equal(tablet_rank(t->live, t->before, i), rank);
		assert_int_equal(tablet_slot_at(i * t->slot_bytes, t->slot_bytes), i);
		assert_int_equal(tablet_slot_at(i * t->slot_bytes + 1, t->slot_bytes), t->slots);
		if (!tablet_has(t->live, i))
			continue;
		assert_int_equal(tablet_place(t->live, t->before, i, t->slot_bytes, 4096),
				 4096 + rank * t->slot_bytes);
		next = tablet_next(t->live, t->slots, next);
		assert_int_equal(next++, i);
		rank++;
	}
	assert_int_equal(rank, n);
	assert_int_equal(tablet_next(t->live, t->slots, next), t->slots);
}

static void every_size(void **state)
{
	uint64_t seed = 1;
	struct tablet t;

	for (uint32_t bytes = TABLET_GRANULE; bytes <= TABLET_SLOT_MOST; bytes += TABLET_GRANULE)
		for (int round = 0; round < 4; round++) {
			fill(&t, &seed, bytes, round);
			check(&t);
		}
	for (int round = 0; round < ROUNDS; round++) {
		fill(&t, &seed, 16u << draw_below(&seed, 10), round);
		check(&t);
	}
}

static void sizes_that_no_slot_has(void **state)
{
	assert_int_equal(tablet_slots(0), 0);
	assert_int_equal(tablet_slots(8), 0);
	assert_int_equal(tablet_slots(24), 0);
	assert_int_equal(tablet_slots(TABLET_SLOT_MOST + TABLET_GRANULE), 0);
	assert_int_equal(tablet_slots(16), TABLET_SLOTS);
	assert_int_equal(tablet_slots(TABLET_SLOT_MOST), 8);
	/* The rest of a region that is no multiple is no slot. */
	assert_int_equal(tablet_slots(48), 1365);
	assert_int_equal(tablet_slot_at(1365 * 48, 48), 1365);
}

static void bits_beyond_the_slots(void **state)
{
	uint64_t live[2] = { ~UINT64_C(0), 1 };

	assert_false(tablet_fits(live, 63));
	assert_true(tablet_fits(live, 64));
	assert_true(tablet_fits(live, 65));
	live[1] = 2;
	assert_false(tablet_fits(live, 65));
	assert_true(tablet_fits(live, 66));
	assert_true(tablet_word_fits(0, 5, 65));
	assert_false(tablet_word_fits(1, 5, 65));
	assert_true(tablet_word_fits(1, 1, 65));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_size),
		cmocka_unit_test(sizes_that_no_slot_has),
		cmocka_unit_test(bits_beyond_the_slots),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
