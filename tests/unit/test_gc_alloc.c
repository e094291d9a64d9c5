// SPDX-License-Identifier: GPL-2.0-or-later
/* Layouts, sizes, zeroed memory, out of memory, and the return of memory to the kernel. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "gc_test.h"
#include "region.h"

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
		{ .size = 16,
		  .bitmap = 1,
		  .length_offset = 8,
		  .length_width = 3,
		  .element_size = 8 },
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
	ebbgc_options_init(&o);
	o.markers = 65;
	assert_int_equal(ebbgc_heap_create(&o, &heap), -EINVAL);
	ebbgc_options_init(&o);
	o.features = 1u << 31;
	assert_int_equal(ebbgc_heap_create(&o, &heap), -EINVAL);
	assert_null(heap);
}

/* Objects of every size are zeroed and aligned, and keep their contents while others die. */
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
	assert_true(ebbgc_is_null(ebbgc_alloc_length(m, bytes, SIZE_MAX - 4)) &&
		    errno == EOVERFLOW);
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
			/* The list that the handler released made space for a second one. */
			assert_int_equal(relief.calls, 2);
			assert_in_range(n, 2 * full - 1024, 2 * full);
		} else {
			assert_in_range(n, full - 1024, full);
		}
		/* The heap is usable after everything is released. */
		ebbgc_handle_set(relief.handle, EBBGC_NULL);
		assert_false(ebbgc_is_null(ebbgc_alloc(m, node)));
		ebbgc_detach(m);
		assert_int_equal(ebbgc_heap_destroy(heap), 0);
	}
}

struct hunger {
	ebbgc_heap_t *heap;
	ebbgc_type_t node;
	unsigned int refused;	/* atomic */
};

static void *wastes(void *arg)
{
	struct hunger *h = arg;
	ebbgc_mutator_t *m;

	assert_int_equal(ebbgc_attach(h->heap, &m), 0);
	for (int i = 0; i < 200000; i++)
		if (ebbgc_is_null(ebbgc_alloc(m, h->node)))
			__atomic_fetch_add(&h->refused, 1, __ATOMIC_RELAXED);
	ebbgc_detach(m);
	return NULL;
}

/* Nothing lives: a thread that gets nothing after a collection gets another one. */
static void garbage_is_enough_for_all(void **state)
{
	for (int mode = 0; mode < 2; mode++) {
		struct hunger h = { .refused = 0 };
		struct ebbgc_options o;
		pthread_t t[8];

		ebbgc_options_init(&o);
		o.mode = (enum ebbgc_mode)mode;
		o.sizing = EBBGC_FIXED;
		o.max_bytes = 1 << 20;
		assert_int_equal(ebbgc_heap_create(&o, &h.heap), 0);
		assert_int_equal(ebbgc_type_register(h.heap, &node_layout, &h.node), 0);
		for (size_t i = 0; i < 8; i++)
			assert_int_equal(pthread_create(&t[i], NULL, wastes, &h), 0);
		for (size_t i = 0; i < 8; i++)
			pthread_join(t[i], NULL);
		assert_int_equal(h.refused, 0);
		assert_int_equal(ebbgc_heap_destroy(h.heap), 0);
	}
}

/* Garbage beyond the resident budget returns to the kernel, and is zero when used again. */
static void resident_budget(void **state)
{
	struct ebbgc_options o;
	struct ebbgc_stats s;
	ebbgc_mutator_t *m;
	ebbgc_heap_t *heap;
	ebbgc_type_t bytes;

	ebbgc_options_init(&o);
	o.resident_budget = 4 << 20;
	/* Fixed: only the calls below collect. */
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

/* Locked memory, which the kernel does not reclaim, is not zero. */
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

/* A slow kernel: the n-th call of madvise() ends when `go` is n, or after 10 s. */
static struct {
	int entered, go;	/* atomic, all */
	bool armed, too_long;
} slow;

static int value_of(const int *value)
{
	return __atomic_load_n(value, __ATOMIC_ACQUIRE);
}

int madvise(void *start, size_t bytes, int advice)
{
	if (advice == MADV_DONTNEED && __atomic_load_n(&slow.armed, __ATOMIC_RELAXED)) {
		int call = __atomic_add_fetch(&slow.entered, 1, __ATOMIC_RELEASE), i;

		for (i = 0; i < 10000 && value_of(&slow.go) < call; i++)
			usleep(1000);
		if (i == 10000)
			__atomic_store_n(&slow.too_long, true, __ATOMIC_RELAXED);
	}
	return (int)syscall(SYS_madvise, start, bytes, advice);
}

static void let_go(int calls)
{
	__atomic_store_n(&slow.go, calls, __ATOMIC_RELEASE);
}

/* A heap of @max bytes full of garbage, whose memory is returning to the kernel. */
static ebbgc_heap_t *releasing(size_t max, ebbgc_mutator_t **m, ebbgc_type_t *bytes)
{
	struct ebbgc_options o;
	ebbgc_heap_t *heap;

	memset(&slow, 0, sizeof(slow));
	ebbgc_options_init(&o);
	o.resident_budget = 64 << 10;
	heap = heap_of(max, EBBGC_FIXED, &o);
	/* No cycles but requested ones. */
	__atomic_store_n(&heap->trigger, UINT64_MAX, __ATOMIC_RELAXED);
	assert_int_equal(ebbgc_type_register(heap, &bytes_layout, bytes), 0);
	assert_int_equal(ebbgc_attach(heap, m), 0);
	for (int i = 0; i < 2; i++) {
		ebbgc_ref_t r = ebbgc_alloc_length(*m, *bytes, max / 2 - 4096);

		assert_false(ebbgc_is_null(r));
		memset((char *)ebbgc_ptr(r) + 8, 1, max / 2 - 4096);
	}
	__atomic_store_n(&slow.armed, true, __ATOMIC_RELAXED);
	ebbgc_collect_start(*m);
	while (!value_of(&slow.entered)) {
		ebbgc_poll(*m);
		usleep(100);
	}
	return heap;
}

/* Threads take regions, and the lock, while the kernel reclaims other regions. */
static void releasing_blocks_no_thread(void **state)
{
	ebbgc_mutator_t *m;
	ebbgc_type_t bytes;
	ebbgc_heap_t *heap = releasing(32 << 20, &m, &bytes);

	for (int i = 0; i < 10; i++)
		assert_false(ebbgc_is_null(ebbgc_alloc_length(m, bytes, 1 << 20)));
	assert_true(stats_of(heap).allocated_bytes >= 42 << 20);
	let_go(INT_MAX);
	assert_int_equal(ebbgc_collect(m), 0);
	assert_false(slow.too_long);
	assert_true(stats_of(heap).released_bytes >= 16 << 20);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

static void *lets_one_go(void *arg)
{
	usleep(50000);
	let_go(1);
	return arg;
}

/* An allocation that needs regions in flight to the kernel waits for them, and not for others. */
static void released_regions_are_waited_for(void **state)
{
	ebbgc_mutator_t *m;
	ebbgc_type_t bytes;
	/* The upper two thirds, then the rest. */
	ebbgc_heap_t *heap = releasing(6 << 20, &m, &bytes);
	pthread_t t;

	assert_int_equal(pthread_create(&t, NULL, lets_one_go, NULL), 0);
	assert_false(ebbgc_is_null(ebbgc_alloc_length(m, bytes, 3 << 20)));
	assert_int_equal(stats_of(heap).full_cycles, 0);
	while (value_of(&slow.entered) < 2)
		usleep(100);
	let_go(INT_MAX);
	pthread_join(t, NULL);
	assert_int_equal(ebbgc_collect(m), 0);
	assert_false(slow.too_long);
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

/* Cycles after so many bytes of garbage, the last one included. */
static uint64_t cycles_after(const char *options, size_t bytes, bool expected)
{
	struct ebbgc_options o;
	ebbgc_mutator_t *m;
	ebbgc_heap_t *heap;
	ebbgc_type_t node;
	uint64_t cycles;

	ebbgc_options_init(&o);
	assert_int_equal(ebbgc_debug(&o, options), 0);
	assert_int_equal(ebbgc_heap_create(&o, &heap), 0);
	assert_int_equal(ebbgc_type_register(heap, &node_layout, &node), 0);
	assert_int_equal(ebbgc_attach(heap, &m), 0);
	for (size_t i = 0; i < bytes; i += 32)
		assert_false(ebbgc_is_null(ebbgc_alloc(m, node)));
	for (int i = 0; i < (expected ? 6000 : 100) && !(expected && stats_of(heap).cycles); i++) {
		ebbgc_poll(m);
		usleep(expected ? 10000 : 100);
	}
	cycles = stats_of(heap).cycles;
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
	return cycles;
}

/* As ebbgc.h says: when the room is used up; a concurrent cycle, when half of it is. */
static void when_cycles_begin(void **state)
{
	const size_t m = 1 << 20;

	assert_int_equal(cycles_after("sizing=fixed,max=16M", 7 * m, false), 0);
	assert_int_equal(cycles_after("sizing=fixed,max=16M", 9 * m, true), 1);
	assert_int_equal(cycles_after("sizing=growable,min=8M,max=64M", 3 * m, false), 0);
	assert_int_equal(cycles_after("sizing=growable,min=8M,max=64M", 5 * m, true), 1);
	assert_int_equal(cycles_after("mode=stop,sizing=fixed,max=16M", 15 * m, false), 0);
	assert_int_equal(cycles_after("mode=stop,sizing=fixed,max=16M", 17 * m, true), 1);
	assert_int_equal(cycles_after("mode=stop,sizing=growable,min=8M,max=64M", 7 * m, false), 0);
	assert_int_equal(cycles_after("mode=stop,sizing=growable,min=8M,max=64M", 9 * m, true), 1);
}

/* A heap smaller than min_bytes is also collected concurrently: cycles begin before it is full. */
static void minimum_above_maximum(void **state)
{
	struct ebbgc_options o;
	struct ebbgc_stats s;
	ebbgc_mutator_t *m;
	ebbgc_heap_t *heap;
	ebbgc_type_t node;

	ebbgc_options_init(&o);
	assert_int_equal(ebbgc_debug(&o, "max=8M,min=64M"), 0);
	assert_int_equal(ebbgc_heap_create(&o, &heap), 0);
	assert_int_equal(ebbgc_type_register(heap, &node_layout, &node), 0);
	assert_int_equal(ebbgc_attach(heap, &m), 0);
	for (size_t i = 0; i < 64 << 20; i += 32) {
		assert_false(ebbgc_is_null(ebbgc_alloc(m, node)));
		cycle_ends(heap, m);
	}
	s = stats_of(heap);
	assert_true(s.cycles > 8);
	assert_int_equal(s.full_cycles, 0);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LOCKS 0		/* their mlock() does nothing */
#else
#define LOCKS 1
#endif

/* Does the kernel hold the mapping of this byte in memory? */
static bool is_locked(const void *at)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	bool here = false, locked = false;
	unsigned long from, to;
	char line[512];

	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			here = (uintptr_t)at >= from && (uintptr_t)at < to;
		else if (here && !strncmp(line, "VmFlags:", 8))
			locked = strstr(line, " lo");
	}
	fclose(f);
	return locked;
}

static void pauses_have_quantiles(void **state)
{
	struct ebbgc_options o;
	ebbgc_mutator_t *m;
	ebbgc_heap_t *heap;
	uint64_t least, most;

	ebbgc_options_init(&o);
	heap = heap_of(16 << 20, EBBGC_GROWABLE, &o);
	assert_int_equal(ebbgc_pause_quantile(heap, 0.5), 0);
	assert_int_equal(ebbgc_attach(heap, &m), 0);
	for (int i = 0; i < 10; i++)
		assert_int_equal(ebbgc_collect(m), 0);
	least = ebbgc_pause_quantile(heap, 0);
	most = ebbgc_pause_quantile(heap, 1);
	assert_true(least > 0);
	assert_in_range(ebbgc_pause_quantile(heap, 0.5), least, most);
	assert_int_equal(most, stats_of(heap).pause_max_ns);
	/* Arguments outside of 0..1 are clamped. */
	assert_int_equal(ebbgc_pause_quantile(heap, -1), least);
	assert_int_equal(ebbgc_pause_quantile(heap, 2), most);
	assert_int_equal(ebbgc_pause_quantile(heap, NAN), least);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

static void side_tables_are_locked(void **state)
{
	static const char *const words[] = { "lock", "lock,mode=memliner,park,residency=mincore" };

	if (!LOCKS)
		skip();
	for (size_t i = 0; i < 2; i++) {
		struct ebbgc_options o;
		struct ebbgc_stats s;
		ebbgc_mutator_t *m;
		ebbgc_heap_t *heap;
		ebbgc_type_t bytes;
		size_t pages;

		ebbgc_options_init(&o);
		assert_int_equal(ebbgc_debug(&o, words[i]), 0);
		heap = heap_of(512 << 20, EBBGC_FIXED, &o);
		assert_int_equal(ebbgc_type_register(heap, &bytes_layout, &bytes), 0);
		assert_int_equal(ebbgc_attach(heap, &m), 0);
		/* More than a page of the smallest table, and no more than is used. */
		assert_false(ebbgc_is_null(ebbgc_alloc_length(m, bytes, 140 << 20)));
		s = stats_of(heap);
		assert_true(s.side_bytes > 0);
		assert_true(s.side_locked >= s.side_bytes);
		assert_true(is_locked(heap->marks) && is_locked(heap->allocated));
		assert_true(is_locked(heap->kinds) && is_locked(heap->regions));
		assert_false(is_locked(&heap->marks[heap->region_count * REGION_WORDS - 1]));
		pages = heap->top * REGION_SIZE / PAGE_BYTES;
		for (size_t page = 0; i && page < pages; page += pages - 1) {
			const struct residency *r = &heap->residency;
			size_t w = page / 64;

			assert_true(
				is_locked(&heap->park.objects[page * (PAGE_BYTES / GRANULE / 64)]));
			assert_true(is_locked(&heap->park.pages[w]) &&
				    is_locked(&heap->park.slices[w]));
			assert_true(is_locked(&r->out[w]) && is_locked(&r->cached[w]));
			assert_true(is_locked(&r->last[w]) && is_locked(&r->next[w]));
			assert_true(is_locked(&r->seen[page]));
		}
		ebbgc_detach(m);
		assert_int_equal(ebbgc_heap_destroy(heap), 0);
	}
}

/* Returns 1 if a heap works, and reports it, when RLIMIT_MEMLOCK refuses locked memory. */
static int child_without_lock(void)
{
	struct ebbgc_options o;
	ebbgc_mutator_t *m;
	ebbgc_heap_t *heap;
	ebbgc_type_t bytes;
	struct ebbgc_stats s;

	if (setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){ 16 << 10, 16 << 10 }) || setuid(65534))
		return 2;
	ebbgc_options_init(&o);
	if (ebbgc_debug(&o, "lock,mode=memliner,park,max=64M") || ebbgc_heap_create(&o, &heap) ||
	    ebbgc_type_register(heap, &bytes_layout, &bytes) || ebbgc_attach(heap, &m))
		return 3;
	for (int i = 0; i < 4; i++)
		if (ebbgc_is_null(ebbgc_alloc_length(m, bytes, 8 << 20)))
			return 4;
	s = stats_of(heap);
	if (s.side_locked || !s.side_bytes)
		return 5;
	ebbgc_detach(m);
	return ebbgc_heap_destroy(heap) ? 6 : 1;
}

static void side_tables_need_no_lock(void **state)
{
	int status;
	pid_t pid;

	if (geteuid() || !LOCKS)
		skip();
	pid = fork();
	if (!pid) {
		alarm(100);
		_exit(child_without_lock());
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 1);
}

#define HASHED 10000u

static int by_hash(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

struct hashing {
	ebbgc_heap_t *heap;
	ebbgc_ref_t array;
	uint32_t hashes[HASHED];
};

static void *hash_all(void *arg)
{
	struct hashing *h = arg;
	ebbgc_mutator_t *m;

	assert_int_equal(ebbgc_attach(h->heap, &m), 0);
	for (size_t i = 0; i < HASHED; i++)
		h->hashes[i] = ebbgc_hash(m, refs_of(h->array)->slots[i]);
	ebbgc_detach(m);
	return NULL;
}

/* Two threads get the same hash of an object; it keeps hash and type through collections. */
static void identity_hashes(void **state)
{
	static struct hashing one, other;
	uint32_t sorted[HASHED];
	struct ebbgc_options o;
	struct ebbgc_frame frame;
	ebbgc_ref_t array = { 0 }, same;
	ebbgc_type_t node, refs;
	unsigned int equal = 0;
	ebbgc_mutator_t *m;
	ebbgc_heap_t *heap;
	pthread_t threads[2];

	ebbgc_options_init(&o);
	heap = heap_of(16 << 20, EBBGC_GROWABLE, &o);
	assert_int_equal(ebbgc_type_register(heap, &node_layout, &node), 0);
	assert_int_equal(ebbgc_type_register(heap, &refs_layout, &refs), 0);
	assert_int_equal(ebbgc_attach(heap, &m), 0);
	ebbgc_frame_push(m, &frame, &array, 1);
	array = ebbgc_alloc_length(m, refs, HASHED);
	for (size_t i = 0; i < HASHED; i++)
		ebbgc_store(m, array, &refs_of(array)->slots[i], ebbgc_alloc(m, node));
	one = other = (struct hashing){ .heap = heap, .array = array };
	assert_int_equal(ebbgc_blocked_begin(m), 0);
	assert_int_equal(pthread_create(&threads[0], NULL, hash_all, &one), 0);
	assert_int_equal(pthread_create(&threads[1], NULL, hash_all, &other), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	ebbgc_blocked_end(m);
	assert_memory_equal(one.hashes, other.hashes, sizeof(one.hashes));
	assert_int_equal(ebbgc_collect(m), 0);
	for (size_t i = 0; i < HASHED; i++) {
		ebbgc_ref_t r = refs_of(array)->slots[i];

		assert_int_equal(ebbgc_hash(m, r), one.hashes[i]);
		assert_int_equal(ebbgc_type_of(r), node);
		assert_int_equal(ebbgc_size_of(m, r), sizeof(struct node));
	}
	memcpy(sorted, one.hashes, sizeof(sorted));
	qsort(sorted, HASHED, sizeof(*sorted), by_hash);
	assert_true(sorted[0]);
	for (size_t i = 1; i < HASHED; i++)
		equal += sorted[i] == sorted[i - 1];
	/* 0.01 are expected. */
	assert_true(equal <= 2);
	/* The next object in a slot has another hash. */
	same = refs_of(array)->slots[0];
	ebbgc_store(m, array, &refs_of(array)->slots[0], EBBGC_NULL);
	assert_int_equal(ebbgc_collect(m), 0);
	while (!ebbgc_same(array = ebbgc_alloc(m, node), same))
		;
	assert_int_not_equal(ebbgc_hash(m, array), one.hashes[0]);
	assert_int_equal(ebbgc_hash(m, EBBGC_NULL), 0);
	assert_int_equal(ebbgc_hash(m, ebbgc_ref(&one)), ebbgc_hash(m, ebbgc_ref(&one)));
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

/* Threads, or attaches, that come and go have hashes of their own, however many there are. */
static void hashes_of_many_threads(void **state)
{
	struct ebbgc_options o;
	uint32_t first = 0, last = 0;
	ebbgc_type_t node;
	ebbgc_mutator_t *m;
	ebbgc_heap_t *heap;

	ebbgc_options_init(&o);
	heap = heap_of(16 << 20, EBBGC_GROWABLE, &o);
	assert_int_equal(ebbgc_type_register(heap, &node_layout, &node), 0);
	for (int i = 0; i <= 1 << 16; i++) {
		assert_int_equal(ebbgc_attach(heap, &m), 0);
		if (!i || i == 1 << 16) {
			first = last;
			last = ebbgc_hash(m, ebbgc_alloc(m, node));
		}
		ebbgc_detach(m);
	}
	assert_int_not_equal(first, last);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

static uint32_t region_take(ebbgc_heap_t *heap, uint64_t *looked_at)
{
	uint32_t first, hint;

	pthread_mutex_lock(&heap->lock);
	hint = heap->free_hint;
	first = regions_take(heap, 1, KIND_LARGE_LEAF);
	pthread_mutex_unlock(&heap->lock);
	assert_int_not_equal(first, REGION_NONE);
	*looked_at += first - hint + 1;
	return first;
}

static void region_free(ebbgc_heap_t *heap, uint32_t region)
{
	pthread_mutex_lock(&heap->lock);
	regions_free(heap, region, 1);
	pthread_mutex_unlock(&heap->lock);
}

/* Growth does not look at all regions again once a low one was freed and taken again. */
static void taking_regions_is_linear(void **state)
{
	enum { COUNT = 600 };
	uint64_t looked_at = 0;
	struct ebbgc_options o;
	ebbgc_heap_t *heap;

	ebbgc_options_init(&o);
	heap = heap_of(64 << 20, EBBGC_GROWABLE, &o);
	for (uint32_t i = 0; i < COUNT; i++)
		assert_int_equal(region_take(heap, &looked_at), i);
	region_free(heap, 3);
	region_free(heap, 1);
	assert_int_equal(region_take(heap, &looked_at), 1);
	assert_int_equal(region_take(heap, &looked_at), 3);
	for (uint32_t i = COUNT; i < COUNT + 100; i++)
		assert_int_equal(region_take(heap, &looked_at), i);
	assert_in_range(looked_at, COUNT + 102, 2 * COUNT + 200);
	for (uint32_t i = 0; i < COUNT + 100; i++)
		region_free(heap, i);
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
		cmocka_unit_test(garbage_is_enough_for_all),
		cmocka_unit_test(resident_budget),
		cmocka_unit_test(locked_memory_is_zeroed),
		cmocka_unit_test(releasing_blocks_no_thread),
		cmocka_unit_test(released_regions_are_waited_for),
		cmocka_unit_test(zeroing_stops_nobody),
		cmocka_unit_test(when_cycles_begin),
		cmocka_unit_test(minimum_above_maximum),
		cmocka_unit_test(pauses_have_quantiles),
		cmocka_unit_test(side_tables_are_locked),
		cmocka_unit_test(side_tables_need_no_lock),
		cmocka_unit_test(taking_regions_is_linear),
		cmocka_unit_test(identity_hashes),
		cmocka_unit_test(hashes_of_many_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
