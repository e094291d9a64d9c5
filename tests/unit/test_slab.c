// SPDX-License-Identifier: GPL-2.0-or-later
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "swapd/request/request.h"
#include "swapd/page/bits.h"
#include "swapd/page/slab.h"
#include "swapd/process/watchdog.h"

#include <cmocka.h>

/* --- slabs -------------------------------------------------------------- */

static void geometry(void **state)
{
	struct slab slabs[4];
	struct slab_table t;

	slab_init(&t, slabs, 4, 256);
	assert_ptr_equal(slab_of_page(&t, 255), &slabs[0]);
	assert_ptr_equal(slab_of_page(&t, 256), &slabs[1]);
	assert_int_equal(slab_offset(&t, 257), 4096);
	assert_int_equal(slab_run(&t, 250, 3), 3);
	assert_int_equal(slab_run(&t, 250, 100), 6);
	assert_int_equal(slab_run(&t, 256, 256), 256);
	assert_int_equal(slab_count(&t, SLAB_UNMAPPED), 4);
}

static void life(void **state)
{
	struct slab slabs[2];
	struct slab_table t;
	struct slab *s = &slabs[1];

	slab_init(&t, slabs, 2, 256);
	assert_int_equal(slab_ask(s, 3, 100), 0);
	assert_int_equal(slab_state(s), SLAB_MAPPING);
	slab_refuse(s, 0);
	assert_int_equal(slab_state(s), SLAB_UNMAPPED);
	assert_int_equal(slab_ask(s, 2, 600), 0);
	slab_grant(s, 0, 17, 99, false);
	assert_int_equal(s->copy[0].mapping.remote, 17);
	assert_int_equal(s->copy[0].mapping.generation, 99);
	assert_int_equal(slab_count(&t, SLAB_MAPPED), 1);
	slab_lose(s, 0);
	assert_int_equal(slab_count(&t, SLAB_LOST), 1);
	assert_int_equal(slab_ask(s, 0, 700), 0);
	slab_lose(s, 0);
	assert_int_equal(slab_state(s), SLAB_LOST);
}

static void copies(void **state)
{
	struct slab slabs[1];
	struct slab_table t;
	struct slab *s = slabs;
	uint32_t serial;

	slab_init(&t, slabs, 1, 256);
	s->opening = true;
	for (uint16_t d = 0; d < SLAB_COPIES; d++)
		assert_int_equal(slab_ask(s, d + 10, 1), d);
	assert_int_equal(slab_ask(s, 99, 1), -1);
	assert_int_equal(slab_copy_at(s, 12), 2);
	assert_int_equal(slab_copy_at(s, 9), -1);
	for (int c = 0; c < SLAB_COPIES - 1; c++)
		slab_grant(s, c, 0, 1, false);
	/* Writes wait for the last answer, whatever it is. */
	assert_true(s->opening);
	slab_refuse(s, SLAB_COPIES - 1);
	assert_false(s->opening);
	assert_int_equal(slab_copies(s, COPY_MAPPED), SLAB_COPIES - 1);
	/* An entry that is used again is another copy. */
	serial = s->copy[1].serial;
	slab_lose(s, 1);
	assert_int_equal(slab_state(s), SLAB_MAPPED);
	assert_int_equal(slab_ask(s, 20, 1), 1);
	assert_int_not_equal(s->copy[1].serial, serial);
	/* One that comes when there are pages lacks them; the first of an empty slab does not. */
	assert_false(s->copy[0].partial);
	slab_grant(s, 1, 0, 1, true);
	assert_true(s->copy[1].partial);
	for (int c = 0; c < SLAB_COPIES - 1; c++)
		slab_drop(s, c);
	/* Released, not lost. */
	assert_int_equal(slab_state(s), SLAB_UNMAPPED);
}

/* --- bits ---------------------------------------------------------------- */

enum { BITS = 64 * 5 + 13 };

/* The obvious way, against which the fast one is checked. */
static void reference(bool *map, int first, int count, bool value)
{
	for (int i = first; i < first + count; i++)
		map[i] = value;
}

static void bits_like_reference(void **state)
{
	uint64_t map[(BITS + 63) / 64] = { 0 };
	bool want[BITS] = { 0 };

	assert_int_equal(bits_words(BITS), sizeof(map) / sizeof(*map));
	srandom(7);
	for (int round = 0; round < 20000; round++) {
		int first = (int)(random() % BITS), count = (int)(random() % (BITS - first) + 1);
		int run = 1, set = 0;

		if (round % 3)
			count = count % 70 + 1 <= BITS - first ? count % 70 + 1 : 1;
		if (random() & 1) {
			bits_set(map, first, count);
			reference(want, first, count, true);
		} else {
			bits_clear(map, first, count);
			reference(want, first, count, false);
		}
		first = (int)(random() % BITS);
		count = (int)(random() % (BITS - first) + 1);
		while (run < count && want[first + run] == want[first])
			run++;
		for (int i = first; i < first + count; i++)
			set += want[i];
		assert_int_equal(bits_test(map, first), want[first]);
		assert_int_equal(bits_run(map, first, count), run);
		assert_int_equal(bits_count(map, first, count), set);
	}
}

static void no_bits(void **state)
{
	uint64_t map[1] = { 5 };

	bits_set(map, 0, 0);
	bits_clear(map, 0, 0);
	assert_int_equal(map[0], 5);
	assert_int_equal(bits_count(map, 0, 0), 0);
}

/* --- slots --------------------------------------------------------------- */

static struct slot *request(struct slots *s, enum slot_kind kind, uint32_t first, uint32_t count)
{
	struct slot *slot = slot_get(s);

	assert_non_null(slot);
	slot->kind = kind;
	slot->first = first;
	slot->count = count;
	return slot;
}

static struct slot *under_way(struct slots *s, enum slot_kind kind, uint32_t first, uint32_t count)
{
	struct slot *slot = request(s, kind, first, count);

	assert_false(slot_conflicts(s, slot));
	slot_activate(s, slot);
	return slot;
}

static bool would_wait(struct slots *s, enum slot_kind kind, uint32_t first, uint32_t count)
{
	struct slot *slot = request(s, kind, first, count);
	bool r = slot_conflicts(s, slot);

	slot_put(s, slot);
	return r;
}

static int with_slots(void **state)
{
	struct slots *s = calloc(1, sizeof(*s));
	struct error e = { 0 };

	*state = s;
	return slots_init(s, SLOT_COUNT, &e);
}

static int without_slots(void **state)
{
	slots_free(*state);
	free(*state);
	return 0;
}

static void overlaps_wait(void **state)
{
	struct slots *s = *state;
	struct slot *w = under_way(s, SLOT_WRITE, 10, 4), *r = under_way(s, SLOT_READ, 20, 4);

	assert_true(would_wait(s, SLOT_READ, 13, 1));
	assert_true(would_wait(s, SLOT_WRITE, 8, 3));
	assert_false(would_wait(s, SLOT_READ, 14, 6));
	assert_false(would_wait(s, SLOT_WRITE, 5, 5));
	assert_false(would_wait(s, SLOT_READ, 20, 4));
	assert_true(would_wait(s, SLOT_WRITE, 23, 1));
	slot_retire(s, w);
	assert_false(would_wait(s, SLOT_READ, 13, 1));
	assert_true(would_wait(s, SLOT_WRITE, 23, 1));
	slot_retire(s, r);
	assert_false(would_wait(s, SLOT_WRITE, 23, 1));
}

/* A read that came after a waiting write must not overtake it. */
static void nobody_overtakes(void **state)
{
	struct slots *s = *state;
	struct slot *first = under_way(s, SLOT_READ, 0, 4);
	struct slot *second = request(s, SLOT_WRITE, 0, 8), *third = request(s, SLOT_READ, 6, 2);

	assert_true(slot_conflicts(s, second));
	slot_append(s, &s->blocked, second);
	assert_true(slot_conflicts(s, third));
	slot_append(s, &s->blocked, third);
	slot_retire(s, first);
	assert_false(slot_conflicts(s, second));
	/* Still behind the second, which has not started. */
	assert_true(slot_conflicts(s, third));
}

static void all_slots_are_used_and_come_back(void **state)
{
	struct slots *s = *state;
	struct slot *held[SLOT_COUNT];

	for (int i = 0; i < SLOT_COUNT; i++) {
		held[i] = slot_get(s);
		assert_non_null(held[i]);
		assert_int_equal((uintptr_t)held[i]->payload % 4096, 0);
	}
	assert_null(slot_get(s));
	for (int i = 0; i < SLOT_COUNT; i += 2)
		slot_put(s, held[i]);
	assert_int_equal(s->free_count, SLOT_COUNT / 2);
	for (int i = 0; i < SLOT_COUNT; i += 2)
		assert_non_null(slot_get(s));
	assert_null(slot_get(s));
}

/* --- the watchdog's rule -------------------------------------------------- */

static enum watchdog_verdict see(struct watchdog_state *w, uint64_t received, uint64_t completed,
				 uint64_t beats)
{
	struct watchdog_sight now = { received, completed, 0, beats };

	return watchdog_judge(w, &now, 10, 50);
}

/* A request that waits for a donor is not stalled; one beside it may be. */
static void waiting_is_not_stuck(void **state)
{
	struct watchdog_sight held = { .received = 2, .completed = 1, .held = 1 };
	struct watchdog_state w = { 0 };

	for (held.beats = 1; held.beats <= 100; held.beats++)
		assert_int_equal(watchdog_judge(&w, &held, 10, 50), WATCHDOG_MOVES);
	held.received++;
	for (int i = 0; i < 4; i++, held.beats++)
		assert_int_equal(watchdog_judge(&w, &held, 10, 50), WATCHDOG_MOVES);
	assert_int_equal(watchdog_judge(&w, &held, 10, 50), WATCHDOG_STUCK);
}

static void only_a_standstill_is_stuck(void **state)
{
	struct watchdog_state w = { 0 };
	uint64_t i;

	for (i = 1; i <= 100; i++) /* slow, but it moves */
		assert_int_equal(see(&w, 200, i, i), WATCHDOG_MOVES);
	for (; i <= 200; i++) /* idle */
		assert_int_equal(see(&w, 100, 100, i), WATCHDOG_MOVES);
	for (; i <= 204; i++)
		assert_int_equal(see(&w, 103, 100, i), WATCHDOG_MOVES);
	/* The loop runs, but answers no request. */
	assert_int_equal(see(&w, 103, 100, i), WATCHDOG_STUCK);
	/* One answer restarts the clock. */
	assert_int_equal(see(&w, 103, 101, i + 1), WATCHDOG_MOVES);
}

static void a_stopped_loop_is_seen(void **state)
{
	struct watchdog_state w = { 0 };

	assert_int_equal(see(&w, 7, 7, 1), WATCHDOG_MOVES);
	for (int i = 0; i < 4; i++)
		assert_int_equal(see(&w, 7, 7, 1), WATCHDOG_MOVES);
	/* It knows of no request, but it cannot: it does not look. */
	assert_int_equal(see(&w, 7, 7, 1), WATCHDOG_STOPPED);
	assert_int_equal(see(&w, 7, 7, 2), WATCHDOG_MOVES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(geometry),
		cmocka_unit_test(life),
		cmocka_unit_test(copies),
		cmocka_unit_test(bits_like_reference),
		cmocka_unit_test(no_bits),
		cmocka_unit_test_setup_teardown(overlaps_wait, with_slots, without_slots),
		cmocka_unit_test_setup_teardown(nobody_overtakes, with_slots, without_slots),
		cmocka_unit_test_setup_teardown(all_slots_are_used_and_come_back, with_slots,
						without_slots),
		cmocka_unit_test(only_a_standstill_is_stuck),
		cmocka_unit_test(waiting_is_not_stuck),
		cmocka_unit_test(a_stopped_loop_is_seen),
	};

	return cmocka_run_group_tests_name("slab", tests, NULL, NULL);
}
