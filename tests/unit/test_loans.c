// SPDX-License-Identifier: GPL-2.0-or-later
/* What donor and device tell each other of lent slabs: REVOKED, STALE, BACKED, ACTIVITY. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/clock.h"
#include "slow_device.h"
#include "swapd/page/page_map.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static uint32_t unmapped; /* slabs, by transport_here */

static void unmap(struct mapping *m)
{
	unmapped++;
}

static const struct transport transport_here = {
	.name = "here", .maps_here = true, .submit = submit, .unmap = unmap,
};

/*
 * REVOKED costs that replica alone.  A write that waits for it ends with the reply, whatever that
 * is and whatever has the replica's place by then.
 */
static void a_revoked_slab(void **state)
{
	struct donor *d = &s.donors.donor[0];
	struct mapping lost;
	int c;

	for (int result = 0; result >= -ESTALE; result -= ESTALE) {
		begin(2, false);
		d->version = WIRE_VERSION;
		request(SLOT_WRITE, 0, 1);
		request(SLOT_WRITE, SLAB_PAGES, 1);
		grant();
		assert_int_equal(answered, 2);
		slow = true;
		request(SLOT_WRITE, 0, 1);
		c = slab_copy_at(&slabs[0], 0);
		lost = slabs[0].copy[c].mapping;
		assert_int_equal(tell_revoked(d, &lost), 0);
		assert_int_equal(slabs[0].copy[c].state, COPY_NONE);
		assert_int_equal(page_map_count_stored(s.engine.map, 0, c), 0);
		assert_int_equal(d->copies, 1);
		assert_int_equal(d->state, DONOR_UP);
		assert_int_equal(shared.counters.revocations, 1);
		assert_int_equal(d->free, 0);
		/* Again, or of another loan: nothing. */
		assert_int_equal(tell_revoked(d, &lost), 0);
		assert_int_equal(d->copies, 1);
		/* The donor finds memory again, and gets a replica at the same place. */
		d->free = d->room = 1ull << 40;
		tick(now_ns());
		grant();
		assert_int_equal(slab_copy_at(&slabs[0], 0), c);
		assert_int_equal(slabs[0].copy[c].state, COPY_MAPPED);
		link_done(&d->link, d->link.waiting.head, result);
		assert_int_equal(slabs[0].copy[c].state, COPY_MAPPED);
		assert_int_equal(page_map_count_stored(s.engine.map, 0, c), 0);
		reply(&s.donors.donor[1]);
		assert_int_equal(answered, 3);
		assert_int_equal(failed, 0);
		assert_int_equal(page_map_count_stored(s.engine.map, 0, slab_copy_at(&slabs[0], 1)),
				 1);
		device_end();
	}
}

/*
 * The memory of a slab that was mapped here is free when it is unmapped: UNMAP tells the donor, if
 * its queue has room for that.
 */
static void a_revoked_slab_of_this_machine(void **state)
{
	struct donor *d = &s.donors.donor[0];
	struct mapping lost[2];
	struct wire_frame f;

	begin(1, true);
	unmapped = 0;
	d->version = WIRE_VERSION;
	d->link.transport = &transport_here;
	s.donors.donor[1].leaving = DONOR_DRAINED;
	for (uint32_t i = 0; i < 2; i++) {
		request(SLOT_WRITE, i * SLAB_PAGES, 1);
		grant();
		lost[i] = slabs[i].copy[0].mapping;
	}
	assert_int_equal(tell_revoked(d, &lost[0]), 0);
	assert_int_equal(unmapped, 1);
	assert_int_equal(d->link.tx.count, 1);
	assert_int_equal(wire_parse(d->link.tx.entries[d->link.tx.head].bytes, WIRE_HEADER,
				    WIRE_AT_DONOR, &f), 1);
	assert_int_equal(f.op, WIRE_UNMAP);
	assert_int_equal(f.slab, lost[0].remote);
	assert_int_equal(f.generation, lost[0].generation);
	/* Once: the donor may repeat itself. */
	assert_int_equal(tell_revoked(d, &lost[0]), 0);
	assert_int_equal(d->link.tx.count, 1);
	f.direction = WIRE_REPLY;
	f.status = WIRE_STALE;
	assert_int_equal(donor_frame(d, &f, NULL), 0);
	d->link.tx.count = QUEUE;
	assert_int_equal(tell_revoked(d, &lost[1]), 0);
	assert_int_equal(unmapped, 2);
	assert_int_equal(d->link.tx.count, QUEUE);
	assert_int_equal(d->copies, 0);
	assert_int_equal(shared.counters.unmaps, 0);
	d->link.tx.count = 0;
	device_end();
}

/* A refused transfer costs that replica alone, from version 4 on. */
static void a_refused_slab(void **state)
{
	struct donor *d = &s.donors.donor[0];

	begin(1, false);
	s.donors.donor[1].leaving = DONOR_DRAINED;
	request(SLOT_WRITE, 0, 1);
	request(SLOT_WRITE, SLAB_PAGES, 1);
	grant();
	slow = true;
	request(SLOT_READ, 0, 1);
	link_done(&d->link, d->link.waiting.head, -ESTALE);
	run();
	assert_int_equal(failed, 1);
	assert_int_equal(d->copies, 1);
	assert_int_equal(d->state, DONOR_UP);
	assert_int_equal(slab_state(&slabs[1]), SLAB_MAPPED);
	/* Version 3 has no REVOKED. */
	d->version = WIRE_VERSION_OLDEST;
	assert_int_equal(tell_revoked(d, &slabs[1].copy[0].mapping), -EPROTO);
	device_end();
}

/* Says in MAP that the pages are in the backup, too, to donors that understand that. */
static void says_what_is_backed(void **state)
{
	static const struct { bool backup, stale; uint8_t version; uint32_t flags; } cases[] = {
		{ true, false, 4, WIRE_BACKED }, { true, true, 4, 0 },
		{ false, false, 4, 0 }, { true, false, 3, 0 },
	};
	struct wire_loan_request r;

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		begin(1, cases[i].backup);
		s.donors.donor[0].version = s.donors.donor[1].version = cases[i].version;
		if (cases[i].stale) {
			const struct page_write w = { .first = SLAB_PAGES, .count = 1 };

			page_map_write(s.engine.map, &w);
			page_map_backed(s.engine.map, SLAB_PAGES, 1, -EIO);
		}
		request(SLOT_WRITE, 0, 1);
		for (int d = 0; d < DONORS; d++) {
			const struct stream_tx *tx = &s.donors.donor[d].link.tx;

			if (!tx->count)
				continue;
			assert_int_equal(wire_parse_loan_request(tx->entries[tx->head].bytes +
									 WIRE_HEADER,
								 WIRE_MAP_SIZE, &r), 0);
			assert_int_equal(r.flags, cases[i].flags);
		}
		device_end();
	}
}

/* Takes the UNBACKED frames to @d; returns how many there were, of the loan @m if that is set. */
static uint32_t take_unbacked(struct donor *d, const struct mapping *m)
{
	uint32_t n = 0;

	for (; d->link.tx.count; n++) {
		struct wire_frame f;

		take_frame(d, &f);
		assert_int_equal(f.op, WIRE_UNBACKED);
		if (m)
			assert_true(f.slab == m->remote && f.generation == m->generation);
		assert_int_equal(donor_frame(d, &f, NULL), 0);
	}
	return n;
}

/*
 * Slabs that a donor may revoke at need are withdrawn from it once, when the disk fails, whichever
 * slab had the page.  Those that are new meanwhile are not backed, until the disk has all pages.
 */
static void a_disk_that_fails_later(void **state)
{
	struct donor *d = &s.donors.donor[0];
	uint64_t now = now_ns();

	begin(1, true);
	d->version = WIRE_VERSION;
	s.donors.donor[1].leaving = DONOR_DRAINED;
	for (uint32_t i = 0; i < 3; i++) {
		request(SLOT_WRITE, i * SLAB_PAGES, 1);
		grant();
		back_up(1);
		assert_true(slabs[i].copy[0].told_backed);
	}
	tick(now);
	assert_int_equal(d->link.tx.count, 0);
	disk = -EIO;
	/* Its queue is full: later. */
	d->link.tx.count = QUEUE;
	request(SLOT_WRITE, SLAB_PAGES, 1);
	back_up(1);
	tick(now);
	assert_true(slabs[0].copy[0].told_backed);
	d->link.tx.count = 0;
	tick(now);
	assert_int_equal(take_unbacked(d, NULL), 3);
	assert_false(slabs[0].copy[0].told_backed);
	tick(now);
	assert_int_equal(d->link.tx.count, 0);
	/* A new slab. */
	request(SLOT_WRITE, 3 * SLAB_PAGES, 1);
	assert_false(slabs[3].copy[0].told_backed);
	grant();
	back_up(1);
	tick(now);
	assert_int_equal(d->link.tx.count, 0);
	/* The disk recovers, and fails again while a slab is asked for. */
	disk = 0;
	for (int i = 0; i < 60; i++, now += SECOND) {
		tick(now);
		back_up(SLOT_COUNT);
	}
	assert_int_equal(s.engine.map->stale, 0);
	request(SLOT_WRITE, 4 * SLAB_PAGES, 1);
	assert_true(slabs[4].copy[0].told_backed);
	disk = -EIO;
	request(SLOT_WRITE, 0, 1);
	back_up(2);
	tick(now);
	assert_int_equal(d->link.tx.count, 1);
	grant();
	back_up(1);
	tick(now);
	assert_int_equal(take_unbacked(d, &slabs[4].copy[0].mapping), 1);
	assert_int_equal(failed, 0);
	device_end();
}

/* A donor that asks without end is answered, but not looked up any more, until it is quiet. */
static void a_donor_that_asks_too_often(void **state)
{
	struct wire_frame evict = { .op = WIRE_EVICT, .slab = 7, .generation = 1 };
	struct wire_frame activity = { .op = WIRE_ACTIVITY, .length = WIRE_LOAN_SIZE };
	uint8_t loan[WIRE_LOAN_SIZE];
	struct donor *d = &s.donors.donor[0];
	uint32_t looked = 0;

	begin(1, false);
	s.donors.donor[1].leaving = DONOR_DRAINED;
	request(SLOT_WRITE, 0, 1);
	request(SLOT_WRITE, SLAB_PAGES, 1);
	grant();
	slabs[0].activity.rate = 5;
	wire_put_loan(loan, 0, (struct wire_loan){ slabs[0].copy[0].mapping.remote,
						   slabs[0].copy[0].mapping.generation });
	/* As fast as HeadRoom's rule and a drain ask: each is looked up. */
	for (int i = 0; i < 64; i++) {
		assert_int_equal(donor_frame(d, &evict, NULL), 0);
		d->link.tx.count = 0;
	}
	assert_int_equal(donor_frame(d, &activity, loan), 0);
	d->link.tx.count = 0;
	assert_int_equal(wire_get_rate(d->rates, 0), 5000);
	assert_int_equal(s.count->asks_ignored, 0);
	for (int i = 0; i < 5000; i++) {
		assert_int_equal(donor_frame(d, &activity, loan), 0);
		d->link.tx.count = 0;
		looked += wire_get_rate(d->rates, 0) == 5000;
	}
	assert_in_range(looked, 1, 100);
	assert_int_equal(s.count->asks_ignored, 5000 - looked);
	/* A slab that is mapped here is given up all the same: no transfer would tell later. */
	d->version = WIRE_VERSION;
	d->asks.left = 0;
	d->asks.at = now_ns();
	d->link.transport = &transport_here;
	assert_int_equal(tell_revoked(d, &slabs[1].copy[0].mapping), 0);
	assert_int_equal(d->copies, 1);
	assert_int_equal(slabs[1].copy[0].state, COPY_NONE);
	/* It comes to its right again. */
	d->asks.at -= 10 * SECOND;
	assert_int_equal(donor_frame(d, &activity, loan), 0);
	d->link.tx.count = 0;
	assert_int_equal(wire_get_rate(d->rates, 0), 5000);
	device_end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_revoked_slab),
		cmocka_unit_test(a_revoked_slab_of_this_machine),
		cmocka_unit_test(a_refused_slab),
		cmocka_unit_test(says_what_is_backed),
		cmocka_unit_test(a_disk_that_fails_later),
		cmocka_unit_test(a_donor_that_asks_too_often),
	};

	return cmocka_run_group_tests_name("loans", tests, NULL, NULL);
}
