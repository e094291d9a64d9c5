// SPDX-License-Identifier: GPL-2.0-or-later
/* Between cycles the collector updates residency whatever happens to the wall clock. */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "gc_test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STEPS 0		/* they have a function of their own */
#else
#define STEPS 1

/* Sets the clock back by an hour after each read. */
int clock_gettime(clockid_t clock, struct timespec *t)
{
	int r = (int)syscall(SYS_clock_gettime, clock, t);

	if (clock == CLOCK_REALTIME)
		t->tv_sec += 3600;
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
	for (int i = 0; i < 1000 && stats_of(heap).scans < scans + 3; i++)
		usleep(10000);
	assert_true(stats_of(heap).scans >= scans + 3);
	assert_int_equal(stats_of(heap).cycles, 1);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(clock_set_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
