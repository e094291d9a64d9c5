// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What `make bench-heap` counts by: which pages a limit evicts, against lists that are searched;
 * and the far store: objects keep their contents, and the budget holds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/sim/heap_trace.h"
#include "tests/bench/heap_far.h"
#include "tests/bench/heap_pages.h"

#include <cmocka.h>

static uint64_t next_random(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s * UINT64_C(0x2545f4914f6cdd1d) >> 16;
}

/* --- events -------------------------------------------------------------------------------- */

static void events_keep_what_they_say(void **state)
{
	uint64_t e = HEAP_VIA | heap_event(HEAP_WRITE, HEAP_OBJECTS_MOST - 1,
					   UINT64_C(0x7fffffff8));

	assert_int_equal(heap_kind(e), HEAP_WRITE);
	assert_int_equal(heap_number(e), HEAP_OBJECTS_MOST - 1);
	assert_int_equal(heap_place(e), UINT64_C(0x7fffffff8));
	e = heap_born(HEAP_SIZE_MOST, UINT64_C(0x7fffffff8));
	assert_int_equal(heap_kind(e), HEAP_BORN);
	assert_int_equal(heap_size(e), HEAP_SIZE_MOST);
	assert_int_equal(heap_place(e), UINT64_C(0x7fffffff8));
}

/* --- pages --------------------------------------------------------------------------------- */

enum { PAGES = 40 };

/* The same by definition: the page that was touched longest ago is found by search. */
struct plain_lru {
	uint64_t touched[PAGES], clock, in, out, zeroed, room;
	bool resident[PAGES], swapped[PAGES], dirty[PAGES];
};

static void plain_evict(struct plain_lru *l)
{
	unsigned int oldest = PAGES, n = 0;

	for (unsigned int i = 0; i < PAGES; i++) {
		n += l->resident[i];
		if (l->resident[i] && (oldest == PAGES || l->touched[i] < l->touched[oldest]))
			oldest = i;
	}
	if (n < l->room)
		return;
	l->resident[oldest] = false;
	l->swapped[oldest] = true;
	l->out += l->dirty[oldest];
	l->dirty[oldest] = false;
}

static void plain_touch(struct plain_lru *l, unsigned int page, bool write)
{
	if (!l->resident[page]) {
		plain_evict(l);
		l->in += l->swapped[page];
		l->zeroed += !l->swapped[page];
		l->dirty[page] = !l->swapped[page];
		l->resident[page] = true;
		l->swapped[page] = false;
	}
	l->dirty[page] |= write;
	l->touched[page] = ++l->clock;
}

static void exact_lru_is_as_defined(void **state)
{
	uint64_t seed = 88172645463325252u;
	struct plain_lru l = { .room = 12 };
	struct heap_pages *p = heap_pages_new(PAGES, l.room, HEAP_LRU_EXACT);
	struct heap_page_counts c;

	assert_non_null(p);
	for (int i = 0; i < 20000; i++) {
		/* Mostly the lower pages. */
		unsigned int some = (unsigned int)(1 + next_random(&seed) % PAGES);
		unsigned int page = (unsigned int)(next_random(&seed) % some);
		bool write = next_random(&seed) % 3 == 0;

		if (next_random(&seed) % 50 == 0) {
			heap_pages_drop(p, page);
			l.resident[page] = l.swapped[page] = l.dirty[page] = false;
			continue;
		}
		heap_pages_touch(p, page, write, false);
		plain_touch(&l, page, write);
		c = heap_pages_counts(p);
		assert_int_equal(c.swapped_in, l.in);
		assert_int_equal(c.swapped_out, l.out);
		assert_int_equal(c.zeroed, l.zeroed);
		assert_true(heap_pages_resident(p) <= l.room);
	}
	assert_true(l.in > 1000 && l.out > 300);
	heap_pages_free(p);
}

static struct heap_page_counts cycled(enum heap_lru lru, uint64_t pages, uint64_t room, int rounds,
				      bool write)
{
	struct heap_pages *p = heap_pages_new(pages, room, lru);
	struct heap_page_counts c;

	assert_non_null(p);
	for (int i = 0; i < rounds; i++)
		for (uint64_t page = 0; page < pages; page++)
			heap_pages_touch(p, page, write || !i, !i);
	c = heap_pages_counts(p);
	assert_true(heap_pages_resident(p) <= room);
	heap_pages_free(p);
	return c;
}

/* A cycle over more pages than there is room for misses on each with LRU. */
static void cycles_miss(void **state)
{
	struct heap_page_counts c = cycled(HEAP_LRU_EXACT, 100, 50, 4, false);

	assert_int_equal(c.zeroed, 100);
	assert_int_equal(c.swapped_in, 300);
	/* Clean pages leave unwritten: each is written once. */
	assert_int_equal(c.swapped_out, 100);
	c = cycled(HEAP_LRU_EXACT, 100, 50, 4, true);
	assert_int_equal(c.swapped_out, 350);
	c = cycled(HEAP_LRU_EXACT, 50, 50, 4, true);
	assert_int_equal(c.swapped_in + c.swapped_out, 0);
	/* The kernel's lists keep some of them. */
	c = cycled(HEAP_LRU_KERNEL, 100, 50, 20, false);
	assert_true(c.swapped_in > 900 && c.swapped_in <= 1900);
}

/* The kernel's lists keep what is used often beside a long scan; all counts are of one kind. */
static void active_pages_survive_a_scan(void **state)
{
	struct heap_pages *p = heap_pages_new(1010, 100, HEAP_LRU_KERNEL);
	struct heap_page_counts before, after;

	for (int round = 0; round < 3; round++) {
		before = heap_pages_counts(p);
		for (uint64_t page = 10; page < 1010; page++) {
			heap_pages_touch(p, page, false, false);
			heap_pages_touch(p, page % 10, false, false);
		}
	}
	after = heap_pages_counts(p);
	assert_in_range(after.swapped_in - before.swapped_in, 900, 1000);
	heap_pages_free(p);
}

static void births_count_apart(void **state)
{
	struct heap_pages *p = heap_pages_new(10, 2, HEAP_LRU_EXACT);
	struct heap_page_counts c;

	for (uint64_t page = 0; page < 4; page++)
		heap_pages_touch(p, page, true, true);
	heap_pages_touch(p, 0, true, true);
	heap_pages_touch(p, 1, false, false);
	c = heap_pages_counts(p);
	assert_int_equal(c.swapped_in, 2);
	assert_int_equal(c.born_in, 1);
	assert_int_equal(c.zeroed, 4);
	heap_pages_free(p);
	assert_null(heap_pages_new(10, 1, HEAP_LRU_EXACT));
}

/* --- the far store -------------------------------------------------------------------------- */

struct object {
	struct heap_name name;
	uint64_t number;
	uint32_t size;
};

static void fill(uint8_t *p, const struct object *o, size_t from)
{
	for (size_t i = 0; i < 8; i++)
		p[i] = (uint8_t)(o->number * 31 + from + i);
}

static bool is_filled(const uint8_t *p, const struct object *o, size_t from)
{
	for (size_t i = 0; i < 8; i++)
		if (p[i] != (uint8_t)(o->number * 31 + from + i))
			return false;
	return true;
}

/* Both ends of an object, and the middle of a large one. */
static void visit(struct heap_far *f, struct object *o, bool write)
{
	size_t at[3] = { 0, o->size / 2 / 8 * 8, o->size / 8 * 8 - 8 };

	for (int i = 0; i < 3; i++) {
		uint8_t *p = heap_far_touch(f, &o->name, at[i]);

		if (write)
			fill(p, o, at[i]);
		else
			assert_true(is_filled(p, o, at[i]));
	}
}

static uint32_t size_of(uint64_t *seed)
{
	switch (next_random(seed) % 40) {
	case 0: return 200000;
	case 1: return 8192;
	case 2: return 8000;
	case 3: case 4: case 5: return 2000 + (uint32_t)(next_random(seed) % 4000) / 8 * 8;
	default: return 16 + (uint32_t)(next_random(seed) % 300) / 8 * 8;
	}
}

enum { OBJECTS = 30000 };

static void objects_keep_their_contents(const struct heap_far_options *options)
{
	uint64_t seed = options->few * 2 + options->heal + options->neighbours * 77 + 1;
	uint64_t numbers = 0;
	struct heap_far *f = heap_far_new(options);
	static struct object objects[OBJECTS];
	const struct heap_far_stats *s;
	uint32_t n = 0;

	assert_non_null(f);
	s = heap_far_stats(f);
	for (int i = 0; i < 60000; i++) {
		uint64_t what = next_random(&seed) % 100;
		/* Some are popular; at times neighbours follow. */
		uint32_t at = n ? (uint32_t)(next_random(&seed) % (1 + next_random(&seed) % n)) : 0;

		if (n < OBJECTS && (what < 12 || !n)) {
			struct object *o = &objects[n++];

			o->size = size_of(&seed);
			o->number = numbers++;
			assert_non_null(heap_far_born(f, o->size, &o->name));
			visit(f, o, true);
		} else if (what < 14) {
			visit(f, &objects[at], false);
			heap_far_died(f, &objects[at].name);
			objects[at] = objects[--n];
		} else if (what < 15) {
			for (uint32_t j = at; j < n && j < at + 50; j++)
				visit(f, &objects[j], false);
		} else {
			visit(f, &objects[at], what < 40);
			visit(f, &objects[at], false);
		}
		assert_true(s->bytes <= options->budget);
	}
	for (uint32_t i = 0; i < n; i++)
		visit(f, &objects[i], false);
	assert_true(s->bytes_most <= options->budget && s->bytes_most > options->budget / 2);
	assert_true(s->fetches > 1000 && s->rescues > 1000 && s->left > 100 && s->homes > 10);
	for (uint32_t i = 0; i < n; i++)
		heap_far_died(f, &objects[i].name);
	assert_int_equal(s->forwards, 0);
	heap_far_free(f);
}

static void contents_and_budget(void **state)
{
	struct heap_far_options o = { .budget = 6 << 20 };

	heap_donor_memory(&o.donor);
	for (int i = 0; i < 8; i++) {
		/* Without the long tests: each two options in all combinations. */
		if (!getenv("EBB_TEST_LONG") && __builtin_parity(i))
			continue;
		o.few = i & 1 ? 3 : 0;
		o.home = 64;
		o.neighbours = i & 2;
		o.heal = i & 4;
		objects_keep_their_contents(&o);
	}
}

static void budgets_have_a_least(void **state)
{
	struct heap_far_options o = { .budget = 1 << 20 };

	heap_donor_memory(&o.donor);
	assert_null(heap_far_new(&o));
}

/* Objects of one region, all far. */
static struct heap_far *all_far(struct heap_far_options *o, struct object *objects, uint32_t n)
{
	struct heap_far *f;
	struct object other = { .size = 8192 };

	heap_donor_memory(&o->donor);
	o->budget = 4 << 20;
	f = heap_far_new(o);
	assert_non_null(f);
	for (uint32_t i = 0; i < n; i++) {
		objects[i] = (struct object){ .number = i, .size = 64 };
		heap_far_born(f, 64, &objects[i].name);
		visit(f, &objects[i], true);
	}
	/* The next of this size begins another region. */
	heap_far_born(f, 64, &other.name);
	heap_far_leave_all(f);
	assert_int_equal(heap_far_stats(f)->left, 1);
	assert_int_equal(heap_far_stats(f)->left_bytes, n * 64);
	return f;
}

#define REGION_OBJECTS (HEAP_REGION / 64)

static void neighbours_bring_their_region_home(void **state)
{
	struct heap_far_options o = { .home = 1, .neighbours = true, .heal = true };
	static struct object objects[REGION_OBJECTS];
	struct heap_far *f = all_far(&o, objects, REGION_OBJECTS);
	const struct heap_far_stats *s = heap_far_stats(f);

	visit(f, &objects[100], false);
	visit(f, &objects[300], false);
	visit(f, &objects[200], false);
	assert_int_equal(s->fetches, 3);
	assert_int_equal(s->homes, 0);
	assert_int_equal(s->fetched_bytes, 3 * 64);
	visit(f, &objects[201], false);
	assert_int_equal(s->fetches, 3);
	assert_int_equal(s->homes, 1);
	assert_int_equal(s->home_bytes, HEAP_REGION);
	assert_int_equal(s->forwards, 3);
	assert_int_equal(s->far, 0);
	for (uint32_t i = 0; i < REGION_OBJECTS; i++)
		visit(f, &objects[i], false);
	assert_int_equal(s->fetches, 3);
	assert_int_equal(s->homes, 1);
	heap_far_free(f);
}

static void fetches_bring_their_region_home(void **state)
{
	struct heap_far_options o = { .few = 3, .home = 3, .heal = true };
	static struct object objects[REGION_OBJECTS];
	struct heap_far *f = all_far(&o, objects, REGION_OBJECTS);

	visit(f, &objects[5], false);
	visit(f, &objects[50], false);
	assert_int_equal(heap_far_stats(f)->homes, 0);
	visit(f, &objects[500], false);
	assert_int_equal(heap_far_stats(f)->homes, 1);
	heap_far_free(f);
	o.home = 2;
	f = all_far(&o, objects, REGION_OBJECTS);
	for (uint32_t i = 0; i < 100; i++)
		visit(f, &objects[i * 7], false);
	assert_int_equal(heap_far_stats(f)->homes, 0);
	assert_int_equal(heap_far_stats(f)->fetches, 100);
	heap_far_free(f);
}

/* The dead are not sent; the living are found by their rank. */
static void regions_are_packed(void **state)
{
	struct heap_far_options o = { .home = 1, .heal = false };
	static struct object objects[REGION_OBJECTS];
	struct heap_far *f = all_far(&o, objects, REGION_OBJECTS);
	const struct heap_far_stats *s = heap_far_stats(f);
	uint64_t far = s->far;

	/* All but one in four die; the others come to another region and leave again. */
	for (uint32_t i = 0; i < REGION_OBJECTS; i++)
		if (i % 4)
			heap_far_died(f, &objects[i].name);
	assert_int_equal(s->far, far);
	for (uint32_t i = 0; i < REGION_OBJECTS; i += 4)
		visit(f, &objects[i], false);
	/* The region's memory at the donor is free once its last object has moved. */
	assert_int_equal(s->far, 0);
	assert_int_equal(s->forwards, REGION_OBJECTS / 4);
	heap_far_free(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(events_keep_what_they_say),
		cmocka_unit_test(exact_lru_is_as_defined),
		cmocka_unit_test(cycles_miss),
		cmocka_unit_test(active_pages_survive_a_scan),
		cmocka_unit_test(births_count_apart),
		cmocka_unit_test(budgets_have_a_least),
		cmocka_unit_test(neighbours_bring_their_region_home),
		cmocka_unit_test(fetches_bring_their_region_home),
		cmocka_unit_test(regions_are_packed),
		cmocka_unit_test(contents_and_budget),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
