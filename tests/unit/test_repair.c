// SPDX-License-Identifier: GPL-2.0-or-later
/* Repair beside requests, with a slow disk; and what is said of a drain beforehand. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "slow_device.h"
#include "swapd/page/page_map.h"
#include "swapd/replicas/drain_estimate.h"
#include "swapd/replicas/repair.h"
#include "swapd/replicas/slab_mapping.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

/*
 * A donor is drained, no other has free capacity, and the disk is slow: slabs that wait for
 * it hold up their own requests, but take the room of no others.
 */
static void a_drain_to_a_slow_disk(void **state)
{
	uint64_t now = now_ns();
	uint32_t free_before;

	begin(1, true);
	s.donors.donor[1].leaving = DONOR_DRAINED;
	for (uint32_t i = 0; i < SLABS; i++) {
		request(SLOT_WRITE, i * SLAB_PAGES, 1);
		grant();
		back_up(1);
	}
	assert_int_equal(s.donors.donor[0].copies, SLABS);
	assert_int_equal(s.engine.slots.free_count, s.engine.slots.count);
	for (uint32_t i = 0; i < 100; i++)
		request(SLOT_WRITE, i * SLAB_PAGES, 1);
	assert_int_equal(answered, SLABS + 100);
	s.donors.donor[0].leaving = DONOR_DRAINED;
	free_before = s.engine.slots.free_count;
	for (int i = 0; i < 20; i++, now += SECOND)
		tick(now);
	assert_in_range(s.engine.slots.free_count, free_before - 12, free_before);
	/* And it comes to its end. */
	for (int i = 0; i < 500 && s.donors.donor[0].copies; i++, now += SECOND) {
		tick(now);
		back_up(SLOT_COUNT);
		grant();
	}
	assert_int_equal(s.donors.donor[0].copies, 0);
	assert_int_equal(s.engine.slots.free_count, s.engine.slots.count);
	assert_int_equal(s.engine.backlog + s.engine.need_backup + s.replicas.repair.running, 0);
	assert_int_equal(failed, 0);
	device_end();
}

/* Repair takes none of the free slots that requests are to have. */
static void repair_leaves_slots_to_requests(void **state)
{
	struct slot *held[SLOT_COUNT];
	uint64_t now = now_ns();
	uint32_t n = 0, reserved;

	begin(1, false);
	reserved = s.replicas.slots_reserved;
	request(SLOT_WRITE, 0, 1);
	grant();
	request(SLOT_DISCARD, 0, 1);
	tick(now);
	while (s.engine.slots.free_count > reserved)
		held[n++] = slot_get(&s.engine.slots);
	for (int i = 0; i < 10; i++, now += SECOND)
		tick(now);
	assert_int_equal(s.count->unmaps, 0);
	slot_put(&s.engine.slots, held[--n]);
	tick(now);
	grant();
	assert_int_equal(s.count->unmaps, 1);
	while (n)
		slot_put(&s.engine.slots, held[--n]);
	assert_int_equal(s.engine.slots.free_count, s.engine.slots.count);
	device_end();
}

/* More slabs are wanted at once than a donor's queue takes requests for: writes wait for room. */
static void more_new_slabs_than_frames(void **state)
{
	uint64_t now = now_ns();

	begin(1, false);
	engine_tick(&s.engine, now);
	for (uint32_t i = 0; i < 200; i++)
		request(SLOT_WRITE, i * SLAB_PAGES, 1);
	assert_int_equal(failed, 0);
	for (int i = 0; i < 5; i++, now += SECOND / 10) {
		engine_tick(&s.engine, now);
		run();
		grant();
	}
	assert_int_equal(answered, 200);
	assert_int_equal(failed, 0);
	assert_int_equal(s.engine.slots.free_count, s.engine.slots.count);
	device_end();
}

/* A write waits in its first slab while repair finds the second one: live pages and no copy. */
static void first_copies_come_together(void **state)
{
	begin(2, false);
	request(SLOT_WRITE, SLAB_PAGES - 1, 2);
	tick(now_ns());
	assert_int_equal(answered, 0);
	grant();
	assert_int_equal(answered, 1);
	assert_int_equal(failed, 0);
	for (uint32_t slab = 0; slab < 2; slab++) {
		assert_int_equal(slab_copies(&slabs[slab], COPY_MAPPED), 2);
		for (int c = 0; c < 2; c++)
			assert_int_equal(page_map_next_lacking(s.engine.map, slab, 0, c),
					 SLAB_PAGES);
	}
	device_end();
}

/*
 * Writes a page at @from that the disk fails to store, and copies it towards @to, when @from is
 * lost: only the RESYNC has the page.
 */
static void only_the_resync_has_it(bool backup, struct donor **from, struct donor **to)
{
	uint64_t now = now_ns();

	begin(1, backup);
	engine_tick(&s.engine, now);
	request(SLOT_WRITE, 0, 1);
	grant();
	disk = -EIO;
	back_up(1);
	*from = &s.donors.donor[slabs[0].copy[0].donor];
	*to = &s.donors.donor[!(*from)->index];
	slow = true;
	slabs[0].rewrite_at = UINT64_MAX;
	slabs[0].copy[0].leaving = true;
	tick(now);
	grant();
	tick(now);
	repair_run(&s.replicas);
	reply(*from);
	assert_non_null((*to)->link.waiting.head);
	lose(*from);
	slabs[0].rewrite_at = 0;
}

/*
 * A page that the disk did not take is on its way to another donor when its own is lost: a read
 * that went to the disk meanwhile finds it there, or on its way.
 */
static void saved_in_the_last_moment(void **state)
{
	struct donor *from, *to;

	for (int saved = 0; saved < 2; saved++) {
		only_the_resync_has_it(true, &from, &to);
		slabs[0].rewrite_at = UINT64_MAX;
		disk = 0;
		/* Something is queued for the disk: it might be the page. */
		request(SLOT_WRITE, 9 * SLAB_PAGES, 1);
		request(SLOT_READ, 0, 1);
		assert_int_equal(answered, 1);
		if (saved)
			reply(to);
		back_up(2);
		if (saved)
			reply(to);
		assert_int_equal(answered, 2);
		assert_int_equal(failed, 0);
		lose(to);
		back_up(SLOT_COUNT);
		for (int i = 0; i < 30; i++) {
			engine_tick(&s.engine, s.engine.now + SECOND);
			run();
		}
		assert_int_equal(s.engine.slots.free_count, s.engine.slots.count);
		assert_int_equal(s.engine.backlog + s.engine.need_backup +
				 s.replicas.repair.running, 0);
		device_end();
	}
}

/*
 * The donor that a page came from is away when the one that it goes to is lost: the page goes to
 * another one that comes soon, as the first may be lost, too.
 */
static void the_only_donor_with_a_page_is_away(void **state)
{
	struct donor *from, *to;
	uint64_t now = now_ns();

	for (int soon = 0; soon < 2; soon++) {
		begin(1, false);
		engine_tick(&s.engine, now);
		request(SLOT_WRITE, 0, 1);
		grant();
		from = &s.donors.donor[slabs[0].copy[0].donor];
		to = &s.donors.donor[!from->index];
		slow = true;
		slabs[0].copy[0].leaving = true;
		tick(now);
		grant();
		tick(now);
		repair_run(&s.replicas);
		reply(from);
		mapping_away(&s.replicas, from);
		lose(to);
		request(SLOT_READ, 0, 1);
		assert_int_equal(answered, 2);
		for (int i = 0; i < 19 || (!soon && i < 21); i++) {
			assert_int_equal(s.replicas.repair.running, 1);
			engine_tick(&s.engine, now + i * SECOND / 10);
			run();
		}
		assert_int_equal(s.replicas.repair.running, soon);
		to->state = DONOR_UP;
		engine_tick(&s.engine, now + 2 * SECOND);
		run();
		grant();
		if (soon)
			reply(to);
		lose(from);
		request(SLOT_READ, 0, 1);
		if (soon)
			reply(to);
		assert_int_equal(answered, 3);
		assert_int_equal(failed, !soon);
		assert_int_equal(s.engine.slots.free_count, s.engine.slots.count);
		device_end();
	}
}

/*
 * A page is on its way to another donor, and nowhere else, when its own is lost: reads get it from
 * there.  When the other is lost, too, it goes to a remaining donor.
 */
static void a_read_in_the_last_moment(void **state)
{
	enum { GOES_WELL, DIES, DIES_WITH_ANOTHER_THERE, CASES };
	struct donor *from, *to;

	for (int other = 0; other < CASES; other++) {
		begin(1, false);
		request(SLOT_WRITE, 0, 4);
		grant();
		from = &s.donors.donor[slabs[0].copy[0].donor];
		to = &s.donors.donor[!from->index];
		slow = true;
		slabs[0].copy[0].leaving = true;
		tick(now_ns());
		grant();
		tick(now_ns());
		repair_run(&s.replicas);
		/* One that is there before, one that comes after. */
		request(SLOT_READ, 1, 2);
		reply(from);
		assert_true(to->link.waiting.head);
		lose(from);
		request(SLOT_READ, 0, 4);
		assert_int_equal(answered, 3);
		if (other == DIES_WITH_ANOTHER_THERE)
			from->state = DONOR_UP;
		if (other != GOES_WELL)
			lose(to);
		if (other == DIES_WITH_ANOTHER_THERE) {
			grant();
			to = from;
		}
		if (other != DIES)
			reply(to);
		request(SLOT_READ, 0, 4);
		if (other != DIES)
			reply(to);
		assert_int_equal(answered, 4);
		assert_int_equal(failed, other == DIES);
		assert_int_equal(s.engine.slots.free_count, s.engine.slots.count);
		device_end();
	}
}

/*
 * A page is on its way to another donor, and nowhere else, when that one is lost or away for a
 * moment, and the queue of the remaining donor is full: it waits, as a write does.  Reads get it.
 */
static void the_last_content_waits_for_room(void **state)
{
	enum { LOST, AWAY, STAYS_AWAY, CASES };
	struct wire_frame f = { .op = WIRE_PING };
	struct donor *from, *to;
	uint64_t now = now_ns();

	for (int end = 0; end < CASES; end++) {
		begin(1, false);
		engine_tick(&s.engine, now);
		request(SLOT_WRITE, 0, 1);
		grant();
		from = &s.donors.donor[slabs[0].copy[0].donor];
		to = &s.donors.donor[!from->index];
		slow = true;
		slabs[0].copy[0].leaving = true;
		tick(now);
		grant();
		tick(now);
		repair_run(&s.replicas);
		reply(from);
		assert_true(to->link.waiting.head);
		lose(from);
		if (end == LOST) {
			from->state = DONOR_UP;
			while (donor_has_room(from))
				stream_push(&from->link.tx, &f, NULL, 0);
			lose(to);
			from->link.tx.count = 0;
			from->link.tx.head = 0;
		} else {
			struct transfer *t = to->link.waiting.head;

			mapping_away(&s.replicas, to);
			link_done(&to->link, t, -ECONNRESET);
			run();
		}
		request(SLOT_READ, 0, 1);
		assert_int_equal(answered, 2);
		if (end == AWAY)
			slab_back(&slabs[0], slab_copy_at(&slabs[0], to->index));
		engine_tick(&s.engine, now + (end == STAYS_AWAY ? 60 : 1) * SECOND);
		run();
		if (end == LOST) {
			grant();
			to = from;
		}
		if (end != STAYS_AWAY)
			reply(to);
		request(SLOT_READ, 0, 1);
		if (end != STAYS_AWAY)
			reply(to);
		assert_int_equal(answered, 3);
		assert_int_equal(failed, end == STAYS_AWAY);
		assert_int_equal(s.engine.slots.free_count, s.engine.slots.count);
		assert_int_equal(s.engine.held + s.replicas.repair.running, 0);
		device_end();
	}
}

/*
 * No donor is left for a page that only a RESYNC has: the disk gets it, now or when it works again.
 * What is queued for the disk meanwhile need not be the page.
 */
static void the_last_content_goes_to_the_disk(void **state)
{
	enum { WORKS, WORKS_BESIDE_OTHERS, WORKS_LATER, FAILS, CASES };
	struct donor *from, *to;
	uint64_t now;

	for (int end = 0; end < CASES; end++) {
		only_the_resync_has_it(true, &from, &to);
		now = s.engine.now;
		disk = end < WORKS_LATER ? 0 : -EIO;
		if (end == WORKS_BESIDE_OTHERS) {
			request(SLOT_WRITE, 9 * SLAB_PAGES, 1);
			grant();
			link_done(&to->link, to->link.waiting.tail, 0);
			run();
			assert_int_equal(answered, 2);
			assert_int_equal(backup_pending(&s.engine.backup), 1);
		}
		lose(to);
		back_up(SLOT_COUNT);
		/* Not ten times a second. */
		for (uint64_t at = now; at < now + 4 * SECOND; at += SECOND / 10) {
			engine_tick(&s.engine, at);
			run();
			assert_int_equal(backup_queued(&s.engine.backup), 0);
			assert_int_equal(s.engine.held, end >= WORKS_LATER);
		}
		answered = 0;
		request(SLOT_READ, 0, 1);
		back_up(SLOT_COUNT);
		assert_int_equal(answered, 1);
		disk = end == FAILS ? -EIO : 0;
		for (uint64_t at = now + 5 * SECOND; at < now + 60 * SECOND; at += SECOND) {
			engine_tick(&s.engine, at);
			run();
			back_up(SLOT_COUNT);
			assert_int_equal(s.engine.held, end == FAILS && at < now + 25 * SECOND);
		}
		assert_int_equal(failed, 0);
		request(SLOT_READ, 0, 1);
		back_up(SLOT_COUNT);
		assert_int_equal(answered, 2);
		assert_int_equal(failed, end == FAILS);
		assert_int_equal(s.engine.slots.free_count, s.engine.slots.count);
		assert_int_equal(s.engine.resyncs_held + s.engine.need_backup + s.engine.backlog +
				 s.replicas.repair.running, 0);
		device_end();
	}
}

/*
 * A RESYNC that waits for a donor is no request: the watchdog must not take another one for held.
 * Repair of other slabs goes on.
 */
static void a_resync_that_waits(void **state)
{
	struct donor *from, *to;
	struct transfer *t;
	uint64_t now;
	int c;

	only_the_resync_has_it(false, &from, &to);
	now = s.engine.now;
	t = to->link.waiting.head;
	mapping_away(&s.replicas, to);
	link_done(&to->link, t, -ECONNRESET);
	run();
	assert_int_equal(s.engine.resyncs_held, 1);
	engine_tick(&s.engine, now + SECOND);
	run();
	assert_int_equal(s.count->held, 0);
	/* One that waits for it counts. */
	request(SLOT_WRITE, 0, 1);
	engine_tick(&s.engine, now + 2 * SECOND);
	run();
	assert_int_equal(s.count->received - s.count->completed, 1);
	assert_int_equal(s.count->held, 1);
	/* Another slab, at a donor that is back, lacks a page. */
	from->state = DONOR_UP;
	slow = false;
	request(SLOT_WRITE, SLAB_PAGES, 2);
	grant();
	assert_int_equal(failed, 0);
	c = slab_copy_at(&slabs[1], from->index);
	slabs[1].copy[c].partial = true;
	s.replicas.repair.work[s.replicas.repair.work_count++] = 1;
	s.replicas.repair.budget = SLAB_PAGES;
	s.replicas.repair.busy = true;
	assert_int_equal(s.engine.resyncs_held, 1);
	while (repair_run(&s.replicas))
		;
	run();
	assert_false(slabs[1].copy[c].partial);
	device_end();
}

/* What the disk has failed to take it gets again, and a drain comes to its end. */
static void a_disk_that_recovers(void **state)
{
	uint64_t now = now_ns();
	uint32_t errors;

	begin(1, true);
	s.donors.donor[1].leaving = DONOR_DRAINED;
	disk = -ENOSPC;
	request(SLOT_WRITE, 3, 60);
	grant();
	back_up(1);
	request(SLOT_WRITE, 100, 60);
	back_up(1);
	s.donors.donor[0].leaving = DONOR_DRAINED;
	for (int i = 0; i < 60; i++, now += SECOND) {
		tick(now);
		back_up(SLOT_COUNT);
		grant();
	}
	/* Tried now and then, and kept where it is. */
	errors = (uint32_t)s.count->backup_errors;
	assert_in_range(errors, 4, 30);
	assert_int_equal(s.donors.donor[0].copies, 1);
	disk = 0;
	for (int i = 0; i < 60; i++, now += SECOND) {
		tick(now);
		back_up(SLOT_COUNT);
		grant();
	}
	assert_int_equal(s.donors.donor[0].copies, 0);
	assert_int_equal(s.count->backup_errors, errors);
	request(SLOT_READ, 100, 60);
	back_up(1);
	assert_int_equal(answered, 3);
	assert_int_equal(failed, 0);
	assert_int_equal(s.engine.slots.free_count, s.engine.slots.count);
	assert_int_equal(s.engine.backlog + s.engine.need_backup + s.replicas.repair.running, 0);
	device_end();
}

static void check_outlook(const struct donor *d, uint32_t move, uint32_t to_disk, uint32_t stuck,
			  const char *why)
{
	struct drain_estimate o;

	drain_estimate(&s.replicas, d, &o);
	assert_int_equal(o.slabs, move + to_disk + stuck);
	assert_int_equal(o.move, move);
	assert_int_equal(o.disk, to_disk);
	assert_int_equal(o.stuck, stuck);
	assert_int_equal(o.why != NULL, stuck != 0);
	if (why)
		assert_non_null(strstr(o.why, why));
}

/* What is said of a drain beforehand is what becomes of it. */
static void what_a_drain_comes_to(void **state)
{
	uint64_t now = now_ns();

	begin(1, false);
	s.donors.donor[1].leaving = DONOR_DRAINED;
	for (uint32_t i = 0; i < 5; i++) {
		request(SLOT_WRITE, i * SLAB_PAGES, 1);
		grant();
	}
	s.donors.donor[0].leaving = DONOR_DRAINED;
	check_outlook(&s.donors.donor[0], 0, 0, 5, "no other donor is up; ");
	s.donors.donor[1].leaving = 0;
	s.donors.donor[1].free = s.donors.donor[1].room = 0;
	check_outlook(&s.donors.donor[0], 0, 0, 5, "no other donor has free capacity; ");
	s.donors.donor[1].free = s.donors.donor[1].room = 2 * s.options.slab;
	check_outlook(&s.donors.donor[0], 2, 0, 3, "too little free capacity; lend");
	for (int i = 0; i < 60; i++, now += SECOND) {
		tick(now);
		repair_run(&s.replicas);
		grant();
	}
	assert_int_equal(s.donors.donor[0].copies, 3);
	check_outlook(&s.donors.donor[0], 0, 0, 3, "no other donor has free capacity; ");
	/* What it would make when it is wanted counts. */
	s.donors.donor[1].room = 1ull << 40;
	check_outlook(&s.donors.donor[0], 3, 0, 0, NULL);
	device_end();

	/* With a disk nothing is stuck. */
	begin(1, true);
	s.donors.donor[1].leaving = DONOR_DRAINED;
	for (uint32_t i = 0; i < 5; i++) {
		request(SLOT_WRITE, i * SLAB_PAGES, 1);
		grant();
		back_up(1);
	}
	s.donors.donor[0].leaving = DONOR_DRAINED;
	s.donors.donor[1].leaving = 0;
	s.donors.donor[1].free = s.donors.donor[1].room = s.options.slab;
	check_outlook(&s.donors.donor[0], 1, 4, 0, NULL);
	device_end();

	/* Copies want donors of their own. */
	begin(2, false);
	request(SLOT_WRITE, 0, 1);
	grant();
	s.donors.donor[0].leaving = DONOR_DRAINED;
	check_outlook(&s.donors.donor[0], 0, 0, 1, "has a replica already; ");
	device_end();
}

/* However much a program had, what it frees is on its way back within 10 s. */
static void memory_comes_back_in_time(void **state)
{
	uint64_t start = now_ns(), now = start;

	begin(1, false);
	s.options.slab = 64 << 20;
	for (uint32_t i = 0; i < SLABS; i++) {
		request(SLOT_WRITE, i * SLAB_PAGES, 1);
		grant();
	}
	assert_int_equal(s.donors.donor[0].copies + s.donors.donor[1].copies, SLABS);
	for (uint32_t i = 0; i < SLABS; i++)
		request(SLOT_DISCARD, i * SLAB_PAGES, 1);
	for (; now - start < 9 * SECOND; now += SECOND / 10) {
		tick(now);
		grant();
	}
	assert_int_equal(s.donors.donor[0].copies + s.donors.donor[1].copies, 0);
	assert_int_equal(s.count->unmaps, SLABS);
	assert_int_equal(failed, 0);
	assert_int_equal(s.engine.slots.free_count, s.engine.slots.count);
	device_end();
}

/*
 * However many slabs there are, and wherever the scan is: one that is emptied, and all of them
 * at once.  The donor is behind a socket that takes frames as they come.
 */
static void memory_of_many_slabs_comes_back_in_time(void **state)
{
	enum { MANY = 200000, COPIES = 20000, PAGES_EACH = 256 };
	struct slab *many = calloc(MANY, sizeof(*many));
	uint64_t start = now_ns(), now = start;
	struct donor *d = &s.donors.donor[0];
	char frames[65536];
	int fds[2];

	begin(1, false);
	page_map_free(&s.engine.map);
	s.options.slab = PAGES_EACH * PAGE;
	slab_init(&s.engine.table, many, MANY, PAGES_EACH);
	s.engine.map = page_map_new(MANY * PAGES_EACH, PAGES_EACH, false);
	assert_non_null(s.engine.map);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
	d->link.fd = fds[0];
	d->link.watched_for_write = false;
	s.donors.env.epoll_fd = -1;
	for (uint32_t i = 0; i < COPIES; i++) {
		uint32_t index = i * (MANY / COPIES);

		assert_int_equal(slab_ask(&many[index], 0, 1), 0);
		slab_grant(&many[index], 0, i, 1, false);
		d->copies++;
		page_map_write(s.engine.map,
			       &(struct page_write){ index * PAGES_EACH, 1, 0, NULL });
		page_map_stored(s.engine.map, 0, index * PAGES_EACH, 1);
	}
	tick(now);
	/* The scan has just been there. */
	page_map_discard(s.engine.map, 0, 1);
	for (uint32_t copies = COPIES - 1; copies < COPIES; copies -= COPIES - 1) {
		for (start = now; now - start < 9 * SECOND; now += SECOND / 10) {
			tick(now);
			donors_flush(&s.donors);
			while (read(fds[1], frames, sizeof(frames)) > 0)
				;
			d->link.watched_for_write = false;
		}
		assert_int_equal(d->copies, copies);
		page_map_discard(s.engine.map, 0, s.engine.map->pages);
	}
	assert_int_equal(s.count->unmaps, COPIES);
	assert_int_equal(s.replicas.repair.running, 0);
	close(fds[0]);
	close(fds[1]);
	device_end();
	free(many);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_comes_back_in_time),
		cmocka_unit_test(memory_of_many_slabs_comes_back_in_time),
		cmocka_unit_test(a_disk_that_recovers),
		cmocka_unit_test(saved_in_the_last_moment),
		cmocka_unit_test(the_only_donor_with_a_page_is_away),
		cmocka_unit_test(a_read_in_the_last_moment),
		cmocka_unit_test(the_last_content_waits_for_room),
		cmocka_unit_test(the_last_content_goes_to_the_disk),
		cmocka_unit_test(a_resync_that_waits),
		cmocka_unit_test(a_drain_to_a_slow_disk),
		cmocka_unit_test(more_new_slabs_than_frames),
		cmocka_unit_test(first_copies_come_together),
		cmocka_unit_test(repair_leaves_slots_to_requests),
		cmocka_unit_test(what_a_drain_comes_to),
	};

	return cmocka_run_group_tests_name("repair", tests, NULL, NULL);
}
