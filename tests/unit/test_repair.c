// SPDX-License-Identifier: GPL-2.0-or-later
/* Repair beside requests: pages.h to repair.h with a donor that needs no time and a slow disk. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "device_world.h"
#include "swapd/request/engine.h"
#include "swapd/request/request_seal.h"
#include "swapd/page/bits.h"
#include "swapd/page/page_map.h"
#include "swapd/replicas/drain_estimate.h"
#include "swapd/replicas/repair.h"
#include "swapd/replicas/slab_mapping.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { SLABS = 480, SLAB_PAGES = 256, DONORS = 2, QUEUE = 700 };

/* --- what is not under test ------------------------------------------------------- */

static bool slow; /* donors answer when told to */
static int disk;  /* what comes of a job of the backup: 0 or -errno */

static void submit(struct link *l, const struct mapping *m, struct transfer *t)
{
	if (slow)
		link_wait(l, m, t, 0);
	else
		transfer_at_once(l, m, t);
}

static const struct transport transport_slow = { .name = "slow", .submit = submit };
static uint32_t unmapped; /* slabs, by transport_here */

static void unmap(struct link *l, struct mapping *m)
{
	unmapped++;
}

static const struct transport transport_here = {
	.name = "here", .maps_here = true, .submit = submit, .unmap = unmap,
};

static void begin(int wanted, bool backup)
{
	disk = 0;
	slow = false;
	device_begin(&(struct device_setup){ .slabs = SLABS, .slab_pages = SLAB_PAGES,
					     .donors = DONORS, .replicas = wanted, .queue = QUEUE,
					     .version = WIRE_VERSION_OLDEST, .backup = backup,
					     .transport = &transport_slow });
}

static void lose(struct donor *d)
{
	donor_lose(d, "killed");
	run();
}

static void tick(uint64_t now)
{
	repair_tick(&s.replicas, now);
	run();
}

/* Donors grant what they are asked for. */
static void grant(void)
{
	static uint32_t generation;
	void *none;

	for (int i = 0; i < DONORS; i++) {
		struct donor *d = &s.donors.donor[i];

		while (d->link.tx.count) {
			struct wire_frame f;

			take_frame(d, &f);
			f.generation = ++generation;
			if (f.op == WIRE_WRITE) {
				f.generation = slabs[0].copy[0].mapping.generation;
				assert_int_equal(transport_tcp.arrived(&d->link, 0, &f, &none), 0);
				assert_int_equal(transport_tcp.finished(&d->link, 0, &f), 0);
				run();
				continue;
			}
			if (f.op == WIRE_MAP)
				f.length = 0;
			assert_int_equal(donor_frame(d, &f, NULL), 0);
			run();
		}
	}
}

/* @d does the transfer that waits longest for it. */
static void reply(struct donor *d)
{
	assert_non_null(d->link.waiting.head);
	link_done(&d->link, d->link.waiting.head, 0);
	run();
}

/* The disk does the next @n jobs, reads first. */
static void back_up(uint32_t n)
{
	struct slot *slot;

	while (n-- && backup_queued(&s.engine.backup)) {
		struct backup_lane *l = backup_lane_queued(&s.engine.backup.reads) ?
						&s.engine.backup.reads :
						&s.engine.backup.queue;

		s.engine.slots.slot[l->jobs[l->completed++ % SLOT_COUNT]].backup_result = disk;
		while ((slot = backup_reap(&s.engine.backup)))
			engine_backed(&s.engine, slot);
		run();
	}
}

/* --- tests -------------------------------------------------------------------------- */

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
	assert_int_equal(s.engine.slots.free_count, SLOT_COUNT);
	for (uint32_t i = 0; i < 100; i++)
		request(SLOT_WRITE, i * SLAB_PAGES, 1);
	assert_int_equal(answered, SLABS + 100);
	s.donors.donor[0].leaving = DONOR_DRAINED;
	free_before = s.engine.slots.free_count;
	for (int i = 0; i < 20; i++, now += SECOND)
		tick(now);
	assert_in_range(s.engine.slots.free_count, free_before - 8, free_before);
	/* And it comes to its end. */
	for (int i = 0; i < 500 && s.donors.donor[0].copies; i++, now += SECOND) {
		tick(now);
		back_up(SLOT_COUNT);
		grant();
	}
	assert_int_equal(s.donors.donor[0].copies, 0);
	assert_int_equal(s.engine.slots.free_count, SLOT_COUNT);
	assert_int_equal(s.engine.backlog + s.engine.need_backup + s.replicas.repair.running, 0);
	assert_int_equal(failed, 0);
	device_end();
}

/* A queue full of pages has room for what else is to be asked. */
static void a_slab_behind_many_pages(void **state)
{
	begin(1, false);
	s.donors.donor[0].link.transport = &transport_tcp;
	s.donors.donor[1].leaving = DONOR_DRAINED;
	request(SLOT_WRITE, 0, 1);
	grant();
	assert_int_equal(answered, 1);
	for (uint32_t i = 0; i < 200; i++)
		request(SLOT_WRITE, i, 1);
	assert_int_equal(s.donors.donor[0].link.tx.count, 200);
	assert_int_equal(s.donors.donor[0].link.data_queued, 200);
	request(SLOT_WRITE, SLAB_PAGES, 1);
	assert_int_equal(failed, 0);
	assert_int_equal(slab_state(&slabs[1]), SLAB_MAPPING);
	/* Of other frames there are so many at most. */
	for (uint32_t i = 2; i < 100; i++)
		request(SLOT_WRITE, i * SLAB_PAGES, 1);
	assert_in_range(s.donors.donor[0].link.tx.count, 202, QUEUE - SLOT_COUNT + 200);
	lose(&s.donors.donor[0]);
	assert_int_equal(s.donors.donor[0].link.data_queued, 0);
	assert_int_equal(answered, 300);
	device_end();
}

/* Unrequested pages on a data connection are discarded. */
static void pages_that_nobody_asked_for(void **state)
{
	static const uint8_t pages[4 * PAGE] = { [0 ... 4 * PAGE - 1] = 0xaa };
	struct wire_frame f = { .op = WIRE_READ, .direction = WIRE_REPLY, .tag = ~0ull,
				.length = sizeof(pages) };
	struct donor *d = &s.donors.donor[0];
	uint8_t header[WIRE_HEADER];
	struct data_link *l;
	int pair[2];

	begin(1, false);
	d->link.transport = &transport_tcp;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	s.donors.env.connections = 1;
	l = &d->link.data[0];
	assert_int_equal(stream_rx_init(&l->rx, WIRE_AT_BORROWER), 0);
	l->state = LINK_UP;
	l->fd = pair[0];
	wire_build(header, &f);
	assert_int_equal(write(pair[1], header, sizeof(header)), sizeof(header));
	assert_int_equal(write(pair[1], pages, sizeof(pages)), sizeof(pages));
	transport_tcp.event(&d->link, 1);
	while (transport_tcp.more(&d->link))
		;
	assert_int_equal(s.count->late_replies, 1);
	assert_int_equal(d->state, DONOR_UP);
	/* All that is behind the link in the entry would be, too. */
	for (size_t i = 0; i < sizeof(d->rates); i++)
		assert_int_equal(d->rates[i], 0);
	stream_rx_free(&l->rx);
	close(pair[0]);
	close(pair[1]);
	device_end();
}

static int tell_revoked(struct donor *d, const struct mapping *m)
{
	struct wire_frame f = { .op = WIRE_REVOKED, .slab = m->remote,
				.generation = m->generation };

	return donor_frame(d, &f, NULL);
}

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

/* The frame that waits in @tx leaves; as its reply. */
static struct wire_frame reply_to(struct stream_tx *tx)
{
	struct wire_frame f;

	assert_int_equal(tx->count, 1);
	assert_int_equal(wire_parse(tx->entries[0].bytes, WIRE_HEADER, WIRE_AT_DONOR, &f), 1);
	tx->count--;
	tx->popped++;
	f.direction = WIRE_REPLY;
	return f;
}

static int arrive(struct donor *d, uint32_t channel, const struct wire_frame *f, void **to)
{
	*to = NULL;
	return transport_tcp.arrived(&d->link, channel, f, to);
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

/*
 * While a page arrives by the connection that it was asked by, the same reply by another
 * ends nothing: the rest would go to a slot that is somebody else's.
 */
static void a_reply_by_another_connection(void **state)
{
	static struct stream_entry queued[2][4];
	struct donor *d = &s.donors.donor[0];
	struct wire_frame read, written;
	void *to, *other;

	begin(1, false);
	s.donors.env.connections = 2;
	d->link.transport = &transport_tcp;
	s.donors.donor[1].leaving = DONOR_DRAINED;
	request(SLOT_WRITE, 0, 1);
	grant();
	assert_int_equal(answered, 1);
	for (uint8_t i = 0; i < 2; i++)
		d->link.data[i] = (struct data_link){ .number = i, .state = LINK_UP, .fd = -1,
						 .tx = { .entries = queued[i], .size = 4 } };
	request(SLOT_READ, 0, 1);
	request(SLOT_WRITE, SLOT_PAGES, 1);
	assert_int_equal(d->link.tx.count, 0);
	read = reply_to(&d->link.data[0].tx);
	written = reply_to(&d->link.data[1].tx);
	assert_int_equal(arrive(d, 1, &read, &to), 0);
	assert_non_null(to);
	for (uint32_t channel = 0; channel <= 2; channel += 2) {
		assert_int_equal(arrive(d, channel, &read, &other), 0);
		assert_null(other);
		assert_int_equal(transport_tcp.finished(&d->link, channel, &read), 0);
	}
	assert_int_equal(arrive(d, 0, &written, &other), 0);
	assert_int_equal(transport_tcp.finished(&d->link, 0, &written), 0);
	assert_int_equal(answered, 1);
	assert_int_equal(s.count->late_replies, 3);
	memcpy(to, "that", 4);
	assert_int_equal(transport_tcp.finished(&d->link, 1, &read), 0);
	run();
	assert_int_equal(answered, 2);
	assert_memory_equal(&read_word, "that", 4);
	assert_int_equal(arrive(d, 2, &written, &other), 0);
	assert_int_equal(transport_tcp.finished(&d->link, 2, &written), 0);
	run();
	assert_int_equal(answered, 3);
	assert_int_equal(s.engine.slots.free_count, SLOT_COUNT);
	device_end();
}

/*
 * Requests for one page that a donor answers at once: a bounded number a round, none inside
 * another.
 */
static void a_crowd_for_one_page(void **state)
{
	enum { CROWD = 300 };
	struct link *l;
	uint32_t before;
	int rounds = 0;

	begin(1, false);
	request(SLOT_WRITE, 0, 1);
	grant();
	l = &s.donors.donor[slabs[0].copy[0].donor].link;
	slow = true;
	for (int i = 0; i < CROWD; i++)
		request(SLOT_WRITE, 0, 1);
	assert_int_equal(answered, 1);
	slow = false;
	link_done(l, l->waiting.head, 0);
	do {
		before = (uint32_t)answered;
		rounds++;
	} while (engine_run(&s.engine) && (uint32_t)answered - before <= CROWD / 3);
	assert_in_range(rounds, 3, CROWD);
	assert_int_equal(answered, 1 + CROWD);
	assert_int_equal(s.engine.slots.free_count, SLOT_COUNT);
	device_end();
}

/* Without a backup, a write whose donor is lost meanwhile goes to the next one. */
static void a_write_outlives_its_donor(void **state)
{
	struct donor *first;

	begin(1, false);
	request(SLOT_WRITE, 0, 1);
	grant();
	assert_int_equal(answered, 1);
	first = &s.donors.donor[slabs[0].copy[0].donor];
	slow = true;
	request(SLOT_WRITE, 0, 4);
	lose(first);
	assert_int_equal(answered, 1);
	slow = false;
	grant();
	assert_int_equal(answered, 2);
	assert_int_equal(failed, 0);
	/* With no donor left the write fails. */
	slow = true;
	request(SLOT_WRITE, 0, 4);
	lose(&s.donors.donor[!first->index]);
	assert_int_equal(answered, 3);
	assert_int_equal(failed, 1);
	assert_int_equal(s.engine.slots.free_count, SLOT_COUNT);
	device_end();
}

/*
 * A page that the disk did not take is on its way to another donor when its own is
 * lost: a read that went to the disk meanwhile finds it there.
 */
static void saved_in_the_last_moment(void **state)
{
	struct donor *from, *to;

	begin(1, true);
	request(SLOT_WRITE, 0, 1);
	grant();
	disk = -EIO;
	back_up(1);
	disk = 0;
	from = &s.donors.donor[slabs[0].copy[0].donor];
	to = &s.donors.donor[!from->index];
	slow = true;
	slabs[0].rewrite_at = UINT64_MAX;
	slabs[0].copy[0].leaving = true;
	tick(now_ns());
	grant();
	tick(now_ns());
	repair_run(&s.replicas);
	reply(from);
	assert_true(to->link.waiting.head);
	lose(from);
	/* Something is queued for the disk: it might be the page. */
	request(SLOT_WRITE, 9 * SLAB_PAGES, 1);
	request(SLOT_READ, 0, 1);
	assert_int_equal(answered, 1);
	reply(to);
	back_up(2);
	reply(to);
	assert_int_equal(answered, 2);
	assert_int_equal(failed, 0);
	lose(to);
	back_up(SLOT_COUNT);
	assert_int_equal(s.engine.slots.free_count, SLOT_COUNT);
	assert_int_equal(s.engine.backlog + s.engine.need_backup + s.replicas.repair.running, 0);
	device_end();
}

/*
 * A page is on its way to another donor, and nowhere else, when its own is lost: a read
 * waits for what comes of that.  When the other is lost, too, it goes to a remaining donor.
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
		assert_int_equal(answered, 1);
		if (other == DIES_WITH_ANOTHER_THERE)
			from->state = DONOR_UP;
		if (other != GOES_WELL)
			lose(to);
		if (other == DIES_WITH_ANOTHER_THERE) {
			assert_int_equal(answered, 1);
			grant();
			to = from;
		}
		for (int i = 0; i < 3 && other != DIES; i++) {
			assert_int_equal(answered, 1 + (i > 1));
			reply(to);
		}
		assert_int_equal(answered, 3);
		assert_int_equal(failed, other == DIES ? 2 : 0);
		assert_int_equal(s.engine.slots.free_count, SLOT_COUNT);
		device_end();
	}
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
	assert_int_equal(s.engine.slots.free_count, SLOT_COUNT);
	assert_int_equal(s.engine.backlog + s.engine.need_backup + s.replicas.repair.running, 0);
	device_end();
}

/* What cannot be sealed is nowhere; an older content of its page is not taken for it. */
static void a_page_that_cannot_be_sealed(void **state)
{
	struct error e = { 0 };

	begin(1, true);
	s.options.seal = "on";
	assert_int_equal(sealing_init(&s.engine.sealing, s.engine.map->pages, &e), 0);
	request(SLOT_WRITE, 0, 2);
	grant();
	assert_int_equal(failed, 0);
	assert_true(s.engine.sealing.seals.memory->seal[0].counter);
	s.engine.sealing.seals.memory->writes = SEAL_MOST;
	request(SLOT_WRITE, 0, 2);
	assert_int_equal(failed, 1);
	/* The disk takes the older one only now. */
	back_up(1);
	assert_int_equal(s.engine.sealing.seals.memory->seal[0].counter, 0);
	assert_int_equal(s.engine.sealing.seals.memory->seal[1].counter, 0);
	request(SLOT_READ, 0, 2);
	back_up(1);
	assert_int_equal(answered, 3);
	assert_int_equal(failed, 2);
	sealing_free(&s.engine.sealing);
	device_end();
}

/* Of a write with a page of one word among others nothing is in clear on the disk. */
static void what_the_disk_sees(void **state)
{
	static const uint8_t secret[] = "hunter2!";
	const struct slot *queued;
	struct error e = { 0 };
	struct slot *slot;

	begin(1, true);
	s.options.seal = "on";
	assert_int_equal(sealing_init(&s.engine.sealing, s.engine.map->pages, &e), 0);
	slot = slot_get(&s.engine.slots);
	slot->kind = SLOT_WRITE;
	slot->count = 3;
	for (uint32_t i = 0; i < 3 * PAGE; i += 8)
		memcpy(slot->payload + i, secret, 8);
	slot->payload[9] = slot->payload[2 * PAGE + 9] = 'x';
	engine_start(&s.engine, slot);
	run();
	grant();
	assert_int_equal(answered, 1);
	assert_int_equal(backup_queued(&s.engine.backup), 1);
	queued = &s.engine.slots.slot[s.engine.backup.queue.jobs[0]];
	assert_null(memmem(queued->payload, 3 * PAGE, secret, 8));
	back_up(1);
	request(SLOT_READ, 1, 1);
	assert_int_equal(answered, 2);
	assert_memory_equal(&read_word, secret, 8);
	sealing_free(&s.engine.sealing);
	device_end();
}

static void no_core_dump_has_the_key(void **state)
{
	struct sealing sealing = { 0 };
	struct error e = { 0 };

	assert_int_equal(prctl(PR_SET_DUMPABLE, 1), 0);
	assert_int_equal(sealing_init(&sealing, 8, &e), 0);
	assert_int_equal(prctl(PR_GET_DUMPABLE), 0);
	sealing_free(&sealing);
}

/* A donor that gave wrong pages stays known for it, off the list or not. */
static void nobody_is_forgiven(void **state)
{
	struct donor *d = &s.donors.donor[0];

	begin(1, false);
	assert_int_equal(stream_rx_init(&d->link.rx, WIRE_AT_BORROWER), 0);
	d->leaving = DONOR_SUSPECT | DONOR_REMOVED;
	d->pinged = 1;
	donors_tick(&s.donors, now_ns());
	assert_int_equal(d->state, DONOR_QUARANTINED);
	stream_rx_free(&d->link.rx);
	device_end();
}

/* Carries out COMMAND_FORGET for donor 0; returns its result. */
static int forget(uint64_t epoch, bool force)
{
	uint64_t one = 1;

	s.commands.command = (struct device_command){ .kind = COMMAND_FORGET, .force = force,
						      .epoch = epoch };
	assert_int_equal(write(s.commands.post_fd, &one, sizeof(one)), sizeof(one));
	commands_take(&s.commands);
	run();
	return s.commands.command.result;
}

/*
 * A donor that is away is given up only if it had no only copy, and that is still so: another
 * replica may be lost, the disk fail, or the donor be back in between.
 */
static void a_donor_that_is_given_up(void **state)
{
	enum { NOTHING, LOSS, REVOKED, DISK, AWAY, FORCE, CASES };
	static struct donor_record records[MAX_DONORS];
	struct donor *d = &s.donors.donor[0], *other = &s.donors.donor[1];
	struct error e = { 0 };

	for (int what = NOTHING; what < CASES; what++) {
		bool backup = what == DISK;
		uint64_t epoch;

		begin(2, backup);
		s.donors.records = records;
		assert_int_equal(commands_open(&s.commands, &e), 0);
		other->version = WIRE_VERSION;
		request(SLOT_WRITE, 0, 1);
		grant();
		assert_int_equal(forget(loss_epoch(&s.replicas), true), -EINVAL);
		d->resume = RESUME_WANTED;
		d->state = DONOR_DOWN;
		mapping_away(&s.replicas, d);
		if (what == DISK)
			lose(other);
		epoch = loss_epoch(&s.replicas);
		assert_int_equal(loss_estimate(&s.replicas, d), 0);
		if (what == LOSS || what == FORCE) {
			lose(other);
		} else if (what == REVOKED) {
			assert_int_equal(tell_revoked(other,
				&slabs[0].copy[slab_copy_at(&slabs[0], 1)].mapping), 0);
		} else if (what == DISK) {
			disk = -EIO;
			back_up(1);
		} else if (what == AWAY) {
			other->grace = SECOND;
			donor_part(other, "broken");
		}
		if (what != NOTHING && what != AWAY)
			assert_int_equal(loss_estimate(&s.replicas, d), 1);
		assert_int_equal(forget(epoch, what == FORCE),
				 what == NOTHING || what == FORCE ? 0 : -EAGAIN);
		assert_int_equal(slab_copy_at(&slabs[0], 0) < 0,
				 what == NOTHING || what == FORCE);
		if (what == AWAY)
			assert_int_equal(forget(loss_epoch(&s.replicas), false), 0);
		commands_close(&s.commands);
		device_end();
	}
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

/* The only donor is away, and there is no disk. */
static void a_write_without_a_place_waits_two_seconds(void **state)
{
	uint64_t now = now_ns();

	begin(1, false);
	s.donors.donor[1].leaving = DONOR_DRAINED;
	request(SLOT_WRITE, 0, 1);
	grant();
	engine_tick(&s.engine, now);
	s.donors.donor[0].state = DONOR_DOWN;
	s.donors.donor[0].away_since = now;
	s.donors.donor[0].away_until = now + 30 * SECOND;
	mapping_away(&s.replicas, &s.donors.donor[0]);
	/* Repair waits from the start, even if that is later than its tick. */
	s.replicas.repair_delay = SECOND;
	assert_true(mapping_awaited(&s.replicas, 0, now - 1));
	assert_false(mapping_awaited(&s.replicas, 0, now + SECOND));
	request(SLOT_WRITE, 1, 1);
	engine_tick(&s.engine, now + 2 * SECOND - 1);
	run();
	assert_int_equal(answered, 1);
	engine_tick(&s.engine, now + 2 * SECOND);
	run();
	assert_int_equal(answered, 2);
	assert_int_equal(failed, 1);
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
	assert_int_equal(s.engine.slots.free_count, SLOT_COUNT);
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
		cmocka_unit_test(a_read_in_the_last_moment),
		cmocka_unit_test(a_page_that_cannot_be_sealed),
		cmocka_unit_test(what_the_disk_sees),
		cmocka_unit_test(no_core_dump_has_the_key),
		cmocka_unit_test(nobody_is_forgiven),
		cmocka_unit_test(a_donor_that_is_given_up),
		cmocka_unit_test(a_crowd_for_one_page),
		cmocka_unit_test(a_write_outlives_its_donor),
		cmocka_unit_test(pages_that_nobody_asked_for),
		cmocka_unit_test(a_reply_by_another_connection),
		cmocka_unit_test(a_slab_behind_many_pages),
		cmocka_unit_test(a_revoked_slab),
		cmocka_unit_test(a_revoked_slab_of_this_machine),
		cmocka_unit_test(a_refused_slab),
		cmocka_unit_test(says_what_is_backed),
		cmocka_unit_test(a_disk_that_fails_later),
		cmocka_unit_test(a_drain_to_a_slow_disk),
		cmocka_unit_test(what_a_drain_comes_to),
		cmocka_unit_test(a_write_without_a_place_waits_two_seconds),
		cmocka_unit_test(a_donor_that_asks_too_often),
	};

	return cmocka_run_group_tests_name("repair", tests, NULL, NULL);
}
