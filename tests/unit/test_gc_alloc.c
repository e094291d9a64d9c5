// SPDX-License-Identifier: GPL-2.0-or-later
/* Layouts, sizes, zeroed memory, running out of it, and its return to the kernel. */
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include "gc_test.h"
#include "heap.h"

static const struct ebbgc_layout bytes_layout = {
	.name = "bytes", .flags = EBBGC_LEAF, .size = 8, .element_size = 1, .length_width = 8,
};

static ebbgc_heap_t *heap_of(size_t max, enum ebbgc_sizing sizing, struct ebbgc_options *o)
{
	ebbgc_heap_t *heap;

	o->check = true;
	o->max_bytes = max;
	o->sizing = sizing;
	o->min_bytes = 1 << 20;
	assert_int_equal(ebbgc_heap_create(o, &heap), 0);
	return heap;
}

static void wrong_layouts(void **state)
{
	static const struct ebbgc_run beyond = { 8, 2, 8 }, odd = { 4, 1, 8 };
	static const struct ebbgc_run no_length = { 8, EBBGC_COUNT_LENGTH, 8 };
	static const struct ebbgc_run wraps = { 0xfffffff8u, EBBGC_COUNT_LENGTH, 8 };
	const struct ebbgc_layout wrong[] = {
		{ .size = 0, .flags = EBBGC_LEAF },
		{ .size = 16 },
		{ .size = 16, .flags = EBBGC_LEAF, .bitmap = 1 },
		{ .size = 16, .bitmap = 4 },
		{ .size = 16, .bitmap = 1, .length_width = 8, .element_size = 8 },
		{ .size = 16, .bitmap = 1, .length_offset = 8, .length_width = 3, .element_size = 8 },
		{ .size = 16, .bitmap = 1, .element_size = 8 },
		{ .size = 16, .runs = &beyond, .run_count = 1 },
		{ .size = 16, .runs = &odd, .run_count = 1 },
		{ .size = 16, .runs = &no_length, .run_count = 1 },
		{ .size = 16, .flags = 64, .bitmap = 1 },
		{ .size = 8, .length_width = 8, .element_size = 8, .runs = &wraps, .run_count = 1 },
	};
	struct ebbgc_options o;
	ebbgc_type_t type = 99;
	ebbgc_heap_t *heap;

	ebbgc_options_init(&o);
	heap = heap_of(16 << 20, EBBGC_GROWABLE, &o);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		assert_int_equal(ebbgc_type_register(heap, &wrong[i], &type), -EINVAL);
		assert_int_equal(type, 99);
	}
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

static void wrong_options(void **state)
{
	ebbgc_heap_t *heap = NULL;
	struct ebbgc_options o;

	ebbgc_options_init(&o);
	o.growth = 0.5;
	assert_int_equal(ebbgc_heap_create(&o, &heap), -EINVAL);
	ebbgc_options_init(&o);
	o.struct_size = 3;
	assert_int_equal(ebbgc_heap_create(&o, &heap), -EINVAL);
	ebbgc_options_init(&o);
	o.max_bytes = 1000;
	assert_int_equal(ebbgc_heap_create(&o, &heap), -EINVAL);
	ebbgc_options_init(&o);
	o.depth = 65;
	assert_int_equal(ebbgc_heap_create(&o, &heap), -EINVAL);
	assert_null(heap);
}

/* Every size is zeroed, aligned, of its length, and keeps what is written while others die. */
static void sizes(void **state)
{
	struct ebbgc_options o;
	ebbgc_ref_t kept = { 0 };
	struct ebbgc_frame frame;
	ebbgc_type_t bytes, refs;
	ebbgc_mutator_t *m;
	ebbgc_heap_t *heap;

	ebbgc_options_init(&o);
	heap = heap_of(64 << 20, EBBGC_GROWABLE, &o);
	assert_int_equal(ebbgc_type_register(heap, &bytes_layout, &bytes), 0);
	assert_int_equal(ebbgc_type_register(heap, &refs_layout, &refs), 0);
	assert_int_equal(ebbgc_attach(heap, &m), 0);
	ebbgc_frame_push(m, &frame, &kept, 1);
	kept = ebbgc_alloc_length(m, refs, 400);
	for (int round = 0; round < 3; round++) {
		for (size_t i = 0; i < 400; i++) {
			size_t length = i < 200 ? i : i < 390 ? (i - 200) * 97 : i * 997;
			ebbgc_ref_t r = ebbgc_alloc_length(m, bytes, length);
			unsigned char *p = ebbgc_ptr(r);

			assert_false(ebbgc_is_null(r));
			assert_int_equal((uintptr_t)p % 8, 0);
			assert_int_equal(*(uint64_t *)p, length);
			assert_int_equal(ebbgc_size_of(m, r), length + 8);
			assert_int_equal(ebbgc_type_of(r), bytes);
			for (size_t j = 8; j < length + 8; j++)
				assert_int_equal(p[j], 0);
			memset(p + 8, (int)i, length);
			ebbgc_store(m, kept, &refs_of(kept)->slots[i], r);
			ebbgc_alloc_length(m, bytes, length);
		}
		assert_int_equal(ebbgc_collect(m), 0);
		for (size_t i = 0; i < 400; i++) {
			ebbgc_ref_t r = ebbgc_load(m, kept, &refs_of(kept)->slots[i]);
			unsigned char *p = ebbgc_ptr(r);

			for (size_t j = 8; j < ebbgc_size_of(m, r); j++)
				assert_int_equal(p[j], i & 255);
		}
	}
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

static void wrong_allocations(void **state)
{
	struct ebbgc_options o;
	ebbgc_type_t bytes, node;
	ebbgc_mutator_t *m;
	ebbgc_heap_t *heap;

	ebbgc_options_init(&o);
	heap = heap_of(16 << 20, EBBGC_GROWABLE, &o);
	assert_int_equal(ebbgc_type_register(heap, &bytes_layout, &bytes), 0);
	assert_int_equal(ebbgc_type_register(heap, &node_layout, &node), 0);
	assert_int_equal(ebbgc_attach(heap, &m), 0);
	assert_int_equal(ebbgc_heap_destroy(heap), -EBUSY);
	assert_true(ebbgc_is_null(ebbgc_alloc(m, bytes)) && errno == EINVAL);
	assert_true(ebbgc_is_null(ebbgc_alloc(m, 77)) && errno == EINVAL);
	assert_true(ebbgc_is_null(ebbgc_alloc_length(m, node, 1)) && errno == EINVAL);
	assert_true(ebbgc_is_null(ebbgc_alloc_length(m, bytes, SIZE_MAX - 4)) && errno == EOVERFLOW);
	assert_true(ebbgc_is_null(ebbgc_alloc_length(m, bytes, 1u << 30)) && errno == ENOMEM);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

struct relief {
	ebbgc_handle_t *handle;
	ebbgc_mutator_t *m;
	unsigned int calls;
};

static enum ebbgc_oom relieve(void *arg, ebbgc_heap_t *heap, size_t bytes)
{
	struct relief *r = arg;

	if (r->calls++)
		return EBBGC_OOM_FAIL;
	ebbgc_handle_set(r->handle, EBBGC_NULL);
	return EBBGC_OOM_RETRY;
}

/* Fills the heap with a list held by a handle until an allocation fails; returns the nodes. */
static size_t fill(ebbgc_mutator_t *m, ebbgc_handle_t *head, ebbgc_type_t node)
{
	for (size_t n = 0;; n++) {
		ebbgc_ref_t r = ebbgc_alloc(m, node);

		if (ebbgc_is_null(r)) {
			assert_int_equal(errno, ENOMEM);
			return n;
		}
		ebbgc_init(&node_of(r)->left, ebbgc_handle_get(head));
		ebbgc_handle_set(head, r);
	}
}

static void out_of_memory(void **state)
{
	for (int mode = 0; mode < 4; mode++) {
		struct relief relief = { .calls = 0 };
		size_t full = (4 << 20) / 32, n;
		struct ebbgc_options o;
		ebbgc_mutator_t *m;
		ebbgc_heap_t *heap;
		ebbgc_type_t node;

		ebbgc_options_init(&o);
		o.mode = (enum ebbgc_mode)(mode & 1);
		o.oom = mode & 2 ? relieve : NULL;
		o.oom_arg = &relief;
		heap = heap_of(4 << 20, EBBGC_FIXED, &o);
		assert_int_equal(ebbgc_type_register(heap, &node_layout, &node), 0);
		assert_int_equal(ebbgc_attach(heap, &m), 0);
		relief.handle = ebbgc_handle_new(m, EBBGC_NULL);
		relief.m = m;
		n = fill(m, relief.handle, node);
		if (mode & 2) {
			/* The list that the handler let go made room for a second one. */
			assert_int_equal(relief.calls, 2);
			assert_in_range(n, 2 * full - 1024, 2 * full);
		} else {
			assert_in_range(n, full - 1024, full);
		}
		/* It is usable after all is let go. */
		ebbgc_handle_set(relief.handle, EBBGC_NULL);
		assert_false(ebbgc_is_null(ebbgc_alloc(m, node)));
		ebbgc_detach(m);
		assert_int_equal(ebbgc_heap_destroy(heap), 0);
	}
}

/* Garbage beyond the resident budget goes back to the kernel, and comes back as zeros. */
static void resident_budget(void **state)
{
	struct ebbgc_options o;
	struct ebbgc_stats s;
	ebbgc_mutator_t *m;
	ebbgc_heap_t *heap;
	ebbgc_type_t bytes;

	ebbgc_options_init(&o);
	o.resident_budget = 4 << 20;
	/* Fixed, so that only the calls below collect. */
	heap = heap_of(128 << 20, EBBGC_FIXED, &o);
	assert_int_equal(ebbgc_type_register(heap, &bytes_layout, &bytes), 0);
	assert_int_equal(ebbgc_attach(heap, &m), 0);
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 16; i++) {
			ebbgc_ref_t r = ebbgc_alloc_length(m, bytes, 2 << 20);
			unsigned char *p = ebbgc_ptr(r);

			for (size_t j = 8; j < 2 << 20; j += 1000)
				assert_int_equal(p[j], 0);
			memset(p + 8, 0xff, 2 << 20);
		}
		assert_int_equal(ebbgc_collect(m), 0);
	}
	ebbgc_collect(m);
	ebbgc_collect(m);
	s = stats_of(heap);
	assert_true(s.released_bytes >= 24 << 20);
	assert_true(s.resident_bytes <= 8 << 20);
	assert_int_equal(s.live_bytes, 0);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

/* Memory that the kernel does not take back, as the program has locked it, is not zero. */
static void locked_memory_is_zeroed(void **state)
{
	struct ebbgc_options o;
	ebbgc_mutator_t *m;
	ebbgc_heap_t *heap;
	ebbgc_type_t node;

	ebbgc_options_init(&o);
	o.resident_budget = 64 << 10;
	heap = heap_of(16 << 20, EBBGC_FIXED, &o);
	assert_int_equal(ebbgc_type_register(heap, &node_layout, &node), 0);
	assert_int_equal(ebbgc_attach(heap, &m), 0);
	assert_int_equal(mlock(heap->base, 4 << 20), 0);
	for (int round = 0; round < 3; round++) {
		for (size_t i = 0; i < (2 << 20) / 32; i++) {
			struct node *n = node_of(ebbgc_alloc(m, node));

			assert_true(ebbgc_is_null(n->left) && !n->value);
			n->value = ~UINT64_C(0);
		}
		assert_int_equal(ebbgc_collect(m), 0);
	}
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

struct pauses {
	ebbgc_heap_t *heap;
	uint64_t count;
	bool quit;		/* atomic, both */
};

static void count_pauses(void *arg, const struct ebbgc_event *e)
{
	struct pauses *p = arg;

	if (e->kind == EBBGC_EVENT_PAUSE_BEGIN)
		__atomic_fetch_add(&p->count, 1, __ATOMIC_RELAXED);
}

static void *collects(void *arg)
{
	struct pauses *p = arg;
	ebbgc_mutator_t *m;

	assert_int_equal(ebbgc_attach(p->heap, &m), 0);
	while (!__atomic_load_n(&p->quit, __ATOMIC_RELAXED))
		assert_int_equal(ebbgc_collect(m), 0);
	ebbgc_detach(m);
	return NULL;
}

/* While a thread waits for a large object to be zeroed the others have their pauses. */
static void zeroing_stops_nobody(void **state)
{
	const size_t large = 128 << 20;
	struct pauses p = { .count = 0 };
	struct ebbgc_options o;
	uint64_t most = 0;
	ebbgc_mutator_t *m;
	ebbgc_type_t bytes;
	pthread_t t;

	ebbgc_options_init(&o);
	o.max_bytes = 2 * large;
	o.resident_budget = o.max_bytes;
	o.sizing = EBBGC_FIXED;
	o.event = count_pauses;
	o.event_arg = &p;
	assert_int_equal(ebbgc_heap_create(&o, &p.heap), 0);
	assert_int_equal(ebbgc_type_register(p.heap, &bytes_layout, &bytes), 0);
	assert_int_equal(ebbgc_attach(p.heap, &m), 0);
	assert_false(ebbgc_is_null(ebbgc_alloc_length(m, bytes, large)));
	assert_int_equal(pthread_create(&t, NULL, collects, &p), 0);
	for (int i = 0; i < 50 && most < 5; i++) {
		uint64_t before = __atomic_load_n(&p.count, __ATOMIC_RELAXED), n;
		ebbgc_ref_t r = ebbgc_alloc_length(m, bytes, large);
		unsigned char *at = ebbgc_ptr(r);

		n = __atomic_load_n(&p.count, __ATOMIC_RELAXED) - before;
		most = n > most ? n : most;
		assert_false(ebbgc_is_null(r));
		for (size_t j = 8; j < large; j += 4001) {
			assert_int_equal(at[j], 0);
			at[j] = 1;
		}
		ebbgc_collect_start(m);
		ebbgc_poll(m);
	}
	assert_true(most >= 5);
	__atomic_store_n(&p.quit, true, __ATOMIC_RELAXED);
	assert_int_equal(ebbgc_blocked_begin(m), 0);
	pthread_join(t, NULL);
	ebbgc_blocked_end(m);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(p.heap), 0);
}

/* A heap smaller than min_bytes is collected beside the program, too. */
static void minimum_above_maximum(void **state)
{
	struct ebbgc_options o;
	struct ebbgc_stats s;
	ebbgc_mutator_t *m;
	ebbgc_heap_t *heap;
	ebbgc_type_t node;

	ebbgc_options_init(&o);
	assert_int_equal(ebbgc_options_parse(&o, "max=8M,min=64M"), 0);
	assert_int_equal(ebbgc_heap_create(&o, &heap), 0);
	assert_int_equal(ebbgc_type_register(heap, &node_layout, &node), 0);
	assert_int_equal(ebbgc_attach(heap, &m), 0);
	for (size_t i = 0; i < 64 << 20; i += 32)
		assert_false(ebbgc_is_null(ebbgc_alloc(m, node)));
	s = stats_of(heap);
	assert_true(s.cycles > s.full_cycles);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

static void side_tables_are_locked(void **state)
{
	struct ebbgc_options o;
	struct ebbgc_stats s;
	ebbgc_mutator_t *m;
	ebbgc_heap_t *heap;
	ebbgc_type_t node;

	ebbgc_options_init(&o);
	o.lock_side = true;
	heap = heap_of(16 << 20, EBBGC_GROWABLE, &o);
	assert_int_equal(ebbgc_type_register(heap, &node_layout, &node), 0);
	assert_int_equal(ebbgc_attach(heap, &m), 0);
	assert_false(ebbgc_is_null(ebbgc_alloc(m, node)));
	s = stats_of(heap);
	assert_true(s.side_bytes > 0);
	assert_true(s.side_locked >= s.side_bytes);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wrong_layouts),
		cmocka_unit_test(wrong_options),
		cmocka_unit_test(sizes),
		cmocka_unit_test(wrong_allocations),
		cmocka_unit_test(out_of_memory),
		cmocka_unit_test(resident_budget),
		cmocka_unit_test(locked_memory_is_zeroed),
		cmocka_unit_test(zeroing_stops_nobody),
		cmocka_unit_test(minimum_above_maximum),
		cmocka_unit_test(side_tables_are_locked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
