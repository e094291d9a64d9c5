// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Page faults from ebbd: the ring, their effect on marking, and hints.  The test writes the ring as
 * BPF does, and sets the state of pages in place of a kernel.
 */
#include <errno.h>
#include <time.h>
#include "gc_test.h"
#include <ebb/abi.h>
#include "hints.h"
#include "mark.h"
#include "object.h"
#include "order_memliner.h"
#include "park.h"

struct fixture {
	ebbgc_heap_t *heap;
	ebbgc_mutator_t *m;
	ebbgc_type_t node, refs, leaf;
	ebbgc_ref_t roots[4];
	struct ebbgc_frame frame;
	struct ebb_arrivals ring;
};

/* Does what ebbd does when a heap is created. */
static void share(struct fixture *f, struct ebb_arrivals *ring)
{
	pthread_mutex_lock(&f->heap->lock);
	arrivals_open(&f->heap->arrivals, ring);
	pthread_mutex_unlock(&f->heap->lock);
}

static void begin(struct fixture *f, const char *options)
{
	static const struct ebbgc_layout leaf = {
		.name = "leaf", .flags = EBBGC_LEAF, .size = 8, .element_size = 1, .length_width = 8,
	};

	memset(f, 0, sizeof(*f));
	f->heap = checked_heap_with(options, 64 << 20);
	/* No scans: the test sets which pages are swapped out. */
	pthread_mutex_lock(&f->heap->update_lock);
	share(f, &f->ring);
	assert_int_equal(ebbgc_type_register(f->heap, &node_layout, &f->node), 0);
	assert_int_equal(ebbgc_type_register(f->heap, &refs_layout, &f->refs), 0);
	assert_int_equal(ebbgc_type_register(f->heap, &leaf, &f->leaf), 0);
	assert_int_equal(ebbgc_attach(f->heap, &f->m), 0);
	ebbgc_frame_push(f->m, &f->frame, f->roots, 4);
}

static struct ebbgc_stats end(struct fixture *f)
{
	struct ebbgc_stats s = stats_of(f->heap);

	assert_int_equal(s.check_failures, 0);
	pthread_mutex_unlock(&f->heap->update_lock);
	ebbgc_detach(f->m);
	assert_int_equal(ebbgc_heap_destroy(f->heap), 0);
	return s;
}

/* As bpf/fault.bpf.c does. */
static void arrive(struct fixture *f, uint64_t address, enum ebb_role role)
{
	uint64_t n = __atomic_fetch_add(&f->ring.head, 1, __ATOMIC_ACQ_REL);

	__atomic_store_n(&f->ring.entry[n % EBB_ARRIVALS], ebb_arrival(n, address, EBB_MISS, role),
			 __ATOMIC_RELEASE);
}

static uint64_t address_of(ebbgc_ref_t r)
{
	return (uint64_t)(uintptr_t)ebbgc_ptr(r);
}

static size_t page_at(const struct fixture *f, uint64_t address)
{
	return page_of(f->heap, address);
}

static void page_out(struct fixture *f, size_t page)
{
	__atomic_fetch_or(&f->heap->residency.out[page / 64], UINT64_C(1) << page % 64,
			  __ATOMIC_RELAXED);
}

static bool is_marked(const struct fixture *f, ebbgc_ref_t r)
{
	return bit_test(f->heap->marks, granule_of(f->heap, address_of(r)));
}

/* Does what the end of a cycle does: no work, no marks. */
static void marking_forget(struct fixture *f)
{
	f->heap->marker.tracers[0].depth = 0;
	memset(f->heap->marks, 0, (size_t)f->heap->top * REGION_WORDS * 8);
}

static void entries_are_encoded(void **state)
{
	uint64_t base = 0x7f1234567000, n = 5 * EBB_ARRIVALS + 3;
	uint64_t entry = ebb_arrival(n, base + 24, EBB_LATE, EBB_ROLE_GC);

	assert_true(ebb_arrival_is(entry, n));
	assert_true(ebb_arrival_is(entry, n + 256 * EBB_ARRIVALS));
	assert_false(ebb_arrival_is(entry, n + EBB_ARRIVALS));
	assert_false(ebb_arrival_is(entry, n - EBB_ARRIVALS));
	assert_int_equal(ebb_arrival_address(entry), base + 16);
	assert_int_equal(ebb_arrival_role(entry), EBB_ROLE_GC);
	assert_int_equal(ebb_arrival_role(ebb_arrival(0, base, EBB_HIT, EBB_ROLE_APP)),
			 EBB_ROLE_APP);
}

static bool next_arrival(ebbgc_heap_t *heap, struct arrival *a)
{
	return arrivals_next(&heap->arrivals, heap->base, used_bytes(heap), a);
}

static void each_is_taken_once_or_lost(void **state)
{
	struct arrival a;
	struct fixture f;
	uint64_t base;

	begin(&f, "mode=memliner,arrivals");
	base = (uint64_t)(uintptr_t)f.heap->base;
	__atomic_store_n(&f.heap->top, 64, __ATOMIC_RELAXED);
	assert_false(arrivals_pending(&f.heap->arrivals));
	assert_false(next_arrival(f.heap, &a));
	/* Addresses outside of the heap, and above its top, are ignored. */
	arrive(&f, base - 16, EBB_ROLE_APP);
	arrive(&f, base + ((uint64_t)64 << REGION_SHIFT), EBB_ROLE_APP);
	arrive(&f, base + 40, EBB_ROLE_GC);
	assert_true(arrivals_pending(&f.heap->arrivals));
	assert_true(next_arrival(f.heap, &a));
	assert_int_equal(a.address, base + 32);
	assert_true(a.collectors);
	assert_false(next_arrival(f.heap, &a));
	/* More than the ring holds, over several rounds. */
	for (uint64_t i = 0; i < 3 * EBB_ARRIVALS + 10; i++)
		arrive(&f, base + 16 * i, EBB_ROLE_APP);
	for (uint64_t i = 2 * EBB_ARRIVALS + 10; i < 3 * EBB_ARRIVALS + 10; i++) {
		assert_true(next_arrival(f.heap, &a));
		assert_int_equal(a.address, base + 16 * i);
		assert_false(a.collectors);
	}
	assert_false(next_arrival(f.heap, &a));
	assert_int_equal(stats_of(f.heap).arrivals_lost, 2 * EBB_ARRIVALS + 10);
	/* One that is announced but not written yet: the ring has an old entry there. */
	f.ring.head++;
	assert_false(next_arrival(f.heap, &a));
	assert_false(arrivals_pending(&f.heap->arrivals));
	assert_int_equal(stats_of(f.heap).arrivals_lost, 2 * EBB_ARRIVALS + 11);
	assert_int_equal(stats_of(f.heap).arrivals, EBB_ARRIVALS + 1);
	/* A cycle begins without arrivals. */
	arrive(&f, base, EBB_ROLE_APP);
	arrivals_clear(&f.heap->arrivals);
	assert_false(next_arrival(f.heap, &a));
	__atomic_store_n(&f.heap->top, 0, __ATOMIC_RELAXED);
	end(&f);
}

/* One process may use a slot after another. */
static void what_was_there_before_is_not_told(void **state)
{
	struct arrivals a;
	struct ebb_arrivals ring = { .head = 1000 };

	arrivals_open(&a, &ring);
	assert_false(arrivals_pending(&a));
	arrivals_open(&a, NULL);
	assert_false(arrivals_pending(&a));
	arrivals_clear(&a);
}

static void what_the_program_faults_on_is_red(void **state)
{
	struct tracer *t;
	struct fixture f;

	begin(&f, "mode=memliner,arrivals,sizing=fixed");
	t = &f.heap->marker.tracers[0];
	f.roots[0] = ebbgc_alloc(f.m, f.node);
	f.roots[1] = ebbgc_alloc(f.m, f.node);
	f.roots[2] = ebbgc_alloc_length(f.m, f.leaf, 100000);
	f.roots[3] = ebbgc_alloc_length(f.m, f.refs, 100000);
	ebbgc_store(f.m, f.roots[0], &node_of(f.roots[0])->left, f.roots[1]);
	/* A fault of a collector's thread does nothing. */
	arrive(&f, address_of(f.roots[0]), EBB_ROLE_GC);
	memliner_arrivals(t);
	assert_false(is_marked(&f, f.roots[0]));
	/* A fault inside an object marks the object and its neighbours in the graph. */
	arrive(&f, address_of(f.roots[0]) + 16, EBB_ROLE_APP);
	memliner_arrivals(t);
	assert_true(is_marked(&f, f.roots[0]));
	assert_true(is_marked(&f, f.roots[1]));
	assert_int_equal(t->counts.arrived, 1);
	/* Once. */
	arrive(&f, address_of(f.roots[0]), EBB_ROLE_APP);
	memliner_arrivals(t);
	assert_int_equal(t->counts.arrived, 1);
	/* Far from the beginning of a large object. */
	arrive(&f, address_of(f.roots[2]) + 80000, EBB_ROLE_APP);
	arrive(&f, address_of(f.roots[3]) + 700000, EBB_ROLE_APP);
	memliner_arrivals(t);
	assert_true(is_marked(&f, f.roots[2]));
	assert_true(is_marked(&f, f.roots[3]));
	assert_int_equal(t->counts.arrived, 3);
	/* No object: a free slot, and one that is taken and empty. */
	arrive(&f, address_of(f.roots[0]) + RUN_BYTES + 32, EBB_ROLE_APP);
	arrive(&f, address_of(f.roots[1]) + 2 * sizeof(struct node), EBB_ROLE_APP);
	memliner_arrivals(t);
	assert_int_equal(t->counts.arrived, 3);
	marking_forget(&f);
	assert_int_equal(end(&f).arrivals, 7);
}

/* Marking a large object whose first page is out would read it. */
static void what_begins_on_a_page_that_is_out_is_not(void **state)
{
	struct tracer *t;
	struct fixture f;

	begin(&f, "mode=memliner,exact,arrivals,residency=simulated,sizing=fixed");
	t = &f.heap->marker.tracers[0];
	f.roots[0] = ebbgc_alloc_length(f.m, f.refs, 100000);
	page_out(&f, page_at(&f, address_of(f.roots[0])));
	arrive(&f, address_of(f.roots[0]) + 700000, EBB_ROLE_APP);
	memliner_arrivals(t);
	assert_false(is_marked(&f, f.roots[0]));
	arrive(&f, address_of(f.roots[0]), EBB_ROLE_APP);
	memliner_arrivals(t);
	assert_true(is_marked(&f, f.roots[0]));
	marking_forget(&f);
	end(&f);
}

static void parked_work_wakes_at_once(void **state)
{
	uint64_t here, there;
	struct tracer *t;
	struct fixture f;

	begin(&f, "mode=memliner,park,arrivals,residency=simulated,sizing=fixed");
	t = &f.heap->marker.tracers[0];
	here = (uint64_t)(uintptr_t)f.heap->base + HEADER;
	there = here + PAGE_BYTES;
	__atomic_store_n(&f.heap->top, 1, __ATOMIC_RELAXED);
	f.heap->residency.out[0] = 3;
	park_object(t, here + 64);
	park_object(t, there);
	/* No matter which thread brought it in. */
	arrive(&f, here + 2048, EBB_ROLE_GC);
	memliner_arrivals(t);
	assert_int_equal(t->depth, 1);
	assert_int_equal(t->stack[0] & WORK_ADDRESS, here + 64);
	assert_int_equal(f.heap->residency.out[0], 2);
	assert_int_equal(f.heap->park.count, 1);
	arrive(&f, there, EBB_ROLE_APP);
	memliner_arrivals(t);
	assert_int_equal(t->depth, 2);
	assert_int_equal(f.heap->park.count, 0);
	t->depth = 0;
	__atomic_store_n(&f.heap->top, 0, __ATOMIC_RELAXED);
	end(&f);
}

/* Objects with pages of their own; the array's last slot refers to the lowest. */
static void scatter(struct fixture *f, size_t count)
{
	f->roots[0] = ebbgc_alloc_length(f->m, f->refs, count);
	for (size_t i = 0; i < count; i++) {
		ebbgc_ref_t r = ebbgc_alloc_length(f->m, f->leaf, 4064);

		assert_int_equal(address_of(r) % PAGE_BYTES, HEADER);
		ebbgc_store(f->m, f->roots[0], &refs_of(f->roots[0])->slots[count - 1 - i], r);
	}
}

static size_t page_in_slot(const struct fixture *f, size_t slot)
{
	return page_at(f, refs_of(f->roots[0])->slots[slot].bits & EBBGC_ADDRESS_MASK);
}

static void hints_are_what_is_out_and_referred_to(void **state)
{
	struct hints hints = { .count = 0 };
	struct fixture f;
	uint64_t at;

	begin(&f, "mode=memliner,hints,residency=simulated,sizing=fixed");
	assert_true(f.heap->options.features & EBBGC_EXACT);
	scatter(&f, 100);
	at = address_of(f.roots[0]);
	/* Resident pages are not requested. */
	hints_add(f.heap, &hints, at);
	assert_int_equal(hints.count, 0);
	for (size_t i = 10; i < 20; i++)
		page_out(&f, page_in_slot(&f, i));
	/* A word that looks like an address in the heap but is no object's. */
	page_out(&f, page_in_slot(&f, 30));
	refs_of(f.roots[0])->slots[30].bits += 8;
	hints_add(f.heap, &hints, at);
	assert_int_equal(hints.count, 10);
	for (size_t i = 10; i < 20; i++)
		assert_int_equal(hints.pages[19 - i], page_in_slot(&f, i));
	/* Each once. */
	hints_add(f.heap, &hints, at);
	assert_int_equal(hints.count, 10);
	/* A leaf has no references, whatever its bytes are. */
	hints.count = 0;
	memcpy((char *)ebbgc_ptr(refs_of(f.roots[0])->slots[0]) + 8, refs_of(f.roots[0])->slots,
	       200);
	hints_add(f.heap, &hints, refs_of(f.roots[0])->slots[0].bits & EBBGC_ADDRESS_MASK);
	assert_int_equal(hints.count, 0);
	/* Requested pages are in flight: they are not requested again, and need no further read. */
	hints_add(f.heap, &hints, at);
	hints_send(f.heap, &hints);
	assert_int_equal(hints.count, 0);
	for (size_t i = 10; i < 20; i++)
		assert_int_equal(residency_state(&f.heap->residency, page_in_slot(&f, i)),
				 PAGE_CACHED);
	hints_add(f.heap, &hints, at);
	assert_int_equal(hints.count, 0);
	assert_int_equal(stats_of(f.heap).hinted_pages, 10);
	assert_true(stats_of(f.heap).hint_calls >= 1);
	end(&f);
}

static void hints_are_bounded_and_begin_where_it_was_touched(void **state)
{
	struct hints hints = { .count = 0 };
	struct fixture f;
	size_t slot;

	begin(&f, "mode=memliner,hints,residency=simulated,sizing=fixed");
	/* 8000 bytes of a slot of 8 KiB: on two pages. */
	scatter(&f, 1000);
	for (size_t i = 0; i < 1000; i++)
		page_out(&f, page_in_slot(&f, i));
	hints_add(f.heap, &hints, address_of(f.roots[0]));
	assert_int_equal(hints.count, HINT_PAGES);
	/* The upper page holds the later references only. */
	hints.count = 0;
	slot = (PAGE_BYTES - address_of(f.roots[0]) % PAGE_BYTES - sizeof(struct refs)) / 8;
	hints_add(f.heap, &hints, address_of(f.roots[0]) + 8 * slot + 64);
	assert_int_equal(hints.count, HINT_PAGES);
	for (unsigned int i = 0; i < HINT_PAGES; i++)
		assert_int_equal(hints.pages[HINT_PAGES - 1 - i], page_in_slot(&f, slot + i));
	end(&f);
}

/* Free slots may hold anything, for instance dead objects. */
static void the_dead_give_no_hints(void **state)
{
	struct hints hints = { .count = 0 };
	struct fixture f;
	size_t granule, page;

	begin(&f, "mode=memliner,hints,residency=simulated,sizing=fixed");
	f.roots[0] = ebbgc_alloc(f.m, f.node);
	f.roots[1] = ebbgc_alloc_length(f.m, f.leaf, 100000);
	page = page_at(&f, address_of(f.roots[1]));
	ebbgc_store(f.m, f.roots[0], &node_of(f.roots[0])->left, f.roots[1]);
	page_out(&f, page);
	hints_add(f.heap, &hints, address_of(f.roots[0]));
	assert_int_equal(hints.count, 1);
	assert_int_equal(hints.pages[0], page);
	hints.count = 0;
	granule = granule_of(f.heap, address_of(f.roots[0]));
	f.heap->allocated[granule / 64] &= ~(UINT64_C(1) << granule % 64);
	hints_add(f.heap, &hints, address_of(f.roots[0]));
	assert_int_equal(hints.count, 0);
	f.heap->allocated[granule / 64] |= UINT64_C(1) << granule % 64;
	end(&f);
}

/* The collector's thread reads arrivals also between cycles. */
static void hints_are_given_between_cycles(void **state)
{
	struct fixture f;

	begin(&f, "mode=memliner,hints,residency=simulated,sizing=fixed");
	f.roots[0] = ebbgc_alloc(f.m, f.node);
	f.roots[1] = ebbgc_alloc_length(f.m, f.leaf, 100000);
	ebbgc_store(f.m, f.roots[0], &node_of(f.roots[0])->left, f.roots[1]);
	/* The collector began to wait before there was a ring. */
	assert_int_equal(ebbgc_collect(f.m), 0);
	__atomic_store_n(&f.heap->update_at, UINT64_MAX, __ATOMIC_RELAXED);
	page_out(&f, page_at(&f, address_of(f.roots[1])));
	arrive(&f, address_of(f.roots[0]), EBB_ROLE_APP);
	for (int i = 0; i < 60000 && !stats_of(f.heap).hinted_pages; i++)
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
	assert_int_equal(stats_of(f.heap).hinted_pages, 1);
	/* A collector's fault says nothing about the program's next access. */
	page_out(&f, page_at(&f, address_of(f.roots[1])));
	arrive(&f, address_of(f.roots[0]), EBB_ROLE_GC);
	for (int i = 0; i < 60000 && stats_of(f.heap).arrivals < 2; i++)
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
	assert_int_equal(stats_of(f.heap).arrivals, 2);
	assert_int_equal(stats_of(f.heap).hinted_pages, 1);
	end(&f);
}

static void without_ebbd_nothing_arrives(void **state)
{
	struct ebbgc_stats s;
	struct ebbgc_options o;
	ebbgc_heap_t *heap;
	struct fixture f;

	begin(&f, "mode=memliner,park,arrivals,hints");
	share(&f, NULL);
	f.roots[0] = ebbgc_alloc(f.m, f.node);
	assert_int_equal(ebbgc_collect(f.m), 0);
	assert_int_equal(hints_wait(f.heap), 0);
	s = end(&f);
	assert_int_equal(s.arrivals_shared, 0);
	assert_int_equal(s.arrivals + s.arrivals_lost + s.hinted_pages + s.arrived_objects, 0);
	/* Faults of hidden collectors would pass for the program's. */
	ebbgc_options_init(&o);
	assert_int_equal(ebbgc_debug(&o, "mode=memliner,arrivals,incognito"), 0);
	assert_int_equal(ebbgc_heap_create(&o, &heap), -EINVAL);
	ebbgc_options_init(&o);
	assert_int_equal(ebbgc_debug(&o, "mode=memliner,hints,incognito"), 0);
	assert_int_equal(ebbgc_heap_create(&o, &heap), -EINVAL);
}

/* Tracers look up faults without the lock: a region may be on its way to another object. */
static void changing_regions_hold_nothing(void **state)
{
	const uint32_t region = 3;
	struct fixture f;
	uint64_t address;

	begin(&f, "mode=memliner,arrivals");
	address = (uint64_t)(uintptr_t)region_start(f.heap, region) + 64;
	__atomic_store_n(&f.heap->top, 64, __ATOMIC_RELAXED);
	f.heap->kinds[region] = KIND_TAIL;
	/* Regions of a large object, from its first region's past; then another tail. */
	for (uint32_t span = 1; span < UINT32_MAX / 2; span *= 2) {
		f.heap->regions[region].span = span;
		assert_int_equal(object_containing(f.heap, address), 0);
	}
	f.heap->kinds[region] = KIND_FREE;
	__atomic_store_n(&f.heap->top, 0, __ATOMIC_RELAXED);
	end(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(entries_are_encoded),
		cmocka_unit_test(each_is_taken_once_or_lost),
		cmocka_unit_test(changing_regions_hold_nothing),
		cmocka_unit_test(what_was_there_before_is_not_told),
		cmocka_unit_test(what_the_program_faults_on_is_red),
		cmocka_unit_test(what_begins_on_a_page_that_is_out_is_not),
		cmocka_unit_test(parked_work_wakes_at_once),
		cmocka_unit_test(hints_are_what_is_out_and_referred_to),
		cmocka_unit_test(hints_are_bounded_and_begin_where_it_was_touched),
		cmocka_unit_test(the_dead_give_no_hints),
		cmocka_unit_test(hints_are_given_between_cycles),
		cmocka_unit_test(without_ebbd_nothing_arrives),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
