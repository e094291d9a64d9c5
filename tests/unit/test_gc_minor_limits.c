// SPDX-License-Identifier: GPL-2.0-or-later
/* Minor cycles that give up: too much survives, or tracing it takes too long. */
#include <unistd.h>
#include "gc_test.h"
#include "object.h"

#define NURSERY ((uint64_t)1 << 20)
#define NODE 32			/* bytes, with its header */

struct world {
	ebbgc_heap_t *heap;
	ebbgc_mutator_t *m;
	ebbgc_type_t node;
	struct ebbgc_frame frame;
	ebbgc_ref_t list;
	uint64_t made;
};

static void world_open(struct world *w, uint64_t pause_budget_ns)
{
	struct ebbgc_options o;

	*w = (struct world){ 0 };
	ebbgc_options_init(&o);
	assert_int_equal(ebbgc_debug(&o, "mode=concurrent,check"), 0);
	o.max_bytes = 64 << 20;
	o.nursery_bytes = NURSERY;
	o.pause_budget_ns = pause_budget_ns;
	assert_int_equal(ebbgc_heap_create(&o, &w->heap), 0);
	assert_int_equal(ebbgc_type_register(w->heap, &node_layout, &w->node), 0);
	assert_int_equal(ebbgc_attach(w->heap, &w->m), 0);
	ebbgc_frame_push(w->m, &w->frame, &w->list, 1);
}

/* Checks the list, too. */
static struct ebbgc_stats world_close(struct world *w)
{
	struct ebbgc_stats s = stats_of(w->heap);
	uint64_t value = UINT64_MAX;

	assert_int_equal(s.check_failures, 0);
	for (ebbgc_ref_t r = w->list; !ebbgc_is_null(r);
	     r = ebbgc_load(w->m, r, &node_of(r)->left)) {
		assert_true(node_of(r)->value < value);
		value = node_of(r)->value;
	}
	ebbgc_detach(w->m);
	assert_int_equal(ebbgc_heap_destroy(w->heap), 0);
	return s;
}

/* Allocates until so many more minor cycles have ended; one node in @every stays. */
static void run(struct world *w, unsigned int cycles, unsigned int every)
{
	uint64_t end = stats_of(w->heap).minor_cycles + cycles;

	while (stats_of(w->heap).minor_cycles < end) {
		for (int i = 0; i < 100; i++) {
			ebbgc_ref_t r = ebbgc_alloc(w->m, w->node);

			assert_false(ebbgc_is_null(r));
			node_of(r)->value = w->made++;
			if (w->made % every)
				continue;
			ebbgc_init(&node_of(r)->left, w->list);
			w->list = r;
		}
	}
}

/*
 * Where all survives, a minor cycle traces half of it before it keeps the rest untraced; then the
 * next ones trace nothing.
 */
static void gives_up_where_most_survives(void **state)
{
	struct ebbgc_stats s;
	struct world w;

	world_open(&w, UINT64_MAX);
	run(&w, 1, 1);
	s = stats_of(w.heap);
	assert_int_equal(s.minor_kept, 1);
	assert_in_range(s.promoted_bytes, NURSERY / 4, w.made * NODE / 2 + NODE);
	assert_int_equal(s.promoted_objects, s.promoted_bytes / NODE);
	assert_int_equal(w.heap->nursery.skip, 1);
	run(&w, 1, 1);
	assert_int_equal(stats_of(w.heap).minor_kept, 2);
	assert_int_equal(stats_of(w.heap).promoted_bytes, s.promoted_bytes);
	s = world_close(&w);
	assert_true(s.reclaimed_bytes < NURSERY / 4);
}

/* Where little survives, none gives up, and most is freed. */
static void traces_what_survives(void **state)
{
	struct ebbgc_stats s;
	struct world w;

	world_open(&w, UINT64_MAX);
	run(&w, 8, 8);
	s = world_close(&w);
	assert_int_equal(s.minor_kept, 0);
	assert_true(s.reclaimed_bytes > 6 * NURSERY / 8 * 7);
}

/* As above, but without time for it. */
static void gives_up_after_a_while(void **state)
{
	struct ebbgc_stats s;
	struct world w;

	world_open(&w, 0);
	run(&w, 1, 8);
	s = stats_of(w.heap);
	assert_int_equal(s.minor_kept, 1);
	assert_true(s.promoted_objects < 1000);
	assert_int_equal(w.heap->nursery.skip, 1);
	world_close(&w);
}

/* What is remembered may be swapped out: the clock is read more often. */
static void remembered_objects_take_time(void **state)
{
	struct ebbgc_stats before, s;
	struct world w;

	world_open(&w, 0);
	run(&w, 1, 8);
	/* All in the list are old. */
	assert_int_equal(ebbgc_collect(w.m), 0);
	assert_int_equal(ebbgc_collect(w.m), 0);
	w.heap->nursery.skip = w.heap->nursery.skips = 0;
	/* The barrier is set as the world resumes. */
	assert_int_equal(ebbgc_collect(w.m), 0);
	before = stats_of(w.heap);
	for (ebbgc_ref_t r = w.list; !ebbgc_is_null(r);
	     r = ebbgc_load(w.m, r, &node_of(r)->left)) {
		ebbgc_ref_t young = ebbgc_alloc(w.m, w.node);

		node_of(young)->value = w.made++;
		ebbgc_store(w.m, r, &node_of(r)->right, young);
	}
	run(&w, 1, 1000000);
	s = stats_of(w.heap);
	assert_true(s.remembered - before.remembered > 1000);
	assert_int_equal(s.promoted_objects - before.promoted_objects, 15);
	world_close(&w);
}

static uint64_t called;

static void finalizer(ebbgc_mutator_t *m, ebbgc_ref_t object, void *data)
{
	called += node_of(object)->value;
}

/*
 * A minor cycle looks at the finalizers of new objects only: others cannot have died.  If it looked
 * at another's, it would find the one here, whose object is exchanged for a dead one.
 */
static void old_objects_finalizers_are_not_examined(void **state)
{
	struct finalizer *first;
	struct world w;

	world_open(&w, UINT64_MAX);
	called = 0;
	w.list = ebbgc_alloc(w.m, w.node);
	assert_int_equal(ebbgc_finalizer_add(w.m, w.list, finalizer, NULL), 0);
	run(&w, 1, UINT32_MAX);
	first = &w.heap->finalizers.items[0];
	assert_int_equal(first->object, w.list.bits & EBBGC_ADDRESS_MASK);
	first->object = ebbgc_alloc(w.m, w.node).bits & EBBGC_ADDRESS_MASK;
	for (uint64_t i = 0; i < 2; i++) {
		ebbgc_ref_t r = ebbgc_alloc(w.m, w.node);

		node_of(r)->value = 1 + i;
		assert_int_equal(ebbgc_finalizer_add(w.m, r, finalizer, NULL), 0);
	}
	run(&w, 1, UINT32_MAX);
	first->object = w.list.bits & EBBGC_ADDRESS_MASK;
	assert_int_equal(ebbgc_finalizers_run(w.m, 10), 2);
	assert_int_equal(called, 1 + 2);
	/* A cycle finds those that died old. */
	w.list = EBBGC_NULL;
	assert_int_equal(ebbgc_collect(w.m), 0);
	assert_int_equal(ebbgc_finalizers_run(w.m, 10), 1);
	assert_int_equal(w.heap->finalizers.old, 0);
	world_close(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gives_up_where_most_survives),
		cmocka_unit_test(traces_what_survives),
		cmocka_unit_test(gives_up_after_a_while),
		cmocka_unit_test(remembered_objects_take_time),
		cmocka_unit_test(old_objects_finalizers_are_not_examined),
	};

	alarm(200);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
