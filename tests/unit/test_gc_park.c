// SPDX-License-Identifier: GPL-2.0-or-later
/* Parked work: which work waits for which page.  The test sets the state of pages. */
#include <sys/mman.h>
#include "gc_test.h"
#include "mark.h"
#include "object.h"
#include "order_memliner.h"
#include "os.h"
#include "park.h"
#include "work_pool.h"

#define SLOTS 4000		/* of an array over eight pages */
#define WIDES 300

/* Its one reference is the last word of a slot of 48 bytes, which often lies on the next page. */
struct wide {
	uint64_t data[4];
	ebbgc_ref_t to;
};

struct fixture {
	ebbgc_heap_t *heap;
	struct tracer *t;
	ebbgc_mutator_t *m;
	ebbgc_type_t node, refs, wide;
	ebbgc_ref_t roots[2];
	struct ebbgc_frame frame;
};

static void begin(struct fixture *f, const char *options)
{
	static const struct ebbgc_layout wide = {
		.name = "wide", .size = sizeof(struct wide), .bitmap = 1 << 4,
	};

	memset(f, 0, sizeof(*f));
	f->heap = checked_heap_with(options, 64 << 20);
	f->t = &f->heap->marker.tracers[0];
	/* No scans. */
	pthread_mutex_lock(&f->heap->update_lock);
	assert_int_equal(ebbgc_type_register(f->heap, &node_layout, &f->node), 0);
	assert_int_equal(ebbgc_type_register(f->heap, &refs_layout, &f->refs), 0);
	assert_int_equal(ebbgc_type_register(f->heap, &wide, &f->wide), 0);
	assert_int_equal(ebbgc_attach(f->heap, &f->m), 0);
	ebbgc_frame_push(f->m, &f->frame, f->roots, 2);
}

static void end(struct fixture *f)
{
	assert_int_equal(f->heap->park.count, 0);
	assert_int_equal(f->t->depth, 0);
	/* As the end of a cycle does. */
	memset(f->heap->marks, 0, (size_t)f->heap->top * REGION_WORDS * 8);
	pthread_mutex_unlock(&f->heap->update_lock);
	ebbgc_detach(f->m);
	assert_int_equal(ebbgc_heap_destroy(f->heap), 0);
}

static uint64_t address_of(ebbgc_ref_t r)
{
	return (uint64_t)(uintptr_t)ebbgc_ptr(r);
}

static bool is_marked(const struct fixture *f, ebbgc_ref_t r)
{
	return bit_test(f->heap->marks, granule_of(f->heap, address_of(r)));
}

static void page_out(struct fixture *f, size_t page)
{
	f->heap->residency.out[page / 64] |= UINT64_C(1) << page % 64;
}

/* Marks as in a long pause; returns true if nothing is left. */
static bool trace(struct fixture *f)
{
	return order_memliner.drain(f->t, os_now() + UINT64_C(60000000000));
}

static void array_new(struct fixture *f)
{
	f->roots[0] = ebbgc_alloc_length(f->m, f->refs, SLOTS);
	for (size_t i = 0; i < SLOTS; i++) {
		ebbgc_ref_t r = ebbgc_alloc(f->m, f->node);

		ebbgc_store(f->m, f->roots[0], &refs_of(f->roots[0])->slots[i], r);
	}
}

static size_t slot_page(const struct fixture *f, size_t slot)
{
	return page_of(f->heap, (uint64_t)(uintptr_t)&refs_of(f->roots[0])->slots[slot]);
}

/* Targets of all slots are marked, except slots on these pages. */
static void check_array(const struct fixture *f, size_t out, size_t too)
{
	for (size_t i = 0; i < SLOTS; i++) {
		size_t page = slot_page(f, i);

		assert_int_equal(is_marked(f, refs_of(f->roots[0])->slots[i]),
				 page != out && page != too);
	}
}

static void an_array_waits_by_page(void **state)
{
	struct fixture f;
	size_t first;

	begin(&f, "mode=memliner,park,residency=simulated,sizing=fixed");
	array_new(&f);
	first = slot_page(&f, 0);
	assert_int_equal(slot_page(&f, SLOTS - 1), first + 7);
	page_out(&f, first + 2);
	page_out(&f, first + 7);
	work_push(f.t, address_of(f.roots[0]));
	assert_false(trace(&f));
	assert_true(is_marked(&f, f.roots[0]));
	assert_int_equal(f.heap->park.count, 2);
	assert_int_equal(f.t->counts.parked, 2);
	check_array(&f, first + 2, first + 7);
	/* Pages that come in are traced, and no others. */
	park_wake(f.t, first + 7);
	assert_false(trace(&f));
	check_array(&f, first + 2, first + 2);
	park_wake(f.t, first + 2);
	assert_true(trace(&f));
	check_array(&f, SIZE_MAX, SIZE_MAX);
	end(&f);
}

/* In a pause after too many remarks. */
static void nothing_is_parked_in_a_hurry(void **state)
{
	struct fixture f;
	size_t first;

	begin(&f, "mode=memliner,park,residency=simulated,sizing=fixed");
	array_new(&f);
	first = slot_page(&f, 0);
	page_out(&f, first + 1);
	page_out(&f, first + 2);
	f.heap->cycle_remarks = 1000;
	work_push(f.t, address_of(f.roots[0]));
	assert_true(trace(&f));
	check_array(&f, SIZE_MAX, SIZE_MAX);
	assert_int_equal(residency_state(&f.heap->residency, first + 1), PAGE_RESIDENT);
	end(&f);
}

/* A small object across a page's end. */
static void half_an_object_waits(void **state)
{
	size_t across = 0;
	struct fixture f;

	begin(&f, "mode=memliner,park,residency=simulated,sizing=fixed");
	for (size_t i = 0; i < WIDES; i++) {
		struct wide *w;
		size_t page;

		f.roots[0] = ebbgc_alloc(f.m, f.wide);
		f.roots[1] = ebbgc_alloc(f.m, f.node);
		w = ebbgc_ptr(f.roots[0]);
		ebbgc_store(f.m, f.roots[0], &w->to, f.roots[1]);
		page = page_of(f.heap, (uint64_t)(uintptr_t)&w->to);
		if (page == page_of(f.heap, address_of(f.roots[0])))
			continue;
		across++;
		page_out(&f, page);
		work_push(f.t, address_of(f.roots[0]));
		assert_false(trace(&f));
		assert_true(is_marked(&f, f.roots[0]));
		assert_false(is_marked(&f, f.roots[1]));
		park_wake(f.t, page);
		assert_true(trace(&f));
		assert_true(is_marked(&f, f.roots[1]));
	}
	assert_true(across > 1);
	end(&f);
}

/* Resident pages are not requested, even before a scan finds them. */
static void what_is_in_is_woken_not_fetched(void **state)
{
	struct fixture f;
	size_t first;

	begin(&f, "mode=memliner,park,residency=mincore,delays=0:0:0,sizing=fixed");
	array_new(&f);
	first = slot_page(&f, 0);
	for (size_t page = first; page < first + 8; page++)
		page_out(&f, page);
	park_slice(f.t, first + 1);
	park_slice(f.t, first + 3);
	park_slice(f.t, first + 4);
	/* Without swap, the only way to lose a page; its slots are null then. */
	assert_int_equal(
		madvise(f.heap->base + (first + 3) * PAGE_BYTES, PAGE_BYTES, MADV_DONTNEED), 0);
	assert_true(park_step(f.t));
	assert_int_equal(f.t->counts.woken, 2);
	assert_int_equal(f.t->counts.fetched, 1);
	assert_int_equal(f.t->depth, 2);
	assert_int_equal(f.heap->park.count, 1);
	/* The requested one. */
	assert_true(park_step(f.t));
	assert_int_equal(f.t->counts.woken, 2);
	assert_int_equal(f.t->counts.fetched, 1);
	assert_int_equal(f.t->depth, 3);
	assert_true(trace(&f));
	assert_false(park_step(f.t));
	for (size_t i = 0; i < SLOTS; i++) {
		ebbgc_ref_t to = refs_of(f.roots[0])->slots[i];
		size_t page = slot_page(&f, i);

		assert_int_equal(ebbgc_is_null(to), page == first + 3);
		if (page != first + 3)
			assert_int_equal(is_marked(&f, to), page == first + 1 || page == first + 4);
	}
	end(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_array_waits_by_page),
		cmocka_unit_test(nothing_is_parked_in_a_hurry),
		cmocka_unit_test(half_an_object_waits),
		cmocka_unit_test(what_is_in_is_woken_not_fetched),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
