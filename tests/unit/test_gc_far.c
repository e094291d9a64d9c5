// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The far generation with a store in the test's own memory: what leaves, what stays, what comes
 * back, and what happens when the store fails.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "gc_far_world.h"

static void options(void **state)
{
	static const struct ebbgc_slots slots = {
		.kind = EBBGC_SLOT_AMBIGUOUS, .count = 1, .stride = 8,
	};
	static const struct ebbgc_layout plain = {
		.size = 8, .slots = &slots, .slot_count = 1, .slot_size = sizeof(slots),
	};
	struct store s = { .lock = PTHREAD_MUTEX_INITIALIZER };
	struct ebbgc_far_store store = store_of(&s), part = store;
	struct { struct ebbgc_far_options o; uint64_t later; } newer = { 0 };
	ebbgc_heap_t *heap = checked_heap_with("mode=swapping", 16 << 20);
	struct ebbgc_far_options o;
	ebbgc_mutator_t *m;
	ebbgc_type_t type;

	ebbgc_far_options_init(&o);
	o.local_bytes = 4 << 20;
	assert_int_equal(ebbgc_far_attach(heap, &store, &o), -ENOTSUP);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
	heap = checked_heap_with("mode=concurrent", 16 << 20);
	o.local_bytes = 1 << 20;
	assert_int_equal(ebbgc_far_attach(heap, &store, &o), -EINVAL);
	o.local_bytes = 4 << 20;
	o.reserve_bytes = 3 << 20;
	assert_int_equal(ebbgc_far_attach(heap, &store, &o), -EINVAL);
	o.reserve_bytes = 0;
	part.free = NULL;
	assert_int_equal(ebbgc_far_attach(heap, &part, &o), -EINVAL);
	newer.o = o;
	newer.o.struct_size = sizeof(newer);
	newer.later = 1;
	assert_int_equal(ebbgc_far_attach(heap, &store, &newer.o), -E2BIG);
	assert_int_equal(ebbgc_attach(heap, &m), 0);
	assert_int_equal(ebbgc_far_attach(heap, &store, &o), -EBUSY);
	assert_int_equal(ebbgc_far_evict(m), -EINVAL);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_far_attach(heap, &store, &o), 0);
	assert_int_equal(ebbgc_far_attach(heap, &store, &o), -EALREADY);
	assert_int_equal(ebbgc_type_register(heap, &plain, &type), -ENOTSUP);
	assert_int_equal(ebbgc_attach(heap, &m), 0);
	assert_int_equal(ebbgc_heap_each(m, NULL, NULL), -ENOTSUP);
	assert_int_equal(ebbgc_heap_walk(m, NULL, NULL), -ENOTSUP);
	/* With nothing far, loads test nothing. */
	assert_int_equal(m->flags, 0);
	assert_int_equal(ebbgc_far_evict(m), 0);
	assert_int_equal(m->flags, 0);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
	heap = checked_heap_with("mode=concurrent", 16 << 20);
	assert_int_equal(ebbgc_type_register(heap, &plain, &type), 0);
	assert_int_equal(ebbgc_far_attach(heap, &store, &o), -ENOTSUP);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

static void all_leaves_and_comes_back(void **state)
{
	struct ebbgc_stats s;
	struct world w;

	world_open(&w, *state, 64);
	nodes_fill(&w, NODES);
	for (int round = 0; round < 4; round++) {
		evict(&w);
		assert_true(w.m->flags & EBBGC_MOVED);
		assert_int_equal(far_count(&w, NODES), NODES);
		if (round % 2)
			collect(&w);
		nodes_check(&w, NODES);
		assert_int_equal(far_count(&w, NODES), 0);
		s = stats_of(w.heap);
		assert_int_equal(s.fetched_objects, (uint64_t)(round + 1) * NODES);
		assert_int_equal(s.healed_slots, (uint64_t)(round + 1) * NODES);
		assert_int_equal(s.fetched_bytes, s.fetched_objects * 32);
	}
	/* The forwards and what is in the store go with the cycles. */
	for (int i = 0; i < 3; i++)
		collect(&w);
	s = stats_of(w.heap);
	assert_int_equal(w.store.places, 0);
	assert_int_equal(s.far_bytes, 0);
	assert_int_equal(s.far_regions, 0);
	assert_int_equal(w.heap->far.tables, 0);
	assert_int_equal(w.heap->far.out, 0);
	nodes_check(&w, NODES);
	assert_int_equal(stats_of(w.heap).fetched_objects, 4 * NODES);
	world_close(&w);
}

/* Lists that lead from far objects to far and to local ones, and back. */
static void far_objects_keep_others(void **state)
{
	struct world w;
	ebbgc_ref_t r;

	world_open(&w, *state, 64);
	/* A list whose every second node is allocated after the others have left. */
	w.roots[0] = ebbgc_alloc_length(w.m, w.fixed, NODES);
	for (size_t i = 0; i < NODES; i++) {
		r = node_new(&w, i);
		ebbgc_store(w.m, w.roots[0], slot_of(w.roots[0], i), r);
		if (i % 100 == 0)
			evict(&w);
		r = at(&w, w.roots[0], i);
		if (i)
			ebbgc_store(w.m, r, &node_of(r)->left, at(&w, w.roots[0], i - 1));
	}
	evict(&w);
	w.roots[1] = at(&w, w.roots[0], NODES - 1);
	w.roots[0] = EBBGC_NULL;
	for (int round = 0; round < 5; round++) {
		collect(&w);
		r = w.roots[1];
		/* Only a part of it comes back. */
		for (size_t i = NODES - 1; i > (size_t)(5 - round) * NODES / 6; i--) {
			assert_int_equal(node_of(r)->value, i);
			if (i % 3 == 0)
				ebbgc_store(w.m, r, &node_of(r)->right, w.roots[1]);
			r = ebbgc_load(w.m, r, &node_of(r)->left);
		}
		if (round % 2)
			evict(&w);
		collect(&w);
	}
	world_close(&w);
}

/* What roots of each kind refer to stays, and so does what is beside it. */
static void roots_pin(void **state)
{
	uint64_t was[3];
	ebbgc_handle_t *handle;
	static ebbgc_ref_t range[1];
	struct world w;

	world_open(&w, *state, 64);
	nodes_fill(&w, NODES);
	assert_int_equal(ebbgc_roots_add(w.m, range, 1), 0);
	w.roots[1] = at(&w, w.roots[0], 0);
	range[0] = at(&w, w.roots[0], 1500);
	handle = ebbgc_handle_new(w.m, at(&w, w.roots[0], NODES - 1));
	was[0] = w.roots[1].bits;
	was[1] = range[0].bits;
	was[2] = ebbgc_handle_get(handle).bits;
	for (int i = 0; i < 2; i++) {
		evict(&w);
		assert_int_equal(w.roots[1].bits, was[0]);
		assert_int_equal(node_of(w.roots[1])->value, 0);
		assert_int_equal(node_of(range[0])->value, 1500);
		assert_int_equal(node_of(ebbgc_handle_get(handle))->value, NODES - 1);
		assert_true(ebbgc_same(at(&w, w.roots[0], 0), w.roots[1]));
		collect(&w);
	}
	assert_int_equal(range[0].bits, was[1]);
	assert_int_equal(ebbgc_handle_get(handle).bits, was[2]);
	range[0] = EBBGC_NULL;
	assert_int_equal(ebbgc_roots_remove(w.m, range), 0);
	ebbgc_handle_free(w.m, handle);
	world_close(&w);
}

static __attribute__((noinline)) uint64_t deep(uint64_t n)
{
	volatile uint64_t words[512];

	for (size_t i = 0; i < 512; i++)
		words[i] = n + i;
	return words[n % 512];
}

static __attribute__((noinline)) void stack_fill(struct world *w)
{
	nodes_fill(w, NODES);
	deep(1);
}

/* A word on a stack keeps a region in memory; all others leave. */
static void stacks_pin(void **state)
{
	struct store store = { .lock = PTHREAD_MUTEX_INITIALIZER };
	struct ebbgc_far_store far = store_of(&store);
	uint64_t *volatile inside;
	struct ebbgc_far_options fo;
	struct ebbgc_options o;
	struct world w = { 0 };

	ebbgc_options_init(&o);
	o.check = true;
	o.stacks = EBBGC_CONSERVATIVE;
	o.max_bytes = 64 << 20;
	assert_int_equal(ebbgc_heap_create(&o, &w.heap), 0);
	ebbgc_far_options_init(&fo);
	fo.local_bytes = 32 << 20;
	assert_int_equal(ebbgc_far_attach(w.heap, &far, &fo), 0);
	types_register(&w);
	assert_int_equal(ebbgc_attach(w.heap, &w.m), 0);
	ebbgc_frame_push(w.m, &w.frame, w.roots, ROOTS);
	stack_fill(&w);
	inside = &node_of(at(&w, w.roots[0], 42))->value;
	deep(2);
	evict(&w);
	assert_int_equal(*inside, 42);
	assert_ptr_equal(inside, &node_of(at(&w, w.roots[0], 42))->value);
	/* 2048 nodes fit in a region; leftovers on the stack may keep one more. */
	assert_in_range(far_count(&w, NODES), 900, NODES - 1);
	collect(&w);
	nodes_check(&w, NODES);
	ebbgc_detach(w.m);
	assert_int_equal(ebbgc_heap_destroy(w.heap), 0);
	assert_int_equal(store.places, 0);
}

/* Makes regions leave by the budget alone. */
static void the_budget_decides(void **state)
{
	enum { COUNT = 400000 };	/* of 32 bytes: 12 MiB */
	struct ebbgc_stats s;
	struct world w;

	world_open(&w, *state, 8);
	nodes_fill(&w, COUNT);
	s = stats_of(w.heap);
	assert_true(s.left_regions > 100);
	/* With what grows while a cycle runs. */
	assert_true(s.far_local_bytes < 12 << 20);
	for (int round = 0; round < 2; round++) {
		for (size_t i = 0; i < COUNT; i += 7) {
			ebbgc_ref_t r = at(&w, w.roots[0], i * 31 % COUNT);

			assert_int_equal(node_of(r)->value, i * 31 % COUNT);
			ebbgc_poll(w.m);
		}
	}
	s = stats_of(w.heap);
	assert_true(s.fetched_objects > 10000);
	world_close(&w);
}

/* LEAVING only: the thread does not write, as the store is full. */
static void a_full_store_loses_nothing(void **state)
{
	struct world w;

	world_open(&w, *state, 64);
	nodes_fill(&w, NODES);
	w.store.fail_alloc = -ENOSPC;
	assert_int_equal(ebbgc_far_evict(w.m), -ENOSPC);
	assert_true(w.m->flags & EBBGC_MOVED);
	for (size_t i = 0; i < NODES; i += 2)
		assert_int_equal(node_of(at(&w, w.roots[0], i))->value, i);
	assert_true(stats_of(w.heap).rescued_objects >= NODES / 2);
	assert_int_equal(stats_of(w.heap).fetched_objects, 0);
	collect(&w);
	w.store.fail_alloc = 0;
	w.store.fail_write = -EIO;
	assert_int_equal(ebbgc_far_evict(w.m), -EIO);
	assert_int_equal(w.store.places, 0);
	nodes_check(&w, NODES);
	w.store.fail_write = 0;
	/* All was rescued: what leaves now is the copies. */
	evict(&w);
	collect(&w);
	nodes_check(&w, NODES);
	world_close(&w);
}

static unsigned int failures;
static struct store *failing;
static jmp_buf out;

static enum ebbgc_far_verdict retry_later(void *arg, ebbgc_heap_t *heap, int error)
{
	assert_ptr_equal(arg, &failures);
	assert_int_equal(error, -EIO);
	if (++failures == 3)
		__atomic_store_n(&failing->fail_read, 0, __ATOMIC_RELAXED);
	return EBBGC_FAR_RETRY;
}

static enum ebbgc_far_verdict leave_by_jump(void *arg, ebbgc_heap_t *heap, int error)
{
	failures++;
	longjmp(out, -error);
}

static void reads_fail(void **state)
{
	struct ebbgc_far_options *o;
	struct far_region *r;
	struct world w;
	char *shadow;

	world_open(&w, *state, 64);
	nodes_fill(&w, NODES);
	o = &w.heap->far.options;
	o->failed = retry_later;
	o->failed_arg = &failures;
	failing = &w.store;
	failures = 0;
	evict(&w);
	w.store.fail_read = -EIO;
	assert_int_equal(node_of(at(&w, w.roots[0], 5))->value, 5);
	assert_int_equal(failures, 3);
	o->failed = leave_by_jump;
	w.store.fail_read = -EPIPE;
	if (!setjmp(out)) {
		at(&w, w.roots[0], 6);
		fail_msg("a failed read returned");
	}
	w.store.fail_read = 0;
	/* Bytes that are no object of that kind, found without the checking mode's copy. */
	r = &w.heap->far.regions[region_of(w.heap, slot_of(w.roots[0], 6)->bits &
						   EBBGC_ADDRESS_MASK)];
	shadow = r->stored[0].shadow;
	r->stored[0].shadow = NULL;
	w.store.garble = true;
	if (!setjmp(out)) {
		at(&w, w.roots[0], 6);
		fail_msg("garbage was taken for an object");
	}
	w.store.garble = false;
	r->stored[0].shadow = shadow;
	assert_int_equal(failures, 5);
	assert_int_equal(stats_of(w.heap).far_failures, 5);
	collect(&w);
	nodes_check(&w, NODES);
	world_close(&w);
}

/* Without a handler a failed read ends the program; a child of fork() reads nothing. */
static void without_a_handler_it_aborts(void **state)
{
	struct world w;

	if (!FORKS)
		skip();
	world_open(&w, "mode=stop", 64);
	nodes_fill(&w, NODES);
	evict(&w);
	for (int forked = 0; forked < 2; forked++) {
		int status = 0;
		pid_t pid = fork();

		if (!pid) {
			close(2);
			/* Nothing far is loaded. */
			if (forked)
				_exit(refs_of(w.roots[0])->length == NODES ? 7 : 8);
			at(&w, w.roots[0], 1);
			_exit(9);
		}
		waitpid(pid, &status, 0);
		assert_true(forked ? WIFEXITED(status) && WEXITSTATUS(status) == 7 :
				     WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	}
	nodes_check(&w, NODES);
	world_close(&w);
}

static uint64_t finalized;

static void finalizer(ebbgc_mutator_t *m, ebbgc_ref_t object, void *data)
{
	finalized = node_of(object)->value;
}

/* Weak references, ephemerons and finalizers of far objects. */
static void weak_references_to_far_objects(void **state)
{
	struct world w;
	ebbgc_ref_t r;

	world_open(&w, *state, 64);
	nodes_fill(&w, NODES);
	w.roots[1] = ebbgc_weak_new(w.m, at(&w, w.roots[0], 10));
	w.roots[3] = node_new(&w, 111);
	w.roots[2] = ebbgc_ephemeron_new(w.m, at(&w, w.roots[0], 11), w.roots[3]);
	w.roots[3] = EBBGC_NULL;
	assert_int_equal(ebbgc_finalizer_add(w.m, at(&w, w.roots[0], 12), finalizer, NULL), 0);
	evict(&w);
	collect(&w);
	r = ebbgc_weak_get(w.m, w.roots[1]);
	assert_int_equal(node_of(r)->value, 10);
	assert_true(ebbgc_same(r, at(&w, w.roots[0], 10)));
	assert_int_equal(node_of(ebbgc_ephemeron_value(w.m, w.roots[2]))->value, 111);
	assert_int_equal(ebbgc_finalizers_run(w.m, 1), 0);
	evict(&w);
	for (size_t i = 10; i < 13; i++)
		ebbgc_store(w.m, w.roots[0], slot_of(w.roots[0], i), EBBGC_NULL);
	/* Dead, and only in the store. */
	finalized = 0;
	collect(&w);
	assert_true(ebbgc_is_null(ebbgc_weak_get(w.m, w.roots[1])));
	assert_true(ebbgc_is_null(ebbgc_ephemeron_key(w.m, w.roots[2])));
	assert_true(ebbgc_is_null(ebbgc_ephemeron_value(w.m, w.roots[2])));
	collect(&w);
	assert_int_equal(ebbgc_finalizers_run(w.m, 1), 1);
	assert_int_equal(finalized, 12);
	/* All finalizers, of a far object. */
	assert_int_equal(ebbgc_finalizer_add(w.m, at(&w, w.roots[0], 13), finalizer, NULL), 0);
	evict(&w);
	ebbgc_store(w.m, w.roots[0], slot_of(w.roots[0], 13), EBBGC_NULL);
	ebbgc_finalizers_all(w.m);
	collect(&w);
	assert_int_equal(ebbgc_finalizers_run(w.m, 1), 1);
	assert_int_equal(finalized, 13);
	world_close(&w);
}

static void compare_and_swap(void **state)
{
	ebbgc_ref_t one, expected;
	struct world w;

	world_open(&w, *state, 64);
	nodes_fill(&w, 8);
	ebbgc_store(w.m, w.roots[0], slot_of(w.roots[0], 1), at(&w, w.roots[0], 0));
	evict(&w);
	/* Heals the first slot only. */
	expected = one = at(&w, w.roots[0], 0);
	assert_int_not_equal(slot_of(w.roots[0], 1)->bits, one.bits);
	assert_true(ebbgc_cas(w.m, w.roots[0], slot_of(w.roots[0], 1), &expected,
			      at(&w, w.roots[0], 2)));
	assert_true(ebbgc_same(at(&w, w.roots[0], 1), at(&w, w.roots[0], 2)));
	/* What is found instead comes to memory. */
	expected = EBBGC_NULL;
	assert_false(ebbgc_cas(w.m, w.roots[0], slot_of(w.roots[0], 3), &expected, one));
	assert_int_equal(node_of(expected)->value, 3);
	assert_true(ebbgc_same(expected, at(&w, w.roots[0], 3)));
	expected = one;
	assert_false(ebbgc_cas(w.m, w.roots[0], slot_of(w.roots[0], 4), &expected, one));
	assert_int_equal(node_of(expected)->value, 4);
	world_close(&w);
}

/* Copies of references bring nothing. */
static void copies_stay_far(void **state)
{
	struct world w;

	world_open(&w, *state, 64);
	nodes_fill(&w, NODES);
	evict(&w);
	w.roots[1] = ebbgc_alloc_length(w.m, w.fixed, NODES);
	ebbgc_copy(w.m, w.roots[1], slot_of(w.roots[1], 0), w.roots[0], slot_of(w.roots[0], 0),
		   NODES);
	assert_int_equal(stats_of(w.heap).fetched_objects, 0);
	ebbgc_fill(w.m, w.roots[0], slot_of(w.roots[0], 0), EBBGC_NULL, NODES);
	collect(&w);
	w.roots[0] = w.roots[1];
	nodes_check(&w, NODES);
	assert_int_equal(stats_of(w.heap).fetched_objects, NODES);
	world_close(&w);
}

/* Objects of all sizes with a pattern, in leaves. */
static void sizes(void **state)
{
	enum { COUNT = 500 };
	struct world w;

	world_open(&w, *state, 64);
	w.roots[0] = ebbgc_alloc_length(w.m, w.fixed, COUNT);
	for (size_t i = 0; i < COUNT; i++) {
		size_t n = i * 37 % 8160;
		ebbgc_ref_t r = ebbgc_alloc_length(w.m, w.leaf, n);

		memset((char *)ebbgc_ptr(r) + 8, (int)i, n);
		ebbgc_store(w.m, w.roots[0], slot_of(w.roots[0], i), r);
	}
	for (int round = 0; round < 3; round++) {
		evict(&w);
		for (size_t i = round ? 0 : 1; i < COUNT; i += 2 - (size_t)(round == 2)) {
			ebbgc_ref_t r = at(&w, w.roots[0], i);
			size_t n = i * 37 % 8160;
			const unsigned char *p = (unsigned char *)ebbgc_ptr(r) + 8;

			assert_int_equal(ebbgc_size_of(w.m, r), 8 + n);
			for (size_t k = 0; k < n; k++)
				assert_int_equal(p[k], (unsigned char)i);
		}
		collect(&w);
	}
	world_close(&w);
}

/* Identity hashes and stores after a return from the store. */
static void hashes_and_stores_last(void **state)
{
	static uint32_t hash[NODES];
	struct world w;

	world_open(&w, *state, 64);
	nodes_fill(&w, NODES);
	for (size_t i = 0; i < NODES; i++)
		hash[i] = ebbgc_hash(w.m, at(&w, w.roots[0], i));
	for (int round = 0; round < 3; round++) {
		evict(&w);
		for (size_t i = (size_t)round; i < NODES; i += 2) {
			ebbgc_ref_t r = at(&w, w.roots[0], i);

			assert_int_equal(ebbgc_hash(w.m, r), hash[i]);
			ebbgc_store(w.m, r, &node_of(r)->left,
				    at(&w, w.roots[0], (i * 7 + (size_t)round) % NODES));
		}
		collect(&w);
		for (size_t i = (size_t)round; i < NODES; i += 2) {
			ebbgc_ref_t r = at(&w, w.roots[0], i), left;

			left = ebbgc_load(w.m, r, &node_of(r)->left);
			assert_int_equal(node_of(left)->value, (i * 7 + (size_t)round) % NODES);
		}
	}
	world_close(&w);
}

/* Regions that are mostly back come home, and their extents are freed. */
static void the_store_is_tidied(void **state)
{
	enum { COUNT = 100000 };
	struct ebbgc_stats s;
	struct world w;

	world_open(&w, *state, 64);
	nodes_fill(&w, COUNT);
	evict(&w);
	s = stats_of(w.heap);
	for (size_t i = 0; i < COUNT; i++)
		if (i % 4)
			at(&w, w.roots[0], i);
	collect(&w);
	collect(&w);
	assert_true(stats_of(w.heap).homed_objects > 0);
	assert_true(stats_of(w.heap).far_bytes < s.far_bytes / 2);
	nodes_check(&w, COUNT);
	world_close(&w);
}

#define WITH(test, words) { #test ": " words, test, NULL, NULL, (void *)words }

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(options),
		WITH(all_leaves_and_comes_back, "mode=stop"),
		WITH(all_leaves_and_comes_back, "mode=concurrent,nursery=64K"),
		WITH(far_objects_keep_others, "mode=stop"),
		WITH(far_objects_keep_others, "mode=concurrent,nursery=64K"),
		WITH(far_objects_keep_others, "mode=concurrent,address"),
		WITH(roots_pin, "mode=stop"),
		WITH(roots_pin, "mode=concurrent,nursery=64K"),
		cmocka_unit_test(stacks_pin),
		WITH(the_budget_decides, "mode=concurrent"),
		WITH(the_budget_decides, "mode=concurrent,nursery=256K"),
		WITH(a_full_store_loses_nothing, "mode=stop"),
		WITH(reads_fail, "mode=stop"),
		cmocka_unit_test(without_a_handler_it_aborts),
		WITH(weak_references_to_far_objects, "mode=stop"),
		WITH(weak_references_to_far_objects, "mode=concurrent,nursery=64K"),
		WITH(compare_and_swap, "mode=stop"),
		WITH(copies_stay_far, "mode=stop"),
		WITH(sizes, "mode=stop"),
		WITH(sizes, "mode=concurrent,nursery=64K"),
		WITH(hashes_and_stores_last, "mode=stop"),
		WITH(hashes_and_stores_last, "mode=concurrent,nursery=64K"),
		WITH(the_store_is_tidied, "mode=stop"),
	};

	alarm(300);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
