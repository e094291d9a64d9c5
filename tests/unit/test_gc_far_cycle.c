// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Far cycles, with a store in the test's own memory: what dies there is freed, what lives is not,
 * and a store that fails at any read of a cycle loses nothing.
 */
#include <stdio.h>
#include <unistd.h>
#include "gc_far_world.h"

#define KEPT(i) ((i) % 3000 < 1000)
#define COUNT 30000

static void clear(struct world *w, size_t i)
{
	ebbgc_store(w->m, w->roots[0], slot_of(w->roots[0], i), EBBGC_NULL);
}

/* Long runs of nodes die, so that whole regions do. */
static void most_die(struct world *w)
{
	for (size_t i = 0; i < COUNT; i++)
		if (!KEPT(i))
			clear(w, i);
}

static void kept_check(struct world *w)
{
	for (size_t i = 0; i < COUNT; i++) {
		ebbgc_ref_t r = at(w, w->roots[0], i);

		assert_int_equal(ebbgc_is_null(r), !KEPT(i));
		if (KEPT(i))
			assert_int_equal(node_of(r)->value, i);
	}
}

/* Links node i to node i - 1, and every tenth to one far away. */
static void nodes_link(struct world *w, size_t count)
{
	for (size_t i = 1; i < count; i++) {
		ebbgc_ref_t r = at(w, w->roots[0], i);

		ebbgc_store(w->m, r, &node_of(r)->left, at(w, w->roots[0], i - 1));
		if (i % 10 == 0)
			ebbgc_store(w->m, r, &node_of(r)->right, at(w, w->roots[0], i / 2));
	}
}

static void whole_regions_die(void **state)
{
	struct ebbgc_stats s;
	struct world w;

	world_open(&w, *state, 64);
	nodes_fill(&w, COUNT);
	evict(&w);
	assert_int_equal(stats_of(w.heap).far_bytes, COUNT * 32);
	ebbgc_fill(w.m, w.roots[0], slot_of(w.roots[0], 0), EBBGC_NULL, COUNT);
	collect(&w);
	s = stats_of(w.heap);
	assert_int_equal(s.far_freed_bytes, COUNT * 32);
	assert_int_equal(s.far_bytes, 0);
	assert_int_equal(w.store.places, 0);
	/*
	 * None of it was read, unless a cycle of the collector's own began while it lived; nor is
	 * any table left a cycle later.
	 */
	if (!strcmp(*state, "mode=stop"))
		assert_int_equal(w.store.reads, 0);
	collect(&w);
	collect(&w);
	assert_int_equal(stats_of(w.heap).far_regions, 0);
	assert_int_equal(w.heap->far.tables, 0);
	world_close(&w);
}

static void some_live(void **state)
{
	struct world w;

	world_open(&w, *state, 64);
	nodes_fill(&w, COUNT);
	evict(&w);
	most_die(&w);
	for (int i = 0; i < 3; i++)
		collect(&w);
	/* At most a third more than what lives: regions that are mostly dead came home. */
	assert_in_range(stats_of(w.heap).far_bytes, 0, COUNT / 3 * 32 * 2);
	assert_int_equal(stats_of(w.heap).fetched_objects, 0);
	kept_check(&w);
	world_close(&w);
}

/* Far garbage that refers to itself, in cycles over many regions. */
static void rings_die(void **state)
{
	struct ebbgc_stats s;
	ebbgc_ref_t r;
	struct world w;

	world_open(&w, *state, 64);
	nodes_fill(&w, COUNT);
	nodes_link(&w, COUNT);
	r = at(&w, w.roots[0], 0);
	ebbgc_store(w.m, r, &node_of(r)->left, at(&w, w.roots[0], COUNT - 1));
	evict(&w);
	/* One of them keeps all, from the store alone. */
	w.roots[1] = ebbgc_alloc_length(w.m, w.fixed, 1);
	ebbgc_copy(w.m, w.roots[1], slot_of(w.roots[1], 0), w.roots[0],
		   slot_of(w.roots[0], COUNT / 2), 1);
	w.roots[0] = EBBGC_NULL;
	collect(&w);
	s = stats_of(w.heap);
	assert_int_equal(s.far_freed_bytes, 0);
	assert_int_equal(s.far_bytes, COUNT * 32);
	assert_true(s.far_cycles && s.far_read_bytes >= COUNT * 32);
	r = at(&w, w.roots[1], 0);
	for (size_t i = 0; i < COUNT; i++) {
		assert_int_equal(node_of(r)->value, (COUNT / 2 + COUNT - i) % COUNT);
		r = ebbgc_load(w.m, r, &node_of(r)->left);
		if (i % 1000 == 0) {
			w.roots[2] = r;
			collect(&w);
			r = w.roots[2];
		}
	}
	w.roots[2] = EBBGC_NULL;
	evict(&w);
	w.roots[1] = EBBGC_NULL;
	collect(&w);
	assert_int_equal(stats_of(w.heap).far_bytes, 0);
	world_close(&w);
}

/* What only far garbage refers to dies with it; what a live far object refers to does not. */
static void what_the_dead_named_dies(void **state)
{
	enum { FEW = 100 };
	struct world w;
	ebbgc_ref_t r;

	world_open(&w, *state, 64);
	nodes_fill(&w, FEW);
	/* Referred to by far objects: nodes that stay in memory, and whose type never leaves. */
	for (size_t i = 0; i < FEW; i++) {
		w.roots[1] = ebbgc_alloc_length(w.m, w.fixed, 1);
		r = at(&w, w.roots[0], i);
		ebbgc_store(w.m, r, &node_of(r)->left, w.roots[1]);
	}
	w.roots[1] = ebbgc_alloc_length(w.m, w.fixed, FEW);
	for (size_t i = 0; i < FEW; i++) {
		r = at(&w, w.roots[0], i);
		ebbgc_store(w.m, w.roots[1], slot_of(w.roots[1], i),
			    ebbgc_weak_new(w.m, ebbgc_load(w.m, r, &node_of(r)->left)));
	}
	evict(&w);
	for (size_t i = 0; i < FEW; i += 2)
		clear(&w, i);
	collect(&w);
	for (size_t i = 0; i < FEW; i++) {
		r = ebbgc_weak_get(w.m, at(&w, w.roots[1], i));
		assert_int_equal(ebbgc_is_null(r), i % 2 == 0);
	}
	collect(&w);
	for (size_t i = 1; i < FEW; i += 2) {
		r = at(&w, w.roots[0], i);
		assert_int_equal(node_of(r)->value, i);
		r = ebbgc_load(w.m, r, &node_of(r)->left);
		assert_int_equal(refs_of(r)->length, 1);
	}
	world_close(&w);
}

/* A region that is LEAVING keeps what it refers to, in the store and in memory. */
static void what_leaves_keeps(void **state)
{
	enum { FEW = 900 };
	struct world w;
	ebbgc_ref_t r;

	world_open(&w, *state, 64);
	nodes_fill(&w, FEW);
	evict(&w);
	w.roots[1] = ebbgc_alloc_length(w.m, w.refs, FEW);
	ebbgc_copy(w.m, w.roots[1], slot_of(w.roots[1], 0), w.roots[0], slot_of(w.roots[0], 0),
		   FEW);
	w.roots[0] = ebbgc_alloc_length(w.m, w.fixed, 1);
	r = node_new(&w, 1);
	w.roots[2] = r;
	ebbgc_store(w.m, r, &node_of(r)->left, w.roots[1]);
	ebbgc_store(w.m, w.roots[0], slot_of(w.roots[0], 0), r);
	w.roots[1] = w.roots[2] = EBBGC_NULL;
	w.store.fail_alloc = -ENOSPC;
	assert_int_equal(ebbgc_far_evict(w.m), -ENOSPC);
	collect(&w);
	collect(&w);
	w.store.fail_alloc = 0;
	evict(&w);
	collect(&w);
	r = at(&w, w.roots[0], 0);
	w.roots[1] = ebbgc_load(w.m, r, &node_of(r)->left);
	for (size_t i = 0; i < FEW; i++)
		assert_int_equal(node_of(at(&w, w.roots[1], i))->value, i);
	world_close(&w);
}

/*
 * The store fails at each read of a far cycle, for that read or for good, or returns other bytes:
 * the cycle frees nothing there, and the next one does.
 */
static void each_read_fails(void **state)
{
	enum { FEW = 6000 };
	bool all = false;

	for (unsigned int k = 0; !all; k++) {
		for (int garbled = 0; garbled < 2; garbled++) {
			struct ebbgc_stats s;
			struct world w;

			world_open(&w, *state, 64);
			nodes_fill(&w, FEW);
			nodes_link(&w, FEW / 2);
			evict(&w);
			for (size_t i = FEW / 2; i < FEW; i++)
				clear(&w, i);
			w.store.passes = k;
			if (garbled)
				w.store.garble = true;
			else
				w.store.fail_read = -EIO;
			collect(&w);
			s = stats_of(w.heap);
			all = s.far_cycles;
			if (!all) {
				assert_int_equal(s.far_abandoned, 1);
				assert_int_equal(s.far_freed_bytes, 0);
				assert_int_equal(s.far_bytes, FEW * 32);
			}
			/* A cycle that reads nothing in the store. */
			w.store.fail_read = 0;
			w.store.garble = false;
			collect(&w);
			assert_int_equal(stats_of(w.heap).far_cycles, 1 + all);
			assert_int_equal(stats_of(w.heap).far_freed_bytes, FEW / 2 * 32);
			for (size_t i = 0; i < FEW / 2; i++) {
				ebbgc_ref_t r = at(&w, w.roots[0], i);

				assert_int_equal(node_of(r)->value, i);
				r = ebbgc_load(w.m, r, &node_of(r)->left);
				if (i)
					assert_int_equal(node_of(r)->value, i - 1);
			}
			world_close(&w);
		}
	}
}

static int bounded_alloc(void *arg, size_t bytes, struct ebbgc_far_place *place)
{
	struct store *s = arg;
	bool full;

	pthread_mutex_lock(&s->lock);
	full = s->bytes + bytes > s->most;
	pthread_mutex_unlock(&s->lock);
	return full ? -ENOSPC : store_alloc(arg, bytes, place);
}

/* Nothing else asks for a cycle: little has left, and no more is allocated. */
static void a_full_store_is_emptied(void **state)
{
	struct ebbgc_far_store *store;
	struct world w;

	world_open(&w, *state, 64);
	store = &w.heap->far.store;
	store->alloc = bounded_alloc;
	w.store.most = 1 << 20;
	nodes_fill(&w, COUNT);
	evict(&w);
	w.roots[1] = w.roots[0];
	nodes_fill(&w, COUNT / 2);
	/* What is in the store lives: the far cycles that are requested free nothing. */
	assert_int_equal(ebbgc_far_evict(w.m), -ENOSPC);
	w.roots[1] = EBBGC_NULL;
	while (ebbgc_far_evict(w.m))
		usleep(1000);
	assert_true(stats_of(w.heap).far_freed_bytes > 0);
	assert_int_equal(stats_of(w.heap).full_cycles, 0);
	nodes_check(&w, COUNT / 2);
	world_close(&w);
}

/*
 * A program that replaces its objects for ever, of which most are far: 3 MiB of them, in a store of
 * 16 MiB, and addresses for 96 MiB.
 */
static void the_store_does_not_grow(void **state)
{
	enum { LIVE = 100000, TURNS = 25 };
	struct ebbgc_far_options o;
	struct ebbgc_far_store store;
	struct ebbgc_options heap;
	struct ebbgc_stats s;
	uint64_t seed = 1;
	struct world w = { .store = { .lock = PTHREAD_MUTEX_INITIALIZER, .most = 16 << 20 } };
	static uint32_t values[LIVE];

	ebbgc_options_init(&heap);
	assert_int_equal(ebbgc_debug(&heap, *state), 0);
	heap.max_bytes = 96 << 20;
	heap.min_bytes = 1 << 20;
	assert_int_equal(ebbgc_heap_create(&heap, &w.heap), 0);
	ebbgc_far_options_init(&o);
	o.local_bytes = 4 << 20;
	store = store_of(&w.store);
	store.alloc = bounded_alloc;
	types_register(&w);
	assert_int_equal(ebbgc_far_attach(w.heap, &store, &o), 0);
	assert_int_equal(ebbgc_attach(w.heap, &w.m), 0);
	ebbgc_frame_push(w.m, &w.frame, w.roots, ROOTS);
	w.roots[0] = ebbgc_alloc_length(w.m, w.fixed, LIVE);
	for (uint32_t i = 0; i < LIVE * TURNS; i++) {
		uint32_t k = i;

		/* In order, as a queue would, and at random. */
		if (i / LIVE % 2) {
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			k = (uint32_t)(seed >> 33);
		}
		k %= LIVE;
		values[k] = i;
		ebbgc_store(w.m, w.roots[0], slot_of(w.roots[0], k), node_new(&w, i));
	}
	s = stats_of(w.heap);
	printf("%llu far cycles, %llu abandoned, %llu MiB left, %llu MiB read, %llu MiB freed, "
	       "%llu MiB in the store, %llu objects home, %llu us of processor time\n",
	       (unsigned long long)s.far_cycles,
	       (unsigned long long)s.far_abandoned, (unsigned long long)s.left_bytes >> 20,
	       (unsigned long long)s.far_read_bytes >> 20,
	       (unsigned long long)s.far_freed_bytes >> 20, (unsigned long long)s.far_bytes >> 20,
	       (unsigned long long)s.homed_objects,
	       (unsigned long long)s.far_cpu_ns / 1000);
	assert_true(s.left_bytes > w.store.most);
	for (size_t i = 0; i < LIVE; i++)
		assert_int_equal(node_of(at(&w, w.roots[0], i))->value, values[i]);
	world_close(&w);
}

#define WITH(test, words) { #test ": " words, test, NULL, NULL, (void *)words }

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH(whole_regions_die, "mode=stop"),
		WITH(whole_regions_die, "mode=concurrent,nursery=64K"),
		WITH(some_live, "mode=stop"),
		WITH(some_live, "mode=concurrent,nursery=64K"),
		WITH(rings_die, "mode=stop"),
		WITH(rings_die, "mode=concurrent,address"),
		WITH(what_the_dead_named_dies, "mode=stop"),
		WITH(what_the_dead_named_dies, "mode=concurrent"),
		WITH(what_leaves_keeps, "mode=stop"),
		WITH(what_leaves_keeps, "mode=concurrent,nursery=64K"),
		WITH(each_read_fails, "mode=stop"),
		WITH(each_read_fails, "mode=concurrent"),
		WITH(a_full_store_is_emptied, "mode=concurrent"),
		WITH(the_store_does_not_grow, "mode=concurrent"),
		WITH(the_store_does_not_grow, "mode=stop"),
		WITH(the_store_does_not_grow, "mode=concurrent,nursery=256K"),
	};

	alarm(300);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
