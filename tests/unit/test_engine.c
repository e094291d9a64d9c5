// SPDX-License-Identifier: GPL-2.0-or-later
/* Requests among others: many at once, and with donors that are late, lost or away. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "slow_device.h"
#include "swapd/replicas/slab_mapping.h"
#include "swapd/request/engine.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

/* A queue full of pages has room for what else is to be asked. */
static void a_slab_behind_many_pages(void **state)
{
	begin(1, false);
	s.donors.donor[0].link.transport = &transport_tcp;
	s.donors.donor[1].leaving = DONOR_DRAINED;
	request(SLOT_WRITE, 0, 1);
	grant();
	assert_int_equal(answered, 1);
	for (uint32_t i = 0; i < 150; i++)
		request(SLOT_WRITE, i, 1);
	assert_int_equal(s.donors.donor[0].link.tx.count, 150);
	assert_int_equal(s.donors.donor[0].link.data_queued, 150);
	request(SLOT_WRITE, SLAB_PAGES, 1);
	assert_int_equal(failed, 0);
	assert_int_equal(slab_state(&slabs[1]), SLAB_MAPPING);
	/* Of other frames there are so many at most. */
	for (uint32_t i = 2; i < 70; i++)
		request(SLOT_WRITE, i * SLAB_PAGES, 1);
	assert_in_range(s.donors.donor[0].link.tx.count, 152, QUEUE - SLOT_COUNT + 150);
	lose(&s.donors.donor[0]);
	assert_int_equal(s.donors.donor[0].link.data_queued, 0);
	assert_int_equal(answered, 220);
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
	/* By the other connection. */
	request(SLOT_WRITE, 64, 1);
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
	assert_int_equal(s.engine.slots.free_count, s.engine.slots.count);
	device_end();
}

/*
 * Requests for one page that a donor answers at once: a bounded number a round, none inside
 * another.
 */
static void a_crowd_for_one_page(void **state)
{
	enum { CROWD = 200 };
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
	assert_int_equal(s.engine.slots.free_count, s.engine.slots.count);
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
	assert_int_equal(s.engine.slots.free_count, s.engine.slots.count);
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

/* The first failed read and the first failed write are logged, whichever comes first. */
static void a_failing_backup_is_logged(void **state)
{
	uint32_t lines;

	begin(1, true);
	request(SLOT_WRITE, 0, 1);
	grant();
	back_up(1);
	lose(&s.donors.donor[0]);
	lose(&s.donors.donor[1]);
	lines = s.notes.put;
	disk = -EIO;
	for (int i = 0; i < 2; i++) {
		request(SLOT_READ, 0, 1);
		back_up(1);
		assert_int_equal(s.notes.put, lines + 1);
	}
	assert_non_null(strstr(s.notes.ring[lines % NOTES].text, "cannot be read"));
	assert_int_equal(s.count->backup_errors, 2);
	for (uint32_t i = 1; i < 3; i++) {
		request(SLOT_WRITE, i, 1);
		back_up(1);
		assert_int_equal(s.notes.put, lines + 2);
	}
	assert_non_null(strstr(s.notes.ring[(lines + 1) % NOTES].text, "at the donors only"));
	disk = 0;
	device_end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_crowd_for_one_page),
		cmocka_unit_test(a_failing_backup_is_logged),
		cmocka_unit_test(a_write_outlives_its_donor),
		cmocka_unit_test(pages_that_nobody_asked_for),
		cmocka_unit_test(a_reply_by_another_connection),
		cmocka_unit_test(a_slab_behind_many_pages),
		cmocka_unit_test(a_write_without_a_place_waits_two_seconds),
	};

	return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
