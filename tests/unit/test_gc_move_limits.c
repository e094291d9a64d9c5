// SPDX-License-Identifier: GPL-2.0-or-later
/* Objects that move at the limits: heaps that are nearly full, pinned regions, fork() meanwhile. */
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "gc_test.h"
#include "forward.h"
#include "region.h"

#define SLOTS (REGION_SIZE / 32)	/* nodes in a region */
#define REGIONS 64u			/* of a small heap */

struct world {
	ebbgc_heap_t *heap;
	ebbgc_mutator_t *m;
	ebbgc_type_t node, fixed;
	struct ebbgc_frame frame;
	ebbgc_ref_t roots[2];		/* the head of a list, and an array */
};

static ebbgc_type_t type_new(struct world *w, struct ebbgc_layout layout, uint32_t flags)
{
	ebbgc_type_t type = 0;

	layout.flags |= flags;
	assert_int_equal(ebbgc_type_register(w->heap, &layout, &type), 0);
	return type;
}

static void world_open_heap(struct world *w, ebbgc_heap_t *heap)
{
	*w = (struct world){ .heap = heap };
	w->node = type_new(w, node_layout, EBBGC_MOVABLE);
	w->fixed = type_new(w, refs_layout, 0);
	assert_int_equal(ebbgc_attach(w->heap, &w->m), 0);
	ebbgc_frame_push(w->m, &w->frame, w->roots, 2);
}

/* Without checking mode, in which all that may move does, and without cycles unless it is full. */
static void world_open(struct world *w, size_t max)
{
	struct ebbgc_options o;
	ebbgc_heap_t *heap;

	ebbgc_options_init(&o);
	o.max_bytes = max;
	assert_int_equal(ebbgc_heap_create(&o, &heap), 0);
	world_open_heap(w, heap);
	ebbgc_cycles_suspend(w->m);
}

static void world_close(struct world *w)
{
	assert_int_equal(stats_of(w->heap).check_failures, 0);
	ebbgc_detach(w->m);
	assert_int_equal(ebbgc_heap_destroy(w->heap), 0);
}

static ebbgc_ref_t node_new(struct world *w, uint64_t value)
{
	ebbgc_ref_t r = ebbgc_alloc(w->m, w->node);

	assert_false(ebbgc_is_null(r));
	node_of(r)->value = value;
	return r;
}

/* Prepends nodes to the list in roots[0]; the first has the least value. */
static void list_grow(struct world *w, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		ebbgc_ref_t r = node_new(w, count - 1 - i);

		ebbgc_init(&node_of(r)->left, w->roots[0]);
		w->roots[0] = r;
	}
}

static ebbgc_ref_t next(struct world *w, ebbgc_ref_t r)
{
	return ebbgc_load(w->m, r, &node_of(r)->left);
}

/* Keeps one node of @every in the list. */
static void list_thin(struct world *w, unsigned int every)
{
	for (ebbgc_ref_t r = w->roots[0]; !ebbgc_is_null(r); r = next(w, r)) {
		ebbgc_ref_t last = next(w, r);

		for (unsigned int i = 1; i < every && !ebbgc_is_null(last); i++)
			last = next(w, last);
		ebbgc_store(w->m, r, &node_of(r)->left, last);
	}
}

static void list_check(struct world *w, size_t count, unsigned int every)
{
	size_t found = 0;

	for (ebbgc_ref_t r = w->roots[0]; !ebbgc_is_null(r); r = next(w, r))
		assert_int_equal(node_of(r)->value, every * found++);
	assert_int_equal(found, (count + every - 1) / every);
}

static void collect(struct world *w)
{
	assert_int_equal(ebbgc_collect(w->m), 0);
}

/* Regions that cannot be emptied, as all in them is pinned, must serve allocation. */
static void pinned_regions_are_used(void **state)
{
	ebbgc_handle_t *handles[2 * REGIONS];
	const size_t regions = 40, count = regions * SLOTS;
	size_t pins = 0, i = 0;
	struct world w;
	uint64_t bytes;

	world_open(&w, 64 << 20);
	list_grow(&w, count);
	for (ebbgc_ref_t r = w.roots[0]; !ebbgc_is_null(r); r = next(&w, r))
		if (i++ % (SLOTS / 2) == 0)
			handles[pins++] = ebbgc_handle_new(w.m, r);
	w.roots[0] = EBBGC_NULL;
	for (i = 0; i < pins; i++)
		ebbgc_store(w.m, ebbgc_handle_get(handles[i]),
			    &node_of(ebbgc_handle_get(handles[i]))->left, EBBGC_NULL);
	collect(&w);
	bytes = stats_of(w.heap).heap_bytes;
	assert_int_equal(stats_of(w.heap).moved_objects, 0);
	assert_int_equal(stats_of(w.heap).pinned_objects, pins);
	/* No slot names where an object was, so that no load need look. */
	assert_int_equal(w.m->flags, 0);
	list_grow(&w, count / 2);
	assert_true(stats_of(w.heap).heap_bytes <= bytes + 2 * REGION_SIZE);
	list_check(&w, count / 2, 1);
	for (i = 0; i < pins; i++)
		ebbgc_handle_free(w.m, handles[i]);
	world_close(&w);
}

/* A region with a pinned object and others is emptied but for that, and is used in time. */
static void some_are_pinned(void **state)
{
	const size_t count = 20 * SLOTS;
	ebbgc_handle_t *handle;
	struct world w;
	ebbgc_ref_t r;

	world_open(&w, 64 << 20);
	list_grow(&w, count);
	list_thin(&w, 8);
	r = next(&w, w.roots[0]);
	handle = ebbgc_handle_new(w.m, r);
	collect(&w);
	assert_true(ebbgc_same(ebbgc_handle_get(handle), r));
	assert_int_equal(forward(w.heap, r.bits & EBBGC_ADDRESS_MASK), r.bits & EBBGC_ADDRESS_MASK);
	assert_true(stats_of(w.heap).moved_objects > count / 8 - count / 64);
	list_check(&w, count, 8);
	collect(&w);
	assert_true(stats_of(w.heap).heap_bytes < 10 * REGION_SIZE);
	list_check(&w, count, 8);
	ebbgc_handle_free(w.m, handle);
	world_close(&w);
}

/* As objects move, their old regions stay taken, and new ones break up the free ones. */
static void large_objects_come_first(void **state)
{
	const size_t sparse = 24, garbage = 30, large = REGIONS - sparse - 1;
	struct world w;

	world_open(&w, REGIONS * REGION_SIZE);
	list_grow(&w, sparse * SLOTS);
	list_thin(&w, 8);
	for (size_t i = 0; i < garbage * SLOTS; i++)
		node_new(&w, i);
	assert_int_equal(stats_of(w.heap).cycles, 0);
	w.roots[1] = ebbgc_alloc_length(w.m, w.fixed, large * REGION_SIZE / 8 - 2);
	assert_false(ebbgc_is_null(w.roots[1]));
	assert_int_equal(stats_of(w.heap).full_cycles, 1);
	list_check(&w, sparse * SLOTS, 8);
	/* What waits no more does not keep others from moving. */
	w.roots[1] = EBBGC_NULL;
	collect(&w);
	assert_true(stats_of(w.heap).moved_objects > 0);
	list_check(&w, sparse * SLOTS, 8);
	world_close(&w);
}

/* Where not all that is sparse fits in what may be taken, some of it moves, and then the rest. */
static void little_room_is_used(void **state)
{
	const size_t sparse = 50;
	struct world w;
	uint64_t moved;

	world_open(&w, REGIONS * REGION_SIZE);
	list_grow(&w, sparse * SLOTS);
	list_thin(&w, 3);
	collect(&w);
	moved = stats_of(w.heap).moved_objects;
	assert_in_range(moved, 2 * SLOTS, 4 * SLOTS);
	list_check(&w, sparse * SLOTS, 3);
	for (int i = 0; i < 8; i++)
		collect(&w);
	assert_true(stats_of(w.heap).moved_objects > sparse * SLOTS / 3 - 2 * SLOTS);
	assert_true(stats_of(w.heap).heap_bytes < (sparse / 3 + 8) * REGION_SIZE);
	list_check(&w, sparse * SLOTS, 3);
	world_close(&w);
}

/*
 * Old regions hold memory until the next cycle: in a heap that cannot grow, it must begin so much
 * earlier, or the heap is full before, and all threads stop for a full collection.
 */
static void cycles_come_earlier(void **state)
{
	const size_t sparse = 45;
	struct ebbgc_options o;
	ebbgc_heap_t *heap;
	struct world w;

	ebbgc_options_init(&o);
	o.sizing = EBBGC_FIXED;
	o.max_bytes = REGIONS * REGION_SIZE;
	assert_int_equal(ebbgc_heap_create(&o, &heap), 0);
	world_open_heap(&w, heap);
	ebbgc_cycles_suspend(w.m);
	list_grow(&w, sparse * SLOTS);
	list_thin(&w, 8);
	ebbgc_cycles_resume(w.m);
	ebbgc_collect_start(w.m);
	cycle_ends(w.heap, w.m);
	assert_int_equal(stats_of(w.heap).cycles, 1);
	assert_true(stats_of(w.heap).moved_objects > 3 * SLOTS);
	/* When a cycle begins is asserted, not how much is allocated until its end. */
	for (size_t i = 0; i < 2 * REGIONS * SLOTS; i++) {
		node_new(&w, i);
		cycle_ends(w.heap, w.m);
	}
	assert_true(stats_of(w.heap).cycles > 2);
	assert_int_equal(stats_of(w.heap).full_cycles, 0);
	list_check(&w, sparse * SLOTS, 8);
	world_close(&w);
}

/* Free regions whose pages are swapped out, or dropped, are not read for new copies. */
static void targets_are_not_read(void **state)
{
	const size_t sparse = 8, count = sparse * SLOTS;
	size_t in = 0, pages;
	struct world w;
	uint32_t target;

	world_open(&w, 64 << 20);
	/* Free regions that were used before. */
	for (size_t i = 0; i < 2 * count; i++)
		node_new(&w, i);
	collect(&w);
	list_grow(&w, count);
	list_thin(&w, 64);
	for (uint32_t r = 0; r < w.heap->top; r++)
		if (w.heap->kinds[r] == KIND_FREE)
			assert_int_equal(madvise(region_start(w.heap, r), REGION_SIZE,
						 MADV_DONTNEED), 0);
	collect(&w);
	assert_true(stats_of(w.heap).moved_objects > 0);
	target = region_of(w.heap, next(&w, w.roots[0]).bits & EBBGC_ADDRESS_MASK);
	pages = residency_pages(region_start(w.heap, target), REGION_PAGES);
	for (; pages; pages &= pages - 1)
		in++;
	assert_in_range(in, 1, count / 64 * 32 / PAGE_BYTES + 1);
	list_check(&w, count, 64);
	world_close(&w);
}

/* --- fork() between a move and the flags that tell of it --------------------------------- */

enum stage { WAITING, MOVED, FORKED };

struct between {
	struct world *w;
	ebbgc_mutator_t *forker;
	enum stage stage;		/* atomic */
	int status;
};

/* Checking mode calls it as objects have moved, and threads do not know yet. */
static void between(void *arg, struct ebbgc_edges *edges)
{
	struct between *b = arg;

	if (!b->w->heap->moving.active || ebbgc_flags(b->forker) & EBBGC_MOVED ||
	    __atomic_load_n(&b->stage, __ATOMIC_ACQUIRE) != WAITING)
		return;
	__atomic_store_n(&b->stage, MOVED, __ATOMIC_RELEASE);
	while (__atomic_load_n(&b->stage, __ATOMIC_ACQUIRE) != FORKED)
		usleep(100);
}

static int in_the_child(struct world *w, ebbgc_mutator_t *m, ebbgc_ref_t array)
{
	ebbgc_ref_t *slots = refs_of(array)->slots, one, other, expected;

	alarm(60);
	one = expected = ebbgc_load(m, array, &slots[0]);
	other = ebbgc_load(m, array, &slots[1]);
	if (node_of(one)->value != 0 || node_of(other)->value != 1)
		return 2;
	/* An exchange takes the slow path, because of the nursery. */
	if (!ebbgc_cas(m, array, &slots[0], &expected, other))
		return 3;
	if (!ebbgc_same(ebbgc_load(m, array, &slots[0]), other))
		return 4;
	expected = EBBGC_NULL;
	if (ebbgc_cas(m, array, &slots[1], &expected, one) || !ebbgc_same(expected, other))
		return 5;
	return ebbgc_heap_destroy(w->heap) ? 6 : 1;
}

static void *forker(void *arg)
{
	struct between *b = arg;
	struct ebbgc_frame frame;
	ebbgc_mutator_t *m;
	ebbgc_ref_t array;
	pid_t pid;

	assert_int_equal(ebbgc_attach(b->w->heap, &m), 0);
	array = b->w->roots[1];
	ebbgc_frame_push(m, &frame, &array, 1);
	assert_int_equal(ebbgc_blocked_begin(m), 0);
	__atomic_store_n(&b->forker, m, __ATOMIC_RELEASE);
	while (__atomic_load_n(&b->stage, __ATOMIC_ACQUIRE) != MOVED)
		usleep(100);
	pid = fork();
	if (!pid) {
		ebbgc_blocked_end(m);
		_exit(in_the_child(b->w, m, array));
	}
	waitpid(pid, &b->status, 0);
	__atomic_store_n(&b->stage, FORKED, __ATOMIC_RELEASE);
	ebbgc_blocked_end(m);
	ebbgc_frame_pop(m, &frame);
	ebbgc_detach(m);
	return NULL;
}

static void forks_see_one_copy(void **state)
{
	struct between b = { .stage = WAITING };
	pthread_t thread;
	struct world w;

	if (!FORKS)
		skip();
	world_open_heap(&w, checked_heap_with("mode=concurrent,nursery=64K", 64 << 20));
	b.w = &w;
	w.roots[1] = ebbgc_alloc_length(w.m, w.fixed, 2);
	for (size_t i = 0; i < 2; i++)
		ebbgc_store(w.m, w.roots[1], &refs_of(w.roots[1])->slots[i], node_new(&w, i));
	assert_int_equal(pthread_create(&thread, NULL, forker, &b), 0);
	while (!__atomic_load_n(&b.forker, __ATOMIC_ACQUIRE))
		ebbgc_poll(w.m);
	assert_int_equal(ebbgc_roots_call(w.m, between, &b), 0);
	collect(&w);
	assert_int_equal(ebbgc_blocked_begin(w.m), 0);
	pthread_join(thread, NULL);
	ebbgc_blocked_end(w.m);
	assert_true(WIFEXITED(b.status));
	assert_int_equal(WEXITSTATUS(b.status), 1);
	assert_int_equal(ebbgc_roots_call_end(w.m, between, &b), 0);
	world_close(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pinned_regions_are_used),
		cmocka_unit_test(some_are_pinned),
		cmocka_unit_test(large_objects_come_first),
		cmocka_unit_test(little_room_is_used),
		cmocka_unit_test(cycles_come_earlier),
		cmocka_unit_test(targets_are_not_read),
		cmocka_unit_test(forks_see_one_copy),
	};

	/* Pages are counted. */
	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	/* Some tests wait for a cycle. */
	alarm(300);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
