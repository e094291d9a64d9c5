/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A heap with a far generation whose store is in the test's own memory, and an array of nodes. */
#ifndef GC_FAR_WORLD_H
#define GC_FAR_WORLD_H

#include "gc_store.h"
#include "forward.h"

#define NODES 3000
#define ROOTS 8

struct world {
	ebbgc_heap_t *heap;
	ebbgc_mutator_t *m;
	ebbgc_type_t node, refs, fixed, leaf;
	struct ebbgc_frame frame;
	ebbgc_ref_t roots[ROOTS];
	struct store store;
};

static inline void types_register(struct world *w)
{
	static const struct ebbgc_layout leaf = {
		.name = "leaf", .flags = EBBGC_LEAF, .size = 8, .element_size = 1, .length_width = 8,
	};

	w->node = type_new(w->heap, node_layout, EBBGC_MOVABLE);
	w->refs = type_new(w->heap, refs_layout, EBBGC_MOVABLE);
	w->leaf = type_new(w->heap, leaf, EBBGC_MOVABLE);
	w->fixed = type_new(w->heap, refs_layout, 0);
}

/* Words for ebbgc_debug(), and the budget in MiB behind a colon. */
static inline void world_open(struct world *w, const char *words, size_t mib)
{
	struct ebbgc_far_options o;
	struct ebbgc_far_store store;

	*w = (struct world){ .store = { .lock = PTHREAD_MUTEX_INITIALIZER } };
	w->heap = checked_heap_with(words, 256 << 20);
	ebbgc_far_options_init(&o);
	o.local_bytes = mib << 20;
	store = store_of(&w->store);
	types_register(w);
	assert_int_equal(ebbgc_far_attach(w->heap, &store, &o), 0);
	assert_int_equal(ebbgc_attach(w->heap, &w->m), 0);
	ebbgc_frame_push(w->m, &w->frame, w->roots, ROOTS);
}

static inline void world_close(struct world *w)
{
	assert_int_equal(stats_of(w->heap).check_failures, 0);
	ebbgc_detach(w->m);
	assert_int_equal(ebbgc_heap_destroy(w->heap), 0);
	assert_int_equal(w->store.places, 0);
}

static inline ebbgc_ref_t node_new(struct world *w, uint64_t value)
{
	ebbgc_ref_t r = ebbgc_alloc(w->m, w->node);

	assert_false(ebbgc_is_null(r));
	node_of(r)->value = value;
	return r;
}

static inline ebbgc_ref_t *slot_of(ebbgc_ref_t array, size_t i)
{
	return &refs_of(array)->slots[i];
}

static inline ebbgc_ref_t at(struct world *w, ebbgc_ref_t array, size_t i)
{
	return ebbgc_load(w->m, array, slot_of(array, i));
}

/* Makes roots[0] an array that stays in memory, of nodes, each with its index. */
static inline void nodes_fill(struct world *w, size_t count)
{
	w->roots[0] = ebbgc_alloc_length(w->m, w->fixed, count);
	for (size_t i = 0; i < count; i++)
		ebbgc_store(w->m, w->roots[0], slot_of(w->roots[0], i), node_new(w, i));
}

static inline void nodes_check(struct world *w, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		ebbgc_ref_t r = at(w, w->roots[0], i);

		assert_int_equal(node_of(r)->value, i);
	}
}

static inline void collect(struct world *w)
{
	assert_int_equal(ebbgc_collect(w->m), 0);
}

static inline void evict(struct world *w)
{
	assert_int_equal(ebbgc_far_evict(w->m), 0);
}

static inline bool is_far(const struct world *w, uint64_t bits)
{
	return region_is_out(w->heap, region_of(w->heap, forward(w->heap,
							 bits & EBBGC_ADDRESS_MASK)));
}

static inline size_t far_count(const struct world *w, size_t count)
{
	size_t far = 0;

	for (size_t i = 0; i < count; i++)
		far += is_far(w, slot_of(w->roots[0], i)->bits);
	return far;
}

#endif
