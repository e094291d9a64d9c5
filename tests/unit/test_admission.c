// SPDX-License-Identifier: GPL-2.0-or-later
/* A device and what donors promise it, while they come and go. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "device_world.h"
#include "lib/base/clock.h"
#include "swapd/replicas/repair.h"
#include "swapd/replicas/reservation.h"
#include "swapd/replicas/slab_mapping.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { SLABS = 12, SLAB_PAGES = 256, DONORS = 3, QUEUE = 700, SLAB = SLAB_PAGES * PAGE };

/* What a donor has, in slabs; those of others are not ours. */
static struct fake {
	uint32_t all, others, lent, reserved;
	uint32_t maps, reserves; /* asked */
	bool short_of_memory;    /* grants nothing, promised or not */
	bool away;               /* answers nothing */
} fakes[DONORS];

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static void put_figures(const struct fake *f, struct wire_frame *frame, uint8_t *payload)
{
	uint32_t free_slabs = f->all - f->others - f->lent;
	struct wire_donor told = { .version = WIRE_VERSION, .slab_size = SLAB,
				   .total = (uint64_t)f->all * SLAB,
				   .free = (uint64_t)free_slabs * SLAB, .reserved = f->reserved };

	wire_build_donor(payload, &told);
	frame->length = WIRE_DONOR_SIZE;
	frame->slab = f->all - free_slabs;
}

static void serve_frame(struct donor *d, struct fake *f, struct wire_frame frame,
			const uint8_t *sent)
{
	static uint32_t generation;
	uint8_t payload[WIRE_DONOR_SIZE];
	uint32_t want;

	switch (frame.op) {
	case WIRE_MAP:
		f->maps++;
		frame.length = 0;
		if (f->short_of_memory || f->lent + f->others == f->all) {
			frame.status = WIRE_NO_SPACE;
			break;
		}
		frame.slab = f->lent++;
		frame.generation = ++generation;
		break;
	case WIRE_RESERVE:
		f->reserves++;
		assert_int_equal(wire_parse_reserve(sent, WIRE_RESERVE_SIZE, &want), 0);
		f->reserved = least(want, f->all - f->others);
		/* fall through */
	case WIRE_PING:
		put_figures(f, &frame, payload);
		break;
	case WIRE_UNMAP:
		f->lent--;
		break;
	}
	assert_int_equal(donor_frame(d, &frame, payload), 0);
	run();
}

/* Donors serve what they are asked for. */
static void serve(void)
{
	for (int i = 0; i < DONORS; i++) {
		struct donor *d = &s.donors.donor[i];

		while (d->link.tx.count && !fakes[i].away) {
			struct wire_frame f;
			const uint8_t *sent = take_frame(d, &f);

			serve_frame(d, &fakes[i], f, sent);
		}
	}
}

/* A second and more: what was refused is asked for again. */
static void tick(void)
{
	for (int i = 0; i < DONORS; i++)
		s.donors.donor[i].reserve_at = 0;
	reservation_tick(&s.replicas, now_ns());
	serve();
}

static void begin(int wanted, const uint32_t all[DONORS])
{
	memset(fakes, 0, sizeof(fakes));
	device_begin(&(struct device_setup){ .slabs = SLABS, .slab_pages = SLAB_PAGES,
					     .donors = DONORS, .replicas = wanted, .queue = QUEUE,
					     .version = WIRE_VERSION, .repair_delay = 10 * SECOND,
					     .transport = &transport_fake });
	s.replicas.reserves = true;
	for (int i = 0; i < DONORS; i++) {
		struct donor *d = &s.donors.donor[i];

		fakes[i].all = all[i];
		d->total = d->free = d->room = (uint64_t)all[i] * SLAB;
	}
}

/* A page of each slab is written. */
static void write_all(void)
{
	for (uint32_t i = 0; i < SLABS; i++) {
		request(SLOT_WRITE, i * SLAB_PAGES, 1);
		serve();
	}
}

static uint64_t promised(void)
{
	return s.donors.donor[0].reserved + s.donors.donor[1].reserved + s.donors.donor[2].reserved;
}

/* All slabs get their replicas from what was promised, though no other slab is left. */
static void slabs_go_where_they_are_promised(void **state)
{
	begin(2, (uint32_t[]){ 20, 30, 20 });
	fakes[0].others = 8;
	fakes[1].others = 23;
	fakes[2].others = 15;
	for (int i = 0; i < DONORS; i++)
		s.donors.donor[i].room = (uint64_t)(fakes[i].all - fakes[i].others) * SLAB;
	tick();
	assert_int_equal(promised(), 2 * SLABS);
	assert_int_equal(s.replicas.unreserved, 2 * SLABS);
	tick();
	assert_int_equal(s.replicas.unreserved, 0);
	assert_int_equal(fakes[0].reserves, 1);
	write_all();
	assert_int_equal(answered, SLABS);
	assert_int_equal(failed, 0);
	for (int i = 0; i < DONORS; i++)
		assert_int_equal(fakes[i].lent, fakes[i].reserved);
	assert_int_equal(shared.counters.map_refusals, 0);
	device_end();
}

/* Where there is room beyond promises, slabs go there, too, and the reservation follows. */
static void the_reservation_follows_slabs(void **state)
{
	for (int wanted = 1; wanted <= 2; wanted++) {
		begin(wanted, (uint32_t[]){ 12, 12, 0 });
		tick();
		/* Another donor is added. */
		fakes[2].all = 12;
		s.donors.donor[2].total = s.donors.donor[2].free = 12ull * SLAB;
		s.donors.donor[2].room = 12ull * SLAB;
		write_all();
		assert_true(fakes[2].lent > 0);
		tick();
		tick();
		assert_int_equal(promised(), wanted * SLABS);
		assert_int_equal(s.replicas.unreserved, 0);
		for (int i = 0; i < DONORS; i++)
			assert_int_equal(fakes[i].lent, fakes[i].reserved);
		assert_int_equal(failed, 0);
		device_end();
	}
}

static void a_lost_donor_is_replaced(void **state)
{
	struct donor *d = &s.donors.donor[0];

	begin(1, (uint32_t[]){ 12, 12, 12 });
	tick();
	tick();
	assert_int_equal(d->reserved, SLABS / 3);
	d->state = DONOR_DOWN;
	tick();
	tick();
	assert_int_equal(s.donors.donor[1].reserved + s.donors.donor[2].reserved, SLABS);
	/* Back: the others keep it, and this one is told so. */
	d->state = DONOR_UP;
	tick();
	tick();
	assert_int_equal(promised(), SLABS);
	/* One that leaves has nothing reserved. */
	s.donors.donor[1].leaving = DONOR_DRAINED;
	tick();
	tick();
	assert_int_equal(fakes[1].reserved, 0);
	assert_int_equal(d->reserved + s.donors.donor[2].reserved, SLABS);
	/* An absence within its grace period costs no other donor anything. */
	s.donors.donor[1].leaving = 0;
	d->state = DONOR_DOWN;
	d->resume = RESUME_WANTED;
	/* It may have begun after the tick read the clock. */
	d->away_since = now_ns() + SECOND;
	tick();
	assert_int_equal(fakes[1].reserved, 0);
	d->away_since = now_ns();
	tick();
	assert_int_equal(fakes[1].reserved, 0);
	assert_int_equal(s.replicas.unreserved, 0);
	/* Repair waits no longer. */
	d->away_since = now_ns() - 11 * SECOND;
	tick();
	assert_true(fakes[1].reserved > 0);
	device_end();
}

/* Less than is needed is told, and asked for again when a donor has more. */
static void what_is_not_promised(void **state)
{
	begin(1, (uint32_t[]){ 4, 4, 3 });
	tick();
	tick();
	assert_int_equal(promised(), 11);
	assert_int_equal(s.replicas.unreserved, 1);
	/* Others were faster than the figures. */
	fakes[2].all = 10;
	fakes[2].others = 7;
	s.donors.donor[2].room = 10 * SLAB;
	tick();
	assert_int_equal(s.donors.donor[2].reserved, 3);
	assert_int_equal(s.donors.donor[2].room, 3 * SLAB);
	fakes[2].others = 0;
	donor_ping(&s.donors.donor[2], now_ns());
	serve();
	tick();
	assert_int_equal(promised(), 12);
	/* A restarted donor has forgotten it, and says so. */
	fakes[2].reserved = 0;
	donor_ping(&s.donors.donor[2], now_ns());
	serve();
	assert_int_equal(s.donors.donor[2].reserved, 0);
	tick();
	assert_int_equal(fakes[2].reserved, 4);
	device_end();
}

/* A donor whose machine needs the memory itself: others are asked for it, in time. */
static void what_a_donor_cannot_back(void **state)
{
	struct donor *d = &s.donors.donor[0];

	begin(1, (uint32_t[]){ 12, 12, 0 });
	tick();
	tick();
	assert_int_equal(d->reserved, SLABS / 2);
	fakes[0].others = 10;
	donor_ping(d, now_ns());
	serve();
	tick();
	assert_int_equal(d->reserved, SLABS / 2);
	assert_int_equal(fakes[1].reserves, 1);
	d->unbacked_since -= 11 * SECOND;
	tick();
	tick();
	assert_int_equal(fakes[0].reserved, 2);
	assert_int_equal(fakes[1].reserved, SLABS - 2);
	assert_int_equal(s.replicas.unreserved, 0);
	device_end();

	/* It stays promised while no other donor has it: the memory may return. */
	begin(1, (uint32_t[]){ 12, 0, 0 });
	tick();
	fakes[0].others = 10;
	donor_ping(d, now_ns());
	serve();
	tick();
	d->unbacked_since -= 11 * SECOND;
	tick();
	tick();
	assert_int_equal(d->reserved, SLABS);
	assert_int_equal(fakes[0].reserves, 1);
	assert_int_equal(s.replicas.unreserved, SLABS - 2);
	device_end();
}

/* A promised slab whose memory is yet to be made is waited for, if no other donor has one. */
static void a_promised_slab_is_waited_for(void **state)
{
	begin(1, (uint32_t[]){ 12, 0, 0 });
	tick();
	fakes[0].short_of_memory = true;
	write_all();
	assert_int_equal(answered, 0);
	fakes[0].short_of_memory = false;
	mapping_ask_later(&s.replicas, &s.donors.donor[0], now_ns());
	serve();
	assert_int_equal(answered, SLABS);
	assert_int_equal(failed, 0);
	assert_int_equal(shared.counters.map_refusals, 0);
	device_end();

	/* Not for ever. */
	begin(1, (uint32_t[]){ 12, 0, 0 });
	tick();
	fakes[0].short_of_memory = true;
	write_all();
	s.donors.donor[0].short_since = now_ns() - 11 * SECOND;
	mapping_ask_later(&s.replicas, &s.donors.donor[0], now_ns());
	serve();
	assert_int_equal(answered, SLABS);
	assert_int_equal(failed, SLABS);
	device_end();

	/* Not when another donor has one. */
	begin(1, (uint32_t[]){ 12, 12, 0 });
	tick();
	fakes[0].short_of_memory = true;
	write_all();
	assert_int_equal(answered, SLABS);
	assert_int_equal(failed, 0);
	assert_int_equal(fakes[1].lent, SLABS);
	device_end();
}

/* Older donors are used as before: nothing is sent, and that is logged once. */
static void donors_of_version_3(void **state)
{
	uint32_t notes;

	begin(1, (uint32_t[]){ 12, 12, 0 });
	s.donors.donor[0].version = 3;
	tick();
	notes = s.notes.put;
	assert_true(notes > 0);
	tick();
	assert_int_equal(s.notes.put, notes);
	assert_int_equal(fakes[0].reserves, 0);
	assert_int_equal(promised(), SLABS);
	assert_int_equal(s.replicas.unreserved, 0);
	write_all();
	assert_int_equal(failed, 0);
	assert_int_equal(fakes[0].lent + fakes[1].lent, SLABS);
	device_end();
}

/* A reply to no request, or a device that reserves nothing. */
static void nothing_unasked(void **state)
{
	struct wire_frame f = { .op = WIRE_RESERVE, .direction = WIRE_REPLY };
	uint8_t payload[WIRE_DONOR_SIZE];

	begin(1, (uint32_t[]){ 12, 12, 0 });
	put_figures(&fakes[0], &f, payload);
	assert_int_equal(donor_frame(&s.donors.donor[0], &f, payload), -EPROTO);
	s.replicas.reserves = false;
	tick();
	assert_int_equal(promised(), 0);
	assert_int_equal(fakes[0].reserves, 0);
	assert_int_equal(reservation_wanted(&s.replicas), 0);
	device_end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(slabs_go_where_they_are_promised),
		cmocka_unit_test(the_reservation_follows_slabs),
		cmocka_unit_test(a_lost_donor_is_replaced),
		cmocka_unit_test(what_is_not_promised),
		cmocka_unit_test(what_a_donor_cannot_back),
		cmocka_unit_test(a_promised_slab_is_waited_for),
		cmocka_unit_test(donors_of_version_3),
		cmocka_unit_test(nothing_unasked),
	};

	return cmocka_run_group_tests_name("admission", tests, NULL, NULL);
}
