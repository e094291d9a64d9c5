// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Random programs on libebbgc: threads that build, rewire, share and drop graphs, watch and
 * finalize what is in them, while a heap in checking mode collects; each thread keeps a shadow of
 * the values it may rely on.
 */
#include <pthread.h>
#include <unistd.h>
#include "gc_test.h"
#include "heap.h"

#define THREADS 3
#define ROOTS 24
#define WATCHES 4	/* roots beyond: weak references, then as many ephemerons */
#define SHARED 64

struct world {
	struct arrival_ring *ring;	/* NULL: nobody tells of faults */
	ebbgc_heap_t *heap;
	ebbgc_type_t node, refs, leaf;
	ebbgc_ref_t shared;		/* a root range: an array that all threads store to */
	size_t spread;			/* its slots between two that are used */
	unsigned int steps;
};

struct worker {
	struct world *world;
	uint64_t seed;
};

static uint64_t next(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

/* Objects carry a checksum of their own address, so one that was freed and reused shows. */
static uint64_t stamp(ebbgc_ref_t r)
{
	return (uint64_t)(uintptr_t)ebbgc_ptr(r) * 0x9e3779b97f4a7c15u;
}

/* As if the page had been out: what ebbd's BPF programs write. */
static void fault(struct world *w, ebbgc_ref_t r)
{
	uint64_t n;

	if (!w->ring)
		return;
	n = __atomic_fetch_add(&w->ring->head, 1, __ATOMIC_ACQ_REL);
	__atomic_store_n(&w->ring->entry[n % ARRIVALS],
			 n / ARRIVALS << ARRIVAL_ROUND |
			 (r.bits & EBBGC_ADDRESS_MASK) >> ARRIVAL_SHIFT, __ATOMIC_RELEASE);
}

static ebbgc_ref_t new_node(struct world *w, ebbgc_mutator_t *m)
{
	ebbgc_ref_t r = ebbgc_alloc(m, w->node);

	assert_false(ebbgc_is_null(r));
	fault(w, r);
	node_of(r)->value = stamp(r);
	return r;
}

/* Follows a random path and checks each node on it; returns the last. */
static ebbgc_ref_t wander(struct world *w, ebbgc_mutator_t *m, ebbgc_ref_t r, uint64_t *s)
{
	for (int i = 0; i < 20; i++) {
		ebbgc_ref_t to;

		fault(w, r);
		assert_int_equal(node_of(r)->value, stamp(r));
		to = ebbgc_load(m, r, next(s) & 1 ? &node_of(r)->left : &node_of(r)->right);
		if (ebbgc_is_null(to))
			break;
		r = to;
	}
	return r;
}

static void check(ebbgc_ref_t r)
{
	if (!ebbgc_is_null(r))
		assert_int_equal(node_of(r)->value, stamp(r));
}

/* What it leads to is as it was. */
static void finalizer(ebbgc_mutator_t *m, ebbgc_ref_t object, void *data)
{
	struct world *w = data;

	check(object);
	check(ebbgc_load(m, object, &node_of(object)->left));
	check(ebbgc_load(m, object, &node_of(object)->right));
	/* Some live on. */
	if (stamp(object) & 1024)
		ebbgc_store(m, w->shared, &refs_of(w->shared)->slots[0], object);
}

/* References that keep nothing, or not always, and what comes after death. */
static void watch(struct world *w, ebbgc_mutator_t *m, ebbgc_ref_t *roots, uint64_t *s)
{
	unsigned int a = next(s) % ROOTS, b = next(s) % ROOTS, c = ROOTS + next(s) % WATCHES;
	ebbgc_ref_t value;

	switch (next(s) % 6) {
	case 0:
		roots[c] = ebbgc_weak_new(m, roots[a]);
		break;
	case 1:
		if (ebbgc_is_null(roots[c]))
			break;
		roots[a] = ebbgc_weak_get(m, roots[c]);
		check(roots[a]);
		break;
	case 2:
		roots[c + WATCHES] = ebbgc_ephemeron_new(m, roots[a], roots[b]);
		break;
	case 3:
		if (ebbgc_is_null(roots[c + WATCHES]))
			break;
		roots[a] = ebbgc_ephemeron_key(m, roots[c + WATCHES]);
		value = ebbgc_ephemeron_value(m, roots[c + WATCHES]);
		check(roots[a]);
		check(value);
		roots[b] = value;
		break;
	case 4:
		if (!ebbgc_is_null(roots[a]))
			assert_int_equal(ebbgc_finalizer_add(m, roots[a], finalizer, w), 0);
		break;
	case 5:
		ebbgc_finalizers_run(m, next(s) % 4);
		break;
	}
}

static void step(struct world *w, ebbgc_mutator_t *m, ebbgc_ref_t *roots, uint64_t *s)
{
	unsigned int a = next(s) % ROOTS, b = next(s) % ROOTS;
	size_t c = next(s) % SHARED * w->spread;
	ebbgc_ref_t at, expected;

	switch (next(s) % 14) {
	case 0 ... 3:
		at = new_node(w, m);
		ebbgc_init(&node_of(at)->left, roots[a]);
		ebbgc_init(&node_of(at)->right, roots[b]);
		roots[a] = at;
		break;
	case 4:
		roots[a] = EBBGC_NULL;
		break;
	case 5:
		if (!ebbgc_is_null(roots[a]))
			roots[b] = wander(w, m, roots[a], s);
		break;
	case 6: case 7:
		if (ebbgc_is_null(roots[a]))
			break;
		at = wander(w, m, roots[a], s);
		/* Moves a subgraph: the only path to it may be the local variable for a while. */
		expected = ebbgc_load(m, at, &node_of(at)->left);
		ebbgc_store(m, at, &node_of(at)->left, EBBGC_NULL);
		if (next(s) & 1)
			roots[b] = expected;
		else
			ebbgc_store(m, at, &node_of(at)->right, expected);
		break;
	case 8:
		ebbgc_store(m, w->shared, &refs_of(w->shared)->slots[c], roots[a]);
		break;
	case 9:
		roots[a] = ebbgc_load(m, w->shared, &refs_of(w->shared)->slots[c]);
		break;
	case 10:
		expected = ebbgc_load(m, w->shared, &refs_of(w->shared)->slots[c]);
		ebbgc_cas(m, w->shared, &refs_of(w->shared)->slots[c], &expected, roots[b]);
		break;
	case 11:
		if (next(s) % 8 == 0) {
			struct refs *shared = refs_of(w->shared);

			ebbgc_copy(m, w->shared, &shared->slots[c / 2], w->shared,
				   &shared->slots[c / 3], SHARED / 4);
			ebbgc_fill(m, w->shared, &shared->slots[c / 2], roots[a], 3);
		}
		/* Bulk that dies at once, of every size. */
		fault(w, ebbgc_alloc_length(m, w->leaf, next(s) % 64 == 0 ? 100000 : next(s) % 4000));
		break;
	case 12: case 13:
		watch(w, m, roots, s);
		break;
	}
	if (next(s) % 64 == 0)
		ebbgc_poll(m);
	if (next(s) % 512 == 0)
		ebbgc_collect_start(m);
	/* A dozen times a thread, and not more often: a thread that waits tries nothing. */
	if (next(s) % (w->steps / 12) == 0) {
		uint64_t before = stats_of(w->heap).cycles;

		/* However slow the collector is, it gets its cycles, and the processor for them. */
		for (ebbgc_collect_start(m); stats_of(w->heap).cycles == before; usleep(50))
			ebbgc_poll(m);
	}
	if (next(s) % (w->steps / 12) == 0)
		ebbgc_collect(m);
}

static void *worker(void *arg)
{
	struct worker *self = arg;
	struct world *w = self->world;
	ebbgc_ref_t roots[ROOTS + 2 * WATCHES] = { 0 };
	struct ebbgc_frame frame;
	ebbgc_mutator_t *m;

	assert_int_equal(ebbgc_attach(w->heap, &m), 0);
	ebbgc_frame_push(m, &frame, roots, ROOTS + 2 * WATCHES);
	for (unsigned int i = 0; i < w->steps; i++)
		step(w, m, roots, &self->seed);
	ebbgc_frame_pop(m, &frame);
	ebbgc_detach(m);
	return NULL;
}

static void random_program(const char *options, uint64_t seed)
{
	static const struct ebbgc_layout leaf = {
		.name = "leaf", .flags = EBBGC_LEAF, .size = 8, .element_size = 1, .length_width = 8,
	};
	struct world w = { .steps = getenv("EBBGC_TEST_SHORT") ? 30000 : 200000 };
	struct worker workers[THREADS];
	pthread_t threads[THREADS];
	struct ebbgc_stats s;
	ebbgc_mutator_t *m;

	struct ebbgc_layout node = node_layout;

	w.spread = 1;
	if (strstr(options, "park")) {
		/* The array is on several pages, and so are nodes at a page's end. */
		w.spread = 20;
		node.size += 16;
	}
	w.heap = checked_heap_with(options, 64 << 20);
	if (strstr(options, "arrivals")) {
		w.ring = calloc(1, sizeof(*w.ring));
		assert_non_null(w.ring);
		pthread_mutex_lock(&w.heap->lock);
		arrivals_open(&w.heap->arrivals, w.ring);
		pthread_mutex_unlock(&w.heap->lock);
	}
	assert_int_equal(ebbgc_type_register(w.heap, &node, &w.node), 0);
	assert_int_equal(ebbgc_type_register(w.heap, &refs_layout, &w.refs), 0);
	assert_int_equal(ebbgc_type_register(w.heap, &leaf, &w.leaf), 0);
	assert_int_equal(ebbgc_attach(w.heap, &m), 0);
	assert_int_equal(ebbgc_roots_add(m, &w.shared, 1), 0);
	w.shared = ebbgc_alloc_length(m, w.refs, SHARED * w.spread);
	assert_int_equal(ebbgc_blocked_begin(m), 0);
	for (int i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){ &w, seed + 77 * (uint64_t)i };
		assert_int_equal(pthread_create(&threads[i], NULL, worker, &workers[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	ebbgc_blocked_end(m);

	do {
		ebbgc_fill(m, w.shared, refs_of(w.shared)->slots, EBBGC_NULL,
			   SHARED * w.spread);
		assert_int_equal(ebbgc_collect(m), 0);
	} while (ebbgc_finalizers_run(m, SIZE_MAX));
	w.shared = EBBGC_NULL;
	assert_int_equal(ebbgc_collect(m), 0);
	s = stats_of(w.heap);
	assert_true(s.weak_cleared && s.ephemerons_cleared && s.finalizers_ready);
	assert_int_equal(s.check_failures, 0);
	assert_int_equal(s.checks, s.cycles);
	assert_true(strstr(options, "mode=stop") || s.cycles - s.full_cycles > 3);
	assert_true(s.cycles > 3);
	/* Nothing is reachable any more, so no region is in use. */
	assert_int_equal(s.live_bytes, 0);
	assert_int_equal(ebbgc_roots_remove(m, &w.shared), 0);
	ebbgc_detach(m);
	/* A cycle that never waits may be over before another thread has run. */
	assert_true(!strstr(options, "arrivals,hints") || s.arrivals > 0);
	assert_int_equal(ebbgc_heap_destroy(w.heap), 0);
	free(w.ring);
}

static void random_programs(void **state)
{
	const char *options = *state;

	for (uint64_t seed = 1; seed <= 3; seed++)
		random_program(options, seed * 1000003);
}

#define PROGRAMS(options) { options, random_programs, NULL, NULL, (void *)(options) }

int main(void)
{
	const struct CMUnitTest tests[] = {
		PROGRAMS("mode=concurrent"),
		PROGRAMS("mode=stop"),
		PROGRAMS("mode=concurrent,drop"),
		PROGRAMS("mode=memliner"),
		/* Every stamp is soon too old; every object far at first, and put off. */
		PROGRAMS("mode=memliner,residency=simulated,epoch=1,delta=0,delays=6:6:6"),
		PROGRAMS("mode=memliner,exact,residency=simulated,delays=3:3:3"),
		PROGRAMS("mode=memliner,park,residency=simulated,drop"),
		PROGRAMS("mode=memliner,park,drop,depth=0"),
		PROGRAMS("mode=memliner,arrivals"),
		PROGRAMS("mode=memliner,park,arrivals,hints,residency=simulated,drop"),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
