// SPDX-License-Identifier: GPL-2.0-or-later
/* Minor cycles in a heap of a language runtime: slots with tags, edges, weak entries, fibres. */
#include <errno.h>
#include <unistd.h>
#include "gc_test.h"
#include "heap.h"
#include "object.h"
#include "trigger.h"

#define ROOTS 6
#define IS_REF 0x40

/* Four words: a tag below, a pointer behind a header, a word with its tag beside it, any word. */
struct words {
	uint64_t low, inside, value, tag, any;
};

static const struct ebbgc_slots words_slots[] = {
	{ .kind = EBBGC_SLOT_TAGGED, .offset = 0, .count = 1, .stride = 8, .mask = 1, .value = 1,
	  .subtract = 1 },
	{ .kind = EBBGC_SLOT_TAGGED, .offset = 8, .count = 1, .stride = 8, .subtract = 8 },
	{ .kind = EBBGC_SLOT_VALUE_AND_TAG, .offset = 16, .count = 1, .stride = 8, .tag_offset = 8,
	  .mask = IS_REF, .value = IS_REF },
	{ .kind = EBBGC_SLOT_AMBIGUOUS, .offset = 32, .count = 1, .stride = 8 },
};

static const struct ebbgc_layout words_layout = {
	.name = "words", .flags = EBBGC_ALL_STORES, .size = sizeof(struct words),
	.slots = words_slots, .slot_count = 4, .slot_size = sizeof(struct ebbgc_slots),
};

/* An array of words with a tag below. */
static const struct ebbgc_slots array_slots = {
	.kind = EBBGC_SLOT_TAGGED, .offset = 8, .count = EBBGC_COUNT_LENGTH, .stride = 8, .mask = 1,
	.value = 1, .subtract = 1,
};

static const struct ebbgc_layout array_layout = {
	.name = "array", .flags = EBBGC_ALL_STORES, .size = 8, .element_size = 8,
	.length_width = 8, .slots = &array_slots, .slot_count = 1,
	.slot_size = sizeof(struct ebbgc_slots),
};

struct entry {
	ebbgc_ref_t key, value;
};

/* 'k': keys are ephemerons'; 'f': so, cleared first; 'v': values are weak; 's': all are strong. */
struct table {
	uint64_t length, mode;
	struct entry entries[];
};

static void table_edges(void *object, struct ebbgc_edges *e)
{
	struct table *t = object;

	for (uint64_t i = 0; i < t->length; i++) {
		struct entry *n = &t->entries[i];
		ebbgc_ref_t key = { __atomic_load_n(&n->key.bits, __ATOMIC_ACQUIRE) };
		ebbgc_ref_t value = { __atomic_load_n(&n->value.bits, __ATOMIC_ACQUIRE) };

		if (t->mode == 'k' || t->mode == 'f') {
			e->ephemeron(e, &n->key, key, &n->value, value,
				     t->mode == 'k' ? EBBGC_CLEAR_LAST : EBBGC_CLEAR_FIRST);
			continue;
		}
		e->strong(e, &n->key, key);
		if (t->mode == 'v')
			e->weak(e, &n->value, value, EBBGC_CLEAR_FIRST);
		else
			e->strong(e, NULL, value);
	}
}

static const struct ebbgc_layout table_layout = {
	.name = "table", .flags = EBBGC_ALL_STORES, .size = sizeof(struct table),
	.element_size = sizeof(struct entry), .length_width = 8, .edges = table_edges,
};

/* Its stack is a leaf of the heap. */
struct fibre {
	uint64_t state;
	ebbgc_ref_t stack;
};

static void fibre_edges(void *object, struct ebbgc_edges *e)
{
	struct fibre *f = object;
	struct refs *stack = ebbgc_ptr(f->stack);

	e->strong(e, &f->stack, f->stack);
	for (uint64_t i = 0; stack && i < stack->length; i++)
		e->strong(e, &stack->slots[i], stack->slots[i]);
}

static const struct ebbgc_layout fibre_layout = {
	.name = "fibre", .flags = EBBGC_FIBRE | EBBGC_ALL_STORES, .size = sizeof(struct fibre),
	.edges = fibre_edges, .fibre_offset = offsetof(struct fibre, state),
};

static const struct ebbgc_layout stack_layout = {
	.name = "stack", .flags = EBBGC_LEAF, .size = sizeof(struct refs), .element_size = 8,
	.length_width = 8,
};

struct fixture {
	ebbgc_heap_t *heap;
	ebbgc_mutator_t *m;
	ebbgc_type_t node, words, array, table, fibre, stack;
	ebbgc_ref_t roots[ROOTS];
	struct ebbgc_frame frame;
	unsigned int failures;
	bool armed, waits;		/* the collector waits after the snapshot; atomic */
};

static void on_event(void *arg, const struct ebbgc_event *e)
{
	struct fixture *f = arg;

	if (e->kind == EBBGC_EVENT_CHECK_FAILED)
		__atomic_add_fetch(&f->failures, 1, __ATOMIC_RELAXED);
	if (e->kind != EBBGC_EVENT_MARK_BEGIN || !__atomic_load_n(&f->armed, __ATOMIC_ACQUIRE))
		return;
	__atomic_store_n(&f->waits, true, __ATOMIC_RELEASE);
	while (__atomic_load_n(&f->armed, __ATOMIC_ACQUIRE))
		usleep(50);
	__atomic_store_n(&f->waits, false, __ATOMIC_RELEASE);
}

static void begin(struct fixture *f, const char *words)
{
	struct ebbgc_options o;

	memset(f, 0, sizeof(*f));
	ebbgc_options_init(&o);
	o.max_bytes = 64 << 20;
	o.check = true;
	o.event = on_event;
	o.event_arg = f;
	/* A minor cycle that takes long, in a thread that waits for a processor, frees nothing. */
	o.pause_budget_ns = UINT64_MAX;
	assert_int_equal(ebbgc_debug(&o, words), 0);
	assert_int_equal(ebbgc_heap_create(&o, &f->heap), 0);
	assert_int_equal(ebbgc_type_register(f->heap, &node_layout, &f->node), 0);
	assert_int_equal(ebbgc_type_register(f->heap, &words_layout, &f->words), 0);
	assert_int_equal(ebbgc_type_register(f->heap, &array_layout, &f->array), 0);
	assert_int_equal(ebbgc_type_register(f->heap, &table_layout, &f->table), 0);
	assert_int_equal(ebbgc_type_register(f->heap, &fibre_layout, &f->fibre), 0);
	assert_int_equal(ebbgc_type_register(f->heap, &stack_layout, &f->stack), 0);
	assert_int_equal(ebbgc_attach(f->heap, &f->m), 0);
	ebbgc_frame_push(f->m, &f->frame, f->roots, ROOTS);
}

static void end(struct fixture *f)
{
	assert_int_equal(f->failures, 0);
	assert_int_equal(stats_of(f->heap).check_failures, 0);
	ebbgc_detach(f->m);
	assert_int_equal(ebbgc_heap_destroy(f->heap), 0);
}

static ebbgc_ref_t node(struct fixture *f, uint64_t value)
{
	ebbgc_ref_t r = ebbgc_alloc(f->m, f->node);

	node_of(r)->value = value;
	return r;
}

static uint64_t address(ebbgc_ref_t r)
{
	return r.bits & EBBGC_ADDRESS_MASK;
}

/* Runs a minor cycle; returns how many entries the remembered set had. */
static uint64_t minor(struct fixture *f)
{
	struct ebbgc_stats before = stats_of(f->heap), after;

	/* So that there is something young. */
	node(f, 0);
	pthread_mutex_lock(&f->heap->lock);
	minor_request(f->heap);
	pthread_mutex_unlock(&f->heap->lock);
	do {
		ebbgc_poll(f->m);
		usleep(50);
		after = stats_of(f->heap);
	} while (after.minor_cycles == before.minor_cycles);
	assert_int_equal(after.cycles, before.cycles);
	assert_int_equal(after.minor_kept, before.minor_kept);
	return after.remembered - before.remembered;
}

static bool exists(const struct fixture *f, ebbgc_ref_t r)
{
	return bit_test(f->heap->allocated, granule_of(f->heap, address(r)));
}

static struct words *words_of(ebbgc_ref_t r)
{
	return ebbgc_ptr(r);
}

static struct table *table_of(ebbgc_ref_t r)
{
	return ebbgc_ptr(r);
}

static struct refs *stack_of(ebbgc_ref_t fibre)
{
	return ebbgc_ptr(((struct fibre *)ebbgc_ptr(fibre))->stack);
}

/* Stores four nodes.  Nothing is collected meanwhile. */
static void words_set(struct fixture *f, ebbgc_ref_t object, uint64_t base)
{
	struct words *w = words_of(object);
	uint64_t nodes[4];

	for (uint64_t i = 0; i < 4; i++)
		nodes[i] = address(node(f, base + i));
	ebbgc_overwrite(f->m, object, EBBGC_NULL);
	*w = (struct words){ nodes[0] | 1, nodes[1] + 8, nodes[2], IS_REF | 3, nodes[3] + 17 };
}

static void words_check(ebbgc_ref_t object, uint64_t base)
{
	struct words *w = words_of(object);

	assert_int_equal(((struct node *)(w->low - 1))->value, base);
	assert_int_equal(((struct node *)(w->inside - 8))->value, base + 1);
	assert_int_equal(((struct node *)w->value)->value, base + 2);
	assert_int_equal(((struct node *)(w->any - 17))->value, base + 3);
}

/* Of a young object, and of an old one that was passed to ebbgc_overwrite(). */
static void slots_keep_young_objects(void **state)
{
	struct fixture f;
	ebbgc_ref_t dead;

	begin(&f, *state);
	f.roots[0] = ebbgc_alloc(f.m, f.words);
	words_set(&f, f.roots[0], 10);
	f.roots[1] = ebbgc_alloc(f.m, f.words);
	dead = node(&f, 1);
	words_of(f.roots[1])->low = words_of(f.roots[1])->value = address(dead);
	assert_int_equal(minor(&f), 0);
	words_check(f.roots[0], 10);
	assert_false(exists(&f, dead));
	words_set(&f, f.roots[0], 20);
	words_set(&f, f.roots[1], 30);
	dead = node(&f, 2);
	assert_int_equal(minor(&f), 2);
	words_check(f.roots[0], 20);
	words_check(f.roots[1], 30);
	assert_false(exists(&f, dead));
	end(&f);
}

/* ebbgc_replace() finds the object, or the page of a large one, if the value is young. */
static void replaced_slots_are_remembered(void **state)
{
	const uint64_t small = 100, large = 8 * REGION_SIZE / 8;
	struct fixture f;
	uint64_t *slots;
	ebbgc_ref_t old;

	begin(&f, *state);
	f.roots[0] = ebbgc_alloc_length(f.m, f.array, small);
	f.roots[1] = ebbgc_alloc_length(f.m, f.array, large);
	f.roots[2] = old = node(&f, 7);
	minor(&f);
	for (int i = 0; i < 2; i++) {
		slots = (uint64_t *)ebbgc_ptr(f.roots[i]) + 1;
		/* An old object, and none. */
		ebbgc_replace(f.m, &slots[5], EBBGC_NULL, old);
		slots[5] = address(old) | 1;
		ebbgc_replace(f.m, &slots[6], EBBGC_NULL, EBBGC_NULL);
		slots[6] = 4;
	}
	assert_int_equal(minor(&f), 0);
	for (int i = 0; i < 2; i++) {
		uint64_t last = (i ? large : small) - 1;

		slots = (uint64_t *)ebbgc_ptr(f.roots[i]) + 1;
		for (uint64_t n = 0; n < 50; n++) {
			ebbgc_ref_t young = node(&f, n);

			ebbgc_replace(f.m, &slots[n], EBBGC_NULL, young);
			slots[n] = address(young) | 1;
		}
		f.roots[3] = node(&f, 99);
		ebbgc_replace(f.m, &slots[last], EBBGC_NULL, f.roots[3]);
		slots[last] = address(f.roots[3]) | 1;
	}
	f.roots[3] = EBBGC_NULL;
	assert_int_equal(minor(&f), 3);
	for (int i = 0; i < 2; i++) {
		slots = (uint64_t *)ebbgc_ptr(f.roots[i]) + 1;
		for (uint64_t n = 0; n < 50; n++)
			assert_int_equal(((struct node *)(slots[n] - 1))->value, n);
		assert_int_equal(((struct node *)(slots[(i ? large : small) - 1] - 1))->value, 99);
	}
	/* A slot outside of the heap. */
	ebbgc_replace(f.m, &small, EBBGC_NULL, node(&f, 1));
	assert_int_equal(minor(&f), 0);
	end(&f);
}

static ebbgc_ref_t table_new(struct fixture *f, uint64_t mode, uint64_t length)
{
	ebbgc_ref_t r = ebbgc_alloc_length(f->m, f->table, length);

	table_of(r)->mode = mode;
	return r;
}

static void put(struct fixture *f, ebbgc_ref_t table, uint64_t i, ebbgc_ref_t key,
		ebbgc_ref_t value)
{
	struct entry *n = &table_of(table)->entries[i];

	ebbgc_replace(f->m, &n->key, n->key, key);
	n->key = key;
	ebbgc_replace(f->m, &n->value, n->value, value);
	n->value = value;
}

/* Young and old tables, small and large. */
static void edges_keep_young_objects(void **state)
{
	struct fixture f;
	uint64_t last;

	begin(&f, *state);
	for (int large = 0; large < 2; large++) {
		last = large ? 2 * REGION_SIZE / sizeof(struct entry) : 3;
		f.roots[0] = table_new(&f, 's', last + 1);
		for (int round = 0; round < 2; round++) {
			struct entry *entries = table_of(f.roots[0])->entries;
			ebbgc_ref_t dead = node(&f, 9);

			put(&f, f.roots[0], 1, node(&f, 1), node(&f, 2));
			put(&f, f.roots[0], last, node(&f, 3), node(&f, 4));
			/* Once, though the entries are on several pages. */
			assert_int_equal(minor(&f), round);
			assert_false(exists(&f, dead));
			assert_int_equal(node_of(entries[1].key)->value, 1);
			assert_int_equal(node_of(entries[1].value)->value, 2);
			assert_int_equal(node_of(entries[last].key)->value, 3);
			assert_int_equal(node_of(entries[last].value)->value, 4);
		}
	}
	end(&f);
}

static void weak_entries_are_cleared(void **state)
{
	struct fixture f;
	struct table *t;

	begin(&f, *state);
	f.roots[0] = table_new(&f, 'v', 4);
	f.roots[1] = node(&f, 1);
	minor(&f);
	t = table_of(f.roots[0]);
	/* Dies young; lives; is old; is none. */
	put(&f, f.roots[0], 0, node(&f, 2), node(&f, 3));
	f.roots[2] = node(&f, 4);
	put(&f, f.roots[0], 1, EBBGC_NULL, f.roots[2]);
	put(&f, f.roots[0], 2, EBBGC_NULL, f.roots[1]);
	t->entries[3].value.bits = 5;
	f.roots[1] = EBBGC_NULL;
	minor(&f);
	assert_int_equal(node_of(t->entries[0].key)->value, 2);
	assert_true(ebbgc_is_null(t->entries[0].value));
	assert_true(ebbgc_same(t->entries[1].value, f.roots[2]));
	assert_int_equal(node_of(t->entries[2].value)->value, 1);
	assert_int_equal(t->entries[3].value.bits, 5);
	end(&f);
}

#define CHAIN 100u

static void ephemeron_entries_are_followed(void **state)
{
	ebbgc_ref_t key, value;
	struct fixture f;
	struct table *t;

	begin(&f, *state);
	f.roots[0] = table_new(&f, 'k', CHAIN + 4);
	minor(&f);
	/* A chain that is found from its end. */
	f.roots[1] = key = node(&f, 0);
	f.roots[2] = key;
	for (uint64_t i = CHAIN; i-- > 0; f.roots[2] = value) {
		value = node(&f, CHAIN - i);
		put(&f, f.roots[0], i, f.roots[2], value);
	}
	f.roots[2] = EBBGC_NULL;
	/* Its key dies, and with it the value; the value lives; keeps its key; and is no object. */
	put(&f, f.roots[0], CHAIN, node(&f, 1), node(&f, 2));
	f.roots[3] = node(&f, 3);
	put(&f, f.roots[0], CHAIN + 1, node(&f, 4), f.roots[3]);
	key = node(&f, 5);
	value = node(&f, 6);
	ebbgc_init(&node_of(value)->left, key);
	put(&f, f.roots[0], CHAIN + 2, key, value);
	put(&f, f.roots[0], CHAIN + 3, node(&f, 7), EBBGC_NULL);
	t = table_of(f.roots[0]);
	t->entries[CHAIN + 3].value.bits = 11;
	minor(&f);
	for (uint64_t i = 0; i < CHAIN; i++)
		assert_int_equal(node_of(t->entries[i].value)->value, CHAIN - i);
	for (uint64_t i = CHAIN; i < CHAIN + 4; i++)
		assert_true(ebbgc_is_null(t->entries[i].key));
	assert_true(ebbgc_is_null(t->entries[CHAIN].value));
	assert_true(ebbgc_same(t->entries[CHAIN + 1].value, f.roots[3]));
	assert_true(ebbgc_is_null(t->entries[CHAIN + 2].value));
	assert_int_equal(t->entries[CHAIN + 3].value.bits, 11);
	/* What is left of an entry keeps nothing; an old key keeps its value. */
	f.roots[3] = EBBGC_NULL;
	t->entries[CHAIN + 3].value = EBBGC_NULL;
	put(&f, f.roots[0], CHAIN + 1, f.roots[1], node(&f, 8));
	put(&f, f.roots[0], CHAIN + 2, EBBGC_NULL, node(&f, 9));
	minor(&f);
	assert_int_equal(node_of(t->entries[CHAIN + 1].value)->value, 8);
	assert_true(ebbgc_is_null(t->entries[CHAIN + 2].value));
	end(&f);
}

static void note_call(ebbgc_mutator_t *m, ebbgc_ref_t object, void *data)
{
	(void)m;
	*(uint64_t *)data = node_of(object)->value;
}

/* Keys of EBBGC_CLEAR_LAST that finalizers keep are kept, others were cleared before. */
static void keys_are_cleared_after_finalizers(void **state)
{
	uint64_t values[2] = { 0 };
	struct fixture f;
	ebbgc_ref_t key;

	begin(&f, *state);
	f.roots[0] = table_new(&f, 'k', 1);
	f.roots[1] = table_new(&f, 'f', 1);
	for (int i = 0; i < 2; i++) {
		key = node(&f, 5 + (uint64_t)i);
		assert_int_equal(ebbgc_finalizer_add(f.m, key, note_call, &values[i]), 0);
		put(&f, f.roots[i], 0, key, node(&f, 7));
	}
	minor(&f);
	key = table_of(f.roots[0])->entries[0].key;
	assert_int_equal(node_of(key)->value, 5);
	assert_int_equal(node_of(table_of(f.roots[0])->entries[0].value)->value, 7);
	assert_true(ebbgc_is_null(table_of(f.roots[1])->entries[0].key));
	assert_true(ebbgc_is_null(table_of(f.roots[1])->entries[0].value));
	assert_int_equal(ebbgc_finalizers_run(f.m, SIZE_MAX), 2);
	assert_int_equal(values[0], 5);
	assert_int_equal(values[1], 6);
	end(&f);
}

/* What is allocated dies young, so no cycle is needed but for the finalizer. */
static void old_objects_are_finalized(void **state)
{
	uint64_t value = 0, bytes;
	struct fixture f;

	begin(&f, *state);
	f.roots[0] = node(&f, 5);
	minor(&f);
	for (bytes = 0; bytes < 64 << 20; bytes += 32)
		node(&f, 0);
	assert_int_equal(stats_of(f.heap).cycles, 0);
	assert_int_equal(ebbgc_finalizer_add(f.m, f.roots[0], note_call, &value), 0);
	f.roots[0] = EBBGC_NULL;
	for (bytes = 0; !value && bytes < 64 << 20; bytes += 32) {
		node(&f, 0);
		ebbgc_finalizers_run(f.m, 1);
	}
	assert_int_equal(value, 5);
	end(&f);
}

static ebbgc_ref_t fibre_new(struct fixture *f, uint64_t slots)
{
	struct ebbgc_frame frame;
	ebbgc_ref_t r = ebbgc_alloc(f->m, f->fibre), stack;

	ebbgc_frame_push(f->m, &frame, &r, 1);
	stack = ebbgc_alloc_length(f->m, f->stack, slots);
	ebbgc_fibre_touch(f->m, r);
	((struct fibre *)ebbgc_ptr(r))->stack = stack;
	ebbgc_frame_pop(f->m, &frame);
	return r;
}

/* A fibre that is touched, one that is entered, and one that was left after a minor cycle. */
static void fibres_keep_young_objects(void **state)
{
	struct ebbgc_entered entered[2];
	struct fixture f;

	begin(&f, *state);
	for (int i = 0; i < 3; i++)
		f.roots[i] = fibre_new(&f, 4);
	ebbgc_fibre_enter(f.m, &entered[0], f.roots[1]);
	ebbgc_fibre_enter(f.m, &entered[1], f.roots[2]);
	/* The first is young, then untouched. */
	minor(&f);
	assert_int_equal(minor(&f), 2);
	ebbgc_fibre_touch(f.m, f.roots[0]);
	for (uint64_t i = 0; i < 3; i++)
		stack_of(f.roots[i])->slots[0] = node(&f, i);
	ebbgc_fibre_leave(f.m, &entered[1]);
	assert_int_equal(minor(&f), 3);
	for (uint64_t i = 0; i < 3; i++)
		assert_int_equal(node_of(stack_of(f.roots[i])->slots[0])->value, i);
	assert_int_equal(minor(&f), 1);
	ebbgc_fibre_leave(f.m, &entered[0]);
	/* It may have changed before. */
	assert_int_equal(minor(&f), 1);
	assert_int_equal(minor(&f), 0);
	assert_int_equal(ebbgc_collect(f.m), 0);
	assert_int_equal(node_of(stack_of(f.roots[0])->slots[0])->value, 0);
	end(&f);
}

/* From here to cycle_end() a cycle has its snapshot and marks nothing. */
static void cycle_begin(struct fixture *f)
{
	__atomic_store_n(&f->armed, true, __ATOMIC_RELEASE);
	ebbgc_collect_start(f->m);
	while (!__atomic_load_n(&f->waits, __ATOMIC_ACQUIRE)) {
		ebbgc_poll(f->m);
		usleep(50);
	}
}

static void cycle_end(struct fixture *f)
{
	uint64_t cycles = stats_of(f->heap).cycles;

	__atomic_store_n(&f->armed, false, __ATOMIC_RELEASE);
	while (stats_of(f->heap).cycles == cycles) {
		ebbgc_poll(f->m);
		usleep(50);
	}
}

/* Old containers get young objects while a cycle marks; minor cycles keep these, and no others. */
static void minor_cycles_run_during_marking(void **state)
{
	struct ebbgc_entered entered;
	struct fixture f;
	ebbgc_ref_t dead, snapshot;

	begin(&f, *state);
	f.roots[0] = ebbgc_alloc(f.m, f.words);
	f.roots[1] = table_new(&f, 'k', 3);
	f.roots[2] = fibre_new(&f, 2);
	f.roots[3] = fibre_new(&f, 2);
	f.roots[4] = snapshot = node(&f, 1);
	put(&f, f.roots[1], 0, snapshot, node(&f, 2));
	stack_of(f.roots[2])->slots[1] = node(&f, 3);
	ebbgc_fibre_enter(f.m, &entered, f.roots[3]);
	cycle_begin(&f);
	words_set(&f, f.roots[0], 40);
	put(&f, f.roots[1], 1, snapshot, node(&f, 4));
	put(&f, f.roots[1], 2, node(&f, 5), node(&f, 6));
	ebbgc_fibre_touch(f.m, f.roots[2]);
	stack_of(f.roots[2])->slots[0] = node(&f, 7);
	stack_of(f.roots[3])->slots[0] = node(&f, 8);
	dead = node(&f, 9);
	minor(&f);
	assert_false(exists(&f, dead));
	words_check(f.roots[0], 40);
	assert_int_equal(node_of(table_of(f.roots[1])->entries[1].value)->value, 4);
	assert_true(ebbgc_is_null(table_of(f.roots[1])->entries[2].key));
	assert_int_equal(node_of(stack_of(f.roots[2])->slots[0])->value, 7);
	assert_int_equal(node_of(stack_of(f.roots[3])->slots[0])->value, 8);
	cycle_end(&f);
	minor(&f);
	words_check(f.roots[0], 40);
	assert_int_equal(node_of(table_of(f.roots[1])->entries[0].value)->value, 2);
	assert_int_equal(node_of(stack_of(f.roots[2])->slots[1])->value, 3);
	ebbgc_fibre_leave(f.m, &entered);
	end(&f);
}

/* A store that was not announced is found, in a slot and by edges(). */
static void checking_finds_raw_stores(void **state)
{
	struct fixture f;

	for (int edges = 0; edges < 2; edges++) {
		begin(&f, *state);
		f.roots[0] = edges ? table_new(&f, 's', 1) : ebbgc_alloc(f.m, f.words);
		minor(&f);
		if (edges)
			table_of(f.roots[0])->entries[0].key = node(&f, 1);
		else
			words_of(f.roots[0])->low = address(node(&f, 1)) | 1;
		minor(&f);
		assert_int_equal(f.failures, 1);
		assert_int_equal(stats_of(f.heap).check_failures, 1);
		memset((char *)ebbgc_ptr(f.roots[0]) + (edges ? 16 : 0), 0, 16);
		ebbgc_detach(f.m);
		assert_int_equal(ebbgc_heap_destroy(f.heap), 0);
	}
}

#define IN(mode, test) { #test ", " mode, test, NULL, NULL, (void *)mode }
#define ROOMY "mode=concurrent,nursery=16M"
#define PARKED "mode=memliner,plain,park,drop,residency=simulated,nursery=16M"

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN(ROOMY, slots_keep_young_objects),
		IN(PARKED, slots_keep_young_objects),
		IN(ROOMY, replaced_slots_are_remembered),
		IN(ROOMY, edges_keep_young_objects),
		IN(ROOMY, weak_entries_are_cleared),
		IN(ROOMY, ephemeron_entries_are_followed),
		IN(ROOMY, keys_are_cleared_after_finalizers),
		IN("mode=concurrent,min=1M,nursery=256K", old_objects_are_finalized),
		IN(ROOMY, fibres_keep_young_objects),
		IN(ROOMY, minor_cycles_run_during_marking),
		IN("mode=concurrent,address,nursery=16M", minor_cycles_run_during_marking),
		IN(PARKED, minor_cycles_run_during_marking),
		IN(ROOMY, checking_finds_raw_stores),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
