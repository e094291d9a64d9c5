// SPDX-License-Identifier: GPL-2.0-or-later
/* References to objects outside of the heap: the collector ignores them, wherever they are. */
#include <unistd.h>
#include "gc_test.h"
#include "heap.h"

/* Collected objects of a class may share a constant of the program's data. */
static struct node constant = { .value = 42 };

static ebbgc_ref_t outside(void)
{
	return ebbgc_ref(&constant);
}

static void cycle(ebbgc_heap_t *heap, ebbgc_mutator_t *m, ebbgc_ref_t object)
{
	uint64_t before = stats_of(heap).cycles;

	ebbgc_collect_start(m);
	while (stats_of(heap).cycles == before) {
		/* Logs and notes references to it. */
		ebbgc_store(m, object, &node_of(object)->left, outside());
		ebbgc_load(m, outside(), &constant.left);
		ebbgc_load(m, object, &node_of(object)->left);
		ebbgc_copy(m, object, &node_of(object)->right, outside(), &constant.left, 1);
		ebbgc_poll(m);
		usleep(100);
	}
	assert_int_equal(ebbgc_collect(m), 0);
}

static void constants_are_ignored(void **state)
{
	struct ebbgc_layout weak = refs_layout;
	ebbgc_heap_t *heap = checked_heap_with(*state, 16 << 20);
	ebbgc_type_t node, weak_refs;
	ebbgc_ref_t roots[5] = { 0 };
	struct ebbgc_frame frame;
	ebbgc_mutator_t *m;

	weak.flags = EBBGC_WEAK;
	assert_int_equal(ebbgc_type_register(heap, &node_layout, &node), 0);
	assert_int_equal(ebbgc_type_register(heap, &weak, &weak_refs), 0);
	assert_int_equal(ebbgc_attach(heap, &m), 0);
	ebbgc_frame_push(m, &frame, roots, 5);
	roots[0] = outside();
	roots[1] = ebbgc_alloc(m, node);
	ebbgc_store(m, roots[1], &node_of(roots[1])->left, outside());
	roots[2] = ebbgc_weak_new(m, outside());
	roots[3] = ebbgc_alloc_length(m, weak_refs, 1);
	ebbgc_store(m, roots[3], refs_of(roots[3])->slots, outside());
	/* A key that is never collected. */
	roots[4] = ebbgc_ephemeron_new(m, outside(), ebbgc_alloc(m, node));
	for (int i = 0; i < 3; i++)
		cycle(heap, m, roots[1]);
	assert_true(ebbgc_same(ebbgc_load(m, roots[1], &node_of(roots[1])->left), outside()));
	assert_true(ebbgc_same(ebbgc_weak_get(m, roots[2]), outside()));
	assert_true(ebbgc_same(ebbgc_load_weak(m, roots[3], refs_of(roots[3])->slots), outside()));
	assert_true(ebbgc_same(ebbgc_ephemeron_key(m, roots[4]), outside()));
	assert_false(ebbgc_is_null(ebbgc_ephemeron_value(m, roots[4])));
	assert_int_equal(constant.value, 42);
	assert_int_equal(stats_of(heap).check_failures, 0);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		{ "concurrent", constants_are_ignored, NULL, NULL, (void *)"mode=concurrent" },
		{ "stop the world", constants_are_ignored, NULL, NULL, (void *)"mode=stop" },
		{ "stamps", constants_are_ignored, NULL, NULL,
		  (void *)"mode=memliner,residency=simulated,epoch=1,delta=0" },
		{ "parked", constants_are_ignored, NULL, NULL,
		  (void *)"mode=memliner,park,residency=simulated" },
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
