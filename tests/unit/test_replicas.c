// SPDX-License-Identifier: GPL-2.0-or-later
/* The replicas that a write finds, and those that absent donors keep meanwhile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "device_world.h"
#include "swapd/page/page_map.h"
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(absent_donors_keep_their_pages),
	};

	return cmocka_run_group_tests_name("replicas", tests, NULL, NULL);
}
