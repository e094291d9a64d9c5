// SPDX-License-Identifier: GPL-2.0-or-later
/* Objects that move: what stays, what is healed, what it gains.  In checking mode all move. */
#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include "gc_test.h"
#include <ebb/abi.h>
#include "forward.h"

#define NODES 100
#define ROOTS 8

struct world {
	ebbgc_heap_t *heap;
	ebbgc_mutator_t *m;
	ebbgc_type_t node, refs, fixed;
	struct ebbgc_frame frame;
	ebbgc_ref_t roots[ROOTS];
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
	w->refs = type_new(w, refs_layout, EBBGC_MOVABLE);
	w->fixed = type_new(w, refs_layout, 0);
	assert_int_equal(ebbgc_attach(w->heap, &w->m), 0);
	ebbgc_frame_push(w->m, &w->frame, w->roots, ROOTS);
}

static void world_open(struct world *w, const char *words)
{
	world_open_heap(w, checked_heap_with(words, 64 << 20));
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

static ebbgc_ref_t *slot_of(ebbgc_ref_t array, size_t i)
{
	return &refs_of(array)->slots[i];
}

static ebbgc_ref_t at(struct world *w, ebbgc_ref_t array, size_t i)
{
	return ebbgc_load(w->m, array, slot_of(array, i));
}

/* Makes roots[0] an array of nodes, each with its index. */
static void nodes_fill(struct world *w, size_t count)
{
	w->roots[0] = ebbgc_alloc_length(w->m, w->fixed, count);
	for (size_t i = 0; i < count; i++)
		ebbgc_store(w->m, w->roots[0], slot_of(w->roots[0], i), node_new(w, i));
}

static void nodes_check(struct world *w, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		ebbgc_ref_t r = at(w, w->roots[0], i);

		assert_true(ebbgc_is_null(r) || node_of(r)->value == i);
	}
}

static void collect(struct world *w)
{
	assert_int_equal(ebbgc_collect(w->m), 0);
}

static void visit_nothing(void *object, ebbgc_visit_fn visit, void *arg)
{
}

static void no_edges(void *object, struct ebbgc_edges *edges)
{
}

static void layouts(void **state)
{
	static const struct ebbgc_slots slots = {
		.kind = EBBGC_SLOT_AMBIGUOUS, .count = 1, .stride = 8,
	};
	const struct ebbgc_layout movable = {
		.name = "may move", .flags = EBBGC_MOVABLE, .size = 16, .bitmap = 1,
	};
	struct ebbgc_layout l = movable;
	ebbgc_heap_t *heap = checked_heap(EBBGC_CONCURRENT, 16 << 20);
	ebbgc_type_t type = 99;

	l.flags |= EBBGC_WEAK;
	assert_int_equal(ebbgc_type_register(heap, &l, &type), -EINVAL);
	l = movable;
	l.trace = visit_nothing;
	assert_int_equal(ebbgc_type_register(heap, &l, &type), -EINVAL);
	l = movable;
	l.edges = no_edges;
	assert_int_equal(ebbgc_type_register(heap, &l, &type), -EINVAL);
	l = (struct ebbgc_layout){ .flags = EBBGC_MOVABLE, .size = 8, .slots = &slots,
				   .slot_count = 1, .slot_size = sizeof(slots) };
	assert_int_equal(ebbgc_type_register(heap, &l, &type), -EINVAL);
	l = (struct ebbgc_layout){ .flags = EBBGC_MOVABLE | EBBGC_FIBRE, .size = 8,
				   .edges = no_edges };
	assert_int_equal(ebbgc_type_register(heap, &l, &type), -EINVAL);

	/* Plain loads do not heal: one or the other. */
	l = (struct ebbgc_layout){ .size = 8, .slots = &slots, .slot_count = 1,
				   .slot_size = sizeof(slots) };
	assert_int_equal(ebbgc_type_register(heap, &movable, &type), 0);
	type = 99;
	assert_int_equal(ebbgc_type_register(heap, &l, &type), -ENOTSUP);
	assert_int_equal(type, 99);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
	heap = checked_heap(EBBGC_CONCURRENT, 16 << 20);
	assert_int_equal(ebbgc_type_register(heap, &l, &type), 0);
	assert_int_equal(ebbgc_type_register(heap, &movable, &type), -ENOTSUP);
	l = (struct ebbgc_layout){ .size = 16, .edges = no_edges };
	assert_int_equal(ebbgc_type_register(heap, &l, &type), 0);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

/* Loads are tested for nothing more, and no table exists. */
static void no_cost_without_such_types(void **state)
{
	ebbgc_heap_t *heap = checked_heap(EBBGC_CONCURRENT, 16 << 20);
	ebbgc_mutator_t *m;
	ebbgc_type_t type;

	assert_int_equal(ebbgc_type_register(heap, &node_layout, &type), 0);
	assert_int_equal(ebbgc_attach(heap, &m), 0);
	for (int i = 0; i < 1000; i++)
		ebbgc_alloc(m, type);
	assert_int_equal(ebbgc_collect(m), 0);
	assert_int_equal(m->flags, 0);
	assert_int_equal(m->blocks, 0);
	assert_null(heap->moving.states);
	assert_null(heap->moving.forwards);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

static void all_but_roots_move(void **state)
{
	uint64_t was[NODES];
	uint32_t hash[NODES];
	struct world w;

	world_open(&w, *state);
	nodes_fill(&w, NODES);
	for (int round = 0; round < 3; round++) {
		struct ebbgc_stats before = stats_of(w.heap), after;
		size_t moved = 0;

		for (size_t i = 0; i < NODES; i++) {
			ebbgc_ref_t r = at(&w, w.roots[0], i);

			was[i] = r.bits & EBBGC_ADDRESS_MASK;
			/* Some get their hash now, some later. */
			if (i % 3 <= (size_t)round)
				hash[i] = ebbgc_hash(w.m, r);
		}
		w.roots[1] = at(&w, w.roots[0], 7);
		collect(&w);
		assert_true(w.m->flags & EBBGC_MOVED);
		for (size_t i = 0; i < NODES; i++) {
			ebbgc_ref_t r = at(&w, w.roots[0], i);

			moved += (r.bits & EBBGC_ADDRESS_MASK) != was[i];
			assert_int_equal(node_of(r)->value, i);
			assert_int_equal(ebbgc_type_of(r), w.node);
			assert_int_equal(ebbgc_size_of(w.m, r), sizeof(struct node));
			if (i % 3 <= (size_t)round)
				assert_int_equal(ebbgc_hash(w.m, r), hash[i]);
		}
		assert_int_equal(moved, NODES - 1);
		assert_int_equal(w.roots[1].bits & EBBGC_ADDRESS_MASK, was[7]);
		assert_true(ebbgc_same(w.roots[1], at(&w, w.roots[0], 7)));
		after = stats_of(w.heap);
		assert_int_equal(after.moved_objects - before.moved_objects, NODES - 1);
		assert_int_equal(after.moved_bytes - before.moved_bytes, (NODES - 1) * 32);
		assert_int_equal(after.pinned_objects - before.pinned_objects, 1);
	}
	world_close(&w);
}

static ebbgc_ref_t called;

static void callback(void *arg, struct ebbgc_edges *edges)
{
	edges->strong(edges, &called, called);
}

static ebbgc_ref_t finalized;

static void finalizer(ebbgc_mutator_t *m, ebbgc_ref_t object, void *data)
{
	finalized = object;
	assert_int_equal(node_of(object)->value, *(const uint64_t *)data);
}

/* An object of each kind of root, and nothing else refers to it. */
static void all_roots_pin(void **state)
{
	static ebbgc_ref_t range[2];
	uint64_t ready = 77, at_first;
	ebbgc_handle_t *handle;
	struct world w;
	uint64_t was[5];

	world_open(&w, "mode=stop");
	assert_int_equal(ebbgc_roots_add(w.m, range, 2), 0);
	assert_int_equal(ebbgc_roots_call(w.m, callback, NULL), 0);
	w.roots[3] = node_new(&w, 3);
	range[1] = node_new(&w, 4);
	called = node_new(&w, 5);
	handle = ebbgc_handle_new(w.m, node_new(&w, 6));
	assert_int_equal(ebbgc_finalizer_add(w.m, node_new(&w, ready), finalizer, &ready), 0);
	was[0] = w.roots[3].bits;
	was[1] = range[1].bits;
	was[2] = called.bits;
	was[3] = ebbgc_handle_get(handle).bits;
	/* The finalizer becomes ready, and its object a root. */
	for (int i = 0; i < 3; i++)
		collect(&w);
	assert_int_equal(w.roots[3].bits, was[0]);
	assert_int_equal(range[1].bits, was[1]);
	assert_int_equal(called.bits, was[2]);
	assert_int_equal(ebbgc_handle_get(handle).bits, was[3]);
	assert_int_equal(node_of(w.roots[3])->value, 3);
	assert_int_equal(node_of(range[1])->value, 4);
	assert_int_equal(node_of(called)->value, 5);
	assert_int_equal(node_of(ebbgc_handle_get(handle))->value, 6);
	assert_true(stats_of(w.heap).pinned_objects >= 5);
	assert_int_equal(ebbgc_finalizers_run(w.m, 1), 1);
	/* Once free of roots, they move. */
	at_first = w.roots[3].bits;
	w.roots[0] = ebbgc_alloc_length(w.m, w.fixed, 1);
	ebbgc_store(w.m, w.roots[0], slot_of(w.roots[0], 0), w.roots[3]);
	w.roots[3] = EBBGC_NULL;
	collect(&w);
	assert_int_not_equal(at(&w, w.roots[0], 0).bits, at_first);
	assert_int_equal(node_of(at(&w, w.roots[0], 0))->value, 3);
	assert_int_equal(ebbgc_roots_remove(w.m, range), 0);
	assert_int_equal(ebbgc_roots_call_end(w.m, callback, NULL), 0);
	called = EBBGC_NULL;
	ebbgc_handle_free(w.m, handle);
	world_close(&w);
}

/* Fills the stack below with other words. */
static __attribute__((noinline)) uint64_t deep(uint64_t n)
{
	volatile uint64_t words[64];

	for (size_t i = 0; i < 64; i++)
		words[i] = n + i;
	return words[n % 64];
}

static __attribute__((noinline)) void array_fill(struct world *w)
{
	nodes_fill(w, NODES);
	deep(1);
}

/* A word on a stack pins; a pointer into the object does, too. */
static void stacks_pin(void **state)
{
	uint64_t *volatile inside;
	volatile uint64_t was;
	struct ebbgc_options o;
	ebbgc_heap_t *heap;
	struct world w;

	ebbgc_options_init(&o);
	o.check = true;
	o.stacks = EBBGC_CONSERVATIVE;
	o.max_bytes = 64 << 20;
	assert_int_equal(ebbgc_heap_create(&o, &heap), 0);
	world_open_heap(&w, heap);
	array_fill(&w);
	inside = &node_of(at(&w, w.roots[0], 42))->value;
	was = (uint64_t)(uintptr_t)inside;
	deep(2);
	for (int i = 0; i < 3; i++)
		collect(&w);
	assert_int_equal((uint64_t)(uintptr_t)inside, was);
	assert_ptr_equal(inside, &node_of(at(&w, w.roots[0], 42))->value);
	assert_int_equal(*inside, 42);
	nodes_check(&w, NODES);
	/* What is left over on the stack may pin a few others. */
	assert_true(stats_of(w.heap).moved_objects > 2 * NODES);
	world_close(&w);
}

/* A slot names the old place until the program loads it, or the next cycle has marked. */
static void slots_are_healed(void **state)
{
	uint64_t raw, healed;
	struct world w;
	ebbgc_ref_t r;

	world_open(&w, *state);
	nodes_fill(&w, 2);
	raw = slot_of(w.roots[0], 0)->bits;
	collect(&w);
	assert_int_equal(slot_of(w.roots[0], 0)->bits, raw);
	r = at(&w, w.roots[0], 0);
	assert_int_not_equal(r.bits, raw);
	assert_int_equal(slot_of(w.roots[0], 0)->bits, r.bits);
	healed = forward(w.heap, slot_of(w.roots[0], 1)->bits & EBBGC_ADDRESS_MASK);
	assert_int_not_equal(slot_of(w.roots[0], 1)->bits & EBBGC_ADDRESS_MASK, healed);
	/* They move again, and the slots name the places of the first move. */
	collect(&w);
	assert_int_equal(slot_of(w.roots[0], 1)->bits & EBBGC_ADDRESS_MASK, healed);
	assert_int_equal(slot_of(w.roots[0], 0)->bits, r.bits);
	nodes_check(&w, 2);
	world_close(&w);
}

/* Between reading a slot and healing it, the program has stored another reference. */
static void stores_win(void **state)
{
	ebbgc_ref_t raw, r;
	struct world w;

	world_open(&w, "mode=stop");
	nodes_fill(&w, 2);
	raw = *slot_of(w.roots[0], 0);
	collect(&w);
	ebbgc_store(w.m, w.roots[0], slot_of(w.roots[0], 0), at(&w, w.roots[0], 1));
	/* What was read is still an object, for a loading thread and for a tracer. */
	r = ebbgc_load_slow(w.m, w.roots[0], slot_of(w.roots[0], 0), raw);
	assert_int_equal(node_of(r)->value, 0);
	r.bits = slot_heal_slow(w.heap, slot_of(w.roots[0], 0), raw.bits);
	assert_int_equal(node_of(r)->value, 0);
	assert_true(ebbgc_same(*slot_of(w.roots[0], 0), at(&w, w.roots[0], 1)));
	world_close(&w);
}

static void compare_and_swap(void **state)
{
	ebbgc_ref_t one, expected;
	struct world w;

	world_open(&w, "mode=stop");
	nodes_fill(&w, 4);
	ebbgc_store(w.m, w.roots[0], slot_of(w.roots[0], 1), at(&w, w.roots[0], 0));
	collect(&w);
	/* Heals the first slot only. */
	expected = one = at(&w, w.roots[0], 0);
	assert_int_not_equal(slot_of(w.roots[0], 1)->bits, one.bits);
	assert_true(ebbgc_cas(w.m, w.roots[0], slot_of(w.roots[0], 1), &expected,
			      at(&w, w.roots[0], 2)));
	assert_true(ebbgc_same(at(&w, w.roots[0], 1), at(&w, w.roots[0], 2)));
	/* What is found instead is where it is now. */
	expected = EBBGC_NULL;
	assert_false(ebbgc_cas(w.m, w.roots[0], slot_of(w.roots[0], 3), &expected, one));
	assert_int_equal(node_of(expected)->value, 3);
	assert_true(ebbgc_same(expected, at(&w, w.roots[0], 3)));
	world_close(&w);
}

/* ebbgc_copy(), ebbgc_fill() and new objects take references to where objects are. */
static void copies(void **state)
{
	struct world w;

	world_open(&w, *state);
	nodes_fill(&w, NODES);
	w.roots[1] = ebbgc_alloc_length(w.m, w.refs, NODES);
	collect(&w);
	ebbgc_copy(w.m, w.roots[1], slot_of(w.roots[1], 0), w.roots[0], slot_of(w.roots[0], 0),
		   NODES);
	for (size_t i = 0; i < NODES; i++) {
		ebbgc_ref_t r = { slot_of(w.roots[1], i)->bits };

		assert_int_equal(forward(w.heap, r.bits & EBBGC_ADDRESS_MASK),
				 r.bits & EBBGC_ADDRESS_MASK);
		assert_int_equal(node_of(r)->value, i);
	}
	collect(&w);
	nodes_check(&w, NODES);
	world_close(&w);
}

/* The only strong references are in an array; the others follow the objects. */
static void weak_references(void **state)
{
	uint64_t value = 12;
	struct world w;
	ebbgc_ref_t r;

	world_open(&w, *state);
	nodes_fill(&w, 20);
	w.roots[1] = ebbgc_weak_new(w.m, at(&w, w.roots[0], 10));
	w.roots[3] = node_new(&w, 111);
	w.roots[2] = ebbgc_ephemeron_new(w.m, at(&w, w.roots[0], 11), w.roots[3]);
	w.roots[3] = EBBGC_NULL;
	assert_int_equal(ebbgc_finalizer_add(w.m, at(&w, w.roots[0], 12), finalizer, &value), 0);
	for (int i = 0; i < 4; i++) {
		collect(&w);
		/* Sometimes the collector alone heals. */
		if (i % 2)
			continue;
		r = ebbgc_weak_get(w.m, w.roots[1]);
		assert_true(ebbgc_same(r, at(&w, w.roots[0], 10)));
		assert_int_equal(node_of(r)->value, 10);
		r = ebbgc_ephemeron_key(w.m, w.roots[2]);
		assert_true(ebbgc_same(r, at(&w, w.roots[0], 11)));
		assert_int_equal(node_of(ebbgc_ephemeron_value(w.m, w.roots[2]))->value, 111);
	}
	assert_int_equal(ebbgc_finalizers_run(w.m, 1), 0);
	for (size_t i = 10; i < 13; i++)
		ebbgc_store(w.m, w.roots[0], slot_of(w.roots[0], i), EBBGC_NULL);
	collect(&w);
	assert_true(ebbgc_is_null(ebbgc_weak_get(w.m, w.roots[1])));
	assert_true(ebbgc_is_null(ebbgc_ephemeron_key(w.m, w.roots[2])));
	assert_true(ebbgc_is_null(ebbgc_ephemeron_value(w.m, w.roots[2])));
	finalized = EBBGC_NULL;
	assert_int_equal(ebbgc_finalizers_run(w.m, 1), 1);
	assert_false(ebbgc_is_null(finalized));
	world_close(&w);
}

/* Objects larger than a slot stay; so do those of other types. */
static void large_objects_stay(void **state)
{
	uint64_t large, fixed;
	struct world w;

	world_open(&w, "mode=stop");
	w.roots[0] = ebbgc_alloc_length(w.m, w.fixed, 2);
	ebbgc_store(w.m, w.roots[0], slot_of(w.roots[0], 0),
		    ebbgc_alloc_length(w.m, w.refs, 10000));
	ebbgc_store(w.m, w.roots[0], slot_of(w.roots[0], 1), ebbgc_alloc_length(w.m, w.fixed, 5));
	large = at(&w, w.roots[0], 0).bits;
	fixed = at(&w, w.roots[0], 1).bits;
	for (int i = 0; i < 3; i++)
		collect(&w);
	assert_int_equal(at(&w, w.roots[0], 0).bits, large);
	assert_int_equal(at(&w, w.roots[0], 1).bits, fixed);
	assert_int_equal(stats_of(w.heap).moved_objects, 0);
	world_close(&w);
}

/* Inline allocation with a length takes slots of the right kind. */
static void sites_with_a_length(void **state)
{
	struct ebbgc_length_site site;
	ebbgc_ref_t moves, stays;
	struct world w;

	world_open(&w, "mode=stop");
	assert_int_equal(ebbgc_length_site_init(w.heap, w.refs, &site), 0);
	moves = ebbgc_alloc_length_site(w.m, &site, 3);
	assert_in_range(w.heap->kinds[region_of(w.heap, moves.bits)], KIND_MOVABLE,
			SMALL_KINDS - 1);
	assert_int_equal(ebbgc_length_site_init(w.heap, w.fixed, &site), 0);
	stays = ebbgc_alloc_length_site(w.m, &site, 3);
	assert_in_range(w.heap->kinds[region_of(w.heap, stays.bits)], 0, KIND_MOVABLE - 1);
	world_close(&w);
}

#define MANY 40000

static ebbgc_heap_t *plain_heap(size_t max)
{
	struct ebbgc_options o;
	ebbgc_heap_t *heap;

	ebbgc_options_init(&o);
	o.max_bytes = max;
	o.min_bytes = 1 << 20;
	assert_int_equal(ebbgc_heap_create(&o, &heap), 0);
	return heap;
}

/* Keeps one node in @every. */
static void nodes_thin(struct world *w, size_t count, size_t every)
{
	for (size_t i = 0; i < count; i++)
		if (i % every)
			ebbgc_store(w->m, w->roots[0], slot_of(w->roots[0], i), EBBGC_NULL);
}

static void sparse_regions_are_emptied(void **state)
{
	struct ebbgc_stats full, thin, moved;
	struct world w;

	world_open_heap(&w, plain_heap(64 << 20));
	nodes_fill(&w, MANY);
	collect(&w);
	/* Nothing is sparse. */
	full = stats_of(w.heap);
	assert_int_equal(full.moved_objects, 0);
	assert_int_equal(w.m->flags, 0);
	nodes_thin(&w, MANY, 8);
	collect(&w);
	thin = stats_of(w.heap);
	assert_in_range(thin.moved_objects, MANY / 8 - MANY / 80, MANY / 8);
	/* The old copies' pages are the kernel's at once. */
	assert_true(thin.released_bytes >= full.released_bytes + MANY * 32 / 10 * 9);
	nodes_check(&w, MANY);
	/* Their regions after the next cycle, in which nothing moves any more. */
	collect(&w);
	moved = stats_of(w.heap);
	assert_int_equal(moved.moved_objects, thin.moved_objects);
	assert_true(moved.heap_bytes <= full.heap_bytes - MANY * 32 / 4 * 3);
	assert_int_equal(w.m->flags, 0);
	nodes_check(&w, MANY);
	world_close(&w);
}

/* A minor cycle that visits a slot with an old name makes nothing old that is free. */
static void minor_cycles_forward(void **state)
{
	struct ebbgc_options o;
	struct ebbgc_stats s;
	ebbgc_heap_t *heap;
	struct world w;

	ebbgc_options_init(&o);
	assert_int_equal(ebbgc_options_parse(&o, "nursery=64K,max=64M"), 0);
	assert_int_equal(ebbgc_heap_create(&o, &heap), 0);
	world_open_heap(&w, heap);
	nodes_fill(&w, MANY);
	nodes_thin(&w, MANY, 8);
	collect(&w);
	s = stats_of(heap);
	assert_true(s.moved_objects > 0);
	assert_true(w.m->flags & EBBGC_MOVED);
	/* Pages with slots that no thread has loaded yet. */
	for (size_t i = 1; stats_of(heap).remembered < s.remembered + 4; i = (i + 512) % MANY | 1) {
		ebbgc_store(w.m, w.roots[0], slot_of(w.roots[0], i), node_new(&w, i));
		for (size_t k = 0; k < 500; k++)
			node_new(&w, 0);
	}
	ebbgc_cycles_suspend(w.m);
	for (size_t i = 0; i < (size_t)heap->top * REGION_WORDS; i++)
		assert_int_equal(heap->nursery.old[i] & ~heap->allocated[i], 0);
	ebbgc_cycles_resume(w.m);
	nodes_check(&w, MANY);
	world_close(&w);
}

/* A concurrent cycle's pause copies at most 1 MiB. */
static void pauses_are_short(void **state)
{
	uint64_t before, total;
	struct world w;

	world_open_heap(&w, plain_heap(64 << 20));
	nodes_fill(&w, 10 * MANY);
	collect(&w);
	nodes_thin(&w, 10 * MANY, 4);
	before = stats_of(w.heap).cycles;
	ebbgc_collect_start(w.m);
	while (stats_of(w.heap).cycles == before || !stats_of(w.heap).moved_objects)
		ebbgc_poll(w.m);
	total = stats_of(w.heap).moved_bytes;
	assert_in_range(total, (1 << 20) - REGION_SIZE, 1 << 20);
	nodes_check(&w, 10 * MANY);
	world_close(&w);
}

static size_t pages_with_hot(struct world *w, size_t every)
{
	size_t pages = 0;
	static uint64_t seen[MANY];

	for (size_t i = 0; i < MANY; i += every) {
		uint64_t page = at(w, w->roots[0], i).bits >> PAGE_SHIFT;
		size_t k = 0;

		while (k < pages && seen[k] != page)
			k++;
		if (k == pages)
			seen[pages++] = page;
	}
	return pages;
}

static void heat(struct world *w, size_t every)
{
	for (size_t i = 0; i < MANY; i += every)
		heat_add(w->heap, at(w, w->roots[0], i).bits & EBBGC_ADDRESS_MASK);
}

static void hot_objects_are_packed(void **state)
{
	const size_t every = 40, hot = MANY / every, least = hot * 32 / PAGE_BYTES;
	struct ebbgc_options o;
	ebbgc_heap_t *heap;
	uint64_t moved;
	struct world w;

	ebbgc_options_init(&o);
	assert_int_equal(ebbgc_debug(&o, "mode=memliner,exact,max=64M"), 0);
	assert_int_equal(ebbgc_heap_create(&o, &heap), 0);
	world_open_heap(&w, heap);
	/* No scans: the test says whether memory is scarce. */
	pthread_mutex_lock(&heap->update_lock);
	nodes_fill(&w, MANY);
	collect(&w);
	assert_int_equal(stats_of(heap).moved_objects, 0);
	assert_true(pages_with_hot(&w, every) > 300);
	/* With all in memory, it does not matter where they are. */
	heat(&w, every);
	collect(&w);
	assert_int_equal(stats_of(heap).moved_objects, 0);
	/* Once cold they are like others. */
	__atomic_store_n(&heap->residency.scarce, true, __ATOMIC_RELAXED);
	collect(&w);
	assert_int_equal(stats_of(heap).moved_objects, 0);
	/* Too few for a pause. */
	heat(&w, 10 * every);
	collect(&w);
	assert_int_equal(stats_of(heap).moved_objects, 0);
	heat(&w, every);
	collect(&w);
	moved = stats_of(heap).moved_objects;
	assert_int_equal(moved, hot);
	assert_true(pages_with_hot(&w, every) <= least + 2);
	nodes_check(&w, MANY);
	/* Together they stay together. */
	heat(&w, every);
	collect(&w);
	assert_int_equal(stats_of(heap).moved_objects, moved);
	/* Where most are hot, nothing is gained. */
	heat(&w, 2);
	collect(&w);
	assert_int_equal(stats_of(heap).moved_objects, moved);
	nodes_check(&w, MANY);
	pthread_mutex_unlock(&heap->update_lock);
	world_close(&w);
}

/* In checking mode all move, the hot ones to regions of their own. */
static void hot_objects_move_apart(void **state)
{
	const size_t every = 40, least = MANY / every * 32 / PAGE_BYTES;
	struct world w;

	world_open(&w, "mode=memliner,residency=simulated,exact");
	nodes_fill(&w, MANY);
	collect(&w);
	heat(&w, every);
	collect(&w);
	assert_true(pages_with_hot(&w, every) <= least + 2);
	nodes_check(&w, MANY);
	world_close(&w);
}

/* Faults of the program make objects hot. */
static void arrivals_heat(void **state)
{
	static struct ebb_arrivals ring;
	uint64_t object;
	struct world w;

	world_open(&w, "mode=memliner,exact,arrivals,hints");
	pthread_mutex_lock(&w.heap->update_lock);
	pthread_mutex_lock(&w.heap->lock);
	arrivals_open(&w.heap->arrivals, &ring);
	pthread_mutex_unlock(&w.heap->lock);
	nodes_fill(&w, NODES);
	collect(&w);
	object = at(&w, w.roots[0], 3).bits & EBBGC_ADDRESS_MASK;
	assert_false(bit_test(w.heap->moving.hot, granule_of(w.heap, object)));
	__atomic_store_n(&ring.entry[0], ebb_arrival(0, object, EBB_MISS, EBB_ROLE_APP),
			 __ATOMIC_RELEASE);
	__atomic_store_n(&ring.head, 1, __ATOMIC_RELEASE);
	/* The collector's thread reads the ring. */
	while (!bit_test(w.heap->moving.hot, granule_of(w.heap, object)))
		usleep(1000);
	/* The next cycle's move makes all cold again. */
	collect(&w);
	object = at(&w, w.roots[0], 3).bits & EBBGC_ADDRESS_MASK;
	assert_false(bit_test(w.heap->moving.hot, granule_of(w.heap, object)));
	pthread_mutex_lock(&w.heap->lock);
	arrivals_open(&w.heap->arrivals, NULL);
	pthread_mutex_unlock(&w.heap->lock);
	pthread_mutex_unlock(&w.heap->update_lock);
	world_close(&w);
}

struct watched {
	ebbgc_heap_t *heap;
	struct ebb_arrivals ring;
	uint64_t object;
	bool hot;
};

/* The program faults on the object as a cycle marks. */
static void fault(void *arg, const struct ebbgc_event *event)
{
	struct watched *t = arg;

	if (!t->object)
		return;
	if (event->kind == EBBGC_EVENT_MARK_BEGIN) {
		__atomic_store_n(&t->ring.entry[0],
				 ebb_arrival(0, t->object, EBB_MISS, EBB_ROLE_APP),
				 __ATOMIC_RELEASE);
		__atomic_store_n(&t->ring.head, 1, __ATOMIC_RELEASE);
	} else if (event->kind == EBBGC_EVENT_MARK_END) {
		t->hot = bit_test(t->heap->moving.hot, granule_of(t->heap, t->object));
	}
}

static void marking_finds_heat(void **state)
{
	static struct watched t;
	struct ebbgc_options o;
	struct world w;

	ebbgc_options_init(&o);
	assert_int_equal(ebbgc_debug(&o, "mode=memliner,arrivals,max=64M"), 0);
	o.check = true;
	o.event = fault;
	o.event_arg = &t;
	assert_int_equal(ebbgc_heap_create(&o, &t.heap), 0);
	world_open_heap(&w, t.heap);
	nodes_fill(&w, NODES);
	collect(&w);
	pthread_mutex_lock(&w.heap->lock);
	arrivals_open(&w.heap->arrivals, &t.ring);
	pthread_mutex_unlock(&w.heap->lock);
	t.object = at(&w, w.roots[0], 3).bits & EBBGC_ADDRESS_MASK;
	collect(&w);
	assert_true(t.hot);
	pthread_mutex_lock(&w.heap->lock);
	arrivals_open(&w.heap->arrivals, NULL);
	pthread_mutex_unlock(&w.heap->lock);
	world_close(&w);
}

#define LINKED 5000

/* Returns how many nodes lie right behind the one that leads to them. */
static size_t behind(struct world *w)
{
	uint64_t before = w->roots[1].bits & EBBGC_ADDRESS_MASK;
	size_t count = 0, nodes = 0;
	ebbgc_ref_t r = w->roots[1];

	while (!ebbgc_is_null(r = ebbgc_load(w->m, r, &node_of(r)->left))) {
		uint64_t object = r.bits & EBBGC_ADDRESS_MASK;

		assert_int_equal(node_of(r)->value, ++nodes);
		count += object == before + 32;
		before = object;
	}
	assert_int_equal(nodes, LINKED - 1);
	return count;
}

/* A list whose order in memory is random lies in its own order after a move. */
static void lists_are_straightened(void **state)
{
	static uint32_t order[LINKED];
	uint64_t seed = 1;
	struct world w;

	world_open(&w, *state);
	nodes_fill(&w, LINKED);
	for (uint32_t i = 0; i < LINKED; i++)
		order[i] = i;
	for (uint32_t i = LINKED - 1; i; i--) {
		uint32_t k, was = order[i];

		seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
		k = (uint32_t)(seed >> 33) % (i + 1);
		order[i] = order[k];
		order[k] = was;
	}
	for (size_t i = 0; i < LINKED; i++) {
		ebbgc_ref_t r = at(&w, w.roots[0], order[i]);

		node_of(r)->value = i;
		if (i + 1 < LINKED)
			ebbgc_store(w.m, r, &node_of(r)->left, at(&w, w.roots[0], order[i + 1]));
	}
	w.roots[1] = at(&w, w.roots[0], order[0]);
	w.roots[0] = EBBGC_NULL;
	assert_true(behind(&w) < LINKED / 20);
	collect(&w);
	assert_true(behind(&w) > LINKED - LINKED / 20);
	collect(&w);
	assert_true(behind(&w) > LINKED - LINKED / 20);
	world_close(&w);
}

/* The left branch comes first, and all of it before the right one. */
static void branches_follow_their_trunk(void **state)
{
	/* Children of the nodes 0 .. 6, by breadth; the order of the places is another. */
	static const size_t depth_first[] = { 0, 1, 3, 4, 2, 5, 6 };
	static const size_t born[] = { 0, 6, 2, 5, 1, 4, 3 };
	ebbgc_ref_t tree[7] = { 0 }, r;
	struct ebbgc_frame frame;
	struct world w;

	world_open(&w, "mode=stop");
	w.roots[0] = ebbgc_alloc_length(w.m, w.fixed, 1);
	ebbgc_frame_push(w.m, &frame, tree, 7);
	for (size_t i = 0; i < 7; i++)
		tree[born[i]] = node_new(&w, born[i]);
	for (size_t i = 0; i < 3; i++) {
		ebbgc_store(w.m, tree[i], &node_of(tree[i])->left, tree[2 * i + 1]);
		ebbgc_store(w.m, tree[i], &node_of(tree[i])->right, tree[2 * i + 2]);
	}
	ebbgc_store(w.m, w.roots[0], slot_of(w.roots[0], 0), tree[0]);
	ebbgc_frame_pop(w.m, &frame);
	collect(&w);
	r = at(&w, w.roots[0], 0);
	for (size_t i = 0; i < 7; i++) {
		ebbgc_ref_t next = { r.bits + i * 32 };

		assert_int_equal(node_of(next)->value, depth_first[i]);
	}
	world_close(&w);
}

static size_t fill_up(struct world *w)
{
	size_t count = 0;

	for (;; count++) {
		ebbgc_ref_t r = ebbgc_alloc(w->m, w->node);

		if (ebbgc_is_null(r))
			return count;
		node_of(r)->value = count;
		ebbgc_init(&node_of(r)->left, w->roots[1]);
		w->roots[1] = r;
	}
}

/* Old copies are not usable yet: a full heap must not move objects until it has none left. */
static void full_heaps_keep_their_room(void **state)
{
	size_t first, again, count = 0;
	struct world w;
	ebbgc_ref_t r;

	world_open_heap(&w, plain_heap(4 << 20));
	first = fill_up(&w);
	assert_true(first > 100000);
	/* Every eighth stays in the list. */
	for (r = w.roots[1]; !ebbgc_is_null(r);) {
		ebbgc_ref_t next = ebbgc_load(w.m, r, &node_of(r)->left);

		for (int i = 0; i < 7 && !ebbgc_is_null(next); i++)
			next = ebbgc_load(w.m, next, &node_of(next)->left);
		ebbgc_store(w.m, r, &node_of(r)->left, next);
		r = next;
		count++;
	}
	again = fill_up(&w);
	assert_true(again + count > first - first / 20);
	world_close(&w);
}

struct thread {
	struct world *w;
	bool stop;		/* atomic */
	unsigned int forks;
};

static void *reader(void *arg)
{
	struct thread *t = arg;
	ebbgc_ref_t array = t->w->roots[0];
	ebbgc_mutator_t *m;

	/* A thread that comes after the move. */
	assert_int_equal(ebbgc_attach(t->w->heap, &m), 0);
	assert_true(m->flags & EBBGC_MOVED);
	for (size_t i = 0; i < NODES; i++) {
		ebbgc_ref_t r = ebbgc_load(m, array, slot_of(array, i));

		assert_int_equal(node_of(r)->value, i);
	}
	ebbgc_detach(m);
	return NULL;
}

static void threads_attach_after_a_move(void **state)
{
	struct thread t;
	pthread_t thread;
	struct world w;

	world_open(&w, "mode=stop");
	nodes_fill(&w, NODES);
	collect(&w);
	t = (struct thread){ .w = &w };
	assert_int_equal(ebbgc_blocked_begin(w.m), 0);
	assert_int_equal(pthread_create(&thread, NULL, reader, &t), 0);
	pthread_join(thread, NULL);
	ebbgc_blocked_end(w.m);
	world_close(&w);
}

/* Reads, writes and hashes all in a child of a thread that was blocked. */
static int in_the_child(struct world *w, ebbgc_mutator_t *m, ebbgc_ref_t array)
{
	for (int round = 0; round < 2; round++) {
		for (size_t i = 0; i < NODES; i++) {
			ebbgc_ref_t r = ebbgc_load(m, array, slot_of(array, i)), left;

			if (node_of(r)->value != i || !ebbgc_hash(m, r))
				return 2;
			left = ebbgc_load(m, r, &node_of(r)->left);
			if (!ebbgc_is_null(left) && node_of(left)->value >= NODES)
				return 3;
			ebbgc_store(m, r, &node_of(r)->left,
				    ebbgc_load(m, array, slot_of(array, (i + 1) % NODES)));
		}
	}
	return ebbgc_heap_destroy(w->heap) ? 4 : 1;
}

static void *forker(void *arg)
{
	struct thread *t = arg;
	struct world *w = t->w;
	struct ebbgc_frame frame;
	ebbgc_mutator_t *m;
	ebbgc_ref_t array;

	assert_int_equal(ebbgc_attach(w->heap, &m), 0);
	array = w->roots[0];
	ebbgc_frame_push(m, &frame, &array, 1);
	while (!__atomic_load_n(&t->stop, __ATOMIC_ACQUIRE)) {
		int status = 0;
		pid_t pid;

		assert_int_equal(ebbgc_blocked_begin(m), 0);
		pid = fork();
		if (!pid) {
			alarm(60);
			ebbgc_blocked_end(m);
			_exit(in_the_child(w, m, array));
		}
		waitpid(pid, &status, 0);
		ebbgc_blocked_end(m);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 1);
		__atomic_fetch_add(&t->forks, 1, __ATOMIC_RELAXED);
	}
	ebbgc_frame_pop(m, &frame);
	ebbgc_detach(m);
	return NULL;
}

/* fork() by a blocked thread, before, while and after objects move. */
static void forks_in_the_middle(void **state)
{
	struct thread t;
	pthread_t thread;
	struct world w;

	if (!FORKS)
		skip();
	world_open(&w, *state);
	nodes_fill(&w, NODES);
	t = (struct thread){ .w = &w };
	assert_int_equal(pthread_create(&thread, NULL, forker, &t), 0);
	for (int i = 0; i < 400 || __atomic_load_n(&t.forks, __ATOMIC_RELAXED) <= 10; i++) {
		collect(&w);
		nodes_check(&w, NODES);
		for (size_t k = 0; k < NODES; k++) {
			ebbgc_ref_t r = at(&w, w.roots[0], k);

			ebbgc_store(w.m, r, &node_of(r)->left,
				    at(&w, w.roots[0], (k + (size_t)i) % NODES));
		}
	}
	__atomic_store_n(&t.stop, true, __ATOMIC_RELEASE);
	assert_int_equal(ebbgc_blocked_begin(w.m), 0);
	pthread_join(thread, NULL);
	ebbgc_blocked_end(w.m);
	world_close(&w);
}

static size_t copies_seen;

/* Threads have flags and tables by now.  The only one waits for the cycle's end. */
static void copies_are_kept(void *arg, const struct ebbgc_event *event)
{
	const ebbgc_heap_t *h = *(ebbgc_heap_t **)arg;

	if (event->kind != EBBGC_EVENT_PAUSE_END || !h || !h->moving.active)
		return;
	for (uint32_t r = h->moving.regions.head; r != REGION_NONE; r = h->regions[r].next) {
		size_t size = h->slot_size[h->kinds[r]];

		for (size_t i = 0; i < REGION_SIZE / size; i++) {
			uint64_t object = (uint64_t)(uintptr_t)region_start(h, r) + i * size + 8;
			uint64_t now = forward(h, object);

			if (now == object)
				continue;
			copies_seen++;
			assert_memory_equal(header_of(object), header_of(now), size);
		}
	}
}

/* A child of fork() in the pause, without the flag, uses the old copies. */
static void pauses_keep_old_copies(void **state)
{
	struct ebbgc_options o;
	ebbgc_heap_t *heap = NULL;
	struct world w;

	ebbgc_options_init(&o);
	assert_int_equal(ebbgc_options_parse(&o, *state), 0);
	o.check = true;
	o.max_bytes = 64 << 20;
	o.event = copies_are_kept;
	o.event_arg = &heap;
	assert_int_equal(ebbgc_heap_create(&o, &heap), 0);
	world_open_heap(&w, heap);
	nodes_fill(&w, NODES);
	copies_seen = 0;
	collect(&w);
	assert_int_equal(copies_seen, NODES);
	world_close(&w);
}

static size_t failures;

static void count_failures(void *arg, const struct ebbgc_event *event)
{
	failures += event->kind == EBBGC_EVENT_CHECK_FAILED;
}

/* The checking mode finds a reference that the program keeps where it is no root. */
static void a_root_that_is_none_is_found(void **state)
{
	struct ebbgc_options o;
	ebbgc_heap_t *heap;
	struct world w;
	ebbgc_ref_t kept;

	ebbgc_options_init(&o);
	o.check = true;
	o.max_bytes = 64 << 20;
	o.event = count_failures;
	assert_int_equal(ebbgc_heap_create(&o, &heap), 0);
	world_open_heap(&w, heap);
	nodes_fill(&w, NODES);
	kept = at(&w, w.roots[0], 5);
	collect(&w);
	failures = 0;
	assert_int_not_equal(node_of(kept)->value, 5);
	/* It becomes a root too late. */
	w.roots[1] = kept;
	collect(&w);
	assert_true(failures > 0);
	w.roots[1] = EBBGC_NULL;
	ebbgc_detach(w.m);
	assert_int_equal(ebbgc_heap_destroy(w.heap), 0);
}

#define WITH(test, words) { #test ": " words, test, NULL, NULL, (void *)words }

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(layouts),
		cmocka_unit_test(no_cost_without_such_types),
		WITH(all_but_roots_move, "mode=stop"),
		WITH(all_but_roots_move, "mode=concurrent,nursery=64K"),
		WITH(all_but_roots_move, "mode=memliner,residency=simulated,epoch=1,delta=0"),
		cmocka_unit_test(all_roots_pin),
		cmocka_unit_test(stacks_pin),
		WITH(slots_are_healed, "mode=stop"),
		WITH(slots_are_healed, "mode=stop,address"),
		cmocka_unit_test(stores_win),
		cmocka_unit_test(compare_and_swap),
		WITH(copies, "mode=stop"),
		WITH(copies, "mode=concurrent,nursery=64K"),
		WITH(weak_references, "mode=stop"),
		WITH(weak_references, "mode=concurrent,nursery=64K"),
		cmocka_unit_test(large_objects_stay),
		cmocka_unit_test(sites_with_a_length),
		cmocka_unit_test(sparse_regions_are_emptied),
		cmocka_unit_test(minor_cycles_forward),
		cmocka_unit_test(pauses_are_short),
		cmocka_unit_test(hot_objects_are_packed),
		cmocka_unit_test(hot_objects_move_apart),
		cmocka_unit_test(arrivals_heat),
		cmocka_unit_test(marking_finds_heat),
		WITH(lists_are_straightened, "mode=stop"),
		WITH(lists_are_straightened, "mode=concurrent,nursery=1M"),
		cmocka_unit_test(branches_follow_their_trunk),
		cmocka_unit_test(full_heaps_keep_their_room),
		cmocka_unit_test(threads_attach_after_a_move),
		WITH(forks_in_the_middle, "mode=stop"),
		WITH(forks_in_the_middle, "mode=concurrent,nursery=64K"),
		WITH(pauses_keep_old_copies, "mode=stop"),
		WITH(pauses_keep_old_copies, "mode=concurrent,nursery=64K"),
		cmocka_unit_test(a_root_that_is_none_is_found),
	};

	/* Some tests wait for a cycle. */
	alarm(300);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
