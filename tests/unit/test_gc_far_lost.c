// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Far generations at two donors of which one is lost for good: what is dead at the other one is
 * freed, loads of what was at the lost one fail, and what only objects there refer to is garbage.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <unistd.h>
#include "gc_far_world.h"
#include "gc_jobs.h"

#define FEW 20000

/* Regions go to both in turn; words[2] of a place is its donor. */
static struct {
	unsigned int allocated;
	uint64_t bytes[2];
	unsigned int passes;	/* reads at donor 1 until it is lost */
	bool lost;		/* atomic */
	unsigned int reads;	/* of what is lost, after the heap was told; atomic */
	bool told;
} donors;

static int two_alloc(void *arg, size_t bytes, struct ebbgc_far_place *place)
{
	uint64_t donor = donors.allocated++ % 2;
	int r;

	if (__atomic_load_n(&donors.lost, __ATOMIC_SEQ_CST))
		donor = 0;
	r = store_alloc(arg, bytes, place);
	place->words[2] = donor;
	donors.bytes[donor] += r ? 0 : bytes;
	return r;
}

static bool is_lost(const struct ebbgc_far_place *place)
{
	return place->words[2] == 1 && __atomic_load_n(&donors.lost, __ATOMIC_SEQ_CST);
}

static int two_read(void *arg, const struct ebbgc_far_place *place, size_t offset, void *to,
		    size_t bytes)
{
	if (place->words[2] == 1 && donors.passes && !--donors.passes)
		__atomic_store_n(&donors.lost, true, __ATOMIC_SEQ_CST);
	if (!is_lost(place))
		return store_read(arg, place, offset, to, bytes);
	if (__atomic_load_n(&donors.told, __ATOMIC_SEQ_CST))
		__atomic_fetch_add(&donors.reads, 1, __ATOMIC_SEQ_CST);
	return -ESHUTDOWN;
}

static int two_free(void *arg, const struct ebbgc_far_place *place)
{
	bool lost = is_lost(place);

	donors.bytes[place->words[2]] -= place->words[1];
	store_free(arg, place);
	return lost ? -ESHUTDOWN : 0;
}

static int two_lost(void *arg, const struct ebbgc_far_place *place)
{
	if (!is_lost(place))
		return 0;
	__atomic_store_n(&donors.told, true, __ATOMIC_SEQ_CST);
	return -ESHUTDOWN;
}

static struct {
	jmp_buf out;
	int error;
} handler;

static enum ebbgc_far_verdict failed(void *arg, ebbgc_heap_t *heap, int error)
{
	handler.error = error;
	longjmp(handler.out, 1);
}

/* Nodes 0 to FEW - 1; each refers to the one before, with @far every third to another one, too. */
static void open_two(struct world *w, const char *words, bool far)
{
	memset(&donors, 0, sizeof(donors));
	world_open(w, words, 64);
	jobs_reset();
	w->heap->far.options.failed = failed;
	w->heap->far.store.alloc = two_alloc;
	w->heap->far.store.read = two_read;
	w->heap->far.store.free = two_free;
	w->heap->far.store.lost = two_lost;
	nodes_fill(w, FEW);
	for (size_t i = 1; i < FEW; i++) {
		ebbgc_ref_t r = at(w, w->roots[0], i);

		ebbgc_store(w->m, r, &node_of(r)->left, at(w, w->roots[0], i - 1));
		if (far && i % 3 == 0)
			ebbgc_store(w->m, r, &node_of(r)->right, at(w, w->roots[0], i / 2));
	}
	evict(w);
}

static void drop_odd(struct world *w)
{
	for (size_t i = 1; i < FEW; i += 2)
		ebbgc_store(w->m, w->roots[0], slot_of(w->roots[0], i), EBBGC_NULL);
}

/* Cuts all references between nodes; each is then known by the array alone. */
static void cut(struct world *w)
{
	for (size_t i = 0; i < FEW; i++) {
		ebbgc_ref_t r = at(w, w->roots[0], i);

		ebbgc_store(w->m, r, &node_of(r)->left, EBBGC_NULL);
		ebbgc_store(w->m, r, &node_of(r)->right, EBBGC_NULL);
	}
	for (int i = 0; i < 3; i++)
		collect(w);
	evict(w);
}

/* Returns whether node i can be loaded; then it is right. */
static bool loads(struct world *w, size_t i)
{
	if (setjmp(handler.out)) {
		assert_int_equal(handler.error, -ESHUTDOWN);
		return false;
	}
	assert_int_equal(node_of(at(w, w->roots[0], i))->value, i);
	return true;
}

static size_t load_all(struct world *w, size_t step)
{
	volatile size_t n = 0;

	for (volatile size_t i = 0; i < FEW; i += step)
		n += loads(w, i);
	return n;
}

/* What is dead at donor 0 is freed, and nothing else but what is dead at donor 1. */
static void freeing_goes_on(struct world *w, bool by_jobs)
{
	struct ebbgc_stats before = stats_of(w->heap), s;
	uint64_t first = donors.bytes[0];
	size_t n;

	assert_true(first > 3 << 16 && donors.bytes[1] > 3 << 16);
	collect(w);
	s = stats_of(w->heap);
	assert_int_equal(s.far_cycles - before.far_cycles, 1);
	assert_int_equal(s.far_abandoned, before.far_abandoned);
	assert_int_equal(s.far_donor_cycles - before.far_donor_cycles, by_jobs);
	assert_int_equal(s.far_freed_bytes - before.far_freed_bytes, FEW / 2 * 32);
	assert_int_equal(s.far_lost_bytes, donors.bytes[1]);
	n = load_all(w, 2);
	assert_true(n > FEW / 8 && n < FEW / 2 - FEW / 8);
	/* They are local: those at donor 0 have no bytes any more. */
	collect(w);
	collect(w);
	assert_true(donors.bytes[0] < first / 8);
	assert_int_equal(load_all(w, 2), n);
	assert_int_equal(__atomic_load_n(&donors.reads, __ATOMIC_SEQ_CST), 0);
}

/* What is at the lost donor ends when nothing refers to it. */
static void all_ends(struct world *w)
{
	w->roots[0] = EBBGC_NULL;
	for (int i = 0; i < 3; i++)
		collect(w);
	assert_int_equal(stats_of(w->heap).far_bytes, 0);
	assert_int_equal(stats_of(w->heap).far_lost_bytes, 0);
	assert_int_equal(stats_of(w->heap).far_regions, 0);
	world_close(w);
}

static void lost_before_a_cycle(void **state)
{
	struct world w;

	open_two(&w, *state, true);
	cut(&w);
	drop_odd(&w);
	donors.lost = true;
	freeing_goes_on(&w, false);
	all_ends(&w);
}

/* Donors trace: the one that is left does. */
static void the_other_one_traces(void **state)
{
	struct world w;

	open_two(&w, *state, true);
	the_jobs.one_donor = true;
	w.heap->far.store.jobs = &jobs_table;
	cut(&w);
	drop_odd(&w);
	donors.lost = true;
	freeing_goes_on(&w, true);
	all_ends(&w);
}

/* The cycle in which a read fails frees nothing; the next one does. */
static void lost_in_a_cycle(void **state)
{
	struct ebbgc_stats before, s;
	struct world w;

	open_two(&w, *state, true);
	cut(&w);
	drop_odd(&w);
	donors.passes = 3;
	before = stats_of(w.heap);
	collect(&w);
	s = stats_of(w.heap);
	assert_true(donors.lost);
	assert_int_equal(s.far_abandoned - before.far_abandoned, 1);
	assert_int_equal(s.far_freed_bytes, before.far_freed_bytes);
	assert_int_equal(s.far_lost_bytes, 0);
	freeing_goes_on(&w, false);
	all_ends(&w);
}

/* Nodes at the lost donor that are alive keep nothing, here or at the other donor. */
static void what_only_the_lost_refer_to(void **state)
{
	uint64_t first;
	struct world w;

	open_two(&w, *state, false);
	/* All are reached by the last one, through nodes at both donors. */
	for (size_t i = 0; i < FEW - 1; i++)
		ebbgc_store(w.m, w.roots[0], slot_of(w.roots[0], i), EBBGC_NULL);
	first = donors.bytes[0];
	collect(&w);
	assert_int_equal(donors.bytes[0], first);
	donors.lost = true;
	collect(&w);
	collect(&w);
	assert_true(stats_of(w.heap).far_freed_bytes > (FEW / 2) * 32);
	assert_true(donors.bytes[0] < first / 2);
	loads(&w, FEW - 1);
	all_ends(&w);
}

/* Weak references to what only the lost refer to are cleared; those to the lost are not. */
static void weak_references(void **state)
{
	enum { PAIRS = 9000 };
	unsigned int kept = 0, gone = 0;
	struct world w;

	memset(&donors, 0, sizeof(donors));
	world_open(&w, *state, 64);
	w.heap->far.options.failed = failed;
	w.heap->far.store.alloc = two_alloc;
	w.heap->far.store.read = two_read;
	w.heap->far.store.free = two_free;
	w.heap->far.store.lost = two_lost;
	nodes_fill(&w, PAIRS);
	w.roots[1] = ebbgc_alloc_length(w.m, w.fixed, PAIRS);
	for (size_t i = 0; i < PAIRS; i++) {
		ebbgc_ref_t r;

		/* It stays here. */
		w.roots[2] = ebbgc_alloc_length(w.m, w.fixed, 1);
		r = at(&w, w.roots[0], i);
		ebbgc_store(w.m, r, &node_of(r)->right, w.roots[2]);
		ebbgc_store(w.m, w.roots[1], slot_of(w.roots[1], i),
			    ebbgc_weak_new(w.m, w.roots[2]));
	}
	w.roots[2] = EBBGC_NULL;
	evict(&w);
	donors.lost = true;
	collect(&w);
	for (volatile size_t i = 0; i < PAIRS; i++) {
		ebbgc_ref_t r = ebbgc_weak_get(w.m, at(&w, w.roots[1], i));
		bool here = !ebbgc_is_null(r);

		assert_int_equal(loads(&w, i), here);
		kept += here;
		gone += !here;
	}
	assert_true(kept > PAIRS / 4 && gone > PAIRS / 4);
	world_close(&w);
}

/* --- finalizers ----------------------------------------------------------------------------- */

static uint64_t finalized;
static uint8_t seen[FEW];

static void finalizer(ebbgc_mutator_t *m, ebbgc_ref_t object, void *data)
{
	assert_true(node_of(object)->value < FEW);
	assert_int_equal(seen[node_of(object)->value]++, 0);
	finalized++;
}

/* Nodes of which each has a finalizer; all are in the store, and garbage. */
static void open_finalizable(struct world *w, const char *words)
{
	open_two(w, words, false);
	for (size_t i = 0; i < FEW; i++)
		assert_int_equal(ebbgc_finalizer_add(w->m, at(w, w->roots[0], i), finalizer, NULL),
				 0);
	w->roots[0] = EBBGC_NULL;
	evict(w);
	finalized = 0;
	memset(seen, 0, sizeof(seen));
}

/* What is dead and lost has no finalizer any more: the program has loaded nothing. */
static void lost_objects_are_not_finalized(void **state)
{
	struct ebbgc_stats before, s;
	struct world w;
	size_t ran;

	open_finalizable(&w, *state);
	w.heap->far.options.failed = NULL;
	donors.lost = true;
	collect(&w);
	before = stats_of(w.heap);
	assert_int_equal(before.finalizers_ready, FEW);
	ran = ebbgc_finalizers_run(w.m, SIZE_MAX);
	assert_int_equal(ran, finalized);
	assert_true(finalized > FEW / 4 && finalized < FEW - FEW / 4);
	s = stats_of(w.heap);
	assert_int_equal(s.far_failures - before.far_failures, FEW - finalized);
	assert_int_equal(ebbgc_finalizers_run(w.m, SIZE_MAX), 0);
	all_ends(&w);
}

/* A handler that jumps out of the function loses no finalizer. */
static void a_finalizer_waits_for_its_object(void **state)
{
	volatile unsigned int jumps = 0;
	struct world w;

	open_finalizable(&w, *state);
	collect(&w);
	donors.lost = true;
	if (setjmp(handler.out)) {
		assert_int_equal(handler.error, -ESHUTDOWN);
		jumps++;
		donors.lost = jumps < 3;
	}
	ebbgc_finalizers_run(w.m, SIZE_MAX);
	assert_int_equal(jumps, 3);
	assert_int_equal(finalized, FEW);
	all_ends(&w);
}

/* --- beside threads ------------------------------------------------------------------------- */

struct loader {
	struct world *w;
	pthread_t thread;
	bool stop;
	uint64_t loaded;
};

static _Thread_local jmp_buf thread_out;

static enum ebbgc_far_verdict thread_failed(void *arg, ebbgc_heap_t *heap, int error)
{
	assert_int_equal(error, -ESHUTDOWN);
	longjmp(thread_out, 1);
}

static void *load_all_the_time(void *arg)
{
	struct loader *l = arg;
	struct ebbgc_frame frame;
	ebbgc_ref_t root;
	ebbgc_mutator_t *m;
	volatile uint64_t seed = 3;

	assert_int_equal(ebbgc_attach(l->w->heap, &m), 0);
	ebbgc_frame_push(m, &frame, &root, 1);
	while (!__atomic_load_n(&l->stop, __ATOMIC_RELAXED)) {
		size_t i;
		ebbgc_ref_t r;

		ebbgc_poll(m);
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		/* The other half is still in the store when the donor is lost, however late. */
		i = (seed >> 33) % (FEW / 2) & ~(size_t)1;
		if (setjmp(thread_out))
			continue;
		root = l->w->roots[0];
		r = ebbgc_load(m, root, slot_of(root, i));
		assert_int_equal(node_of(r)->value, i);
		r = ebbgc_load(m, r, &node_of(r)->left);
		if (!ebbgc_is_null(r))
			assert_int_equal(node_of(r)->value, i - 1);
		__atomic_fetch_add(&l->loaded, 1, __ATOMIC_RELAXED);
	}
	root = EBBGC_NULL;
	ebbgc_detach(m);
	return NULL;
}

/* The donor is lost, and the heap learns it, while a thread loads from both. */
static void threads_load(void **state)
{
	unsigned int rounds = getenv("EBBGC_TEST_SHORT") ? 4 : 12;

	for (unsigned int round = 0; round < rounds; round++) {
		struct loader l = { 0 };
		struct world w;

		open_two(&w, *state, true);
		w.heap->far.options.failed = thread_failed;
		drop_odd(&w);
		l.w = &w;
		assert_int_equal(pthread_create(&l.thread, NULL, load_all_the_time, &l), 0);
		usleep(200 * round);
		__atomic_store_n(&donors.lost, true, __ATOMIC_SEQ_CST);
		for (int i = 0; i < 3; i++)
			collect(&w);
		__atomic_store_n(&l.stop, true, __ATOMIC_RELAXED);
		while (pthread_tryjoin_np(l.thread, NULL))
			ebbgc_poll(w.m);
		assert_true(stats_of(w.heap).far_cycles > 0);
		assert_true(stats_of(w.heap).far_lost_bytes > 0);
		all_ends(&w);
	}
}

#define WITH(test, words) { #test ": " words, test, NULL, NULL, (void *)words }

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH(lost_before_a_cycle, "mode=stop"),
		WITH(lost_before_a_cycle, "mode=concurrent,nursery=64K"),
		WITH(the_other_one_traces, "mode=stop"),
		WITH(the_other_one_traces, "mode=concurrent"),
		WITH(lost_in_a_cycle, "mode=stop"),
		WITH(lost_in_a_cycle, "mode=concurrent"),
		WITH(what_only_the_lost_refer_to, "mode=stop"),
		WITH(weak_references, "mode=stop"),
		WITH(weak_references, "mode=concurrent"),
		WITH(lost_objects_are_not_finalized, "mode=stop"),
		WITH(lost_objects_are_not_finalized, "mode=concurrent,nursery=64K"),
		WITH(a_finalizer_waits_for_its_object, "mode=stop"),
		WITH(threads_load, "mode=stop"),
		WITH(threads_load, "mode=concurrent,nursery=64K"),
	};

	alarm(300);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
