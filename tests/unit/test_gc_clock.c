// SPDX-License-Identifier: GPL-2.0-or-later
/* Clocks: residency whatever happens to the wall clock; a pause that keeps to its budget. */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "gc_test.h"
#include "mark.h"
#include "os.h"
#include "work_pool.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STEPS 0		/* they have a function of their own */
#else
#define STEPS 1

static long ahead;		/* seconds that the monotonic clock is ahead; atomic */

/* Sets the clock back by an hour after each read. */
int clock_gettime(clockid_t clock, struct timespec *t)
{
	int r = (int)syscall(SYS_clock_gettime, clock, t);

	if (clock == CLOCK_REALTIME)
		t->tv_sec += 3600;
	if (clock == CLOCK_MONOTONIC)
		t->tv_sec += __atomic_load_n(&ahead, __ATOMIC_RELAXED);
	return r;
}
#endif

static void clock_set_back(void **state)
{
	ebbgc_heap_t *heap;
	ebbgc_mutator_t *m;
	ebbgc_type_t node;
	uint64_t scans;

	if (!STEPS)
		skip();
	heap = checked_heap_with("mode=memliner", 16 << 20);
	assert_int_equal(ebbgc_type_register(heap, &node_layout, &node), 0);
	assert_int_equal(ebbgc_attach(heap, &m), 0);
	assert_false(ebbgc_is_null(ebbgc_alloc(m, node)));
	assert_int_equal(ebbgc_collect(m), 0);
	/* Without ebbd the heap counts epochs. */
	scans = stats_of(heap).scans;
	for (int i = 0; i < 6000 && stats_of(heap).scans < scans + 3; i++)
		usleep(10000);
	assert_true(stats_of(heap).scans >= scans + 3);
	assert_int_equal(stats_of(heap).cycles, 1);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

#if STEPS
static unsigned int traced;

/* An object on a page that takes a second to read. */
static void trace_slowly(void *object, ebbgc_visit_fn visit, void *arg)
{
	struct node *n = object;

	traced++;
	__atomic_fetch_add(&ahead, 1, __ATOMIC_RELAXED);
	visit(arg, &n->left);
}
#endif

/* Overshoots by one object, not by as many as lie between two reads of the clock. */
static void pause_ends_in_time(void **state)
{
#if STEPS
	const struct ebbgc_layout slow = {
		.name = "slow", .size = sizeof(struct node), .trace = trace_slowly,
	};
	ebbgc_heap_t *heap = checked_heap_with(*state, 16 << 20);
	struct tracer *t = &heap->marker.tracers[0];
	const struct order *order = heap->marker.order;
	ebbgc_ref_t roots[64];
	struct ebbgc_frame frame;
	ebbgc_mutator_t *m;
	ebbgc_type_t type;

	assert_int_equal(ebbgc_type_register(heap, &slow, &type), 0);
	assert_int_equal(ebbgc_attach(heap, &m), 0);
	memset(roots, 0, sizeof(roots));
	ebbgc_frame_push(m, &frame, roots, 64);
	for (int i = 0; i < 64; i++)
		roots[i] = ebbgc_alloc(m, type);
	for (int i = 0; i < 64; i++)
		mark_object(t, roots[i].bits);
	traced = 0;
	assert_false(order->drain(t, os_now() + 500000000));
	assert_int_equal(traced, 1);
	assert_false(order->drain(t, os_now() + 2500000000));
	assert_int_equal(traced, 4);
	/* The rest is not lost. */
	assert_true(order->drain(t, os_now() + UINT64_C(1000000000000)));
	assert_int_equal(traced, 64);
	memset(heap->marks, 0, (size_t)heap->top * REGION_WORDS * 8);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
#else
	skip();
#endif
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(clock_set_back),
		{ "depth first: a pause ends in time", pause_ends_in_time, NULL, NULL,
		  (void *)"mode=concurrent" },
		{ "by address: a pause ends in time", pause_ends_in_time, NULL, NULL,
		  (void *)"mode=concurrent,address" },
		{ "memliner: a pause ends in time", pause_ends_in_time, NULL, NULL,
		  (void *)"mode=memliner,exact,residency=mincore" },
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
