// SPDX-License-Identifier: GPL-2.0-or-later
/* Weak references, weak arrays, ephemerons and finalizers, in both modes. */
#include <sys/mman.h>
#include <unistd.h>
#include "gc_test.h"
#include "heap.h"
#include "object.h"

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

/* However many values a key has, a search looks at it once. */
static void values_of_one_key(void **state)
{
	enum { COUNT = 20000 };
	struct keys k = { NULL };
	size_t at = 0, keys = 0;
	uint64_t sum = 0, value;

	assert_int_equal(keys_next(&k, 16, &at), 0);
	assert_true(keys_reset(&k, COUNT + 2));
	keys_add(&k, 32, 5);
	for (uint64_t i = 1; i <= COUNT; i++)
		keys_add(&k, 16, i);
	keys_add(&k, 48, 6);
	for (size_t i = 0; i <= k.mask; i++)
		keys += k.pairs[2 * i] != 0;
	assert_int_equal(keys, 3);
	for (at = 0; (value = keys_next(&k, 16, &at)); sum += value)
		;
	assert_int_equal(sum, (uint64_t)COUNT * (COUNT + 1) / 2);
	at = 0;
	assert_int_equal(keys_next(&k, 48, &at), 6);
	assert_int_equal(keys_next(&k, 48, &at), 0);
	at = 0;
	assert_int_equal(keys_next(&k, 64, &at), 0);
	keys_free(&k);
}

/* The key is found alive by another ephemeron: so are all of its values. */
static void ephemerons_of_one_key(void **state)
{
	enum { COUNT = 1000 };

	for (int mode = 0; mode < 2; mode++) {
		struct world w;

		world_open(&w, (enum ebbgc_mode)mode);
		w.roots[0] = ebbgc_alloc(w.m, w.node);
		w.roots[1] = ebbgc_alloc(w.m, w.node);
		w.roots[2] = ebbgc_ephemeron_new(w.m, w.roots[0], w.roots[1]);
		w.roots[3] = ebbgc_alloc_length(w.m, w.refs, COUNT);
		for (size_t i = 0; i < COUNT; i++) {
			w.roots[4] = ebbgc_alloc(w.m, w.node);
			node_of(w.roots[4])->value = i;
			ebbgc_store(w.m, w.roots[3], &refs_of(w.roots[3])->slots[i],
				    ebbgc_ephemeron_new(w.m, w.roots[1], w.roots[4]));
		}
		w.roots[1] = w.roots[4] = EBBGC_NULL;
		cycle(&w);
		for (size_t i = 0; i < COUNT; i++) {
			ebbgc_ref_t e = refs_of(w.roots[3])->slots[i];

			assert_int_equal(node_of(ebbgc_ephemeron_value(w.m, e))->value, i);
		}
		assert_int_equal(stats_of(w.heap).ephemerons_cleared, 0);
		w.roots[0] = EBBGC_NULL;
		cycle(&w);
		assert_int_equal(stats_of(w.heap).ephemerons_cleared, COUNT + 1);
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

#define MANY 2000u

/* A range that nothing may touch in a pause: its pages may be swapped out. */
struct fenced {
	void *start;
	size_t bytes;
	unsigned int pauses;
};

static void fence(void *arg, const struct ebbgc_event *e)
{
	struct fenced *f = arg;

	if (!f->bytes || (e->kind != EBBGC_EVENT_PAUSE_BEGIN && e->kind != EBBGC_EVENT_PAUSE_END))
		return;
	f->pauses += e->kind == EBBGC_EVENT_PAUSE_END;
	assert_int_equal(mprotect(f->start, f->bytes, e->kind == EBBGC_EVENT_PAUSE_BEGIN ?
						      PROT_NONE : PROT_READ | PROT_WRITE), 0);
}

/* A heap whose pauses have no time, and in which nothing verifies cycles by reading all objects. */
static void world_fenced(struct world *w, struct fenced *f, const char *words)
{
	struct ebbgc_layout weak = refs_layout;
	struct ebbgc_options o;

	*w = (struct world){ .heap = NULL };
	*f = (struct fenced){ .bytes = 0 };
	ebbgc_options_init(&o);
	assert_int_equal(ebbgc_debug(&o, words), 0);
	o.max_bytes = 64 << 20;
	o.pause_budget_ns = 0;
	o.event = fence;
	o.event_arg = f;
	assert_int_equal(ebbgc_heap_create(&o, &w->heap), 0);
	weak.flags = EBBGC_WEAK;
	assert_int_equal(ebbgc_type_register(w->heap, &refs_layout, &w->refs), 0);
	assert_int_equal(ebbgc_type_register(w->heap, &weak, &w->weak_refs), 0);
	assert_int_equal(ebbgc_attach(w->heap, &w->m), 0);
	ebbgc_frame_push(w->m, &w->frame, w->roots, 8);
}

/* Objects of 48 bytes, which share no region with ephemerons; the array is in roots[at]. */
static void many_new(struct world *w, size_t at)
{
	w->roots[at] = ebbgc_alloc_length(w->m, w->refs, MANY);
	for (size_t i = 0; i < MANY; i++) {
		ebbgc_ref_t r = ebbgc_alloc_length(w->m, w->refs, 4);

		ebbgc_store(w->m, w->roots[at], &refs_of(w->roots[at])->slots[i], r);
	}
}

static ebbgc_ref_t at(struct world *w, size_t root, size_t i)
{
	return ebbgc_load(w->m, w->roots[root], &refs_of(w->roots[root])->slots[i]);
}

static void drop_odd(struct world *w, size_t root)
{
	for (size_t i = 1; i < MANY; i += 2)
		ebbgc_store(w->m, w->roots[root], &refs_of(w->roots[root])->slots[i], EBBGC_NULL);
}

/* A weak table may be swapped out: pauses do not read it, whether its targets live or die. */
static void pauses_read_no_weak_table(void **state)
{
	struct fenced f;
	struct world w;

	world_fenced(&w, &f, *state);
	many_new(&w, 0);
	w.roots[1] = ebbgc_alloc_length(w.m, w.weak_refs, MANY);
	ebbgc_copy(w.m, w.roots[1], refs_of(w.roots[1])->slots, w.roots[0],
		   refs_of(w.roots[0])->slots, MANY);
	f.start = (char *)ebbgc_ptr(w.roots[1]) - HEADER;
	f.bytes = REGION_SIZE;
	cycle(&w);
	drop_odd(&w, 0);
	cycle(&w);
	assert_true(f.pauses >= 4);
	for (size_t i = 0; i < MANY; i++) {
		ebbgc_ref_t to = ebbgc_load_weak(w.m, w.roots[1], &refs_of(w.roots[1])->slots[i]);

		assert_int_equal(ebbgc_is_null(to), i % 2);
	}
	assert_int_equal(stats_of(w.heap).weak_cleared, MANY / 2);
	f.bytes = 0;
	world_close(&w);
}

/* All keys live or die by other means: no pause reads an ephemeron. */
static void pauses_read_no_ephemeron(void **state)
{
	struct fenced f;
	struct world w;
	uint32_t region;

	world_fenced(&w, &f, *state);
	many_new(&w, 0);
	w.roots[1] = ebbgc_alloc_length(w.m, w.refs, MANY);
	for (size_t i = 0; i < MANY; i++) {
		ebbgc_ref_t e;

		w.roots[2] = ebbgc_alloc_length(w.m, w.refs, 4);
		e = ebbgc_ephemeron_new(w.m, at(&w, 0, i), w.roots[2]);
		w.roots[2] = EBBGC_NULL;
		ebbgc_store(w.m, w.roots[1], &refs_of(w.roots[1])->slots[i], e);
	}
	region = region_of(w.heap, (uint64_t)(uintptr_t)ebbgc_ptr(at(&w, 1, 0)));
	f.start = region_start(w.heap, region);
	f.bytes = REGION_SIZE;
	/* The first ones; a region holds 2048 of them, header included. */
	assert_int_equal(region_of(w.heap, (uint64_t)(uintptr_t)ebbgc_ptr(at(&w, 1, MANY / 2))),
			 region);
	cycle(&w);
	drop_odd(&w, 0);
	cycle(&w);
	for (size_t i = 0; i < MANY; i++) {
		ebbgc_ref_t e = at(&w, 1, i);

		assert_int_equal(ebbgc_is_null(ebbgc_ephemeron_key(w.m, e)), i % 2);
		assert_int_equal(ebbgc_is_null(ebbgc_ephemeron_value(w.m, e)), i % 2);
	}
	assert_int_equal(stats_of(w.heap).ephemerons_cleared, MANY / 2);
	f.bytes = 0;
	world_close(&w);
}

/* Ephemerons that are found last to first, each the only one to keep the next one's key. */
static void chains_of_ephemerons_take_few_rounds(void **state)
{
	struct world w;
	uint64_t phases;

	world_open(&w, EBBGC_CONCURRENT);
	many_new(&w, 0);
	w.roots[1] = ebbgc_alloc_length(w.m, w.refs, MANY - 1);
	for (size_t i = 0; i + 1 < MANY; i++)
		ebbgc_store(w.m, w.roots[1], &refs_of(w.roots[1])->slots[i],
			    ebbgc_ephemeron_new(w.m, at(&w, 0, i), at(&w, 0, i + 1)));
	w.roots[2] = at(&w, 0, 0);
	w.roots[0] = EBBGC_NULL;
	phases = w.heap->marker.phase;
	cycle(&w);
	assert_true(w.heap->marker.phase - phases < 20);
	for (size_t i = 0; i + 1 < MANY; i++)
		assert_false(ebbgc_is_null(ebbgc_ephemeron_value(w.m, at(&w, 1, i))));
	w.roots[2] = EBBGC_NULL;
	cycle(&w);
	for (size_t i = 0; i + 1 < MANY; i++)
		assert_true(ebbgc_is_null(ebbgc_ephemeron_value(w.m, at(&w, 1, i))));
	assert_int_equal(stats_of(w.heap).ephemerons_cleared, MANY - 1);
	world_close(&w);
}

/* The collector waits after the cycle's second pause, until `go`. */
struct settled {
	unsigned int pauses;	/* of this cycle */
	bool waiting, go;	/* atomic, both */
};

static void hold_settled(void *arg, const struct ebbgc_event *e)
{
	struct settled *s = arg;

	if (e->kind != EBBGC_EVENT_PAUSE_END || ++s->pauses != 2)
		return;
	__atomic_store_n(&s->waiting, true, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&s->go, __ATOMIC_ACQUIRE))
		usleep(100);
}

/* While the collector clears references, the program sees no dead object, and may replace it. */
static void the_dead_are_null_before_they_are_cleared(void **state)
{
	struct settled s = { .pauses = 0 };
	ebbgc_ref_t *slots, found = EBBGC_NULL, copy;
	struct world w;
	uint64_t before;

	world_open(&w, EBBGC_CONCURRENT);
	w.heap->options.event = hold_settled;
	w.heap->options.event_arg = &s;
	w.heap->options.pause_budget_ns = 0;
	w.roots[0] = ebbgc_alloc_length(w.m, w.weak_refs, 4);
	w.roots[1] = ebbgc_ephemeron_new(w.m, ebbgc_alloc(w.m, w.node), w.roots[0]);
	w.roots[2] = ebbgc_alloc_length(w.m, w.weak_refs, 4);
	slots = refs_of(w.roots[0])->slots;
	for (int i = 0; i < 4; i++)
		ebbgc_store(w.m, w.roots[0], &slots[i], ebbgc_alloc(w.m, w.node));
	before = stats_of(w.heap).cycles;
	for (ebbgc_collect_start(w.m); !__atomic_load_n(&s.waiting, __ATOMIC_ACQUIRE); usleep(100))
		ebbgc_poll(w.m);
	assert_int_equal(stats_of(w.heap).cycles, before);
	assert_int_equal(stats_of(w.heap).weak_cleared, 0);
	assert_true(ebbgc_is_null(ebbgc_load_weak(w.m, w.roots[0], &slots[0])));
	assert_true(ebbgc_is_null(ebbgc_ephemeron_key(w.m, w.roots[1])));
	/* The value lives by other means. */
	assert_true(ebbgc_is_null(ebbgc_ephemeron_value(w.m, w.roots[1])));
	copy = w.roots[2];
	ebbgc_copy(w.m, copy, refs_of(copy)->slots, w.roots[0], slots, 4);
	assert_int_equal(refs_of(copy)->slots[3].bits, 0);
	/* Interning: the entry is free.  The collector must not clear the new one. */
	w.roots[3] = ebbgc_alloc(w.m, w.node);
	assert_true(ebbgc_cas(w.m, w.roots[0], &slots[1], &found, w.roots[3]));
	assert_false(ebbgc_cas(w.m, w.roots[0], &slots[2], &w.roots[3], w.roots[3]));
	assert_true(ebbgc_is_null(w.roots[3]));
	w.roots[3] = ebbgc_alloc(w.m, w.node);
	node_of(w.roots[3])->value = 42;
	ebbgc_store(w.m, w.roots[0], &slots[3], w.roots[3]);
	__atomic_store_n(&s.go, true, __ATOMIC_RELEASE);
	while (stats_of(w.heap).cycles == before) {
		ebbgc_poll(w.m);
		usleep(100);
	}
	assert_int_equal(slots[0].bits, 0);
	assert_false(ebbgc_is_null(ebbgc_load_weak(w.m, w.roots[0], &slots[1])));
	assert_int_equal(slots[2].bits, 0);
	assert_int_equal(node_of(ebbgc_load_weak(w.m, w.roots[0], &slots[3]))->value, 42);
	assert_int_equal(stats_of(w.heap).weak_cleared, 2);
	assert_int_equal(stats_of(w.heap).ephemerons_cleared, 1);
	world_close(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(weak_references),
		cmocka_unit_test(weak_references_are_copied),
		cmocka_unit_test(failed_exchange_loads),
		{ "pauses read no weak table", pauses_read_no_weak_table, NULL, NULL,
		  (void *)"mode=concurrent" },
		{ "memliner: pauses read no weak table", pauses_read_no_weak_table, NULL, NULL,
		  (void *)"mode=memliner,residency=simulated,epoch=1,delta=0" },
		{ "pauses read no ephemeron", pauses_read_no_ephemeron, NULL, NULL,
		  (void *)"mode=concurrent" },
		{ "memliner: pauses read no ephemeron", pauses_read_no_ephemeron, NULL, NULL,
		  (void *)"mode=memliner,residency=simulated,epoch=1,delta=0" },
		cmocka_unit_test(chains_of_ephemerons_take_few_rounds),
		cmocka_unit_test(the_dead_are_null_before_they_are_cleared),
		cmocka_unit_test(values_of_one_key),
		cmocka_unit_test(ephemerons_of_one_key),
		cmocka_unit_test(ephemerons),
		cmocka_unit_test(ephemeron_without_key),
		cmocka_unit_test(finalizers),
		cmocka_unit_test(finalizers_that_have_run_are_gone),
		cmocka_unit_test(wrong_finalizers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
