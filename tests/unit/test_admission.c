// SPDX-License-Identifier: GPL-2.0-or-later
/* A device and what donors promise it, while they come and go. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/clock.h"
#include "swapd/frontend/frontend.h"
#include "swapd/page/page_map.h"
#include "swapd/replicas/repair.h"
#include "swapd/replicas/reservation.h"
#include "swapd/replicas/slab_mapping.h"
#include "swapd/swapd.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { SLABS = 12, SLAB_PAGES = 256, DONORS = 3, QUEUE = 700, SLAB = SLAB_PAGES * PAGE };
#define SECOND 1000000000ull

static struct swapd s;
static struct shared shared;
static struct slab slabs[SLABS];
static struct stream_entry entries[DONORS][QUEUE];
static uint32_t answered, failed;

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

static enum slot_after answer(void *host, struct slot *slot, int error)
{
	answered++;
	failed += error != 0;
	return SLOT_DONE;
}

static const struct frontend frontend_fake = { .name = "fake", .answer = answer };

static void submit(struct link *l, const struct mapping *m, struct transfer *t)
{
	l->ops->done(l->owner, t);
}

static const struct transport transport_fake = { .name = "fake", .submit = submit };

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

	frame.direction = WIRE_REPLY;
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
	while (engine_run(&s.engine))
		;
}

/* Donors serve what they are asked for. */
static void serve(void)
{
	for (int i = 0; i < DONORS; i++) {
		struct donor *d = &s.donors.donor[i];
		struct stream_tx *tx = &d->link.tx;

		while (tx->count && !fakes[i].away) {
			uint8_t *bytes = tx->entries[tx->head].bytes;
			struct wire_frame f;

			assert_int_equal(wire_parse(bytes, WIRE_HEADER, WIRE_AT_DONOR, &f), 1);
			tx->head = (tx->head + 1) % tx->size;
			tx->count--;
			tx->popped++;
			serve_frame(d, &fakes[i], f, bytes + WIRE_HEADER);
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
	struct error e = { 0 };

	memset(&shared, 0, sizeof(shared));
	memset(fakes, 0, sizeof(fakes));
	answered = failed = 0;
	s = (struct swapd){
		.frontend = &frontend_fake,
		.options = { .name = "unit", .slab = SLAB, .repair_rate = 1 << 30,
			     .repair_delay = 10 * SECOND },
		.shared = &shared, .count = &shared.counters,
		.replicas = { .wanted = wanted, .choices = 2, .seed = 1, .reserves = true },
		.donors.count = DONORS,
		.engine.backlog_most = SLOT_BACKLOG,
		.engine.backup = { .fd = -1 },
	};
	wiring_events(&s);
	slab_init(&s.engine.table, slabs, SLABS, SLAB_PAGES);
	s.engine.map = page_map_new(SLABS * SLAB_PAGES, SLAB_PAGES, false);
	assert_non_null(s.engine.map);
	assert_int_equal(slots_init(&s.engine.slots, &e), 0);
	for (uint16_t i = 0; i < DONORS; i++) {
		fakes[i].all = all[i];
		s.donors.donor[i] = (struct donor){
			.table = &s.donors, .index = i, .state = DONOR_UP, .version = WIRE_VERSION,
			.total = (uint64_t)all[i] * SLAB, .free = (uint64_t)all[i] * SLAB,
			.room = (uint64_t)all[i] * SLAB,
			.link = {
				.transport = &transport_fake, .env = &s.donors.env,
				.ops = s.donors.ops, .owner = &s.donors.donor[i], .index = i,
				.fd = -1, .slab_size = SLAB, .watched_for_write = true,
				.tx = { .entries = entries[i], .size = QUEUE },
			},
		};
	}
}

static void end(void)
{
	slots_free(&s.engine.slots);
	page_map_free(&s.engine.map);
}

/* A page of each slab is written. */
static void write_all(void)
{
	for (uint32_t i = 0; i < SLABS; i++) {
		struct slot *slot = slot_get(&s.engine.slots);

		assert_non_null(slot);
		slot->kind = SLOT_WRITE;
		slot->first = i * SLAB_PAGES;
		slot->count = 1;
		memcpy(slot->payload, "some", 4);
		engine_start(&s.engine, slot);
		while (engine_run(&s.engine))
			;
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
	end();
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
		end();
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
	end();
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
	end();
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
	end();

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
	end();
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
	end();

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
	end();

	/* Not when another donor has one. */
	begin(1, (uint32_t[]){ 12, 12, 0 });
	tick();
	fakes[0].short_of_memory = true;
	write_all();
	assert_int_equal(answered, SLABS);
	assert_int_equal(failed, 0);
	assert_int_equal(fakes[1].lent, SLABS);
	end();
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
	end();
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
	end();
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
