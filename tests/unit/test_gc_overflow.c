// SPDX-License-Identifier: GPL-2.0-or-later
/* Marking without memory for its work: work that fits neither stack nor pool is marked. */
#include "gc_test.h"
#include "mark.h"
#include "mark_phase.h"
#include "object.h"
#include "work_pool.h"

static bool failing;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FAILS 0		/* they have a malloc() of their own */
#else
#define FAILS 1

void *__libc_malloc(size_t size);

/* Refuses chunks of work. */
void *malloc(size_t size)
{
	return failing && size == sizeof(struct chunk) ? NULL : __libc_malloc(size);
}
#endif

#define FILLERS 4200u		/* more than a stack holds */
#define ARRAYS 100u
#define NODES 200u /* of an array; those of one region's arrays are more than a stack holds */

struct world {
	ebbgc_heap_t *heap;
	ebbgc_mutator_t *m;
	ebbgc_type_t node, refs;
};

static struct world world_open(const char *words)
{
	struct ebbgc_options o;
	struct world w;

	ebbgc_options_init(&o);
	assert_int_equal(ebbgc_debug(&o, words), 0);
	/* No cycles but the test's own, on this thread. */
	o.sizing = EBBGC_FIXED;
	o.max_bytes = 64 << 20;
	o.markers = 1;
	assert_int_equal(ebbgc_heap_create(&o, &w.heap), 0);
	assert_int_equal(ebbgc_type_register(w.heap, &node_layout, &w.node), 0);
	assert_int_equal(ebbgc_type_register(w.heap, &refs_layout, &w.refs), 0);
	assert_int_equal(ebbgc_attach(w.heap, &w.m), 0);
	return w;
}

static void world_close(struct world *w)
{
	assert_int_equal(stats_of(w->heap).cycles, 0);
	ebbgc_detach(w->m);
	assert_int_equal(ebbgc_heap_destroy(w->heap), 0);
}

static bool is_marked(const struct world *w, ebbgc_ref_t r)
{
	return bit_test(w->heap->marks, granule_of(w->heap, r.bits & EBBGC_ADDRESS_MASK));
}

static ebbgc_ref_t *slot(ebbgc_ref_t array, size_t i)
{
	return &refs_of(array)->slots[i];
}

/* A thread's log leads to a list, and the pool has no memory for it. */
static void log_without_memory(void **state)
{
	ebbgc_ref_t first, second;
	struct world w;

	if (!FAILS)
		skip();
	w = world_open(*state);
	first = ebbgc_alloc(w.m, w.node);
	second = ebbgc_alloc(w.m, w.node);
	ebbgc_init(&node_of(first)->left, second);
	failing = true;
	work_add_log(w.heap, &first.bits, 1);
	assert_true(w.heap->marker.overflow);
	assert_false(is_marked(&w, second));
	mark_all(w.heap);
	failing = false;
	assert_true(is_marked(&w, first) && is_marked(&w, second));
	assert_false(w.heap->marker.overflow);
	world_close(&w);
}

/*
 * An array of many nodes, and behind them arrays that overflow.  Recovery overflows, too, on the
 * nodes of the arrays.  These lie at lower addresses: only another pass reaches their targets.
 */
static void recovery_without_memory(void **state)
{
	ebbgc_ref_t *nodes, *children, root;
	struct world w;

	if (!FAILS)
		skip();
	w = world_open(*state);
	nodes = calloc(ARRAYS * NODES, sizeof(*nodes));
	children = calloc(ARRAYS * NODES, sizeof(*children));
	for (size_t i = 0; i < ARRAYS * NODES; i++) {
		nodes[i] = ebbgc_alloc(w.m, w.node);
		children[i] = ebbgc_alloc(w.m, w.node);
		ebbgc_init(&node_of(nodes[i])->left, children[i]);
	}
	root = ebbgc_alloc_length(w.m, w.refs, FILLERS + ARRAYS);
	for (size_t i = 0; i < FILLERS; i++)
		ebbgc_init(slot(root, i), ebbgc_alloc(w.m, w.node));
	for (size_t i = 0; i < ARRAYS; i++) {
		ebbgc_ref_t array = ebbgc_alloc_length(w.m, w.refs, NODES);

		ebbgc_init(slot(root, FILLERS + i), array);
		for (size_t j = 0; j < NODES; j++)
			ebbgc_init(slot(array, j), nodes[i * NODES + j]);
	}
	failing = true;
	mark_object(&w.heap->marker.tracers[0], root.bits);
	mark_all(w.heap);
	failing = false;
	for (size_t i = 0; i < ARRAYS * NODES; i++)
		assert_true(is_marked(&w, nodes[i]) && is_marked(&w, children[i]));
	free(nodes);
	free(children);
	world_close(&w);
}

#define MODES(test) \
	{ #test ", as found", test, NULL, NULL, (void *)"mode=concurrent" }, \
	{ #test ", as traced", test, NULL, NULL, (void *)"mode=memliner" }

int main(void)
{
	const struct CMUnitTest tests[] = {
		MODES(log_without_memory),
		MODES(recovery_without_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
