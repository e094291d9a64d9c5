// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Far generations whose store compacts regions of which little is left (far_compact.h): names and
 * objects stay, places become smaller, nothing is read; when that fails, objects come home.
 */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
#include "far_compact.h"
#include "gc_far_world.h"
#include "gc_jobs.h"

/*
 * The heap has regions compacted until the store holds at most twice what lives: that is the
 * two regions more that the tests allow, or less.
 */
#define COUNT 32000
#define SLOT 32u		/* bytes of a node's */
#define KEPT(i) ((i) % 8 == 3)
#define FIRST(i) ((i) - (i) % 64 + (i) % 8)

/* Poisons what it frees. */
static int poison_free(void *arg, const struct ebbgc_far_place *place)
{
	memset((void *)(uintptr_t)place->words[0], 0x5a, place->words[1]);
	return store_free(arg, place);
}

static void open_compacting(struct world *w, const char *words)
{
	world_open(w, words, 64);
	jobs_reset();
	w->heap->far.store.jobs = &jobs_table;
	w->heap->far.store.free = poison_free;
}

/*
 * Nodes, each with a reference to the first of its kind among 64; then most are garbage.  Longer
 * chains of those that stay would be placed together when they move.
 */
static void mostly_dead(struct world *w)
{
	/* No cycle of the collector's own. */
	ebbgc_cycles_suspend(w->m);
	nodes_fill(w, COUNT);
	for (size_t i = 8; i < COUNT; i++) {
		ebbgc_ref_t r = at(w, w->roots[0], i);

		if (i % 64 >= 8)
			ebbgc_store(w->m, r, &node_of(r)->left, at(w, w->roots[0], FIRST(i)));
	}
	evict(w);
	for (size_t i = 0; i < COUNT; i++)
		if (!KEPT(i))
			ebbgc_store(w->m, w->roots[0], slot_of(w->roots[0], i), EBBGC_NULL);
	ebbgc_cycles_resume(w->m);
}

static void kept_check(struct world *w)
{
	for (size_t i = 0; i < COUNT; i++) {
		ebbgc_ref_t r, l;

		if (!KEPT(i))
			continue;
		r = at(w, w->roots[0], i);
		assert_int_equal(node_of(r)->value, i);
		l = ebbgc_load(w->m, r, &node_of(r)->left);
		assert_int_equal(ebbgc_is_null(l), i % 64 < 8);
		if (i % 64 >= 8)
			assert_int_equal(node_of(l)->value, FIRST(i));
	}
}

static void the_store_compacts(void **state)
{
	struct ebbgc_stats s, before;
	unsigned int n = 0;
	struct world w;

	open_compacting(&w, *state);
	mostly_dead(&w);
	/* In as many cycles as it takes. */
	do {
		collect(&w);
	} while (w.store.bytes > COUNT / 8 * SLOT + (2 << 16) && ++n < 100);
	s = stats_of(w.heap);
	assert_int_equal(s.far_donor_failures + s.far_failures, 0);
	assert_true(s.far_compacted_regions > COUNT * SLOT >> 17);
	assert_int_equal(s.homed_objects, 0);
	assert_int_equal(w.store.reads, 0);
	/* All of it but what no region has to itself. */
	assert_in_range(w.store.bytes, COUNT / 8 * SLOT, COUNT / 8 * SLOT + (2 << 16));
	assert_int_equal(s.far_bytes, w.store.bytes);
	assert_int_equal(s.far_compacted_bytes + s.far_bytes, COUNT * SLOT);
	before = s;
	/* The store traces it where it is now. */
	collect(&w);
	s = stats_of(w.heap);
	assert_int_equal(s.far_donor_cycles - before.far_donor_cycles, 1);
	assert_int_equal(s.far_donor_failures, 0);
	assert_int_equal(s.far_donor_objects - before.far_donor_objects, COUNT / 8);
	kept_check(&w);
	assert_int_equal(stats_of(w.heap).fetched_objects, COUNT / 8);
	w.roots[0] = EBBGC_NULL;
	for (int i = 0; i < 3; i++)
		collect(&w);
	assert_int_equal(stats_of(w.heap).far_bytes, 0);
	world_close(&w);
}

/* Some of what is left comes back, and the rest is compacted again. */
static void compacted_again(void **state)
{
	uint64_t first;
	struct world w;

	open_compacting(&w, *state);
	mostly_dead(&w);
	collect(&w);
	first = stats_of(w.heap).far_compacted_regions;
	for (size_t i = 0; i < COUNT; i++) {
		if (KEPT(i) && i % 64 != 3)
			at(&w, w.roots[0], i);
	}
	collect(&w);
	/* Places of a page are not made smaller: these come home. */
	assert_true(stats_of(w.heap).far_compacted_regions + stats_of(w.heap).homed_objects >
		    first);
	kept_check(&w);
	world_close(&w);
}

static void each_one_fails(void **state)
{
	static const int errors[] = { -EAGAIN, -ENOSPC, -ESHUTDOWN, -EBADMSG };

	for (size_t k = 0; k < 4; k++) {
		struct ebbgc_stats s;
		struct world w;
		uint64_t calls;

		open_compacting(&w, *state);
		mostly_dead(&w);
		/* A beginning, traces, an end; then the first region. */
		collect(&w);
		calls = the_jobs.calls - the_jobs.compactions;
		assert_true(calls >= 3);
		world_close(&w);

		open_compacting(&w, *state);
		mostly_dead(&w);
		the_jobs.fail_at = calls;
		the_jobs.error = errors[k];
		collect(&w);
		s = stats_of(w.heap);
		assert_true(the_jobs.compactions >= 1);
		assert_int_equal(s.far_compacted_regions, the_jobs.compactions - 1);
		/* -EAGAIN is none. */
		assert_int_equal(s.far_failures, k > 0);
		assert_int_equal(s.far_donor_failures, 0);
		assert_true(s.homed_objects > 0);
		assert_int_equal(s.far_bytes, w.store.bytes);
		kept_check(&w);
		world_close(&w);
	}
}

/* A store that takes long is asked for no more after a while; the rest waits or comes home. */
static void it_takes_long(void **state)
{
	struct world w;

	open_compacting(&w, *state);
	mostly_dead(&w);
	the_jobs.compact_us = 100000;
	collect(&w);
	assert_in_range(the_jobs.compactions, 1, 4);
	kept_check(&w);
	world_close(&w);
}

/* --- beside threads ------------------------------------------------------------------------- */

static struct {
	struct world *w;
	bool armed, under_way, stop;	/* atomic */
	uint64_t place;			/* that is read */
} late;

/* Stays in the old place until the store has compacted the region, and for a while longer. */
static int late_read(void *arg, const struct ebbgc_far_place *place, size_t offset, void *to,
		     size_t bytes)
{
	if (__atomic_exchange_n(&late.armed, false, __ATOMIC_SEQ_CST)) {
		uint64_t was = __atomic_load_n(&the_jobs.compactions, __ATOMIC_SEQ_CST);

		late.place = place->words[0];
		__atomic_store_n(&late.under_way, true, __ATOMIC_SEQ_CST);
		while (__atomic_load_n(&the_jobs.compactions, __ATOMIC_SEQ_CST) == was)
			usleep(100);
		usleep(100000);
	}
	return store_read(arg, place, offset, to, bytes);
}

static void *load_one(void *arg)
{
	struct world *w = late.w;
	struct ebbgc_frame frame;
	ebbgc_ref_t root, r;
	ebbgc_mutator_t *m;

	(void)arg;
	assert_int_equal(ebbgc_attach(w->heap, &m), 0);
	ebbgc_frame_push(m, &frame, &root, 1);
	root = w->roots[0];
	__atomic_store_n(&late.armed, true, __ATOMIC_SEQ_CST);
	r = ebbgc_load(m, root, slot_of(root, 3));
	assert_int_equal(node_of(r)->value, 3);
	ebbgc_detach(m);
	return NULL;
}

/* A name may be that of another region, which the object has left. */
static uint32_t region_at(const struct world *w, uint64_t place)
{
	for (uint32_t r = 0; r < w->heap->top; r++)
		if (region_state(w->heap, r) == FAR_AWAY &&
		    far_stored_of(&w->heap->far.regions[r])->place.words[0] == place)
			return r;
	fail_msg("no region is there");
	return 0;
}

/* A read of the old place that lasts beyond the new one's publication. */
static void a_read_in_the_old_place(void **state)
{
	pthread_t thread;
	struct world w;

	open_compacting(&w, *state);
	w.heap->far.store.read = late_read;
	memset(&late, 0, sizeof(late));
	late.w = &w;
	mostly_dead(&w);
	ebbgc_cycles_suspend(w.m);
	assert_int_equal(pthread_create(&thread, NULL, load_one, NULL), 0);
	while (!__atomic_load_n(&late.under_way, __ATOMIC_SEQ_CST))
		usleep(100);
	/* As the collector would; it is suspended. */
	assert_int_equal(far_compact(w.heap, region_at(&w, late.place), 1000), 0);
	while (pthread_tryjoin_np(thread, NULL))
		ebbgc_poll(w.m);
	ebbgc_cycles_resume(w.m);
	kept_check(&w);
	world_close(&w);
}

static uint64_t next(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return *seed >> 33;
}

static void *load_all_the_time(void *arg)
{
	uint64_t seed = (uint64_t)(uintptr_t)arg;
	struct ebbgc_frame frame;
	ebbgc_ref_t root;
	ebbgc_mutator_t *m;

	assert_int_equal(ebbgc_attach(late.w->heap, &m), 0);
	ebbgc_frame_push(m, &frame, &root, 1);
	while (!__atomic_load_n(&late.stop, __ATOMIC_RELAXED)) {
		size_t i = next(&seed) % COUNT;
		ebbgc_ref_t r;

		/* One region of eight is left to compact, however late the collector begins. */
		if (i / (REGION_SIZE / SLOT) % 8 == 7)
			i = 3;
		root = late.w->roots[0];
		r = ebbgc_load(m, root, slot_of(root, i));
		if (!ebbgc_is_null(r)) {
			assert_int_equal(node_of(r)->value, i);
			r = ebbgc_load(m, r, &node_of(r)->left);
			assert_true(ebbgc_is_null(r) || node_of(r)->value == FIRST(i));
		}
		ebbgc_poll(m);
	}
	root = EBBGC_NULL;
	ebbgc_detach(m);
	return NULL;
}

/* Two threads load what the store compacts. */
static void threads_load(void **state)
{
	unsigned int rounds = getenv("EBBGC_TEST_SHORT") ? 3 : 12;
	uint64_t compacted = 0;

	for (unsigned int round = 0; round < rounds; round++) {
		pthread_t threads[2];
		struct world w;

		open_compacting(&w, *state);
		memset(&late, 0, sizeof(late));
		late.w = &w;
		mostly_dead(&w);
		the_jobs.compact_us = 100 * (round % 3);
		for (int i = 0; i < 2; i++)
			assert_int_equal(pthread_create(&threads[i], NULL, load_all_the_time,
							(void *)(uintptr_t)(2 * round + i + 1)), 0);
		for (int i = 0; i < 4; i++)
			collect(&w);
		__atomic_store_n(&late.stop, true, __ATOMIC_RELAXED);
		for (int i = 0; i < 2; i++)
			while (pthread_tryjoin_np(threads[i], NULL))
				ebbgc_poll(w.m);
		compacted += stats_of(w.heap).far_compacted_regions;
		assert_int_equal(stats_of(w.heap).far_failures, 0);
		kept_check(&w);
		world_close(&w);
	}
	printf("%llu regions were compacted\n", (unsigned long long)compacted);
	assert_true(compacted > 0);
}

/* --- addresses ------------------------------------------------------------------------------ */

/* Regions that were compacted keep their addresses: when these are few, they come home. */
static void addresses_become_few(void **state)
{
	enum { FIRST = 300000, MORE = 450000, NTH = 32 };
	struct ebbgc_far_options o;
	struct ebbgc_far_store store;
	unsigned int n = 0;
	struct world w = { .store = { .lock = PTHREAD_MUTEX_INITIALIZER } };

	jobs_reset();
	w.heap = checked_heap_with(*state, 32 << 20);
	ebbgc_far_options_init(&o);
	o.local_bytes = 16 << 20;
	store = store_of(&w.store);
	store.jobs = &jobs_table;
	types_register(&w);
	assert_int_equal(ebbgc_far_attach(w.heap, &store, &o), 0);
	assert_int_equal(ebbgc_attach(w.heap, &w.m), 0);
	ebbgc_frame_push(w.m, &w.frame, w.roots, ROOTS);
	nodes_fill(&w, FIRST);
	evict(&w);
	for (size_t i = 0; i < FIRST; i++)
		if (i % NTH)
			ebbgc_store(w.m, w.roots[0], slot_of(w.roots[0], i), EBBGC_NULL);
	/* Most of them, in as many cycles as it takes: a cycle compacts for a limited time. */
	do {
		collect(&w);
		assert_int_equal(stats_of(w.heap).homed_objects, 0);
	} while (stats_of(w.heap).far_compacted_regions <= FIRST * SLOT >> 17 && ++n < 100);
	assert_true(stats_of(w.heap).far_compacted_regions > FIRST * SLOT >> 17);
	w.roots[1] = w.roots[0];
	nodes_fill(&w, MORE);
	evict(&w);
	for (int i = 0; i < 4; i++)
		collect(&w);
	assert_true(stats_of(w.heap).homed_objects > FIRST / NTH / 4);
	for (size_t i = 0; i < FIRST; i += NTH)
		assert_int_equal(node_of(at(&w, w.roots[1], i))->value, i);
	world_close(&w);
}

#define WITH(test, words) { #test ": " words, test, NULL, NULL, (void *)words }

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH(the_store_compacts, "mode=stop"),
		WITH(the_store_compacts, "mode=concurrent,nursery=64K"),
		WITH(compacted_again, "mode=stop"),
		WITH(compacted_again, "mode=concurrent"),
		WITH(each_one_fails, "mode=stop"),
		WITH(it_takes_long, "mode=stop"),
		WITH(a_read_in_the_old_place, "mode=concurrent"),
		WITH(threads_load, "mode=stop"),
		WITH(threads_load, "mode=concurrent,nursery=64K"),
		WITH(addresses_become_few, "mode=stop"),
	};

	alarm(300);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
