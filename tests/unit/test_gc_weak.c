// SPDX-License-Identifier: GPL-2.0-or-later
/* Weak references, weak arrays, ephemerons and finalizers, in both modes. */
#include <unistd.h>
#include "gc_test.h"

struct world {
	ebbgc_heap_t *heap;
	ebbgc_mutator_t *m;
	ebbgc_type_t node, weak_refs;
	struct ebbgc_frame frame;
	ebbgc_ref_t roots[8];
};

static void world_open(struct world *w, enum ebbgc_mode mode)
{
	struct ebbgc_layout weak = refs_layout;

	weak.flags = EBBGC_WEAK;
	*w = (struct world){ .heap = checked_heap(mode, 64 << 20) };
	assert_int_equal(ebbgc_type_register(w->heap, &node_layout, &w->node), 0);
	assert_int_equal(ebbgc_type_register(w->heap, &weak, &w->weak_refs), 0);
	assert_int_equal(ebbgc_attach(w->heap, &w->m), 0);
	ebbgc_frame_push(w->m, &w->frame, w->roots, 8);
}

static void world_close(struct world *w)
{
	assert_int_equal(stats_of(w->heap).check_failures, 0);
	ebbgc_detach(w->m);
	assert_int_equal(ebbgc_heap_destroy(w->heap), 0);
}

/* One cycle in the heap's own mode, waited for. */
static void cycle(struct world *w)
{
	uint64_t before = stats_of(w->heap).cycles;

	ebbgc_collect_start(w->m);
	while (stats_of(w->heap).cycles == before) {
		ebbgc_poll(w->m);
		usleep(100);
	}
}

static void weak_references(void **state)
{
	for (int mode = 0; mode < 2; mode++) {
		struct world w;
		struct refs *array;

		world_open(&w, (enum ebbgc_mode)mode);
		w.roots[0] = ebbgc_alloc(w.m, w.node);
		w.roots[1] = ebbgc_weak_new(w.m, w.roots[0]);
		w.roots[2] = ebbgc_alloc_length(w.m, w.weak_refs, 3);
		array = refs_of(w.roots[2]);
		ebbgc_store(w.m, w.roots[2], &array->slots[0], w.roots[0]);
		ebbgc_store(w.m, w.roots[2], &array->slots[2], ebbgc_alloc(w.m, w.node));
		cycle(&w);
		assert_true(ebbgc_same(ebbgc_weak_get(w.m, w.roots[1]), w.roots[0]));
		assert_true(ebbgc_same(ebbgc_load_weak(w.m, w.roots[2], &array->slots[0]), w.roots[0]));
		assert_true(ebbgc_is_null(ebbgc_load_weak(w.m, w.roots[2], &array->slots[2])));
		w.roots[0] = EBBGC_NULL;
		ebbgc_collect(w.m);
		assert_true(ebbgc_is_null(ebbgc_weak_get(w.m, w.roots[1])));
		assert_true(ebbgc_is_null(ebbgc_load_weak(w.m, w.roots[2], &array->slots[0])));
		assert_int_equal(stats_of(w.heap).weak_cleared, 3);
		world_close(&w);
	}
}

/* value -> key must not keep the key; a chain of them goes link by link with its first key. */
static void ephemerons(void **state)
{
	for (int mode = 0; mode < 2; mode++) {
		struct world w;

		world_open(&w, (enum ebbgc_mode)mode);
		w.roots[0] = ebbgc_alloc(w.m, w.node);
		w.roots[1] = ebbgc_alloc(w.m, w.node);
		ebbgc_store(w.m, w.roots[1], &node_of(w.roots[1])->left, w.roots[0]);
		w.roots[2] = ebbgc_ephemeron_new(w.m, w.roots[0], w.roots[1]);
		w.roots[4] = ebbgc_alloc(w.m, w.node);
		node_of(w.roots[4])->value = 42;
		w.roots[3] = ebbgc_ephemeron_new(w.m, w.roots[1], w.roots[4]);
		w.roots[1] = w.roots[4] = EBBGC_NULL;
		cycle(&w);
		assert_true(ebbgc_same(ebbgc_ephemeron_key(w.m, w.roots[2]), w.roots[0]));
		assert_false(ebbgc_is_null(ebbgc_ephemeron_value(w.m, w.roots[2])));
		assert_int_equal(node_of(ebbgc_ephemeron_value(w.m, w.roots[3]))->value, 42);
		w.roots[0] = EBBGC_NULL;
		ebbgc_collect(w.m);
		for (int i = 2; i < 4; i++) {
			assert_true(ebbgc_is_null(ebbgc_ephemeron_key(w.m, w.roots[i])));
			assert_true(ebbgc_is_null(ebbgc_ephemeron_value(w.m, w.roots[i])));
		}
		assert_int_equal(stats_of(w.heap).ephemerons_cleared, 2);
		world_close(&w);
	}
}

/* Without a key nothing keeps a value, so there is none. */
static void ephemeron_without_key(void **state)
{
	struct world w;

	world_open(&w, EBBGC_CONCURRENT);
	w.roots[0] = ebbgc_alloc(w.m, w.node);
	w.roots[1] = ebbgc_ephemeron_new(w.m, EBBGC_NULL, w.roots[0]);
	assert_true(ebbgc_is_null(ebbgc_ephemeron_value(w.m, w.roots[1])));
	w.roots[0] = EBBGC_NULL;
	ebbgc_collect(w.m);
	world_close(&w);
}

struct log {
	uint64_t values[8];
	size_t count;
	ebbgc_handle_t *revived;
};

static void finalizer(ebbgc_mutator_t *m, ebbgc_ref_t object, void *data)
{
	struct log *log = data;
	ebbgc_ref_t child = ebbgc_load(m, object, &node_of(object)->left);

	/* What the object leads to is as it was. */
	log->values[log->count++] = node_of(object)->value + (ebbgc_is_null(child) ? 0 :
				    100 * node_of(child)->value);
	if (log->revived)
		ebbgc_handle_set(log->revived, object);
}

static void finalizers(void **state)
{
	for (int mode = 0; mode < 2; mode++) {
		struct world w;
		struct log log = { .count = 0 };

		world_open(&w, (enum ebbgc_mode)mode);
		/* Two that die together and refer to each other, and one that lives. */
		for (uint64_t i = 0; i < 3; i++) {
			w.roots[i] = ebbgc_alloc(w.m, w.node);
			node_of(w.roots[i])->value = i + 1;
			assert_int_equal(ebbgc_finalizer_add(w.m, w.roots[i], finalizer, &log), 0);
		}
		ebbgc_store(w.m, w.roots[0], &node_of(w.roots[0])->left, w.roots[1]);
		ebbgc_store(w.m, w.roots[1], &node_of(w.roots[1])->left, w.roots[0]);
		w.roots[3] = ebbgc_weak_new(w.m, w.roots[0]);
		cycle(&w);
		assert_int_equal(ebbgc_finalizers_run(w.m, 10), 0);
		w.roots[0] = w.roots[1] = EBBGC_NULL;
		ebbgc_collect(w.m);
		assert_true(ebbgc_is_null(ebbgc_weak_get(w.m, w.roots[3])));
		/* Waiting to be finalized, they outlive further cycles. */
		cycle(&w);
		log.revived = ebbgc_handle_new(w.m, EBBGC_NULL);
		assert_non_null(log.revived);
		assert_int_equal(ebbgc_finalizers_run(w.m, 1), 1);
		assert_int_equal(ebbgc_finalizers_run(w.m, 10), 1);
		assert_int_equal(log.count, 2);
		assert_int_equal(log.values[0], 201);
		assert_int_equal(log.values[1], 102);
		ebbgc_collect(w.m);
		assert_int_equal(node_of(ebbgc_handle_get(log.revived))->value, 2);
		ebbgc_handle_free(w.m, log.revived);
		ebbgc_collect(w.m);
		assert_int_equal(ebbgc_finalizers_run(w.m, 10), 0);
		assert_int_equal(stats_of(w.heap).finalizers_ready, 2);
		world_close(&w);
	}
}

static void wrong_finalizers(void **state)
{
	struct world w;

	world_open(&w, EBBGC_CONCURRENT);
	assert_int_equal(ebbgc_finalizer_add(w.m, EBBGC_NULL, finalizer, NULL), -22);
	world_close(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(weak_references),
		cmocka_unit_test(ephemerons),
		cmocka_unit_test(ephemeron_without_key),
		cmocka_unit_test(finalizers),
		cmocka_unit_test(wrong_finalizers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
