// SPDX-License-Identifier: GPL-2.0-or-later
/* Reads of a page, as of misses, beside large ones, as of prefetches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "slow_device.h"
#include "swapd/request/engine.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { LARGE = 32, FLOOD = 10, WINDOW = 2 * LARGE };

static struct donor *from;

/* Writes the pages of the slab, which are then at one donor. */
static void filled(bool backup)
{
	begin(1, backup);
	request(SLOT_WRITE, 0, 1);
	grant();
	for (uint32_t i = 0; i < SLAB_PAGES; i += LARGE)
		request(SLOT_WRITE, i, LARGE);
	back_up(SLOT_COUNT);
	from = &s.donors.donor[slabs[0].copy[0].donor];
	/* The least: the window does not depend on how fast this machine is. */
	for (int i = 0; i < DONORS; i++)
		s.donors.donor[i].fastest = 1;
	answered = 0;
	slow = true;
}

/* Counts transfers in flight, and pages of the large ones among them. */
static uint32_t in_flight(uint32_t *pages)
{
	uint32_t n = 0;

	*pages = 0;
	for (struct transfer *t = from->link.waiting.head; t; t = t->next, n++)
		if (t->length > PAGE)
			*pages += t->length / PAGE;
	return n;
}

static uint32_t large_pages(void)
{
	uint32_t pages;

	in_flight(&pages);
	return pages;
}

/* Ends the oldest transfer that is large or not. */
static void end_one(bool large)
{
	struct transfer *t = from->link.waiting.head;

	while (t && (t->length > PAGE) != large)
		t = t->next;
	assert_non_null(t);
	link_done(&from->link, t, 0);
	run();
}

static void flood(void)
{
	for (uint32_t i = 0; i < FLOOD; i++)
		request(SLOT_READ, i % (SLAB_PAGES / LARGE) * LARGE, LARGE);
}

static void large_reads_alone_have_no_limit(void **state)
{
	filled(false);
	flood();
	assert_int_equal(large_pages(), FLOOD * LARGE);
	assert_int_equal(s.count->large_held, 0);
	device_end();
}

static void a_small_read_passes(void **state)
{
	uint32_t pages;

	filled(false);
	request(SLOT_READ, 1, 1);
	flood();
	assert_int_equal(in_flight(&pages), 1 + WINDOW / LARGE);
	assert_int_equal(pages, WINDOW);
	assert_int_equal(s.count->large_held, FLOOD);
	assert_int_equal(s.count->overtakes, 0);
	request(SLOT_READ, 5, 1);
	assert_int_equal(in_flight(&pages), 2 + WINDOW / LARGE);
	assert_int_equal(s.count->overtakes, 1);
	end_one(false);
	end_one(false);
	assert_int_equal(answered, 2);
	/* One ends, one begins. */
	end_one(true);
	assert_int_equal(large_pages(), WINDOW);
	device_end();
}

/* Of two programs one reads page after page, without a pause, and the other is prefetched for. */
static void small_reads_starve_none(void **state)
{
	filled(false);
	request(SLOT_READ, 1, 1);
	flood();
	for (uint32_t i = 0; i < FLOOD; i++) {
		request(SLOT_READ, i, 1);
		end_one(false);
		assert_true(large_pages() <= WINDOW);
		end_one(true);
	}
	end_one(false);
	assert_int_equal(answered, 2 * FLOOD + 1);
	assert_int_equal(from->large_pages, 0);
	assert_int_equal(s.engine.slots.free_count, s.engine.slots.count);
	device_end();
}

static void without_small_reads_the_limit_ends(void **state)
{
	filled(false);
	request(SLOT_READ, 1, 1);
	end_one(false);
	for (int i = 0; i < 2; i++)
		flood();
	for (int i = 0; i < 15; i++) {
		assert_int_equal(large_pages(), WINDOW);
		end_one(true);
	}
	assert_int_equal(large_pages(), WINDOW);
	end_one(true);
	assert_int_equal(large_pages(), (2 * FLOOD - 16) * LARGE);
	/* The next ones have no limit either. */
	flood();
	assert_int_equal(large_pages(), (3 * FLOOD - 16) * LARGE);
	device_end();
}

/*
 * Of two donors, one does not answer: reads of the other one proceed.  When the first is lost, its
 * reads end, whether they were in flight or waited.
 */
static void a_stalled_donor(void **state)
{
	struct donor *other;
	uint32_t second;

	filled(false);
	slow = false;
	/* A second slab, at the other donor. */
	from->leaving = DONOR_DRAINED;
	for (uint32_t i = 0; i < SLAB_PAGES; i += LARGE) {
		request(SLOT_WRITE, SLAB_PAGES + i, LARGE);
		grant();
	}
	from->leaving = 0;
	other = &s.donors.donor[!from->index];
	assert_int_equal(slabs[1].copy[0].donor, other->index);
	answered = 0;
	slow = true;
	request(SLOT_READ, 1, 1);
	end_one(false);
	flood();
	assert_int_equal(large_pages(), WINDOW);
	for (uint32_t i = 0; i < FLOOD; i++) {
		request(SLOT_READ, 1, 1);
		second = answered;
		request(SLOT_READ, SLAB_PAGES + i % 8 * LARGE, LARGE);
		assert_int_equal(other->large_pages, LARGE);
		reply(other);
		assert_int_equal(answered, second + 1);
		engine_tick(&s.engine, (i + 1) * SECOND);
	}
	assert_int_equal(from->large_pages, WINDOW);
	assert_int_equal(large_pages(), WINDOW);
	lose(from);
	assert_int_equal(answered, 1 + 3 * FLOOD);
	assert_int_equal(from->large_pages + other->large_pages, 0);
	assert_int_equal(s.engine.slots.free_count, s.engine.slots.count);
	device_end();
}

/* Reads of one donor keep their order: shorter ones do not pass, although there is room. */
static void a_long_read_is_not_passed(void **state)
{
	enum { SHORT = 16 };
	uint32_t pages;

	filled(false);
	request(SLOT_READ, 1, 1);
	request(SLOT_READ, 0, SLOT_PAGES);
	request(SLOT_READ, 0, SHORT);
	request(SLOT_READ, 0, SLOT_PAGES);
	for (int i = 0; i < 4; i++) {
		request(SLOT_READ, SLOT_PAGES, SHORT);
		request(SLOT_READ, 1, 1);
	}
	in_flight(&pages);
	assert_int_equal(pages, SLOT_PAGES + SHORT);
	end_one(true);
	assert_int_equal(large_pages(), SHORT + SLOT_PAGES + SHORT);
	end_one(true);
	assert_int_equal(large_pages(), SLOT_PAGES + 2 * SHORT);
	device_end();
}

/* In 200 us a fast network carries 146 pages, whatever other donors do. */
static void a_distant_donor_sends_more(void **state)
{
	filled(false);
	s.donors.donor[!from->index].fastest = SECOND;
	from->fastest = 200000;
	request(SLOT_READ, 1, 1);
	flood();
	assert_int_equal(large_pages(), 146 / LARGE * LARGE);
	/* However slow this machine is, */
	from->fastest = SECOND;
	run();
	assert_int_equal(large_pages(), 256);
	end_one(true);
	/* and near, it has two. */
	from->fastest = 50000;
	for (int i = 0; i < 6; i++)
		end_one(true);
	assert_int_equal(large_pages(), WINDOW);
	device_end();
}

/* Pages that the disk reads leave the donors to others. */
static void reads_of_the_backup_do_not_count(void **state)
{
	filled(true);
	request(SLOT_READ, 1, 1);
	flood();
	assert_int_equal(from->large_pages, WINDOW);
	s.donors.donor[!from->index].leaving = DONOR_DRAINED;
	lose(from);
	assert_int_equal(from->large_pages, 0);
	back_up(SLOT_COUNT);
	assert_int_equal(answered, 1 + FLOOD);
	assert_int_equal(failed, 0);
	device_end();
}

/* What ends at once, as with shm, leaves the loop its turn to receive small reads. */
static void a_round_begins_few_large_reads(void **state)
{
	struct slot *slot;

	filled(false);
	slow = false;
	request(SLOT_READ, 1, 1);
	for (uint32_t i = 0; i < FLOOD; i++) {
		slot = slot_get(&s.engine.slots);
		slot->kind = SLOT_READ;
		slot->first = i % (SLAB_PAGES / LARGE) * LARGE;
		slot->count = LARGE;
		engine_start(&s.engine, slot);
	}
	assert_int_equal(answered, 1);
	for (uint32_t i = 1; i < FLOOD / 2; i++) {
		assert_true(engine_is_ready(&s.engine));
		/* Nor does a round begin more when small reads are no longer expected. */
		if (i == FLOOD / 4)
			s.engine.small_expected = 0;
		assert_true(engine_begin_large(&s.engine));
		while (engine_run(&s.engine))
			;
		assert_int_equal(answered, 1 + 2 * i);
	}
	run();
	assert_int_equal(answered, 1 + FLOOD);
	assert_false(engine_is_ready(&s.engine));
	device_end();
}

/* A write of pages that a waiting read is to return comes after it. */
static void a_waiting_read_keeps_its_pages(void **state)
{
	filled(false);
	request(SLOT_READ, 1, 1);
	flood();
	request(SLOT_WRITE, (SLAB_PAGES / LARGE - 1) * LARGE, 1);
	assert_int_equal(s.count->conflicts, 1);
	end_one(false);
	for (uint32_t i = 0; i < SLAB_PAGES / LARGE; i++) {
		assert_int_equal(s.engine.slots.blocked.head >= 0, true);
		end_one(true);
	}
	assert_int_equal(s.engine.slots.blocked.head, -1);
	device_end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(large_reads_alone_have_no_limit),
		cmocka_unit_test(a_small_read_passes),
		cmocka_unit_test(small_reads_starve_none),
		cmocka_unit_test(without_small_reads_the_limit_ends),
		cmocka_unit_test(a_stalled_donor),
		cmocka_unit_test(a_long_read_is_not_passed),
		cmocka_unit_test(a_distant_donor_sends_more),
		cmocka_unit_test(reads_of_the_backup_do_not_count),
		cmocka_unit_test(a_round_begins_few_large_reads),
		cmocka_unit_test(a_waiting_read_keeps_its_pages),
	};

	return cmocka_run_group_tests_name("read order", tests, NULL, NULL);
}
