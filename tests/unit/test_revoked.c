// SPDX-License-Identifier: GPL-2.0-or-later
/* REVOKED at any time: while its slab is requested, used, released, or its donor away. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "device_world.h"
#include "swapd/page/page_map.h"
#include "swapd/replicas/repair.h"
#include "swapd/replicas/slab_mapping.h"
#include "swapd/request/engine.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { SLABS = 2, SLAB_PAGES = 16, DONORS = 2, QUEUE = 600 };

static struct donor *const d = &s.donors.donor[0], *const other = &s.donors.donor[1];
static uint32_t mapped;

static int map(struct link *l, struct mapping *m)
{
	mapped++;
	return 0;
}

static void unmap(struct mapping *m)
{
	assert_in_range(mapped, 1, SLABS * DONORS);
	mapped--;
}

static const struct transport transport_here = {
	.name = "here", .maps_here = true, .map = map, .unmap = unmap,
	.submit = transfer_at_once,
};

static void begin(int wanted)
{
	mapped = 0;
	device_begin(&(struct device_setup){ .slabs = SLABS, .slab_pages = SLAB_PAGES,
					     .donors = DONORS, .replicas = wanted, .queue = QUEUE,
					     .version = WIRE_VERSION,
					     .transport = &transport_here });
	d->grace = other->grace = 30 * SECOND;
	/* The first slabs go to the first donor. */
	other->unlisted = wanted == 1;
}

static void end(void)
{
	assert_int_equal(s.engine.slots.free_count, s.engine.slots.count);
	device_end();
}

/* Takes the next frame to @from, an @op, which becomes its reply. */
static struct wire_frame take(struct donor *from, enum wire_op op)
{
	struct wire_frame f;

	take_frame(from, &f);
	assert_int_equal(f.op, op);
	f.length = 0;
	return f;
}

static void reply(struct donor *from, struct wire_frame f, enum wire_status status)
{
	f.status = status;
	assert_int_equal(donor_frame(from, &f, NULL), 0);
}

static void grant(struct donor *from, uint32_t slab, uint32_t generation)
{
	struct wire_frame f = take(from, WIRE_MAP);

	f.slab = slab;
	f.generation = generation;
	reply(from, f, WIRE_OK);
}

static void revoke(struct donor *from, uint32_t slab, uint32_t generation)
{
	struct wire_frame f = { .op = WIRE_REVOKED, .slab = slab, .generation = generation };

	assert_int_equal(donor_frame(from, &f, NULL), 0);
}

/* While its slab is requested: in the grant's piece, before the write that waits has begun. */
static void with_its_grant(void **state)
{
	begin(1);
	request(SLOT_WRITE, 0, 1);
	/* That of an earlier loan, whose number comes again. */
	revoke(d, 7, 1);
	assert_int_equal(slabs[0].copy[0].state, COPY_MAPPING);
	grant(d, 7, 2);
	revoke(d, 7, 1);
	assert_int_equal(slabs[0].copy[0].state, COPY_MAPPED);
	revoke(d, 7, 2);
	assert_int_equal(slabs[0].copy[0].state, COPY_NONE);
	assert_int_equal(mapped, 0);
	assert_int_equal(take(d, WIRE_UNMAP).generation, 2);
	other->unlisted = false;
	run();
	assert_int_equal(answered, 0);
	grant(other, 3, 5);
	run();
	assert_int_equal(answered, 1);
	assert_int_equal(failed, 0);
	assert_int_equal(d->copies, 0);
	assert_int_equal(mapped, 1);
	end();
}

/* Of two replicas that are requested, one is revoked before the other one is there. */
static void one_of_two_requested(void **state)
{
	begin(2);
	request(SLOT_WRITE, 0, 1);
	grant(d, 1, 1);
	revoke(d, 1, 1);
	run();
	assert_int_equal(answered, 0);
	grant(other, 1, 1);
	run();
	assert_int_equal(answered, 1);
	assert_int_equal(failed, 0);
	assert_int_equal(page_map_count_stored(s.engine.map, 0, slab_copy_at(&slabs[0], 1)), 1);
	end();
}

/* The memory of a slab that was mapped here is free: UNMAP says so, however many frames wait. */
static void with_a_full_queue(void **state)
{
	struct wire_frame ping = { .op = WIRE_PING };

	begin(1);
	request(SLOT_WRITE, 0, 1);
	grant(d, 1, 1);
	run();
	while (donor_has_room(d))
		stream_push(&d->link.tx, &ping, NULL, 0);
	revoke(d, 1, 1);
	assert_int_equal(mapped, 0);
	while (d->link.tx.count > 1)
		take(d, WIRE_PING);
	take(d, WIRE_UNMAP);
	end();
}

/* While its UNMAP is in flight, and after its number was lent again. */
static void behind_unmap(void **state)
{
	struct wire_frame unmap_reply;

	begin(1);
	request(SLOT_WRITE, 0, 1);
	grant(d, 1, 1);
	run();
	request(SLOT_DISCARD, 0, 1);
	assert_true(mapping_unmap(&s.replicas, 0, 0));
	unmap_reply = take(d, WIRE_UNMAP);
	revoke(d, 1, 1);
	reply(d, unmap_reply, WIRE_STALE);
	request(SLOT_WRITE, 0, 1);
	grant(d, 1, 2);
	revoke(d, 1, 1);
	run();
	assert_int_equal(slabs[0].copy[0].state, COPY_MAPPED);
	assert_int_equal(d->copies, 1);
	assert_int_equal(d->link.tx.count, 0);
	assert_int_equal(shared.counters.revocations, 0);
	assert_int_equal(answered, 3);
	assert_int_equal(failed, 0);
	end();
}

/* A slab that its donor has recalled, too: nothing of the recall stays. */
static void of_a_recalled_slab(void **state)
{
	struct wire_frame evict = { .op = WIRE_EVICT, .slab = 1, .generation = 1 };

	begin(1);
	request(SLOT_WRITE, 0, 1);
	grant(d, 1, 1);
	run();
	other->unlisted = false;
	assert_int_equal(donor_frame(d, &evict, NULL), 0);
	take(d, WIRE_EVICT);
	assert_true(slabs[0].copy[0].leaving);
	revoke(d, 1, 1);
	take(d, WIRE_UNMAP);
	assert_false(slabs[0].copy[0].leaving);
	assert_true(slabs[0].lost);
	request(SLOT_READ, 0, 1);
	assert_int_equal(failed, 1);
	request(SLOT_WRITE, 0, 1);
	grant(d->link.tx.count ? d : other, 1, 2);
	run();
	assert_int_equal(failed, 1);
	assert_int_equal(answered, 3);
	assert_false(slabs[0].copy[slab_copy_at(&slabs[0], d->copies ? 0 : 1)].leaving);
	end();
}

/*
 * It is lost with the connection, or comes before the reply to REMAP: that reply tells, by either
 * status.  Another replica has the pages.
 */
static void while_its_donor_is_away(void **state)
{
	static const enum wire_status statuses[] = { WIRE_NO_SLAB, WIRE_STALE };

	for (int i = 0; i < 4; i++) {
		struct wire_frame f;
		int c;

		begin(2);
		request(SLOT_WRITE, 0, 1);
		grant(d, 1, 1);
		grant(other, 1, 1);
		run();
		assert_int_equal(mapped, 2);
		donor_part(d, "cut");
		assert_int_equal(mapped, 1);
		c = slab_copy_at(&slabs[0], 0);
		assert_int_equal(slabs[0].copy[c].state, COPY_AWAY);
		d->link.watched_for_write = true;
		donor_ready(d);
		f = take(d, WIRE_REMAP);
		if (i < 2)
			revoke(d, 1, 1);
		assert_int_equal(slabs[0].copy[c].state, COPY_AWAY);
		reply(d, f, statuses[i % 2]);
		assert_int_equal(slabs[0].copy[c].state, COPY_NONE);
		assert_int_equal(page_map_count_stored(s.engine.map, 0, c), 0);
		assert_int_equal(d->copies, 0);
		assert_true(donor_is_away(d));
		reply(d, take(d, WIRE_RELEASE), WIRE_OK);
		assert_false(donor_is_away(d));
		take(d, WIRE_PING);
		request(SLOT_READ, 0, 1);
		assert_int_equal(answered, 2);
		assert_int_equal(failed, 0);
		/* Repair makes the second replica again. */
		repair_tick(&s.replicas, now_ns() + SECOND);
		grant(d, 1, 2);
		repair_tick(&s.replicas, now_ns() + 2 * SECOND);
		while (repair_run(&s.replicas) || engine_run(&s.engine))
			;
		assert_int_equal(page_map_count_stored(s.engine.map, 0, slab_copy_at(&slabs[0], 0)),
				 1);
		assert_int_equal(mapped, 2);
		end();
	}
}

static void deny(struct link *l, const struct mapping *m, struct transfer *t)
{
	t->remote = m->remote;
	t->generation = m->generation;
	t->result = -ESTALE;
	l->ops->done(l->owner, t);
}

/*
 * A donor that promises slabs, lends them and denies each at once does not keep a write waiting:
 * the watchdog would abort the device, with the pages that other donors have.
 */
static void a_donor_that_denies_what_it_lends(void **state)
{
	static const struct transport transport_denies = { .name = "denies", .submit = deny };
	uint32_t loans = 0;

	device_begin(&(struct device_setup){ .slabs = SLABS, .slab_pages = SLAB_PAGES,
					     .donors = 1, .replicas = 1, .queue = QUEUE,
					     .version = WIRE_VERSION,
					     .transport = &transport_denies });
	s.replicas.reserves = true;
	d->reserved = SLABS;
	request(SLOT_WRITE, 0, 1);
	while (!answered && loans < 100) {
		loans++;
		grant(d, loans, loans);
		run();
	}
	assert_int_equal(loans, 1);
	assert_int_equal(failed, 1);
	assert_int_equal(d->copies, 0);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(with_its_grant),
		cmocka_unit_test(one_of_two_requested),
		cmocka_unit_test(with_a_full_queue),
		cmocka_unit_test(behind_unmap),
		cmocka_unit_test(of_a_recalled_slab),
		cmocka_unit_test(while_its_donor_is_away),
		cmocka_unit_test(a_donor_that_denies_what_it_lends),
	};

	return cmocka_run_group_tests_name("revoked", tests, NULL, NULL);
}
