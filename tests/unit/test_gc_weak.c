// SPDX-License-Identifier: GPL-2.0-or-later
/* Weak references, weak arrays, ephemerons and finalizers, in both modes. */
#include <unistd.h>
#include "gc_test.h"
#include "heap.h"

struct world {
	ebbgc_heap_t *heap;
	ebbgc_mutator_t *m;
	ebbgc_type_t node, refs, weak_refs;
	struct ebbgc_frame frame;
	ebbgc_ref_t roots[8];
};

static void world_open(struct world *w, enum ebbgc_mode mode)
{
	struct ebbgc_layout weak = refs_layout;

	weak.flags = EBBGC_WEAK;
	*w = (struct world){ .heap = checked_heap(mode, 64 << 20) };
	assert_int_equal(ebbgc_type_register(w->heap, &node_layout, &w->node), 0);
	assert_int_equal(ebbgc_type_register(w->heap, &refs_layout, &w->refs), 0);
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

/* Runs one cycle in the heap's own mode. */
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
		assert_true(
			ebbgc_same(ebbgc_load_weak(w.m, w.roots[2], &array->slots[0]), w.roots[0]));
		assert_true(ebbgc_is_null(ebbgc_load_weak(w.m, w.roots[2], &array->slots[2])));
		w.roots[0] = EBBGC_NULL;
		ebbgc_collect(w.m);
		assert_true(ebbgc_is_null(ebbgc_weak_get(w.m, w.roots[1])));
		assert_true(ebbgc_is_null(ebbgc_load_weak(w.m, w.roots[2], &array->slots[0])));
		assert_int_equal(stats_of(w.heap).weak_cleared, 3);
		world_close(&w);
	}
}

/* A value must not keep its own key; a chain of ephemerons dies with its first key. */
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

/* Without a key there is no value. */
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

/* The collector waits at the beginning of marking, until `go`. */
struct held {
	bool marking, go;	/* atomic, both */
};

static void hold(void *arg, const struct ebbgc_event *e)
{
	struct held *held = arg;

	if (e->kind != EBBGC_EVENT_MARK_BEGIN)
		return;
	__atomic_store_n(&held->marking, true, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&held->go, __ATOMIC_ACQUIRE))
		usleep(100);
}

/* A world in whose next cycle marking has begun and reads nothing yet. */
static void marking_held(struct world *w, struct held *held)
{
	*held = (struct held){ false, false };
	/* The collector does not read these before a cycle. */
	w->heap->options.event = hold;
	w->heap->options.event_arg = held;
	ebbgc_collect_start(w->m);
	while (!__atomic_load_n(&held->marking, __ATOMIC_ACQUIRE)) {
		ebbgc_poll(w->m);
		usleep(100);
	}
}

static void marking_goes_on(struct world *w, struct held *held)
{
	uint64_t before = stats_of(w->heap).cycles;

	__atomic_store_n(&held->go, true, __ATOMIC_RELEASE);
	while (stats_of(w->heap).cycles == before) {
		ebbgc_poll(w->m);
		usleep(100);
	}
}

/* A node that only a weak array of two refers to, as its first. */
static void only_weak(struct world *w)
{
	w->roots[0] = ebbgc_alloc_length(w->m, w->weak_refs, 2);
	w->roots[1] = ebbgc_alloc(w->m, w->node);
	node_of(w->roots[1])->value = 42;
	ebbgc_store(w->m, w->roots[0], &refs_of(w->roots[0])->slots[0], w->roots[1]);
	w->roots[1] = EBBGC_NULL;
}

/* A table of weak references that grows while marking is on, and one that becomes strong. */
static void weak_references_are_copied(void **state)
{
	struct held held;
	struct world w;

	world_open(&w, EBBGC_CONCURRENT);
	for (int strong = 0; strong < 2; strong++) {
		ebbgc_ref_t to;

		only_weak(&w);
		marking_held(&w, &held);
		w.roots[1] = to = ebbgc_alloc_length(w.m, strong ? w.refs : w.weak_refs, 4);
		ebbgc_copy(w.m, to, refs_of(to)->slots, w.roots[0], refs_of(w.roots[0])->slots, 2);
		w.roots[0] = EBBGC_NULL;
		marking_goes_on(&w, &held);
		to = ebbgc_load_weak(w.m, to, &refs_of(to)->slots[0]);
		assert_false(ebbgc_is_null(to));
		assert_int_equal(node_of(to)->value, 42);
		w.roots[1] = EBBGC_NULL;
	}
	world_close(&w);
}

/* ebbgc_cas() returns a usable reference when it fails, as interning a string needs. */
static void failed_exchange_loads(void **state)
{
	ebbgc_ref_t found = EBBGC_NULL;
	struct held held;
	struct world w;

	world_open(&w, EBBGC_CONCURRENT);
	only_weak(&w);
	marking_held(&w, &held);
	w.roots[1] = ebbgc_alloc(w.m, w.node);
	assert_false(
		ebbgc_cas(w.m, w.roots[0], &refs_of(w.roots[0])->slots[0], &found, w.roots[1]));
	w.roots[1] = found;
	marking_goes_on(&w, &held);
	assert_int_equal(node_of(w.roots[1])->value, 42);
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

	/* The object's targets are unchanged. */
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

static void counts(ebbgc_mutator_t *m, ebbgc_ref_t object, void *data)
{
	uint64_t *next = data;

	assert_int_equal(node_of(object)->value, (*next)++);
}

#define DYING 100u

/* A list of ready finalizers that never empties does not grow, and keeps its order. */
static void finalizers_that_have_run_are_gone(void **state)
{
	uint64_t value = 0, next = 0;
	struct world w;

	world_open(&w, EBBGC_STOP_WORLD);
	for (int round = 0; round < 50; round++) {
		for (unsigned int i = 0; i < DYING; i++) {
			w.roots[0] = ebbgc_alloc(w.m, w.node);
			node_of(w.roots[0])->value = value++;
			assert_int_equal(ebbgc_finalizer_add(w.m, w.roots[0], counts, &next), 0);
		}
		w.roots[0] = EBBGC_NULL;
		assert_int_equal(ebbgc_collect(w.m), 0);
		assert_int_equal(ebbgc_finalizers_run(w.m, round ? DYING : DYING - 7),
				 round ? DYING : DYING - 7);
	}
	assert_true(w.heap->finalizers_ready.capacity <= 8 * DYING);
	assert_int_equal(ebbgc_finalizers_run(w.m, SIZE_MAX), 7);
	assert_int_equal(next, value);
	world_close(&w);
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
		cmocka_unit_test(weak_references_are_copied),
		cmocka_unit_test(failed_exchange_loads),
		cmocka_unit_test(ephemerons),
		cmocka_unit_test(ephemeron_without_key),
		cmocka_unit_test(finalizers),
		cmocka_unit_test(finalizers_that_have_run_are_gone),
		cmocka_unit_test(wrong_finalizers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
