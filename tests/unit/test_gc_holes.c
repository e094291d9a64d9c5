// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Holes between live objects on swapped-out pages: a new object there would cost a read.  The test
 * sets the state of pages.
 */
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "gc_test.h"
#include "heap.h"
#include "object.h"

#define NODES 8192u		/* of 32 bytes, header included: 64 pages in four regions */
#define PER_PAGE (PAGE_BYTES / 32)

struct fixture {
	ebbgc_heap_t *heap;
	ebbgc_mutator_t *m;
	ebbgc_type_t node, refs;
	ebbgc_ref_t roots[3];
	struct ebbgc_frame frame;
};

static size_t emptied;		/* pages, by MADV_DONTNEED; atomic */

int madvise(void *start, size_t bytes, int advice)
{
	if (advice == MADV_DONTNEED)
		__atomic_fetch_add(&emptied, bytes / PAGE_BYTES, __ATOMIC_RELAXED);
	return (int)syscall(SYS_madvise, start, bytes, advice);
}

static long faults;		/* major ones that threads have had; atomic */

/* Each zeroing between two calls waits for a page. */
int getrusage(__rusage_who_t who, struct rusage *usage)
{
	int r = (int)syscall(SYS_getrusage, who, usage);

	if (who == RUSAGE_THREAD)
		usage->ru_majflt = __atomic_fetch_add(&faults, 1, __ATOMIC_RELAXED);
	return r;
}

static void begin(struct fixture *f, const char *options, size_t max)
{
	memset(f, 0, sizeof(*f));
	f->heap = checked_heap_with(options, max);
	/* No scans. */
	pthread_mutex_lock(&f->heap->update_lock);
	__atomic_store_n(&f->heap->residency.scarce, true, __ATOMIC_RELAXED);
	assert_int_equal(ebbgc_type_register(f->heap, &node_layout, &f->node), 0);
	assert_int_equal(ebbgc_type_register(f->heap, &refs_layout, &f->refs), 0);
	assert_int_equal(ebbgc_attach(f->heap, &f->m), 0);
	ebbgc_frame_push(f->m, &f->frame, f->roots, 3);
}

static void end(struct fixture *f)
{
	assert_int_equal(stats_of(f->heap).check_failures, 0);
	pthread_mutex_unlock(&f->heap->update_lock);
	ebbgc_detach(f->m);
	assert_int_equal(ebbgc_heap_destroy(f->heap), 0);
}

static size_t page(const struct fixture *f, ebbgc_ref_t r)
{
	return page_of(f->heap, (uint64_t)(uintptr_t)ebbgc_ptr(r));
}

static void page_out(struct fixture *f, size_t page)
{
	f->heap->residency.out[page / 64] |= UINT64_C(1) << page % 64;
}

static ebbgc_ref_t *slot(const struct fixture *f, size_t i)
{
	return &refs_of(f->roots[0])->slots[i];
}

/* Nodes of which every second one lives and, unless `all`, none of every fourth page. */
static void nodes_with_holes(struct fixture *f, bool all)
{
	f->roots[0] = ebbgc_alloc_length(f->m, f->refs, NODES);
	for (size_t i = 0; i < NODES; i++)
		ebbgc_store(f->m, f->roots[0], slot(f, i), ebbgc_alloc(f->m, f->node));
	for (size_t i = 0; i < NODES; i++)
		if (i % 2 || (!all && page(f, *slot(f, i)) % 4 == 3))
			ebbgc_store(f->m, f->roots[0], slot(f, i), EBBGC_NULL);
	assert_int_equal(ebbgc_collect(f->m), 0);
}

/* Fills all holes on even pages; odd ones are out. */
static void holes_on_swapped_out_pages_stay_free(void **state)
{
	struct fixture f;
	size_t first, last, there = 0;

	begin(&f, *state, 64 << 20);
	nodes_with_holes(&f, true);
	first = page(&f, *slot(&f, 0));
	last = page(&f, *slot(&f, NODES - 2));
	assert_in_range(last - first, NODES / PER_PAGE - 1, NODES / PER_PAGE);
	for (size_t p = first; p <= last; p++)
		if (p % 2)
			page_out(&f, p);
	for (size_t i = 0; i < NODES / 2; i++) {
		size_t p;

		f.roots[1] = ebbgc_alloc(f.m, f.node);
		p = page(&f, f.roots[1]);
		assert_int_equal(node_of(f.roots[1])->value, 0);
		if (p >= first && p <= last) {
			assert_int_equal(p % 2, 0);
			there++;
		}
	}
	assert_in_range(there, NODES / 4 - PER_PAGE, NODES / 4 + PER_PAGE);
	/* Their pages come in: they are free again after the next cycle. */
	memset(f.heap->residency.out, 0, f.heap->bytes / PAGE_BYTES / 8);
	assert_int_equal(ebbgc_collect(f.m), 0);
	there = 0;
	for (size_t i = 0; i < NODES; i++) {
		size_t p = page(&f, ebbgc_alloc(f.m, f.node));

		there += p >= first && p <= last && p % 2;
	}
	assert_in_range(there, NODES / 4 - PER_PAGE, NODES / 4 + PER_PAGE);
	end(&f);
}

/* A swapped-out page without any object is emptied, not read. */
static void empty_pages_are_not_read(void **state)
{
	struct fixture f;
	size_t first, last, before, there = 0;

	begin(&f, *state, 64 << 20);
	nodes_with_holes(&f, false);
	first = page(&f, *slot(&f, 0));
	last = first + NODES / PER_PAGE - 2;
	for (size_t p = first; p <= last; p++)
		page_out(&f, p);
	before = __atomic_load_n(&emptied, __ATOMIC_RELAXED);
	for (size_t i = 0; i < NODES; i++) {
		size_t p;

		f.roots[1] = ebbgc_alloc(f.m, f.node);
		p = page(&f, f.roots[1]);
		/* The checking mode has overwritten what was there. */
		assert_true(ebbgc_is_null(node_of(f.roots[1])->left));
		assert_int_equal(node_of(f.roots[1])->value, 0);
		if (p >= first && p <= last) {
			assert_int_equal(p % 4, 3);
			assert_int_equal(residency_state(&f.heap->residency, p), PAGE_RESIDENT);
			there++;
		}
	}
	assert_true(there >= NODES / 4 - 2 * PER_PAGE);
	assert_in_range(__atomic_load_n(&emptied, __ATOMIC_RELAXED) - before, there / PER_PAGE,
			there / PER_PAGE + 2);
	end(&f);
}

/* Where nothing lives any more, swapped-out regions are emptied, and others come first. */
static void free_regions_are_not_read(void **state)
{
	const size_t length = 4 * REGION_SIZE / 8, out = 3 * REGION_SIZE / PAGE_BYTES;
	size_t first, before;
	struct fixture f;

	begin(&f, *state, 64 << 20);
	first = page(&f, ebbgc_alloc_length(f.m, f.refs, length));
	assert_int_equal(ebbgc_collect(f.m), 0);
	for (size_t p = first; p < first + out; p++)
		page_out(&f, p);
	before = __atomic_load_n(&emptied, __ATOMIC_RELAXED);
	f.roots[1] = ebbgc_alloc_length(f.m, f.refs, length);
	assert_int_equal(page(&f, f.roots[1]), first);
	assert_int_equal(__atomic_load_n(&emptied, __ATOMIC_RELAXED) - before, out);
	for (size_t i = 0; i < length; i++)
		assert_true(ebbgc_is_null(refs_of(f.roots[1])->slots[i]));
	f.roots[1] = EBBGC_NULL;
	assert_int_equal(ebbgc_collect(f.m), 0);
	for (size_t p = first; p < first + out; p++)
		page_out(&f, p);
	assert_int_equal(page(&f, ebbgc_alloc(f.m, f.node)), first + out);
	end(&f);
}

/* When there is nothing else, such a hole is better than none. */
static void full_heaps_use_all_holes(void **state)
{
	struct fixture f;
	size_t n = 0;

	begin(&f, *state, 1 << 20);
	nodes_with_holes(&f, true);
	f.roots[1] = ebbgc_alloc_length(f.m, f.refs, (512 << 10) / 8);
	assert_false(ebbgc_is_null(f.roots[1]));
	for (size_t p = 0; p < f.heap->bytes / PAGE_BYTES; p++)
		page_out(&f, p);
	for (;; n++) {
		ebbgc_ref_t r = ebbgc_alloc(f.m, f.node);

		if (ebbgc_is_null(r))
			break;
		ebbgc_store(f.m, r, &node_of(r)->left, f.roots[2]);
		f.roots[2] = r;
	}
	/* Holes in four regions, and the rest of a heap of sixteen. */
	assert_true(n >= NODES / 2);
	end(&f);
}

/* A thread takes 8 KiB at a time; a large object at once. */
static void faults_of_allocation_are_counted(void **state)
{
	struct fixture f;

	begin(&f, *state, 64 << 20);
	f.roots[0] = ebbgc_alloc_length(f.m, f.refs, NODES);
	assert_true(stats_of(f.heap).allocation_faults <= 1);
	for (size_t i = 0; i < NODES; i++)
		ebbgc_store(f.m, f.roots[0], slot(&f, i), ebbgc_alloc(f.m, f.node));
	if (strstr(*state, "count"))
		assert_in_range(stats_of(f.heap).allocation_faults, NODES * 32 / RUN_BYTES,
				NODES * 32 / RUN_BYTES + 8);
	else
		assert_int_equal(__atomic_load_n(&faults, __ATOMIC_RELAXED), 0);
	end(&f);
}

#define IN(mode, test) \
	{ #test ", " mode, test, NULL, NULL, (void *)(mode ",exact,residency=simulated") }

int main(void)
{
	const struct CMUnitTest tests[] = {
		{ "nothing is counted", faults_of_allocation_are_counted, NULL, NULL,
		  (void *)"mode=memliner,exact,residency=simulated" },
		{ "faults of allocation are counted", faults_of_allocation_are_counted, NULL, NULL,
		  (void *)"mode=memliner,exact,residency=simulated,count" },
		IN("mode=memliner", holes_on_swapped_out_pages_stay_free),
		IN("mode=concurrent", holes_on_swapped_out_pages_stay_free),
		IN("mode=stop", holes_on_swapped_out_pages_stay_free),
		IN("mode=memliner", empty_pages_are_not_read),
		IN("mode=concurrent", empty_pages_are_not_read),
		IN("mode=memliner", free_regions_are_not_read),
		IN("mode=concurrent", free_regions_are_not_read),
		IN("mode=memliner,sizing=fixed,overcommit", full_heaps_use_all_holes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
