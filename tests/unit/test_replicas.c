// SPDX-License-Identifier: GPL-2.0-or-later
/* The replicas that a write finds, and those that absent donors keep meanwhile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "device_world.h"
#include "swapd/donor/session.h"
#include "swapd/page/page_map.h"
#include "swapd/replicas/repair.h"
#include "swapd/replicas/slab_mapping.h"
#include "swapd/request/engine.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { SLABS = 4, SLAB_PAGES = 256, QUEUE = 700 };

static void begin(int donors, int replicas)
{
	device_begin(&(struct device_setup){ .slabs = SLABS, .slab_pages = SLAB_PAGES,
					     .donors = donors, .replicas = replicas,
					     .queue = QUEUE, .version = WIRE_VERSION,
					     .transport = &transport_fake });
	for (int i = 0; i < donors; i++)
		s.donors.donor[i].grace = 30 * SECOND;
}

/* Answers the oldest frame to @d, a MAP. */
static void answer(struct donor *d, enum wire_status status)
{
	static uint32_t generation;
	struct wire_frame f;

	take_frame(d, &f);
	assert_int_equal(f.op, WIRE_MAP);
	f.status = status;
	f.length = 0;
	f.generation = ++generation;
	assert_int_equal(donor_frame(d, &f, NULL), 0);
	run();
}

/* Donors grant all that they are asked for. */
static void grant(void)
{
	for (int i = 0; i < s.donors.count; i++)
		while (s.donors.donor[i].link.tx.count)
			answer(&s.donors.donor[i], WIRE_OK);
}

static void write_page(uint32_t page)
{
	request(SLOT_WRITE, page, 1);
}

/* All donors with a copy of slab 0 go away. */
static void all_go_away(void)
{
	for (int i = 0; i < s.donors.count; i++) {
		struct donor *d = &s.donors.donor[i];
		int c = slab_copy_at(&slabs[0], d->index);

		if (c < 0 || slabs[0].copy[c].state != COPY_MAPPED)
			continue;
		d->state = DONOR_DOWN;
		d->resume = RESUME_WANTED;
		mapping_away(&s.replicas, d);
	}
	run();
}

/* Returns at how many copies that are AWAY @page is stored. */
static int stored_away(uint32_t page)
{
	int n = 0;

	for (int c = 0; c < SLAB_COPIES; c++)
		n += slab_away(&slabs[0]) >> c & 1 &&
		     page_map_is_stored(s.engine.map, page, (uint8_t)(1u << c));
	return n;
}

/*
 * All donors of a slab are away, and then those that replaced them: pages that only they have stay
 * theirs, for any of them may be lost.  Writes find as many new replicas as they are promised.
 */
static void absent_donors_keep_their_pages(void **state)
{
	for (int replicas = 2; replicas <= REPLICAS_MAX; replicas++) {
		begin(3 * replicas, replicas);
		for (uint32_t page = 0; page < 2; page++) {
			write_page(page);
			grant();
			assert_int_equal(slab_copies(&slabs[0], COPY_MAPPED), replicas);
			all_go_away();
		}
		write_page(2);
		grant();
		assert_int_equal(answered, 3);
		assert_int_equal(failed, 0);
		for (uint32_t page = 0; page < 2; page++)
			assert_int_equal(stored_away(page), replicas);
		device_end();
	}
}

/* The first of those donors that have got a frame and are not @except. */
static struct donor *asked(const struct donor *except)
{
	for (int i = 0; i < s.donors.count; i++)
		if (&s.donors.donor[i] != except && s.donors.donor[i].link.tx.count)
			return &s.donors.donor[i];
	fail_msg("no donor is asked");
	return NULL;
}

static void pass(uint64_t ns)
{
	engine_tick(&s.engine, s.engine.now + ns);
	for (int i = 0; i < s.donors.count; i++)
		if (s.donors.donor[i].later)
			mapping_ask_later(&s.replicas, &s.donors.donor[i], now_ns());
	run();
}

/* A slab is opened, and one of its donors has granted it. */
static struct donor *one_of_two(struct donor **granted)
{
	begin(3, 2);
	write_page(0);
	*granted = asked(NULL);
	answer(*granted, WIRE_OK);
	assert_int_equal(answered, 0);
	return asked(*granted);
}

static void check_two(void)
{
	assert_int_equal(answered, 1);
	assert_int_equal(failed, 0);
	assert_int_equal(slab_copies(&slabs[0], COPY_MAPPED), 2);
	for (int c = 0; c < SLAB_COPIES; c++)
		if (slabs[0].copy[c].state == COPY_MAPPED)
			assert_true(page_map_is_stored(s.engine.map, 0, (uint8_t)(1u << c)));
	for (int i = 0; i < s.donors.count; i++)
		assert_int_equal(s.donors.donor[i].mapping, 0);
}

/*
 * A donor does not grant the copy that it was asked for, whether it has answered before the other
 * one or not: the write waits for a third.
 */
static void another_donor_is_asked(void **state)
{
	enum { REFUSES, REFUSES_FIRST, GOES_AWAY, IS_LOST, CASES };

	for (int end = 0; end < CASES; end++) {
		struct donor *granted, *other = one_of_two(&granted);

		if (end == REFUSES_FIRST) {
			device_end();
			begin(3, 2);
			write_page(0);
			other = asked(NULL);
			granted = asked(other);
		}
		if (end == GOES_AWAY)
			donor_part(other, "cut");
		else if (end == IS_LOST)
			donor_lose(other, "killed");
		else
			answer(other, WIRE_NO_SPACE);
		if (end == REFUSES_FIRST)
			answer(granted, WIRE_OK);
		run();
		assert_int_equal(answered, 0);
		answer(asked(granted), WIRE_OK);
		check_two();
		device_end();
	}
}

/* The donor that has granted its copy disconnects before the other one has answered. */
static void one_that_has_granted_is_replaced(void **state)
{
	for (int lost = 0; lost < 2; lost++) {
		struct donor *granted, *other = one_of_two(&granted);

		if (lost)
			donor_lose(granted, "killed");
		else
			donor_part(granted, "cut");
		answer(other, WIRE_OK);
		assert_int_equal(answered, 0);
		answer(asked(other), WIRE_OK);
		check_two();
		device_end();
	}
}

/* Without another donor, or in the end, the write takes what there is. */
static void no_donor_is_left(void **state)
{
	for (int late = 0; late < 2; late++) {
		struct donor *granted, *other = one_of_two(&granted);

		if (late)
			pass(60 * SECOND);
		for (int i = 0; i < s.donors.count && !late; i++)
			if (&s.donors.donor[i] != granted && &s.donors.donor[i] != other)
				s.donors.donor[i].free = s.donors.donor[i].room = 0;
		answer(other, WIRE_NO_SPACE);
		assert_int_equal(answered, 1);
		assert_int_equal(failed, 0);
		assert_int_equal(slab_copies(&slabs[0], COPY_MAPPED), 1);
		device_end();
	}
}

static void fill_queue(struct donor *d)
{
	struct wire_frame f = { .op = WIRE_PING };

	while (donor_has_room(d))
		stream_push(&d->link.tx, &f, NULL, 0);
}

static void empty_queue(struct donor *d)
{
	d->link.tx.head = d->link.tx.count = 0;
}

/* The queue of one of two donors is full: the write waits for it, but not for ever. */
static void a_full_queue(void **state)
{
	struct donor *full = &s.donors.donor[1];

	for (int stays = 0; stays < 2; stays++) {
		begin(2, 2);
		fill_queue(full);
		write_page(0);
		answer(&s.donors.donor[0], WIRE_OK);
		pass(SECOND);
		assert_int_equal(answered, 0);
		if (!stays)
			empty_queue(full);
		pass(SECOND + 1);
		if (!stays) {
			assert_int_equal(answered, 0);
			answer(full, WIRE_OK);
			check_two();
		}
		assert_int_equal(answered, 1);
		assert_int_equal(failed, 0);
		assert_int_equal(full->copies, !stays);
		assert_int_equal(full->later + full->mapping, 0);
		device_end();
	}
}

/* One of three refuses when the queue of the third is full. */
static void a_refusal_and_a_full_queue(void **state)
{
	struct donor *granted, *other = one_of_two(&granted), *full = s.donors.donor;

	while (full == granted || full == other)
		full++;
	fill_queue(full);
	answer(other, WIRE_NO_SPACE);
	assert_int_equal(answered, 0);
	empty_queue(full);
	pass(SECOND / 10);
	answer(full, WIRE_OK);
	check_two();
	device_end();
}

/* A tick, as the loop makes it. */
static void tick(void)
{
	engine_tick(&s.engine, s.engine.now + SECOND / 10);
	repair_tick(&s.replicas, now_ns() + 60 * SECOND);
	run();
	while (repair_run(&s.replicas))
		;
	run();
	grant();
}

/*
 * A read waits for a page that only an absent donor has, and repair wants the slab to itself, to
 * release another copy of it: other pages are read meanwhile.
 */
static void other_pages_are_read(void **state)
{
	struct donor *recalls;

	begin(3, 1);
	write_page(0);
	grant();
	all_go_away();
	write_page(1);
	recalls = asked(NULL);
	grant();
	slabs[0].copy[slab_copy_at(&slabs[0], recalls->index)].leaving = true;
	answered = 0;
	request(SLOT_READ, 0, 1);
	for (uint32_t i = 1; i <= 10; i++) {
		tick();
		request(SLOT_READ, 1, 1);
		assert_int_equal(answered, i);
	}
	/* A third donor has the page. */
	assert_int_equal(slab_copies(&slabs[0], COPY_MAPPED), 2);
	assert_int_equal(s.replicas.repair.running, 0);
	engine_tick(&s.engine, s.engine.now + 60 * SECOND);
	run();
	assert_int_equal(answered, 11);
	assert_int_equal(failed, 1);
	repair_tick(&s.replicas, now_ns() + 60 * SECOND);
	assert_int_equal(recalls->copies, 0);
	assert_int_equal(s.engine.slots.free_count, s.engine.slots.count);
	device_end();
}

static uint32_t mapped;

static int map(struct link *l, struct mapping *m)
{
	mapped++;
	m->memory = (uint8_t *)&mapped;
	m->size = 64 << 20;
	return 0;
}

static void unmap(struct mapping *m)
{
	assert_ptr_equal(m->memory, &mapped);
	assert_int_equal(m->size, 64 << 20);
	assert_in_range(mapped, 1, UINT32_MAX);
	mapped--;
}

static const struct transport transport_here = {
	.name = "here", .maps_here = true, .map = map, .unmap = unmap, .submit = transfer_at_once,
};

/*
 * A donor on this machine disconnects: its slabs leave the tables at once, and this process a few
 * at a time.  Those that find no place on the list do so at once.
 */
static void a_few_unmappings_at_a_time(void **state)
{
	enum { MANY = 40, A_TICK = 4, LISTED = 32 };
	struct donor *d = s.donors.donor;
	struct error e = { 0 };

	for (int lost = 0; lost < 2; lost++) {
		uint32_t left = LISTED;

		device_begin(&(struct device_setup){ .slabs = MANY, .slab_pages = SLAB_PAGES,
						     .donors = 1, .replicas = 1, .queue = QUEUE,
						     .version = WIRE_VERSION,
						     .transport = &transport_here });
		assert_int_equal(unmappings_init(&s.replicas.unmappings, LISTED, &e), 0);
		d->grace = 30 * SECOND;
		s.donors.env.slab = 64 << 20;
		mapped = 0;
		for (uint32_t i = 0; i < MANY; i++) {
			write_page(i * SLAB_PAGES);
			grant();
		}
		assert_int_equal(mapped, MANY);
		if (lost)
			donor_lose(d, "killed");
		else
			donor_part(d, "cut");
		assert_int_equal(slab_count(&s.engine.table, SLAB_MAPPED), 0);
		assert_int_equal(slab_count(&s.engine.table, lost ? SLAB_LOST : SLAB_AWAY), MANY);
		for (; left; left -= A_TICK) {
			assert_int_equal(mapped, left);
			repair_tick(&s.replicas, now_ns());
		}
		assert_int_equal(mapped, 0);
		unmappings_free(&s.replicas.unmappings);
		device_end();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(another_donor_is_asked),
		cmocka_unit_test(one_that_has_granted_is_replaced),
		cmocka_unit_test(no_donor_is_left),
		cmocka_unit_test(a_full_queue),
		cmocka_unit_test(a_refusal_and_a_full_queue),
		cmocka_unit_test(other_pages_are_read),
		cmocka_unit_test(a_few_unmappings_at_a_time),
		cmocka_unit_test(absent_donors_keep_their_pages),
	};

	return cmocka_run_group_tests_name("replicas", tests, NULL, NULL);
}
