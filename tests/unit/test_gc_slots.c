// SPDX-License-Identifier: GPL-2.0-or-later
/* Slots that hold references or something else: tags in the word, tags beside it, no tags. */
#include <pthread.h>
#include <unistd.h>
#include "gc_test.h"
#include "heap.h"
#include "object.h"

struct value {
	uint64_t word;
	uint8_t tag;
};

#define IS_REF 0x40

/* An array of values, as in a table of an interpreter. */
struct values {
	uint64_t length;
	struct value slots[];
};

static const struct ebbgc_slots values_slots = {
	.kind = EBBGC_SLOT_VALUE_AND_TAG, .offset = sizeof(struct values),
	.count = EBBGC_COUNT_LENGTH, .stride = sizeof(struct value),
	.tag_offset = offsetof(struct value, tag), .mask = IS_REF, .value = IS_REF,
};

static const struct ebbgc_layout values_layout = {
	.name = "values", .size = sizeof(struct values), .element_size = sizeof(struct value),
	.length_width = 8, .slots = &values_slots, .slot_count = 1,
	.slot_size = sizeof(struct ebbgc_slots),
};

/* Four words: a low-bit tag, a pointer behind a header of 8 bytes, a NaN box, any word. */
static const struct ebbgc_slots words_slots[] = {
	{ .kind = EBBGC_SLOT_TAGGED, .offset = 0, .count = 1, .stride = 8, .mask = 1, .value = 1,
	  .subtract = 1 },
	{ .kind = EBBGC_SLOT_TAGGED, .offset = 8, .count = 1, .stride = 8, .subtract = 8 },
	{ .kind = EBBGC_SLOT_TAGGED, .offset = 16, .count = 1, .stride = 8,
	  .mask = UINT64_C(0xffff) << 48, .value = UINT64_C(0xfffa) << 48,
	  .subtract = UINT64_C(0xfffa) << 48 },
	{ .kind = EBBGC_SLOT_AMBIGUOUS, .offset = 24, .count = 1, .stride = 8 },
};

static const struct ebbgc_layout words_layout = {
	.name = "words", .size = 32, .slots = words_slots, .slot_count = 4,
	.slot_size = sizeof(struct ebbgc_slots),
};

struct world {
	ebbgc_heap_t *heap;
	ebbgc_mutator_t *m;
	ebbgc_type_t node, refs, values, words;
	struct ebbgc_frame frame;
	ebbgc_ref_t roots[4];
};

static void world_open(struct world *w, const char *words)
{
	*w = (struct world){ .heap = checked_heap_with(words, 64 << 20) };
	assert_int_equal(ebbgc_type_register(w->heap, &node_layout, &w->node), 0);
	assert_int_equal(ebbgc_type_register(w->heap, &refs_layout, &w->refs), 0);
	assert_int_equal(ebbgc_type_register(w->heap, &values_layout, &w->values), 0);
	assert_int_equal(ebbgc_type_register(w->heap, &words_layout, &w->words), 0);
	assert_int_equal(ebbgc_attach(w->heap, &w->m), 0);
	ebbgc_frame_push(w->m, &w->frame, w->roots, 4);
}

static void world_close(struct world *w)
{
	assert_int_equal(stats_of(w->heap).check_failures, 0);
	ebbgc_detach(w->m);
	assert_int_equal(ebbgc_heap_destroy(w->heap), 0);
}

static uint64_t node_new(struct world *w, uint64_t value)
{
	ebbgc_ref_t r = ebbgc_alloc(w->m, w->node);

	node_of(r)->value = value;
	return (uint64_t)(uintptr_t)ebbgc_ptr(r);
}

static struct value *slots_of(ebbgc_ref_t r)
{
	return ((struct values *)ebbgc_ptr(r))->slots;
}

/* Atomic for ThreadSanitizer only: a tracer may be reading. */
static void store(struct value *slot, uint64_t word, uint8_t tag)
{
	__atomic_store_n(&slot->word, word, __ATOMIC_RELAXED);
	__atomic_store_n(&slot->tag, tag, __ATOMIC_RELAXED);
}

static void set(struct world *w, ebbgc_ref_t object, struct value *slot, uint64_t word, uint8_t tag)
{
	ebbgc_overwrite(w->m, object, slot->tag & IS_REF ? (ebbgc_ref_t){ slot->word } :
							   EBBGC_NULL);
	store(slot, word, tag);
}

/* A value is a reference exactly if its tag says so; other values may look like references. */
static void tag_decides(void **state)
{
	struct world w;
	uint64_t live;

	world_open(&w, *state);
	w.roots[0] = ebbgc_alloc_length(w.m, w.values, 3);
	set(&w, w.roots[0], &slots_of(w.roots[0])[0], node_new(&w, 42), IS_REF | 5);
	set(&w, w.roots[0], &slots_of(w.roots[0])[1], node_new(&w, 43), 5);
	set(&w, w.roots[0], &slots_of(w.roots[0])[2], 7, 3);
	assert_int_equal(ebbgc_collect(w.m), 0);
	live = stats_of(w.heap).marked_objects;
	assert_int_equal(((struct node *)slots_of(w.roots[0])[0].word)->value, 42);
	assert_int_not_equal(((struct node *)slots_of(w.roots[0])[1].word)->value, 43);
	assert_int_equal(live, 2);
	assert_int_equal(slots_of(w.roots[0])[2].word, 7);
	world_close(&w);
}

static void words_are_decoded(void **state)
{
	struct world w;
	uint64_t *words, nodes[4];

	world_open(&w, *state);
	w.roots[0] = ebbgc_alloc(w.m, w.words);
	words = ebbgc_ptr(w.roots[0]);
	for (int i = 0; i < 4; i++)
		nodes[i] = node_new(&w, 100 + i);
	words[0] = nodes[0] | 1;
	words[1] = nodes[1] + 8;
	words[2] = nodes[2] | UINT64_C(0xfffa) << 48;
	words[3] = nodes[3] + 17;
	assert_int_equal(ebbgc_collect(w.m), 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(((struct node *)nodes[i])->value, 100 + i);
	/* An even integer, null, a number, and an address outside of all objects. */
	words[0] = nodes[0];
	words[1] = 0;
	words[2] = nodes[2];
	words[3] = 4711;
	assert_int_equal(ebbgc_collect(w.m), 0);
	for (int i = 0; i < 4; i++)
		assert_int_not_equal(((struct node *)nodes[i])->value, 100 + i);
	world_close(&w);
}

/* In checking mode, a tag that says reference beside a word that is none is an error. */
static void on_event(void *arg, const struct ebbgc_event *e)
{
	if (e->kind == EBBGC_EVENT_CHECK_FAILED)
		++*(unsigned int *)arg;
}

static void wrong_tag_is_found(void **state)
{
	unsigned int failures = 0;
	struct world w;

	world_open(&w, "mode=stop");
	w.heap->options.event = on_event;
	w.heap->options.event_arg = &failures;
	w.roots[0] = ebbgc_alloc_length(w.m, w.values, 1);
	slots_of(w.roots[0])->word = (uint64_t)(uintptr_t)w.heap->base + 4711;
	slots_of(w.roots[0])->tag = IS_REF;
	assert_int_equal(ebbgc_collect(w.m), 0);
	assert_true(failures >= 1);
	ebbgc_detach(w.m);
	assert_int_equal(ebbgc_heap_destroy(w.heap), 0);
}

struct held {
	bool waiting, go;	/* atomic, both */
};

/* The collector waits before it marks anything. */
static void hold(void *arg, const struct ebbgc_event *e)
{
	struct held *h = arg;

	if (e->kind != EBBGC_EVENT_MARK_BEGIN)
		return;
	__atomic_store_n(&h->waiting, true, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&h->go, __ATOMIC_ACQUIRE))
		usleep(100);
}

/* A tracer sees the tag of a reference beside words that the program has stored meanwhile. */
static void a_tracer_believes_no_tag(void **state)
{
	struct held h = { .go = false };
	struct check *check;
	struct world w;
	uint64_t before, base;

	world_open(&w, "mode=concurrent");
	base = (uint64_t)(uintptr_t)w.heap->base;
	w.heap->options.event = hold;
	w.heap->options.event_arg = &h;
	/* Which would read the array before it is marked. */
	check = w.heap->check;
	w.heap->check = NULL;
	w.roots[0] = ebbgc_alloc_length(w.m, w.values, 64);
	before = stats_of(w.heap).cycles;
	for (ebbgc_collect_start(w.m); !__atomic_load_n(&h.waiting, __ATOMIC_ACQUIRE); usleep(100))
		ebbgc_poll(w.m);
	/* In the array itself, beside objects, in free regions, in no region. */
	for (int i = 0; i < 64; i++) {
		store(&slots_of(w.roots[0])[i],
		      i < 32 ? w.roots[0].bits + 8 * (uint64_t)(i + 1) :
		      i < 48 ? base + HEADER + (uint64_t)(i - 31) * (REGION_SIZE + 4096) :
			       (uint64_t)i * 4711, IS_REF);
	}
	__atomic_store_n(&h.go, true, __ATOMIC_RELEASE);
	while (stats_of(w.heap).cycles == before) {
		ebbgc_poll(w.m);
		usleep(100);
	}
	assert_int_equal(stats_of(w.heap).marked_objects, 1);
	w.roots[0] = EBBGC_NULL;
	w.heap->check = check;
	world_close(&w);
}

/*
 * An ambiguous slot has no tag: the barrier takes each word as it is, also one that points into an
 * object, or to none.  An object that the program has found by such a word survives the cycle.
 */
static void ambiguous_words_are_overwritten(void **state)
{
	struct held h = { .go = false };
	uint64_t *words[3], into[3], before;
	struct world w;

	(void)state;
	world_open(&w, "mode=concurrent");
	w.heap->options.event = hold;
	w.heap->options.event_arg = &h;
	w.roots[0] = ebbgc_alloc_length(w.m, w.refs, 3);
	for (uint64_t i = 0; i < 3; i++) {
		ebbgc_ref_t object = ebbgc_alloc(w.m, w.words);

		ebbgc_init(&refs_of(w.roots[0])->slots[i], object);
		words[i] = ebbgc_ptr(object);
		into[i] = node_new(&w, 40 + i) + 8 * i + 1;
		words[i][3] = into[i];
	}
	/* Not the address of an object, but in the heap. */
	words[2][3] = (uint64_t)(uintptr_t)w.heap->base + w.heap->bytes - 4711;
	before = stats_of(w.heap).cycles;
	for (ebbgc_collect_start(w.m); !__atomic_load_n(&h.waiting, __ATOMIC_ACQUIRE); usleep(100))
		ebbgc_poll(w.m);
	ebbgc_overwrite(w.m, ebbgc_ref(words[0]), EBBGC_BITS(words[0][3]));
	ebbgc_replace(w.m, &words[1][3], EBBGC_BITS(words[1][3]), EBBGC_BITS(4711));
	ebbgc_overwrite(w.m, ebbgc_ref(words[2]), EBBGC_BITS(words[2][3]));
	for (uint64_t i = 0; i < 3; i++)
		__atomic_store_n(&words[i][3], 4711, __ATOMIC_RELAXED);
	for (uint64_t i = 0; i < 2; i++)
		w.roots[1 + i] = ebbgc_ref((void *)(uintptr_t)(into[i] - 8 * i - 1));
	__atomic_store_n(&h.go, true, __ATOMIC_RELEASE);
	while (stats_of(w.heap).cycles == before) {
		ebbgc_poll(w.m);
		usleep(100);
	}
	for (uint64_t i = 0; i < 2; i++)
		assert_int_equal(node_of(w.roots[1 + i])->value, 40 + i);
	/* The third word names nothing. */
	assert_int_equal(stats_of(w.heap).logged_references, 2);
	world_close(&w);
}

/* A number that is stored while the collector marks may point into garbage; it keeps nothing. */
static void ambiguous_numbers_may_name_garbage(void **state)
{
	struct held h = { .go = false };
	uint64_t garbage, before;
	struct world w;

	(void)state;
	world_open(&w, "mode=concurrent");
	w.heap->options.event = hold;
	w.heap->options.event_arg = &h;
	garbage = node_new(&w, 42);
	before = stats_of(w.heap).cycles;
	for (ebbgc_collect_start(w.m); !__atomic_load_n(&h.waiting, __ATOMIC_ACQUIRE); usleep(100))
		ebbgc_poll(w.m);
	/* Objects of this cycle are not traced: no tracer takes the number for a reference. */
	w.roots[0] = ebbgc_alloc(w.m, w.words);
	((uint64_t *)ebbgc_ptr(w.roots[0]))[3] = garbage + 17;
	__atomic_store_n(&h.go, true, __ATOMIC_RELEASE);
	while (stats_of(w.heap).cycles == before) {
		ebbgc_poll(w.m);
		usleep(100);
	}
	assert_int_equal(stats_of(w.heap).checks, 1);
	assert_int_not_equal(((struct node *)garbage)->value, 42);
	world_close(&w);
}

#define RACES 2000u

/* Tracers see values and tags that do not belong together: they must believe neither. */
static void values_change_while_they_are_traced(void **state)
{
	struct world w;
	uint64_t cycles, turn = 0, seed = 1;

	world_open(&w, *state);
	w.roots[0] = ebbgc_alloc_length(w.m, w.values, RACES);
	cycles = stats_of(w.heap).cycles;
	while (stats_of(w.heap).cycles < cycles + 20) {
		if (turn++ % 10000 == 0)
			ebbgc_collect_start(w.m);
		for (int i = 0; i < 64; i++) {
			struct value *slot;
			uint64_t node = i % 2 ? node_new(&w, 42) : 0;

			seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
			slot = &slots_of(w.roots[0])[(seed >> 33) % RACES];
			if (slot->tag & IS_REF)
				assert_int_equal(((struct node *)slot->word)->value, 42);
			if (node)
				set(&w, w.roots[0], slot, node, IS_REF);
			else
				/* Looks like an address of the heap, but of no object. */
				set(&w, w.roots[0], slot,
				    (uint64_t)(uintptr_t)w.heap->base + (seed >> 40), 3);
		}
		ebbgc_poll(w.m);
	}
	world_close(&w);
}

static void layouts_are_checked(void **state)
{
	ebbgc_heap_t *heap = checked_heap(EBBGC_STOP_WORLD, 1 << 20);
	struct ebbgc_slots slots[5];
	ebbgc_type_t type;

	for (int i = 0; i < 5; i++)
		slots[i] = values_slots;
	slots[0].tag_offset = 7;
	slots[1].tag_offset = 16;
	slots[2].mask = 0x100;
	slots[3].kind = 4;
	slots[4].value = 1;
	for (int i = 0; i < 5; i++) {
		struct ebbgc_layout l = values_layout;

		l.slots = &slots[i];
		assert_int_equal(ebbgc_type_register(heap, &l, &type), -22);
		l = values_layout;
		l.flags = EBBGC_WEAK;
		assert_int_equal(ebbgc_type_register(heap, &l, &type), -22);
		l = values_layout;
		l.slot_size = 8;
		assert_int_equal(ebbgc_type_register(heap, &l, &type), -22);
	}
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

/* Without stamps, references are addresses. */
static void plain_references_are_addresses(void **state)
{
	struct world w;

	world_open(&w, "mode=memliner,plain,residency=simulated,epoch=1,delta=0");
	for (int i = 0; i < 100; i++) {
		w.roots[0] = ebbgc_alloc(w.m, w.node);
		assert_int_equal(w.roots[0].bits & ~EBBGC_ADDRESS_MASK, 0);
		assert_int_equal(ebbgc_collect(w.m), 0);
	}
	assert_int_equal(stats_of(w.heap).epoch_source, EBBGC_EPOCH_NONE);
	world_close(&w);
}

#define IN_MODES(test)                                                       \
	{ #test ", concurrent", test, NULL, NULL, (void *)"mode=concurrent" },   \
	{ #test ", stop", test, NULL, NULL, (void *)"mode=stop" },               \
	{ #test ", address", test, NULL, NULL, (void *)"mode=concurrent,address" }, \
	{ #test ", parked", test, NULL, NULL,                                    \
	  (void *)"mode=memliner,plain,park,residency=simulated" }

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_MODES(tag_decides),
		IN_MODES(words_are_decoded),
		IN_MODES(values_change_while_they_are_traced),
		cmocka_unit_test(a_tracer_believes_no_tag),
		cmocka_unit_test(ambiguous_words_are_overwritten),
		cmocka_unit_test(ambiguous_numbers_may_name_garbage),
		cmocka_unit_test(wrong_tag_is_found),
		cmocka_unit_test(layouts_are_checked),
		cmocka_unit_test(plain_references_are_addresses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
