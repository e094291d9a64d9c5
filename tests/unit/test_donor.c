// SPDX-License-Identifier: GPL-2.0-or-later
/* When an unresponsive donor is declared lost, its handshake, and its status. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/draw.h"
#include "lib/wire/local.h"
#include "swapd/page/page_map.h"
#include "swapd/control/status.h"
#include "swapd/swapd.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { SLABS = 2, SLAB_PAGES = 256 };
#define MS 1000000ull
/* When it was asked. */
#define THEN (1000000 * MS)

static struct swapd s;
static struct shared shared;
static struct slab slabs[SLABS];
static struct donor *d;
static int peer;
static bool answer_is_here; /* on another connection than the first */

static void event(struct link *l, uint32_t channel)
{
	if (answer_is_here)
		d->pinged = 0;
}

static uint32_t evictions;

static int count_eviction(void *owner, struct donor *from, const struct wire_frame *f,
			  const uint8_t *payload)
{
	evictions++;
	return 0;
}

static int greetings;

/* As where pages have a connection of their own: that is yet to come. */
static int greeted(struct link *l, const struct wire_donor *told)
{
	greetings++;
	return 1;
}

static const struct transport transport_fake = { .name = "fake", .event = event,
						 .hello = greeted };

/* One that is up and was asked something. */
static int asked(void **state)
{
	struct error e = { 0 };
	struct address a;
	int pair[2];

	memset(&shared, 0, sizeof(shared));
	answer_is_here = false;
	s = (struct swapd){
		.options = { .name = "unit", .slab = SLAB_PAGES * PAGE, .deadline = 500 * MS,
			     .connections = 1 },
		.frontend = &fuse_frontend,
		.shared = &shared, .count = &shared.counters,
		.replicas.wanted = 1, .replicas.choices = 2, .replicas.seed = 1,
		.engine.backup = { .fd = -1 }, .donors.env.epoll_fd = epoll_create1(EPOLL_CLOEXEC),
	};
	wiring_events(&s);
	slab_init(&s.engine.table, slabs, SLABS, SLAB_PAGES);
	s.engine.map = page_map_new(SLABS * SLAB_PAGES, SLAB_PAGES, false);
	assert_non_null(s.engine.map);
	assert_int_equal(slots_init(&s.engine.slots, SLOT_COUNT, &e), 0);
	assert_int_equal(address_parse("127.0.0.1:1", "donor", &a, &e), 0);
	assert_int_equal(donors_reserve(&s.donors, 1, &e), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	d = &s.donors.donor[donor_make(&s.donors, &a)];
	d->link.transport = &transport_fake;
	d->state = DONOR_UP;
	d->link.fd = pair[0];
	peer = pair[1];
	d->pinged = THEN;
	d->ping_at = UINT64_MAX;
	return 0;
}

static int end(void **state)
{
	donors_free(&s.donors);
	slots_free(&s.engine.slots);
	page_map_free(&s.engine.map);
	close(s.donors.env.epoll_fd);
	close(peer);
	return 0;
}

static bool is_up_after(uint64_t ms)
{
	donors_tick(&s.donors, THEN + ms * MS);
	return d->state == DONOR_UP;
}

/* The list no longer has it: it keeps its slabs, gets no others, and ends with the last one. */
static void an_unlisted_donor(void **state)
{
	d->pinged = 0;
	assert_true(donor_takes(d));
	d->unlisted = true;
	d->copies = 1;
	assert_true(is_up_after(1));
	assert_false(donor_takes(d));
	d->copies = 0;
	donors_tick(&s.donors, THEN + 2 * MS);
	assert_int_equal(d->state, DONOR_ABSENT);
}

/* Its machine has been removed. */
static void an_unlisted_donor_is_lost(void **state)
{
	d->unlisted = true;
	d->copies = 1;
	assert_false(is_up_after(501));
	donors_tick(&s.donors, THEN + 502 * MS);
	assert_int_equal(d->state, DONOR_ABSENT);
}

static void silent_for_the_deadline(void **state)
{
	assert_true(is_up_after(400));
	assert_true(is_up_after(500));
	assert_false(is_up_after(501));
	assert_int_equal(d->losses, 1);
}

/* A page that was asked for has come, by whatever transport. */
static void answer_one(void)
{
	donor_count(d, &(struct transfer){ .op = WIRE_WRITE, .since = THEN });
}

static void read_in(uint64_t ns, uint32_t pages)
{
	donor_count(d, &(struct transfer){ .op = WIRE_READ, .since = now_ns() - ns,
					   .length = pages * EBB_PAGE });
}

/* The fastest small read tells the round trip, and is forgotten in time. */
static void the_round_trip_of_a_donor(void **state)
{
	uint64_t least;

	read_in(1000 * MS, 64);
	assert_int_equal(d->fastest, 0);
	read_in(2 * 1000 * MS, 1);
	least = d->fastest;
	assert_true(least >= 2 * 1000 * MS);
	read_in(3 * 1000 * MS, 8);
	assert_int_equal(d->fastest, least);
	read_in(1000 * MS, 8);
	assert_in_range(d->fastest, 1000 * MS, least - 1);
	least = d->fastest;
	donors_tick(&s.donors, THEN);
	assert_int_equal(d->fastest, least + least / 256);
	/* Without reads it does not grow for ever. */
	for (int i = 0; i < 20000; i++)
		donors_tick(&s.donors, THEN);
	assert_in_range(d->fastest, 10 * 1000 * MS, 11 * 1000 * MS);
}

/* An answer comes behind those that were asked for before. */
static void slow_and_not_silent(void **state)
{
	answer_one();
	assert_true(is_up_after(450));
	assert_true(is_up_after(950));
	answer_one();
	assert_true(is_up_after(960));
	assert_true(is_up_after(1400));
	assert_false(is_up_after(1461));
}

/* But not for ever: somebody waits for it. */
static void what_never_comes(void **state)
{
	for (uint64_t ms = 100; ms <= 8 * 500; ms += 100) {
		d->moves = true;
		assert_true(is_up_after(ms));
	}
	d->moves = true;
	assert_false(is_up_after(8 * 500 + 1));
}

static void nobody_looked(void **state)
{
	s.donors.awake_since = THEN + 3000 * MS;
	assert_true(is_up_after(3000));
	assert_true(is_up_after(3500));
	assert_false(is_up_after(3501));
}

/* Where pages have a connection of their own it is looked at there, too. */
static void answer_on_another_connection(void **state)
{
	answer_is_here = true;
	assert_true(is_up_after(501));
	assert_int_equal(d->losses, 0);
}

/* While it waits for its other connections, which are opened once. */
static void greets_once(void **state)
{
	struct wire_donor told = { .version = WIRE_VERSION, .slab_size = SLAB_PAGES * PAGE };
	struct wire_frame f = { .op = WIRE_HELLO, .direction = WIRE_REPLY,
				.length = WIRE_DONOR_SIZE };
	uint8_t payload[WIRE_DONOR_SIZE];

	wire_build_donor(payload, &told);
	d->state = DONOR_GREETING;
	d->version = WIRE_VERSION;
	greetings = 0;
	assert_int_equal(donor_frame(d, &f, payload), 0);
	assert_int_equal(d->state, DONOR_GREETING);
	assert_int_equal(donor_frame(d, &f, payload), -EPROTO);
	assert_int_equal(greetings, 1);
}

/* A refusal names the remedy; a lost session needs none. */
static void refused_with_a_reason(void **state)
{
	static const struct { enum wire_status status; const char *remedy; } cases[] = {
		{ WIRE_BAD_VERSION, "update the older" },
		{ WIRE_BAD_SLAB_SIZE, "a smaller --slab" },
		{ WIRE_NO_KEY, "--key FILE" },
		{ WIRE_NO_SESSION, NULL },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct wire_frame f = { .op = WIRE_HELLO, .direction = WIRE_REPLY,
					.status = cases[i].status };

		d->state = DONOR_GREETING;
		d->version = WIRE_VERSION_OLDEST;
		d->greeted = d->explained = false;
		assert_int_equal(donor_frame(d, &f, NULL), -ECONNREFUSED);
		assert_int_equal(d->explained, cases[i].remedy != NULL);
		assert_true(!cases[i].remedy || strstr(d->why, cases[i].remedy));
	}
}

/* Each refusal of a version is followed by a HELLO with the next older one. */
static void older_donor(void **state)
{
	struct wire_frame refusal = { .op = WIRE_HELLO, .direction = WIRE_REPLY,
				      .status = WIRE_BAD_VERSION };
	struct wire_donor told = { .version = WIRE_VERSION_OLDEST,
				   .slab_size = SLAB_PAGES * PAGE };
	struct wire_frame f = { .op = WIRE_HELLO, .direction = WIRE_REPLY };
	uint8_t payload[WIRE_DONOR_SIZE];
	uint32_t queued = d->link.tx.count;

	d->state = DONOR_GREETING;
	d->version = WIRE_VERSION;
	d->greeted = false;
	for (uint32_t v = WIRE_VERSION - 1; v >= WIRE_VERSION_OLDEST; v--) {
		assert_int_equal(donor_frame(d, &refusal, NULL), 0);
		assert_int_equal(d->version, v);
		assert_int_equal(d->link.tx.count, ++queued);
	}
	f.length = wire_build_donor(payload, &told);
	assert_int_equal(donor_frame(d, &f, payload), 0);
	assert_true(d->greeted);
}

/* What "last_loss" tells, or "". */
static const char *told_why(char *text, size_t size)
{
	struct json_object *stats = json_object_new_object(), *donors, *row, *why;

	device_stats(&s, stats);
	assert_true(json_object_object_get_ex(stats, "donors", &donors));
	row = json_object_array_get_idx(donors, 0);
	snprintf(text, size, "%s", json_object_object_get_ex(row, "last_loss", &why) ?
		 json_object_get_string(why) : "");
	json_object_put(stats);
	return text;
}

/* One that never was there has not been lost; why it is not there is told all the same. */
static void never_reached(void **state)
{
	char text[192];

	assert_string_equal(told_why(text, sizeof(text)), "");
	d->state = DONOR_CONNECTING;
	donor_lose(d, "no way there");
	assert_int_equal(d->losses, 0);
	assert_string_equal(told_why(text, sizeof(text)), "no way there");
}

/* By a unix socket it is known at once. */
static void never_reached_on_this_machine(void **state)
{
	struct error e = { 0 };
	char text[192];

	assert_int_equal(local_parse("unix:/nowhere/donor.sock", "donor", &d->link.at, &e), 0);
	d->link.transport = &transport_shm;
	close(d->link.fd);
	d->link.fd = -1;
	d->state = DONOR_DOWN;
	donors_tick(&s.donors, THEN);
	assert_int_equal(d->state, DONOR_DOWN);
	assert_string_equal(told_why(text, sizeof(text)), "No such file or directory");
}

/* What it could lend us, of what it told: as much as is free, at least. */
static void room_there_is(void **state)
{
	static const struct { uint32_t taken; uint64_t room; } cases[] = {
		{ 0, 10 }, { 3, 7 }, { 9, 1 }, { 10, 1 }, { UINT32_MAX, 1 },
	};
	uint64_t slab = SLAB_PAGES * PAGE;
	struct wire_donor told = { .version = WIRE_VERSION, .slab_size = slab, .total = 10 * slab,
				   .free = slab };
	uint8_t payload[WIRE_DONOR_SIZE];

	wire_build_donor(payload, &told);
	d->version = WIRE_VERSION;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct wire_frame f = { .op = WIRE_PING, .direction = WIRE_REPLY,
					.slab = cases[i].taken, .length = WIRE_DONOR_SIZE };

		assert_int_equal(donor_frame(d, &f, payload), 0);
		assert_int_equal(d->free, slab);
		assert_int_equal(d->room, cases[i].room * slab);
	}
}

enum { DEVICES = 300, PARTS = 10 };

/* All devices lose the donor at one moment, @losses times in a row: when each tries again. */
static void spread_of_retries(int losses, uint64_t most)
{
	int in_part[PARTS] = { 0 };
	uint64_t seed = 1;

	for (int i = 0; i < DEVICES; i++) {
		uint64_t wait;

		s.donors.jitter = (uint64_t)draw32(&seed) << 32 | draw32(&seed);
		d->backoff = 200 * MS;
		for (int n = 0; n < losses; n++)
			donor_lose(d, "unit");
		wait = d->retry_at - d->since;
		assert_true(wait >= most / 2 && wait < most);
		in_part[(wait - most / 2) * PARTS / (most / 2)]++;
	}
	for (int i = 0; i < PARTS; i++)
		assert_in_range(in_part[i], DEVICES / PARTS / 2, DEVICES / PARTS * 2);
}

static void devices_do_not_return_at_once(void **state)
{
	spread_of_retries(1, 200 * MS);
	spread_of_retries(2, 400 * MS);
	spread_of_retries(10, 5000 * MS);
}

/* Nor does one device reach all donors of a switch at once. */
static void donors_of_one_device_are_not_tried_at_once(void **state)
{
	uint64_t last = 0;

	s.donors.jitter = 1;
	for (int i = 0; i < 16; i++) {
		d->backoff = 5000 * MS;
		donor_lose(d, "unit");
		assert_true(d->retry_at - d->since != last);
		last = d->retry_at - d->since;
	}
}

/*
 * An event receives one piece of what a donor has sent, so that requests go on before the next; the
 * rest follows without another event.
 */
static void received_in_pieces(void **state)
{
	enum { FRAMES = 3 * LINK_PIECE / WIRE_HEADER };
	struct donor_events events = *s.donors.events;
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = d->index };
	const struct wire_frame f = { .op = WIRE_EVICT };
	uint8_t bytes[FRAMES][WIRE_HEADER];
	uint32_t pieces = 1;

	events.asked = count_eviction;
	s.donors.events = &events;
	evictions = 0;
	for (int i = 0; i < FRAMES; i++)
		wire_build(bytes[i], &f);
	assert_int_equal(write(peer, bytes, sizeof(bytes)), sizeof(bytes));
	assert_false(donors_more(&s.donors));
	donors_event(&s.donors, &ev);
	assert_in_range(evictions, 1, LINK_PIECE / WIRE_HEADER);
	for (; donors_more(&s.donors); pieces++)
		;
	assert_int_equal(evictions, FRAMES);
	assert_in_range(pieces, 3, 5);
	assert_int_equal(d->state, DONOR_UP);
	/* A lost donor has no more. */
	assert_int_equal(write(peer, bytes, sizeof(bytes)), sizeof(bytes));
	donors_event(&s.donors, &ev);
	donor_lose(d, "for a test");
	assert_false(donors_more(&s.donors));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(an_unlisted_donor, asked, end),
		cmocka_unit_test_setup_teardown(an_unlisted_donor_is_lost, asked, end),
		cmocka_unit_test_setup_teardown(silent_for_the_deadline, asked, end),
		cmocka_unit_test_setup_teardown(received_in_pieces, asked, end),
		cmocka_unit_test_setup_teardown(slow_and_not_silent, asked, end),
		cmocka_unit_test_setup_teardown(the_round_trip_of_a_donor, asked, end),
		cmocka_unit_test_setup_teardown(what_never_comes, asked, end),
		cmocka_unit_test_setup_teardown(nobody_looked, asked, end),
		cmocka_unit_test_setup_teardown(answer_on_another_connection, asked, end),
		cmocka_unit_test_setup_teardown(greets_once, asked, end),
		cmocka_unit_test_setup_teardown(refused_with_a_reason, asked, end),
		cmocka_unit_test_setup_teardown(older_donor, asked, end),
		cmocka_unit_test_setup_teardown(room_there_is, asked, end),
		cmocka_unit_test_setup_teardown(never_reached, asked, end),
		cmocka_unit_test_setup_teardown(never_reached_on_this_machine, asked, end),
		cmocka_unit_test_setup_teardown(devices_do_not_return_at_once, asked, end),
		cmocka_unit_test_setup_teardown(donors_of_one_device_are_not_tried_at_once, asked,
						end),
	};

	return cmocka_run_group_tests_name("donor", tests, NULL, NULL);
}
