// SPDX-License-Identifier: GPL-2.0-or-later
/* How a session with many slabs is resumed: REMAPs in flight, and requests meanwhile. */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "device_world.h"
#include "swapd/donor/connect.h"
#include "swapd/page/page_map.h"
#include "swapd/replicas/slab_mapping.h"
#include "swapd/request/engine.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { SLABS = 5000, SLAB_PAGES = 4, QUEUE = 1200 };

static struct donor *const d = &s.donors.donor[0];
static int peer;
/* Frames that the donor has got and not answered. */
static struct wire_frame frames[QUEUE];
static uint32_t frame_count;

static const struct transport transport_here = {
	.name = "here", .maps_here = true, .submit = transfer_at_once,
};

static void connect_donor(void)
{
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
	d->link.fd = pair[0];
	peer = pair[1];
}

/* A donor that has one page of each slab. */
static void begin(const struct transport *transport)
{
	frame_count = 0;
	device_begin(&(struct device_setup){ .slabs = SLABS, .slab_pages = SLAB_PAGES, .donors = 1,
					     .replicas = 1, .queue = QUEUE,
					     .version = WIRE_VERSION, .transport = transport });
	d->link.watched_for_write = false;
	d->grace = 30 * SECOND;
	assert_int_equal(stream_rx_init(&d->link.rx, WIRE_AT_BORROWER), 0);
	for (uint32_t i = 0; i < SLABS; i++) {
		const struct page_write w = { .first = i * SLAB_PAGES, .count = 1 };

		assert_int_equal(slab_ask(&slabs[i], 0, 1), 0);
		slab_grant(&slabs[i], 0, i, 1, false);
		page_map_write(s.engine.map, &w);
		page_map_stored(s.engine.map, 0, w.first, 1);
	}
	d->copies = SLABS;
	connect_donor();
}

static void end(void)
{
	close(peer);
	close(d->link.fd);
	stream_rx_free(&d->link.rx);
	device_end();
}

/* The connection breaks; the donor answers the next HELLO. */
static void cut(void)
{
	donor_part(d, "cut");
	close(peer);
	frame_count = 0;
	assert_true(donor_is_away(d));
}

static void come_back(void)
{
	connect_donor();
	d->retry_at = 0;
	donor_ready(d);
}

/* Frames reach the donor. */
static void deliver(void)
{
	uint8_t bytes[WIRE_HEADER + WIRE_MAP_SIZE];

	donors_flush(&s.donors);
	while (recv(peer, bytes, WIRE_HEADER, 0) == WIRE_HEADER) {
		struct wire_frame *f = &frames[frame_count++];

		assert_in_range(frame_count, 1, QUEUE - 1);
		assert_int_equal(wire_parse(bytes, WIRE_HEADER, WIRE_AT_DONOR, f), 1);
		if (f->length)
			assert_int_equal(recv(peer, bytes, f->length, 0), f->length);
	}
}

/* It answers the first @n of them, except PINGs. */
static void reply(uint32_t n)
{
	assert_in_range(n, 0, frame_count);
	for (uint32_t i = 0; i < n; i++) {
		struct wire_frame f = frames[i];

		f.direction = WIRE_REPLY;
		f.length = 0;
		if (f.op != WIRE_PING)
			assert_int_equal(donor_frame(d, &f, NULL), 0);
	}
	frame_count -= n;
	memmove(frames, frames + n, frame_count * sizeof(*frames));
	run();
}

static void read_page(uint32_t page)
{
	request(SLOT_READ, page, 1);
}

/* However many slabs there are, a resumption takes few round trips. */
static void a_few_round_trips(void **state)
{
	int rounds = 0;

	begin(&transport_fake);
	cut();
	come_back();
	for (; donor_is_away(d) && rounds < SLABS; rounds++) {
		deliver();
		reply(frame_count);
	}
	assert_in_range(rounds, 1, SLABS / 512 + 2);
	assert_int_equal(d->copies, SLABS);
	assert_int_equal(slab_count(&s.engine.table, SLAB_MAPPED), SLABS);
	end();
}

/* A donor's answer to the first of its frames, a REMAP; then the connection's end, if it is one. */
static int answer_remap(enum wire_status status)
{
	struct wire_frame f = frames[0];
	int r;

	assert_int_equal(f.op, WIRE_REMAP);
	f.direction = WIRE_REPLY;
	f.status = status;
	f.length = 0;
	r = donor_frame(d, &f, NULL);
	frame_count = 0;
	if (r) {
		donor_part(d, d->why);
		close(peer);
	}
	run();
	return r;
}

static void resume_all(void)
{
	for (int rounds = 0; donor_is_away(d) && rounds < SLABS; rounds++) {
		deliver();
		reply(frame_count);
	}
	assert_false(donor_is_away(d));
}

/*
 * The donor's queue pair fails before it comes to a REMAP: it retains the slab, whose pages are
 * nowhere else.
 */
static void what_is_put_off_is_not_lost(void **state)
{
	static const enum wire_status others[] = { WIRE_NOT_HERE, WIRE_NO_SPACE };

	begin(&transport_fake);
	cut();
	for (int i = 0; i < 2; i++) {
		come_back();
		deliver();
		assert_int_equal(answer_remap(others[i]), -ECONNREFUSED);
		assert_true(donor_is_away(d));
		assert_int_equal(d->copies, SLABS);
		assert_true(page_map_is_stored(s.engine.map, 0, 1));
	}
	come_back();
	resume_all();
	assert_int_equal(slab_count(&s.engine.table, SLAB_MAPPED), SLABS);
	read_page(0);
	assert_int_equal(answered, 1);
	assert_int_equal(failed, 0);
	end();
}

/* At the end of the grace period it is, and what is confirmed stays. */
static void what_is_put_off_for_too_long(void **state)
{
	begin(&transport_fake);
	cut();
	come_back();
	deliver();
	d->away_until = now_ns() + SECOND / 2;
	assert_int_equal(answer_remap(WIRE_NO_SPACE), 0);
	assert_int_equal(d->state, DONOR_UP);
	assert_int_equal(d->copies, SLABS - 1);
	assert_int_equal(slabs[0].copy[0].state, COPY_NONE);
	end();
}

/* A loan that has ended is not asked for again. */
static void what_has_ended_is_lost(void **state)
{
	begin(&transport_fake);
	cut();
	come_back();
	deliver();
	assert_int_equal(answer_remap(WIRE_NO_SLAB), 0);
	assert_int_equal(d->copies, SLABS - 1);
	assert_false(page_map_is_stored(s.engine.map, 0, 1));
	end();
}

/*
 * The donor's grace period begins again whenever a resumed session's connection ends, however often
 * that happens before all is confirmed.
 */
static void a_link_that_flaps(void **state)
{
	begin(&transport_fake);
	cut();
	for (int i = 0; i < 3; i++) {
		come_back();
		deliver();
		reply(10);
		/* The first absence began long ago. */
		d->away_until = now_ns() - SECOND;
		cut();
		assert_int_equal(d->copies, SLABS);
		d->retry_at = UINT64_MAX;
		donors_tick(&s.donors, now_ns());
		assert_int_equal(d->copies, SLABS);
	}
	come_back();
	resume_all();
	assert_int_equal(slab_count(&s.engine.table, SLAB_MAPPED), SLABS);
	/* A donor that confirms nothing has no more time. */
	cut();
	come_back();
	d->away_until = now_ns() - SECOND;
	donor_part(d, "cut");
	assert_false(donor_is_away(d));
	assert_int_equal(d->copies, 0);
	end();
}

/* Connects @d by TCP; returns the donor's end, at which HELLO has arrived. */
static int greet_by_tcp(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int listener = socket(AF_INET, SOCK_STREAM, 0), fd;
	uint8_t hello[WIRE_HEADER + WIRE_HELLO_SIZE];
	socklen_t len = sizeof(at);

	assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &len), 0);
	memcpy(&d->link.at.sa, &at, sizeof(at));
	d->link.at.len = sizeof(at);
	assert_int_equal(connect_open(d), 0);
	fd = accept(listener, NULL, NULL);
	assert_true(fd >= 0);
	donor_event(d, EPOLLOUT);
	assert_int_equal(d->state, DONOR_GREETING);
	assert_int_equal(recv(fd, hello, sizeof(hello), MSG_WAITALL), sizeof(hello));
	close(listener);
	return fd;
}

static void answer_hello(int fd)
{
	const struct wire_donor told = { .version = WIRE_VERSION,
					 .slab_size = s.options.slab, .grace = 30000 };
	struct wire_frame f = { .op = WIRE_HELLO, .direction = WIRE_REPLY,
				.tag = (uint64_t)TAG_HELLO << TAG_KIND,
				.length = WIRE_DONOR_SIZE };
	uint8_t reply[WIRE_HEADER + WIRE_DONOR_SIZE];
	struct pollfd p = { .fd = d->link.fd, .events = POLLIN };

	wire_build(reply, &f);
	wire_build_donor(reply + WIRE_HEADER, &told);
	assert_int_equal(send(fd, reply, sizeof(reply), 0), sizeof(reply));
	assert_int_equal(poll(&p, 1, 60000), 1);
	donor_event(d, EPOLLIN);
}

/*
 * A HELLO that is lost is not sent again once its connection is closed: it would end the next one,
 * with its loans.  Behind an answered one, what is queued still arrives.
 */
static void no_late_hello(void **state)
{
	char rest[4096];
	ssize_t n;
	int fd;

	begin(&transport_tcp);
	s.donors.env.epoll_fd = epoll_create1(0);
	cut();
	fd = greet_by_tcp();
	donor_part(d, "no answer");
	assert_int_equal(recv(fd, rest, sizeof(rest), 0), -1);
	assert_int_equal(errno, ECONNRESET);
	close(fd);
	fd = greet_by_tcp();
	answer_hello(fd);
	assert_int_equal(d->state, DONOR_UP);
	donors_flush(&s.donors);
	donor_part(d, "cut");
	while ((n = recv(fd, rest, sizeof(rest), 0)) > 0)
		;
	assert_int_equal(n, 0);
	close(fd);
	close(s.donors.env.epoll_fd);
	end();
}

/* However often a donor comes and goes, it does not fill the log. */
static void a_line_now_and_then(void **state)
{
	begin(&transport_fake);
	donor_lose(d, "cut");
	for (int i = 0; i < 1000; i++) {
		close(peer);
		connect_donor();
		donor_ready(d);
		donor_lose(d, "cut");
		/* The ring always has room. */
		s.notes.taken = s.notes.put;
	}
	assert_in_range(s.notes.put, 100, 200);
	/* The next one says how many are missing. */
	d->lines_at -= 60 * SECOND;
	donor_ready(d);
	assert_non_null(strstr(s.notes.ring[(s.notes.put - 2) % NOTES].text, "lines were not logged"));
	assert_non_null(strstr(s.notes.ring[(s.notes.put - 1) % NOTES].text, "is back"));
	d->link.fd = dup(peer);
	end();
}

/* What a request waits for is confirmed first, and the request does not wait for the others. */
static void requests_come_first(void **state)
{
	const uint32_t waits[] = { 4321, 1234, 4999 };
	uint32_t first = 0;

	begin(&transport_fake);
	cut();
	for (int i = 0; i < 3; i++)
		read_page(waits[i] * SLAB_PAGES);
	come_back();
	deliver();
	for (int i = 0; i < 3; i++)
		first += frames[i].slab;
	assert_int_equal(first, 4321 + 1234 + 4999);
	reply(3);
	assert_int_equal(answered, 3);
	assert_true(donor_is_away(d));
	/* It comes later, and its slab would be among the last. */
	read_page(4998 * SLAB_PAGES);
	assert_int_equal(answered, 3);
	reply(1);
	deliver();
	for (first = 0; first < frame_count && frames[first].slab != 4998;)
		first++;
	assert_in_range(first, 0, frame_count - 1);
	reply(first + 1);
	assert_int_equal(answered, 4);
	assert_int_equal(failed, 0);
	/* Confirmed slabs serve at once. */
	read_page(0);
	assert_int_equal(answered, 5);
	end();
}

/* The donor answers @f by @status. */
static void answer(struct wire_frame f, enum wire_status status)
{
	f.direction = WIRE_REPLY;
	f.status = status;
	f.length = 0;
	assert_int_equal(donor_frame(d, &f, NULL), 0);
	run();
}

/*
 * RELEASE is answered before the last REMAP, and a slab is requested in between: whichever answer
 * is the last ends the absence.
 */
static void the_last_answer_ends_an_absence(void **state)
{
	static const enum wire_status statuses[] = { WIRE_OK, WIRE_NO_SPACE };
	struct wire_frame last;
	uint32_t n;

	for (int i = 0; i < 2; i++) {
		begin(&transport_fake);
		request(SLOT_DISCARD, 0, SLAB_PAGES);
		assert_true(mapping_unmap(&s.replicas, 0, 0));
		cut();
		come_back();
		for (deliver(); d->release == RELEASE_UNSENT; deliver())
			reply(frame_count);
		for (n = 0; frames[n].op != WIRE_RELEASE;)
			n++;
		last = frames[n - 1];
		answer(frames[n], WIRE_OK);
		reply(n - 1);
		request(SLOT_WRITE, 0, 1);
		frame_count = 0;
		deliver();
		assert_int_equal(frames[0].op, WIRE_MAP);
		answer(last, WIRE_OK);
		assert_true(donor_is_away(d));
		answer(frames[0], statuses[i]);
		assert_false(donor_is_away(d));
		assert_int_equal(d->copies, SLABS - i);
		end();
	}
}

/* So does the end of the last slab that could not be reached here, which nothing answers. */
static void a_slab_given_up_ends_an_absence(void **state)
{
	begin(&transport_fake);
	cut();
	come_back();
	for (deliver(); d->release == RELEASE_UNSENT; deliver())
		reply(frame_count);
	/* As when its REMAP was answered and mapping it here failed. */
	slabs[0].copy[0].state = COPY_AWAY;
	reply(frame_count);
	assert_true(donor_is_away(d));
	d->copies--;
	slab_lose(&slabs[0], 0);
	donors_tick(&s.donors, now_ns());
	assert_false(donor_is_away(d));
	end();
}

/* Slabs that take milliseconds to map here leave time for requests in between. */
static void a_few_mappings_at_a_time(void **state)
{
	begin(&transport_here);
	cut();
	come_back();
	for (int rounds = 0; donor_is_away(d) && rounds < SLABS; rounds++) {
		uint32_t remaps = 0;

		deliver();
		for (uint32_t i = 0; i < frame_count; i++)
			remaps += frames[i].op == WIRE_REMAP;
		assert_in_range(remaps, 1, 4);
		reply(frame_count);
	}
	assert_false(donor_is_away(d));
	assert_int_equal(slab_count(&s.engine.table, SLAB_MAPPED), SLABS);
	end();
}

/* Replies to REMAP come one behind the other: each gives the others more time. */
static void progress_is_not_silence(void **state)
{
	uint64_t start;

	begin(&transport_fake);
	cut();
	come_back();
	start = now_ns();
	for (int i = 1; i < 6; i++) {
		deliver();
		reply(10);
		donors_tick(&s.donors, start + (uint64_t)i * 400 * MS);
		assert_int_equal(d->state, DONOR_UP);
	}
	donors_tick(&s.donors, start + 2400 * MS);
	assert_int_equal(d->state, DONOR_UP);
	donors_tick(&s.donors, start + 2600 * MS);
	assert_int_equal(d->state, DONOR_DOWN);
	assert_true(donor_is_away(d));
	end();
}

/*
 * This process did not run for 5 s: replies may be on their way still, however long ago they were
 * requested.
 */
static void a_pause_is_not_silence(void **state)
{
	uint64_t start = now_ns();

	begin(&transport_fake);
	donor_ping(d, start);
	s.donors.awake_since = start + 5 * SECOND;
	donors_tick(&s.donors, start + 5 * SECOND);
	assert_int_equal(d->state, DONOR_UP);
	donors_tick(&s.donors, start + 5400 * MS);
	assert_int_equal(d->state, DONOR_UP);
	donors_tick(&s.donors, start + 5600 * MS);
	assert_int_equal(d->state, DONOR_DOWN);
	end();
}

static int looks; /* at the whole table, for one tick */

static uint64_t count_oldest(void *owner, const struct donor *of)
{
	looks++;
	return mapping_oldest(owner, of);
}

static void count_ask_later(void *owner, struct donor *of, uint64_t now)
{
	looks++;
	mapping_ask_later(owner, of, now);
}

/* With many slabs and donors, ticks look for late replies only when there may be one. */
static void ticks_are_short(void **state)
{
	struct donor_events events;
	uint64_t start;

	begin(&transport_fake);
	events = *s.donors.events;
	events.oldest = count_oldest;
	events.ask_later = count_ask_later;
	s.donors.events = &events;
	cut();
	come_back();
	d->retry_at = UINT64_MAX;
	start = now_ns();
	looks = 0;
	for (int i = 1; i <= 40; i++) {
		deliver();
		reply(10);
		donors_tick(&s.donors, start + (uint64_t)i * 100 * MS);
		assert_int_equal(d->state, DONOR_UP);
	}
	assert_in_range(looks, 0, 4000 / 500);
	for (int i = 1; i <= 6 && d->state == DONOR_UP; i++)
		donors_tick(&s.donors, start + (uint64_t)(40 + i) * 100 * MS);
	assert_int_equal(d->state, DONOR_DOWN);
	end();
}

/* A donor that altered data must leave is not given up while only it has some pages. */
static void a_suspect_keeps_what_the_backup_lacks(void **state)
{
	for (int stale = 0; stale < 2; stale++) {
		begin(&transport_fake);
		page_map_free(&s.engine.map);
		s.engine.map = page_map_new(SLABS * SLAB_PAGES, SLAB_PAGES, true);
		s.engine.backup.fd = 0;
		page_map_write(s.engine.map, &(struct page_write){ .first = 0, .count = 1 });
		page_map_stored(s.engine.map, 0, 0, 1);
		page_map_backed(s.engine.map, 0, 1, stale ? -EIO : 0);
		donor_quarantine(d, "altered");
		assert_int_equal(d->state, stale ? DONOR_UP : DONOR_QUARANTINED);
		assert_int_equal(!!(d->leaving & DONOR_SUSPECT), stale);
		assert_int_equal(page_map_is_stored(s.engine.map, 0, 1), stale);
		if (!stale)
			d->link.fd = dup(peer);
		s.engine.backup.fd = -1;
		end();
	}
}

/*
 * Slabs that were written during an absence moved to another donor, and the first frees their
 * places once it is back: a write without a place waits for that, too.
 */
static void room_is_awaited_after_a_return(void **state)
{
	begin(&transport_fake);
	assert_false(mapping_room_awaited(&s.replicas, now_ns()));
	cut();
	assert_true(mapping_room_awaited(&s.replicas, now_ns()));
	come_back();
	for (int rounds = 0; donor_is_away(d) && rounds < SLABS; rounds++) {
		deliver();
		reply(frame_count);
	}
	assert_false(donor_is_away(d));
	assert_true(mapping_room_awaited(&s.replicas, d->released_at + 1900000000));
	assert_false(mapping_room_awaited(&s.replicas, d->released_at + 2100000000));
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_few_round_trips),
		cmocka_unit_test(what_is_put_off_is_not_lost),
		cmocka_unit_test(what_is_put_off_for_too_long),
		cmocka_unit_test(what_has_ended_is_lost),
		cmocka_unit_test(a_link_that_flaps),
		cmocka_unit_test(no_late_hello),
		cmocka_unit_test(a_line_now_and_then),
		cmocka_unit_test(requests_come_first),
		cmocka_unit_test(the_last_answer_ends_an_absence),
		cmocka_unit_test(a_slab_given_up_ends_an_absence),
		cmocka_unit_test(a_few_mappings_at_a_time),
		cmocka_unit_test(progress_is_not_silence),
		cmocka_unit_test(a_pause_is_not_silence),
		cmocka_unit_test(ticks_are_short),
		cmocka_unit_test(a_suspect_keeps_what_the_backup_lacks),
		cmocka_unit_test(room_is_awaited_after_a_return),
	};

	return cmocka_run_group_tests_name("resume", tests, NULL, NULL);
}
