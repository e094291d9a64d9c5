// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Far cycles in which the store traces (far_trace.h), with a store in the test's own memory: the
 * heap reads nothing, frees what is dead and nothing else; and a store that refuses, fails at any
 * call or says what cannot be has the cycle read instead.
 */
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "far_room.h"
#include "gc_far_world.h"
#include "gc_jobs.h"

/* The symbol that programs of before are linked with. */
int old_ebbgc_far_attach(ebbgc_heap_t *heap, const struct ebbgc_far_store *store,
			 const struct ebbgc_far_options *options) __asm__("ebbgc_far_attach");

#define KEPT(i) ((i) % 3000 < 1000)
#define COUNT 30000
#define SLOT 32u		/* bytes of a node's */

static void open_small(struct world *w, const char *words, size_t mib)
{
	world_open(w, words, mib);
	jobs_reset();
	w->heap->far.store.jobs = &jobs_table;
}

static void open_with_jobs(struct world *w, const char *words)
{
	open_small(w, words, 64);
}

/* The next cycle, which is requested, is a far one, whether that pays or not. */
static void far_cycle_start(struct world *w)
{
	pthread_mutex_lock(&w->heap->lock);
	w->heap->far.marking.full = true;
	w->heap->far.marking.next_at = 0;
	pthread_mutex_unlock(&w->heap->lock);
	ebbgc_collect_start(w->m);
}

static uint64_t far_cycles(const struct world *w)
{
	struct ebbgc_stats s = stats_of(w->heap);

	return s.far_cycles + s.far_abandoned;
}

/* A far cycle, beside the program if the heap's mode is to. */
static void far_cycle(struct world *w)
{
	uint64_t before = far_cycles(w), cycles;

	if (w->heap->options.mode == EBBGC_STOP_WORLD || !stats_of(w->heap).far_bytes)
		return collect(w);
	while (far_cycles(w) == before) {
		cycles = stats_of(w->heap).cycles;
		far_cycle_start(w);
		while (stats_of(w->heap).cycles == cycles && far_cycles(w) == before) {
			ebbgc_poll(w->m);
			usleep(100);
		}
		/* Until it has ended, and is counted. */
		ebbgc_cycles_suspend(w->m);
		ebbgc_cycles_resume(w->m);
	}
}

/* Links node i to node i - 1, every tenth to one far away, and some to an array that stays here. */
static void nodes_link(struct world *w, size_t count)
{
	for (size_t i = 1; i < count; i++) {
		ebbgc_ref_t r = at(w, w->roots[0], i);

		ebbgc_store(w->m, r, &node_of(r)->left, at(w, w->roots[0], i - 1));
		if (i % 10 == 0)
			ebbgc_store(w->m, r, &node_of(r)->right, at(w, w->roots[0], i / 2));
		if (i % 500 == 7) {
			w->roots[1] = ebbgc_alloc_length(w->m, w->fixed, 1);
			r = at(w, w->roots[0], i);
			ebbgc_store(w->m, r, &node_of(r)->right, w->roots[1]);
		}
	}
	w->roots[1] = EBBGC_NULL;
}

static void list_check(struct world *w, ebbgc_ref_t r, size_t last)
{
	for (size_t i = last + 1; i--;) {
		assert_int_equal(node_of(r)->value, i);
		if (i % 500 == 7) {
			ebbgc_ref_t array = ebbgc_load(w->m, r, &node_of(r)->right);

			assert_int_equal(refs_of(array)->length, 1);
		}
		r = ebbgc_load(w->m, r, &node_of(r)->left);
	}
	assert_true(ebbgc_is_null(r));
}

/* Two lists; the second half is garbage but for one that refers to itself and is garbage, too. */
static void the_store_traces(void **state)
{
	struct ebbgc_stats s, before;
	struct world w;
	ebbgc_ref_t r;

	open_with_jobs(&w, *state);
	/* No cycle of the collector's own. */
	ebbgc_cycles_suspend(w.m);
	nodes_fill(&w, COUNT);
	nodes_link(&w, COUNT);
	/* From here on a ring, which nothing refers to soon. */
	r = at(&w, w.roots[0], COUNT / 2);
	ebbgc_store(w.m, r, &node_of(r)->left, at(&w, w.roots[0], COUNT - 1));
	r = at(&w, w.roots[0], COUNT / 2);
	ebbgc_store(w.m, r, &node_of(r)->right, EBBGC_NULL);
	w.roots[1] = ebbgc_alloc_length(w.m, w.fixed, 1);
	ebbgc_copy(w.m, w.roots[1], slot_of(w.roots[1], 0), w.roots[0],
		   slot_of(w.roots[0], COUNT / 2 - 1), 1);
	evict(&w);
	w.roots[0] = EBBGC_NULL;
	ebbgc_cycles_resume(w.m);
	before = stats_of(w.heap);
	the_jobs.passed = the_jobs.found = 0;
	far_cycle(&w);
	s = stats_of(w.heap);
	assert_int_equal(s.far_cycles - before.far_cycles, 1);
	assert_int_equal(s.far_donor_cycles, s.far_cycles);
	assert_int_equal(s.far_donor_failures, 0);
	assert_int_equal(s.far_read_objects, 0);
	assert_int_equal(s.far_read_bytes, 0);
	assert_int_equal(s.far_donor_objects - before.far_donor_objects, COUNT / 2);
	assert_int_equal(s.far_freed_bytes, COUNT / 2 * SLOT);
	assert_true(s.far_cpu_ns > before.far_cpu_ns);
	assert_int_equal(the_jobs.passed, 1);
	assert_true(the_jobs.found > 10);
	list_check(&w, at(&w, w.roots[1], 0), COUNT / 2 - 1);
	/* What came back is no more the store's; the rest is. */
	collect(&w);
	collect(&w);
	evict(&w);
	collect(&w);
	list_check(&w, at(&w, w.roots[1], 0), COUNT / 2 - 1);
	w.roots[1] = EBBGC_NULL;
	evict(&w);
	collect(&w);
	assert_int_equal(stats_of(w.heap).far_bytes, 0);
	assert_int_equal(stats_of(w.heap).far_read_objects, 0);
	world_close(&w);
}

static uint64_t next(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return *seed >> 33;
}

/* Objects come back, change, and leave again; references into regions that have some of them. */
static void what_comes_back(void **state)
{
	enum { FEW = 6000, ROUNDS = 12 };
	static uint32_t left[FEW];
	struct ebbgc_stats s;
	uint64_t seed = 7;
	struct world w;

	open_with_jobs(&w, *state);
	the_jobs.leaves = strstr(*state, "nursery") != NULL;
	nodes_fill(&w, FEW);
	for (size_t i = 0; i < FEW; i++)
		left[i] = FEW;
	for (int round = 0; round < ROUNDS; round++) {
		for (size_t n = 0; n < FEW / 3; n++) {
			size_t i = next(&seed) % FEW, k = next(&seed) % FEW;
			ebbgc_ref_t r;

			w.roots[1] = at(&w, w.roots[0], k);
			r = at(&w, w.roots[0], i);
			ebbgc_store(w.m, r, &node_of(r)->left, w.roots[1]);
			left[i] = (uint32_t)k;
		}
		/* Replaced by new ones, which the old ones outlive where others refer to them. */
		for (size_t n = 0; n < FEW / 20; n++) {
			size_t i = next(&seed) % FEW;

			w.roots[1] = node_new(&w, i);
			ebbgc_store(w.m, w.roots[0], slot_of(w.roots[0], i), w.roots[1]);
			left[i] = FEW;
		}
		w.roots[1] = EBBGC_NULL;
		/* A type that is registered beside a cycle. */
		type_new(w.heap, node_layout, EBBGC_MOVABLE);
		if (round % 3)
			evict(&w);
		far_cycle(&w);
		for (size_t n = 0; n < FEW / 4; n++) {
			size_t i = next(&seed) % FEW;
			ebbgc_ref_t r = at(&w, w.roots[0], i), l;

			assert_int_equal(node_of(r)->value, i);
			l = ebbgc_load(w.m, r, &node_of(r)->left);
			assert_int_equal(ebbgc_is_null(l), left[i] == FEW);
			if (!ebbgc_is_null(l))
				assert_int_equal(node_of(l)->value, left[i]);
		}
		collect(&w);
	}
	s = stats_of(w.heap);
	assert_true(s.far_donor_cycles >= ROUNDS / 2);
	assert_int_equal(s.far_donor_failures, 0);
	assert_int_equal(s.far_abandoned, 0);
	nodes_check(&w, FEW);
	world_close(&w);
}

/* Weak references ask the store's marks, and are cleared only when these are there. */
static void weak_references(void **state)
{
	enum { FEW = 900 };
	struct world w;
	ebbgc_ref_t r;

	open_with_jobs(&w, *state);
	nodes_fill(&w, FEW);
	nodes_link(&w, FEW);
	/* Alive only by what lies in the store. */
	w.roots[2] = ebbgc_alloc_length(w.m, w.fixed, 1);
	ebbgc_copy(w.m, w.roots[2], slot_of(w.roots[2], 0), w.roots[0],
		   slot_of(w.roots[0], FEW / 2), 1);
	w.roots[1] = ebbgc_alloc_length(w.m, w.fixed, FEW);
	for (size_t i = 0; i < FEW; i++)
		ebbgc_store(w.m, w.roots[1], slot_of(w.roots[1], i),
			    ebbgc_weak_new(w.m, at(&w, w.roots[0], i)));
	evict(&w);
	w.roots[0] = EBBGC_NULL;
	far_cycle(&w);
	assert_int_equal(stats_of(w.heap).far_donor_cycles, 1);
	assert_int_equal(stats_of(w.heap).far_read_objects, 0);
	for (size_t i = 0; i < FEW; i++) {
		r = ebbgc_weak_get(w.m, at(&w, w.roots[1], i));
		assert_int_equal(ebbgc_is_null(r), i > FEW / 2);
		if (i <= FEW / 2)
			assert_int_equal(node_of(r)->value, i);
	}
	world_close(&w);
}

/* Values whose keys only the store's marks show to be alive, chained by more of them. */
static void ephemerons(void **state)
{
	enum { FEW = 60 };
	struct world w;
	ebbgc_ref_t r;

	open_with_jobs(&w, *state);
	nodes_fill(&w, 3 * FEW);
	w.roots[1] = ebbgc_alloc_length(w.m, w.fixed, 3 * FEW);
	/* Node i keeps i + FEW as a key's value, and that i + 2 * FEW. */
	for (size_t i = 0; i < 2 * FEW; i++) {
		w.roots[2] = at(&w, w.roots[0], i);
		r = at(&w, w.roots[0], i + FEW);
		ebbgc_store(w.m, w.roots[1], slot_of(w.roots[1], i),
			    ebbgc_ephemeron_new(w.m, w.roots[2], r));
	}
	/* A chain of every second one of the first, whose head alone is known here. */
	for (size_t i = 2; i < FEW; i += 2) {
		r = at(&w, w.roots[0], i);
		ebbgc_store(w.m, r, &node_of(r)->left, at(&w, w.roots[0], i - 2));
	}
	w.roots[2] = ebbgc_alloc_length(w.m, w.fixed, 1);
	ebbgc_copy(w.m, w.roots[2], slot_of(w.roots[2], 0), w.roots[0],
		   slot_of(w.roots[0], FEW - 2), 1);
	evict(&w);
	w.roots[0] = EBBGC_NULL;
	far_cycle(&w);
	assert_int_equal(stats_of(w.heap).far_donor_cycles, 1);
	for (size_t i = 0; i < 2 * FEW; i++) {
		ebbgc_ref_t e = at(&w, w.roots[1], i);

		r = ebbgc_ephemeron_value(w.m, e);
		assert_int_equal(ebbgc_is_null(r), i % 2);
		if (i % 2 == 0)
			assert_int_equal(node_of(r)->value, i + FEW);
	}
	world_close(&w);
}

static unsigned int finalized;

static void count_finalized(ebbgc_mutator_t *m, ebbgc_ref_t object, void *data)
{
	struct world *w = data;
	/* What it refers to lives, in the store. */
	ebbgc_ref_t r = ebbgc_load(m, object, slot_of(object, 0));

	(void)w;
	assert_int_equal(node_of(r)->value, 5);
	r = ebbgc_load(m, r, &node_of(r)->left);
	assert_int_equal(node_of(r)->value, 4);
	finalized++;
}

/* Dead objects that finalizers keep: what they lead to is read, after the marks are there. */
static void finalizers(void **state)
{
	struct world w;

	open_with_jobs(&w, *state);
	finalized = 0;
	nodes_fill(&w, 100);
	nodes_link(&w, 100);
	w.roots[1] = ebbgc_alloc_length(w.m, w.fixed, 1);
	ebbgc_copy(w.m, w.roots[1], slot_of(w.roots[1], 0), w.roots[0], slot_of(w.roots[0], 5), 1);
	assert_int_equal(ebbgc_finalizer_add(w.m, w.roots[1], count_finalized, &w), 0);
	w.roots[2] = ebbgc_alloc_length(w.m, w.fixed, 1);
	ebbgc_copy(w.m, w.roots[2], slot_of(w.roots[2], 0), w.roots[0], slot_of(w.roots[0], 2), 1);
	evict(&w);
	w.roots[0] = w.roots[1] = EBBGC_NULL;
	far_cycle(&w);
	assert_int_equal(stats_of(w.heap).far_donor_cycles, 1);
	/* Three of six were reached by the store. */
	assert_int_equal(stats_of(w.heap).far_donor_objects, 3);
	assert_true(stats_of(w.heap).far_read_objects >= 3);
	assert_int_equal(ebbgc_finalizers_run(w.m, 10), 1);
	assert_int_equal(finalized, 1);
	world_close(&w);
}

/* A region that is LEAVING refers to the store, which the store does not know. */
static void what_leaves(void **state)
{
	enum { FEW = 900 };
	struct world w;
	ebbgc_ref_t r;

	open_with_jobs(&w, *state);
	nodes_fill(&w, FEW);
	nodes_link(&w, FEW / 2);
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
	assert_true(stats_of(w.heap).far_donor_cycles >= 2);
	assert_int_equal(stats_of(w.heap).far_donor_failures, 0);
	r = at(&w, w.roots[0], 0);
	w.roots[1] = ebbgc_load(w.m, r, &node_of(r)->left);
	for (size_t i = 0; i < FEW; i++)
		assert_int_equal(node_of(at(&w, w.roots[1], i))->value, i);
	world_close(&w);
}

/* --- faults --------------------------------------------------------------------------------- */

/* A region in which nothing was ever named. */
static uint32_t unlike;

/* A heap whose second half of far nodes is garbage. */
static void half_dead(struct world *w, const char *words, size_t count)
{
	open_with_jobs(w, words);
	nodes_fill(w, count);
	nodes_link(w, count / 2);
	for (size_t i = count / 2 + 1; i < count; i++) {
		ebbgc_ref_t r = at(w, w->roots[0], i);

		ebbgc_store(w->m, r, &node_of(r)->left, at(w, w->roots[0], i - 1));
	}
	evict(w);
	for (size_t i = count / 2; i < count; i++)
		ebbgc_store(w->m, w->roots[0], slot_of(w->roots[0], i), EBBGC_NULL);
	/* Most are reached in the store alone. */
	w->roots[1] = ebbgc_alloc_length(w->m, w->fixed, 1);
	ebbgc_copy(w->m, w->roots[1], slot_of(w->roots[1], 0), w->roots[0],
		   slot_of(w->roots[0], count / 2 - 1), 1);
	unlike = region_of(w->heap, w->roots[0].bits & EBBGC_ADDRESS_MASK);
	w->roots[0] = EBBGC_NULL;
}

/* Other cycles follow, in which what the traced objects refer to is a root, and stays. */
static void names_stay(void **state)
{
	enum { FEW = 6000 };
	struct world w;

	half_dead(&w, *state, FEW);
	far_cycle(&w);
	assert_int_equal(stats_of(w.heap).far_donor_cycles, 1);
	/* In checking mode, every second one is a far one. */
	for (int i = 0; i < 3; i++) {
		uint64_t cycles = stats_of(w.heap).cycles;

		ebbgc_collect_start(w.m);
		while (stats_of(w.heap).cycles == cycles) {
			ebbgc_poll(w.m);
			usleep(100);
		}
		ebbgc_cycles_suspend(w.m);
		ebbgc_cycles_resume(w.m);
	}
	assert_true(stats_of(w.heap).cycles > far_cycles(&w));
	list_check(&w, at(&w, w.roots[1], 0), FEW / 2 - 1);
	world_close(&w);
}

/* The cycle has read instead, and freed the same. */
static void fell_back(struct world *w, size_t count)
{
	struct ebbgc_stats s = stats_of(w->heap);

	assert_int_equal(s.far_cycles, 1);
	assert_int_equal(s.far_abandoned, 0);
	assert_int_equal(s.far_donor_cycles, 0);
	assert_int_equal(s.far_donor_failures, 1);
	assert_int_equal(s.far_read_objects, count / 2);
	assert_int_equal(s.far_freed_bytes, count / 2 * SLOT);
	/* The next one is traced again; both ended. */
	assert_null(the_jobs.cycle);
	jobs_reset();
	far_cycle(w);
	assert_int_equal(stats_of(w->heap).far_donor_cycles, 1);
	list_check(w, at(w, w->roots[1], 0), count / 2 - 1);
}

static void each_call_fails(void **state)
{
	static const int errors[] = { -EOPNOTSUPP, -EAGAIN, -EIO, -ESHUTDOWN };
	enum { FEW = 6000 };
	uint64_t calls = UINT64_MAX;

	for (uint64_t k = 0; k < calls; k++) {
		struct world w;

		half_dead(&w, *state, FEW);
		the_jobs.fail_at = k;
		the_jobs.error = errors[k % 4];
		far_cycle(&w);
		if (stats_of(w.heap).far_donor_failures) {
			fell_back(&w, FEW);
		} else {
			calls = k;
			assert_int_equal(stats_of(w.heap).far_read_objects, 0);
			list_check(&w, at(&w, w.roots[1], 0), FEW / 2 - 1);
		}
		world_close(&w);
	}
	/* A beginning, a trace, an end. */
	assert_true(calls >= 3 && calls < 100);
}

/* Then reads fail, too: the cycle frees nothing in the store. */
static void all_fails(void **state)
{
	enum { FEW = 6000 };
	struct ebbgc_stats s;

	for (uint64_t k = 0; k < 3; k++) {
		struct world w;

		half_dead(&w, *state, FEW);
		the_jobs.fail_at = k;
		the_jobs.error = -ESHUTDOWN;
		w.store.fail_read = -ESHUTDOWN;
		far_cycle(&w);
		s = stats_of(w.heap);
		assert_int_equal(s.far_abandoned, 1);
		assert_int_equal(s.far_freed_bytes, 0);
		assert_int_equal(s.far_bytes, FEW * SLOT);
		w.store.fail_read = 0;
		jobs_reset();
		far_cycle(&w);
		far_cycle(&w);
		assert_int_equal(stats_of(w.heap).far_freed_bytes, FEW / 2 * SLOT);
		list_check(&w, at(&w, w.roots[1], 0), FEW / 2 - 1);
		world_close(&w);
	}
}

static void each_lie_is_found(void **state)
{
	enum { FEW = 6000 };

	for (enum jobs_wrong lie = JOBS_REGION; lie < JOBS_WRONGS; lie++) {
		bool dead = lie == JOBS_MARK_DEAD;
		struct world w;

		half_dead(&w, *state, FEW);
		if (dead) {
			/* They were freed by a cycle before. */
			far_cycle(&w);
			assert_int_equal(stats_of(w.heap).far_donor_cycles, 1);
		}
		the_jobs.unlike = unlike;
		the_jobs.wrong = lie;
		if (!dead) {
			far_cycle(&w);
			fell_back(&w, FEW);
			world_close(&w);
			continue;
		}
		far_cycle(&w);
		assert_int_equal(stats_of(w.heap).far_donor_failures, 1);
		assert_int_equal(stats_of(w.heap).far_abandoned, 0);
		jobs_reset();
		list_check(&w, at(&w, w.roots[1], 0), FEW / 2 - 1);
		world_close(&w);
	}
}

/* A heap that does not know in which regions a region has names reads. */
static void names_that_are_not_known(void **state)
{
	enum { FEW = 6000 };
	struct world w;

	half_dead(&w, *state, FEW);
	w.heap->far.regions[w.heap->far.away.head].holds_for_ever = true;
	far_cycle(&w);
	assert_int_equal(the_jobs.begins, 0);
	fell_back(&w, FEW);
	world_close(&w);
}

/* --- what stays after a cycle --------------------------------------------------------------- */

/* An ordinary cycle, unless the checking mode has a far one. */
static void plain_cycle(struct world *w)
{
	uint64_t cycles = stats_of(w->heap).cycles;

	pthread_mutex_lock(&w->heap->lock);
	w->heap->far.marking.full = false;
	w->heap->far.marking.left = w->heap->far.left_bytes;
	pthread_mutex_unlock(&w->heap->lock);
	ebbgc_collect_start(w->m);
	while (stats_of(w->heap).cycles == cycles) {
		ebbgc_poll(w->m);
		usleep(100);
	}
	ebbgc_cycles_suspend(w->m);
	ebbgc_cycles_resume(w->m);
}

/* No region has names without one that holds them, which no cycle would mark; each counts once. */
static void names_are_held(const struct world *w)
{
	ebbgc_heap_t *h = w->heap;
	uint32_t *holders = calloc(h->top, sizeof(*holders));

	for (uint32_t r = 0; r < h->top; r++)
		for (uint32_t i = 0; i < h->far.regions[r].holds_count; i++)
			holders[h->far.regions[r].holds[i]]++;
	for (uint32_t r = 0; r < h->top; r++)
		assert_int_equal(h->far.holders[r], holders[r]);
	free(holders);
	for (size_t i = 0; i < (size_t)h->top * REGION_WORDS; i++)
		if (h->far.named[i])
			assert_true(h->far.holders[i / REGION_WORDS] > 0);
}

/*
 * A thread's read of node X, which refers to Z, is in flight when a far cycle begins, and ends
 * before its first pause; then X refers to Z no more.  Y refers to X, so the store traces what it
 * has of X.
 */
static struct {
	struct world *w;
	bool armed, under_way;		/* atomic */
	int error;			/* of begin(), or trace() if .traces */
	bool traces;
} late;

/* Of the collector's thread: a far cycle has cleared the marks. */
static __attribute__((no_sanitize_thread)) bool marks_are_cleared(void)
{
	return *(volatile bool *)&late.w->heap->far.marking.on;
}

static int late_read(void *arg, const struct ebbgc_far_place *place, size_t offset, void *to,
		     size_t bytes)
{
	int r = store_read(arg, place, offset, to, bytes);

	if (__atomic_exchange_n(&late.armed, false, __ATOMIC_SEQ_CST)) {
		__atomic_store_n(&late.under_way, true, __ATOMIC_SEQ_CST);
		while (!marks_are_cleared())
			usleep(100);
	}
	return r;
}

static int late_begin(void *arg, const struct ebbgc_far_cycle *cycle)
{
	int r = jobs_begin(arg, cycle);

	return r || late.traces ? r : late.error;
}

static int late_trace(void *arg, const struct ebbgc_far_set *sets, size_t count, unsigned wait_ms)
{
	int r = jobs_trace(arg, sets, count, wait_ms);

	return r ? r : late.error;
}

static const struct ebbgc_far_jobs late_jobs = {
	sizeof(late_jobs), late_begin, late_trace, jobs_end, NULL,
};

static void *load_x(void *arg)
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
	r = ebbgc_load(m, root, slot_of(root, 10));
	ebbgc_store(m, r, &node_of(r)->right, EBBGC_NULL);
	ebbgc_detach(m);
	return NULL;
}

static void x_comes_back(struct world *w, const char *words, bool traces)
{
	pthread_t thread;
	ebbgc_ref_t r;

	open_with_jobs(w, words);
	memset(&late, 0, sizeof(late));
	late.w = w;
	late.traces = traces;
	late.error = -EAGAIN;
	w->heap->far.store.jobs = &late_jobs;
	w->heap->far.store.read = late_read;
	the_jobs.one_donor = true;
	nodes_fill(w, 2000);
	w->roots[3] = ebbgc_alloc_length(w->m, w->fixed, 1);
	r = at(w, w->roots[0], 10);
	ebbgc_store(w->m, r, &node_of(r)->right, w->roots[3]);
	r = at(w, w->roots[0], 11);
	ebbgc_store(w->m, r, &node_of(r)->left, at(w, w->roots[0], 10));
	w->roots[3] = EBBGC_NULL;
	evict(w);
	plain_cycle(w);
	assert_int_equal(pthread_create(&thread, NULL, load_x, NULL), 0);
	while (!__atomic_load_n(&late.under_way, __ATOMIC_SEQ_CST))
		usleep(100);
	far_cycle(w);
	while (pthread_tryjoin_np(thread, NULL))
		ebbgc_poll(w->m);
	assert_int_equal(stats_of(w->heap).far_donor_failures, 1);
	late.error = 0;
}

/* Names that a store told are forgotten if it fails; in the next cycles Z is freed. */
static void names_of_a_failure(void **state)
{
	struct world w;

	x_comes_back(&w, *state, true);
	names_are_held(&w);
	for (int i = 0; i < 4; i++) {
		plain_cycle(&w);
		names_are_held(&w);
	}
	nodes_check(&w, 2000);
	world_close(&w);
}

/* X lost its mark in a cycle that read, yet later ones tell that it has come back. */
static void what_came_back_long_ago(void **state)
{
	struct world w;

	x_comes_back(&w, *state, false);
	for (int i = 0; i < 3; i++)
		far_cycle(&w);
	assert_int_equal(stats_of(w.heap).far_donor_failures, 1);
	assert_true(stats_of(w.heap).far_donor_cycles >= 3);
	nodes_check(&w, 2000);
	world_close(&w);
}

/* A store finds Z, which a region alone holds whose objects have all come back. */
static void names_that_none_holds(void **state)
{
	enum { FEW = 6000, BACK = 3000 };
	struct world w;
	uint64_t name;

	open_with_jobs(&w, *state);
	nodes_fill(&w, FEW);
	w.roots[3] = ebbgc_alloc_length(w.m, w.fixed, 1);
	name = w.roots[3].bits & EBBGC_ADDRESS_MASK;
	for (size_t i = 0; i < 100; i++) {
		ebbgc_ref_t r = at(&w, w.roots[0], i);

		ebbgc_store(w.m, r, &node_of(r)->right, w.roots[3]);
	}
	evict(&w);
	/* In checking mode, every second cycle is a far one: not the next one. */
	if (w.heap->far.snapshots % 2)
		far_cycle(&w);
	nodes_check(&w, BACK);
	plain_cycle(&w);
	assert_true(bit_test(w.heap->far.named, granule_of(w.heap, name)));
	the_jobs.wrong = JOBS_FINDS;
	the_jobs.unlike = region_of(w.heap, name);
	the_jobs.granule = (uint32_t)(granule_of(w.heap, name) % (64 * REGION_WORDS));
	far_cycle(&w);
	assert_int_equal(stats_of(w.heap).far_donor_failures, 0);
	assert_int_equal(w.heap->far.holders[region_of(w.heap, name)], 0);
	names_are_held(&w);
	the_jobs.wrong = JOBS_HONEST;
	far_cycle(&w);
	nodes_check(&w, FEW);
	world_close(&w);
}

/* Values of ephemerons are read in each cycle, after the store's marks. */
static void holds_do_not_grow(void **state)
{
	enum { FEW = 100 };
	uint32_t most[2] = { 0 };
	struct world w;
	ebbgc_ref_t r;

	open_with_jobs(&w, *state);
	nodes_fill(&w, 2 * FEW);
	w.roots[1] = ebbgc_alloc_length(w.m, w.fixed, FEW);
	w.roots[3] = ebbgc_alloc_length(w.m, w.fixed, 1);
	for (size_t i = 0; i < FEW; i++) {
		w.roots[2] = at(&w, w.roots[0], i);
		r = at(&w, w.roots[0], i + FEW);
		ebbgc_store(w.m, w.roots[1], slot_of(w.roots[1], i),
			    ebbgc_ephemeron_new(w.m, w.roots[2], r));
		r = at(&w, w.roots[0], i + FEW);
		ebbgc_store(w.m, r, &node_of(r)->right, w.roots[3]);
		r = at(&w, w.roots[0], i);
		if (i)
			ebbgc_store(w.m, r, &node_of(r)->left, at(&w, w.roots[0], i - 1));
	}
	w.roots[2] = ebbgc_alloc_length(w.m, w.fixed, 1);
	ebbgc_copy(w.m, w.roots[2], slot_of(w.roots[2], 0), w.roots[0],
		   slot_of(w.roots[0], FEW - 1), 1);
	evict(&w);
	w.roots[0] = EBBGC_NULL;
	for (int i = 0; i < 12; i++) {
		uint32_t *now = &most[i >= 4];

		far_cycle(&w);
		for (uint32_t k = 0; k < w.heap->top; k++)
			if (w.heap->far.regions[k].holds_count > *now)
				*now = w.heap->far.regions[k].holds_count;
	}
	assert_true(stats_of(w.heap).far_donor_cycles >= 6);
	assert_true(most[0] && most[1] <= most[0]);
	names_are_held(&w);
	/* Each counts once: all of them end with the objects. */
	w.roots[1] = w.roots[2] = w.roots[3] = EBBGC_NULL;
	for (int i = 0; i < 6; i++)
		collect(&w);
	assert_int_equal(stats_of(w.heap).far_bytes, 0);
	for (uint32_t k = 0; k < w.heap->top; k++)
		assert_int_equal(w.heap->far.holders[k], 0);
	world_close(&w);
}

/* --- a store that leaves some to the heap --------------------------------------------------- */

/* Half is traced, half is read; references go both ways. */
static void half_is_read(void **state)
{
	struct ebbgc_stats s;
	struct world w;

	half_dead(&w, *state, COUNT);
	the_jobs.leaves = true;
	for (int i = 0; i < 3; i++)
		far_cycle(&w);
	s = stats_of(w.heap);
	assert_int_equal(s.far_donor_failures, 0);
	assert_true(s.far_cycles >= 3);
	assert_int_equal(s.far_donor_cycles, s.far_cycles);
	assert_true(s.far_donor_objects > COUNT / 8 && s.far_read_objects > COUNT / 8);
	/* Some may come home. */
	assert_in_range(s.far_donor_objects + s.far_read_objects, COUNT / 2,
			s.far_cycles * COUNT / 2);
	assert_int_equal(s.far_freed_bytes, COUNT / 2 * SLOT);
	assert_true(s.far_donor_skipped > 0);
	names_are_held(&w);
	list_check(&w, at(&w, w.roots[1], 0), COUNT / 2 - 1);
	world_close(&w);
}

/* All is: that is no failure, and the store is asked again in the next cycle. */
static void all_is_read(void **state)
{
	enum { FEW = 3 * 2048 };
	struct ebbgc_stats s;
	struct world w;

	half_dead(&w, *state, FEW);
	the_jobs.leaves_all = true;
	far_cycle(&w);
	s = stats_of(w.heap);
	assert_int_equal(s.far_donor_cycles, 0);
	assert_int_equal(s.far_donor_failures, 0);
	assert_int_equal(s.far_read_objects, FEW / 2);
	assert_null(the_jobs.cycle);
	the_jobs.leaves_all = false;
	far_cycle(&w);
	assert_int_equal(stats_of(w.heap).far_donor_cycles, 1);
	assert_int_equal(stats_of(w.heap).far_freed_bytes, FEW / 2 * SLOT);
	list_check(&w, at(&w, w.roots[1], 0), FEW / 2 - 1);
	world_close(&w);
}

/* A read that fails beside the store's tracing: nothing is freed, and the store is told. */
static void a_read_fails(void **state)
{
	enum { FEW = 20000 };
	struct world w;

	half_dead(&w, *state, FEW);
	the_jobs.leaves = true;
	w.store.fail_read = -EIO;
	far_cycle(&w);
	assert_int_equal(stats_of(w.heap).far_abandoned, 1);
	assert_int_equal(stats_of(w.heap).far_freed_bytes, 0);
	assert_null(the_jobs.cycle);
	w.store.fail_read = 0;
	far_cycle(&w);
	assert_int_equal(stats_of(w.heap).far_freed_bytes, FEW / 2 * SLOT);
	list_check(&w, at(&w, w.roots[1], 0), FEW / 2 - 1);
	world_close(&w);
}

/* --- time ----------------------------------------------------------------------------------- */

/* A list that alternates between here and there takes a call for each object. */
static void a_pause_is_bounded(void **state)
{
	enum { LONG = 1000 };
	struct world w;
	ebbgc_ref_t r;

	open_with_jobs(&w, *state);
	nodes_fill(&w, LONG);
	for (size_t i = 1; i < LONG; i++) {
		w.roots[1] = ebbgc_alloc_length(w.m, w.fixed, 1);
		ebbgc_store(w.m, w.roots[1], slot_of(w.roots[1], 0), at(&w, w.roots[0], i - 1));
		r = at(&w, w.roots[0], i);
		ebbgc_store(w.m, r, &node_of(r)->right, w.roots[1]);
	}
	w.roots[1] = ebbgc_alloc_length(w.m, w.fixed, 1);
	ebbgc_store(w.m, w.roots[1], slot_of(w.roots[1], 0), at(&w, w.roots[0], LONG - 1));
	evict(&w);
	w.roots[0] = EBBGC_NULL;
	the_jobs.delay_us = 5000;
	the_jobs.in_time = true;
	far_cycle(&w);
	assert_int_equal(stats_of(w.heap).far_cycles, 1);
	assert_int_equal(stats_of(w.heap).far_donor_failures, 1);
	assert_in_range(the_jobs.traces, 2, 100);
	r = at(&w, w.roots[1], 0);
	for (size_t i = LONG; i--;) {
		assert_int_equal(node_of(r)->value, i);
		w.roots[2] = r;
		r = ebbgc_load(w.m, r, &node_of(r)->right);
		if (i)
			r = at(&w, r, 0);
	}
	world_close(&w);
}

static int trace_until_the_end(void *arg, const struct ebbgc_far_set *sets, size_t count,
			       unsigned wait_ms)
{
	const struct ebbgc_heap *h = the_jobs.cycle->data;
	int r = jobs_trace(arg, sets, count, wait_ms);

	while (!the_jobs.cycle->late(the_jobs.cycle->data))
		usleep(100);
	assert_true(__atomic_load_n(&h->marker.abandoned, __ATOMIC_RELAXED));
	return r;
}

/* The end of a heap waits for no further call, and not for the end of one that asks. */
static void destroyed_while_it_traces(void **state)
{
	static const struct ebbgc_far_jobs jobs = {
		sizeof(jobs), jobs_begin, trace_until_the_end, jobs_end, NULL,
	};
	enum { MANY = 400000 };
	struct world w;

	open_with_jobs(&w, *state);
	nodes_fill(&w, MANY);
	evict(&w);
	w.heap->far.store.jobs = &jobs;
	far_cycle_start(&w);
	while (!__atomic_load_n(&the_jobs.traces, __ATOMIC_SEQ_CST)) {
		ebbgc_poll(w.m);
		usleep(100);
	}
	ebbgc_detach(w.m);
	assert_int_equal(ebbgc_heap_destroy(w.heap), 0);
	assert_int_equal(the_jobs.traces, 1);
	assert_null(the_jobs.cycle);
	assert_int_equal(w.store.places, 0);
}

/* A store whose trace() ends once it is late; where a test says so, after SLOW_MS at the latest. */
#define SLOW_MS 8000u

static struct {
	bool ends;			/* atomic */
	bool traces;			/* atomic */
} slow;

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static int trace_slowly(void *arg, const struct ebbgc_far_set *sets, size_t count,
			unsigned wait_ms)
{
	const struct ebbgc_far_cycle *c = the_jobs.cycle;
	uint64_t until = now_ms() + (wait_ms < SLOW_MS ? wait_ms : SLOW_MS);
	bool late = false;

	__atomic_store_n(&slow.traces, true, __ATOMIC_SEQ_CST);
	while (!late && now_ms() < until && !__atomic_load_n(&slow.ends, __ATOMIC_SEQ_CST)) {
		usleep(1000);
		late = c->late(c->data);
	}
	__atomic_store_n(&slow.traces, false, __ATOMIC_SEQ_CST);
	return late ? -EAGAIN : jobs_trace(arg, sets, count, wait_ms);
}

/* Of 64 regions that may be local 16 leave when the far cycle begins, in which the store traces. */
static void slow_begin(struct world *w, const char *words)
{
	static const struct ebbgc_far_jobs jobs = {
		sizeof(jobs), jobs_begin, trace_slowly, jobs_end, NULL,
	};
	uint32_t leaving = 0;

	open_small(w, words, 4);
	/* Cycles of before read. */
	w->heap->far.store.jobs = NULL;
	nodes_fill(w, 6 * COUNT);
	ebbgc_cycles_suspend(w->m);
	w->heap->far.store.jobs = &jobs;
	ebbgc_cycles_resume(w->m);
	memset(&slow, 0, sizeof(slow));
	the_jobs.in_time = true;
	while (leaving < 12) {
		ebbgc_poll(w->m);
		usleep(1000);
		pthread_mutex_lock(&w->heap->lock);
		leaving = far_is_due(w->heap) ? 0 : w->heap->far.leaving_count;
		pthread_mutex_unlock(&w->heap->lock);
	}
	far_cycle_start(w);
	while (!__atomic_load_n(&slow.traces, __ATOMIC_SEQ_CST)) {
		ebbgc_poll(w->m);
		usleep(100);
	}
}

/* Allocates @bytes of garbage, or until the store does not trace.  Returns the longest wait, ms. */
static uint64_t longest_wait(struct world *w, size_t bytes)
{
	uint64_t longest = 0;

	for (size_t n = 0; n < bytes / SLOT && __atomic_load_n(&slow.traces, __ATOMIC_SEQ_CST);
	     n++) {
		uint64_t since = now_ms(), ms;

		node_new(w, n);
		ms = now_ms() - since;
		longest = ms > longest ? ms : longest;
	}
	return longest;
}

/*
 * Regions that were leaving when the cycle began make room during it; if writing them fails,
 * allocation does not wait for them.
 */
static void room_beside_a_cycle(void **state)
{
	for (int full = 0; full < 2; full++) {
		struct world w;

		slow_begin(&w, *state);
		w.store.fail_alloc = full ? -ENOSPC : 0;
		assert_true(longest_wait(&w, 10 * REGION_SIZE) < SLOW_MS / 2);
		assert_true(__atomic_load_n(&slow.traces, __ATOMIC_SEQ_CST));
		w.store.fail_alloc = 0;
		__atomic_store_n(&slow.ends, true, __ATOMIC_SEQ_CST);
		far_cycle(&w);
		nodes_check(&w, 6 * COUNT);
		world_close(&w);
	}
}

/* Returns the bytes of the table that are in memory. */
static size_t resident(const void *table, size_t bytes)
{
	size_t pages = (bytes + 4095) / 4096, count = 0;
	unsigned char *in = calloc(pages, 1);

	assert_int_equal(mincore((void *)(uintptr_t)table, bytes, in), 0);
	for (size_t i = 0; i < pages; i++)
		count += in[i] & 1;
	free(in);
	return 4096 * count;
}

/* Memory of a far cycle is part of the heap's, and not less than it takes. */
static void memory_of_a_cycle(void **state)
{
	uint64_t local, counted, taken;
	struct world w;
	size_t bytes;

	slow_begin(&w, *state);
	bytes = (size_t)w.heap->region_count * REGION_WORDS * sizeof(uint64_t);
	pthread_mutex_lock(&w.heap->lock);
	local = far_local(w.heap) << REGION_SHIFT;
	pthread_mutex_unlock(&w.heap->lock);
	counted = stats_of(w.heap).far_local_bytes - local;
	taken = resident(w.heap->far.marking.sent, bytes) +
		resident(w.heap->far.marking.named, bytes) +
		resident(w.heap->far.marking.passed, bytes) +
		resident(w.heap->far.marking.names, bytes);
	assert_true(taken > 0);
	assert_in_range(counted, taken, w.heap->top * UINT64_C(2200) + (192 << 10));
	__atomic_store_n(&slow.ends, true, __ATOMIC_SEQ_CST);
	far_cycle(&w);
	ebbgc_cycles_suspend(w.m);
	assert_int_equal(w.heap->far.marking.tables, 0);
	ebbgc_cycles_resume(w.m);
	world_close(&w);
}

/* Then allocation waits for the cycle, and that not for as long as donors may take beside it. */
static void a_wait_is_bounded(void **state)
{
	uint64_t before;
	struct world w;

	slow_begin(&w, *state);
	before = far_cycles(&w);
	assert_true(longest_wait(&w, 64 * REGION_SIZE) < SLOW_MS / 2);
	assert_false(__atomic_load_n(&slow.traces, __ATOMIC_SEQ_CST));
	__atomic_store_n(&slow.ends, true, __ATOMIC_SEQ_CST);
	while (far_cycles(&w) == before) {
		ebbgc_poll(w.m);
		usleep(100);
	}
	assert_true(stats_of(w.heap).far_donor_failures > 0);
	assert_int_equal(stats_of(w.heap).far_abandoned, 0);
	nodes_check(&w, 6 * COUNT);
	world_close(&w);
}

/* A store that is full and fails all reads is not asked at once again. */
static void cycles_that_fail(void **state)
{
	enum { FEW = 6000 };
	struct timespec since, now;
	struct world w;

	half_dead(&w, *state, FEW);
	clock_gettime(CLOCK_MONOTONIC, &since);
	now = since;
	w.store.fail_read = w.store.fail_write = -ESHUTDOWN;
	w.store.fail_alloc = -ENOSPC;
	the_jobs.fail_at = 0;
	the_jobs.error = -ESHUTDOWN;
	w.roots[2] = ebbgc_alloc_length(w.m, w.fixed, 8);
	/* 1.5 s; after 7.5 s, on a busy machine, a fifth attempt would be right. */
	for (int i = 0; i < 300 && now.tv_sec - since.tv_sec < 5; i++) {
		if (i % 10 == 0) {
			the_jobs.fail_at = the_jobs.calls;
			(void)ebbgc_far_evict(w.m);
		}
		for (size_t n = 0; n < 100; n++) {
			ebbgc_ref_t r = node_new(&w, n);

			ebbgc_store(w.m, w.roots[2], slot_of(w.roots[2], n % 8), r);
		}
		usleep(5000);
		ebbgc_poll(w.m);
		clock_gettime(CLOCK_MONOTONIC, &now);
	}
	assert_in_range(stats_of(w.heap).far_abandoned, 1, 4);
	w.store.fail_read = w.store.fail_write = w.store.fail_alloc = 0;
	world_close(&w);
}

/* A program that was compiled before stores had jobs. */
struct old_store {
	void *members[5];
};

static void older_stores(void **state)
{
	struct store s = { .lock = PTHREAD_MUTEX_INITIALIZER };
	struct ebbgc_far_store store = store_of(&s);
	struct {
		struct old_store old;
		uintptr_t other[4];
	} program;
	const struct ebbgc_far_store *old = (const void *)&program;
	struct ebbgc_far_options o;
	ebbgc_heap_t *heap = checked_heap_with(*state, 64 << 20);

	assert_int_equal(sizeof(struct old_store), offsetof(struct ebbgc_far_store, jobs));
	memset(&program, 1, sizeof(program));
	memcpy(&program.old, &store, sizeof(program.old));
	ebbgc_far_options_init(&o);
	o.local_bytes = 8 << 20;
	/* Members of a later version. */
	assert_int_equal(ebbgc_far_attach_size(heap, old, sizeof(program), &o), -E2BIG);
	assert_int_equal(ebbgc_far_attach_size(heap, old, sizeof(program.old) - 8, &o), -EINVAL);
	assert_int_equal(old_ebbgc_far_attach(heap, old, &o), 0);
	assert_null(heap->far.store.jobs);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

static void wrong_tables(void **state)
{
	static const struct ebbgc_far_jobs none = { sizeof(none), 0, 0, 0, 0 };
	struct ebbgc_far_jobs small = jobs_table;
	struct store s = { .lock = PTHREAD_MUTEX_INITIALIZER };
	struct ebbgc_far_store store = store_of(&s);
	struct ebbgc_far_options o;
	ebbgc_heap_t *heap = checked_heap_with(*state, 64 << 20);

	ebbgc_far_options_init(&o);
	o.local_bytes = 8 << 20;
	store.jobs = &none;
	assert_int_equal(ebbgc_far_attach(heap, &store, &o), -EINVAL);
	/* Tables of before have no compact(). */
	small.struct_size -= 16;
	store.jobs = &small;
	assert_int_equal(ebbgc_far_attach(heap, &store, &o), -EINVAL);
	store.jobs = &jobs_table;
	assert_int_equal(ebbgc_far_attach(heap, &store, &o), 0);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

/* --- beside the program --------------------------------------------------------------------- */

struct loader {
	struct world *w;
	pthread_t thread;
	uint64_t seed;
	bool stop;
};

static void *load_all_the_time(void *arg)
{
	struct loader *l = arg;
	struct ebbgc_frame frame;
	ebbgc_ref_t root;
	ebbgc_mutator_t *m;

	assert_int_equal(ebbgc_attach(l->w->heap, &m), 0);
	ebbgc_frame_push(m, &frame, &root, 1);
	while (!__atomic_load_n(&l->stop, __ATOMIC_RELAXED)) {
		size_t i = next(&l->seed) % COUNT;
		ebbgc_ref_t r;

		root = l->w->roots[0];
		r = ebbgc_load(m, root, slot_of(root, i));
		assert_int_equal(node_of(r)->value, i);
		r = ebbgc_load(m, r, &node_of(r)->left);
		assert_true(ebbgc_is_null(r) || node_of(r)->value == i - 1);
		root = EBBGC_NULL;
		ebbgc_poll(m);
	}
	ebbgc_detach(m);
	return NULL;
}

/* Threads bring objects, from before a cycle's first pause to its last one. */
static void threads_load(void **state)
{
	unsigned int rounds = getenv("EBBGC_TEST_SHORT") ? 5 : 25;
	struct loader loaders[2];
	struct world w;

	open_with_jobs(&w, *state);
	the_jobs.leaves = strstr(*state, "nursery") != NULL;
	nodes_fill(&w, COUNT);
	nodes_link(&w, COUNT);
	for (int i = 0; i < 2; i++) {
		loaders[i] = (struct loader){ .w = &w, .seed = (uint64_t)i + 1 };
		assert_int_equal(pthread_create(&loaders[i].thread, NULL, load_all_the_time,
						&loaders[i]), 0);
	}
	for (unsigned int round = 0; round < rounds; round++) {
		evict(&w);
		far_cycle_start(&w);
		for (int i = 0; i < 20; i++) {
			usleep(500);
			ebbgc_poll(w.m);
		}
		if (round % 5 == 4)
			collect(&w);
	}
	for (int i = 0; i < 2; i++)
		__atomic_store_n(&loaders[i].stop, true, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++) {
		/* The thread may wait for a pause that waits for us. */
		while (pthread_tryjoin_np(loaders[i].thread, NULL))
			ebbgc_poll(w.m);
	}
	printf("%llu far cycles, %llu by the store, which marked %llu objects; %llu read\n",
	       (unsigned long long)stats_of(w.heap).far_cycles,
	       (unsigned long long)stats_of(w.heap).far_donor_cycles,
	       (unsigned long long)stats_of(w.heap).far_donor_objects,
	       (unsigned long long)stats_of(w.heap).far_read_objects);
	assert_true(stats_of(w.heap).far_donor_cycles > 0);
	assert_int_equal(stats_of(w.heap).far_donor_failures, 0);
	list_check(&w, at(&w, w.roots[0], COUNT - 1), COUNT - 1);
	world_close(&w);
}

#define WITH(test, words) { #test ": " words, test, NULL, NULL, (void *)words }

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH(the_store_traces, "mode=stop"),
		WITH(the_store_traces, "mode=concurrent,nursery=64K"),
		WITH(what_comes_back, "mode=stop"),
		WITH(what_comes_back, "mode=concurrent"),
		WITH(what_comes_back, "mode=concurrent,nursery=64K"),
		WITH(weak_references, "mode=stop"),
		WITH(weak_references, "mode=concurrent"),
		WITH(ephemerons, "mode=stop"),
		WITH(ephemerons, "mode=concurrent,address"),
		WITH(finalizers, "mode=stop"),
		WITH(finalizers, "mode=concurrent"),
		WITH(what_leaves, "mode=stop"),
		WITH(what_leaves, "mode=concurrent,nursery=64K"),
		WITH(names_stay, "mode=stop"),
		WITH(names_stay, "mode=concurrent"),
		WITH(each_call_fails, "mode=stop"),
		WITH(each_call_fails, "mode=concurrent"),
		WITH(all_fails, "mode=stop"),
		WITH(all_fails, "mode=concurrent"),
		WITH(each_lie_is_found, "mode=stop"),
		WITH(each_lie_is_found, "mode=concurrent"),
		WITH(names_that_are_not_known, "mode=stop"),
		WITH(names_of_a_failure, "mode=concurrent"),
		WITH(what_came_back_long_ago, "mode=concurrent"),
		WITH(names_that_none_holds, "mode=stop"),
		WITH(names_that_none_holds, "mode=concurrent"),
		WITH(holds_do_not_grow, "mode=concurrent"),
		WITH(half_is_read, "mode=stop"),
		WITH(half_is_read, "mode=concurrent"),
		WITH(all_is_read, "mode=stop"),
		WITH(all_is_read, "mode=concurrent"),
		WITH(a_read_fails, "mode=stop"),
		WITH(a_read_fails, "mode=concurrent"),
		WITH(a_pause_is_bounded, "mode=stop"),
		WITH(destroyed_while_it_traces, "mode=concurrent"),
		WITH(room_beside_a_cycle, "mode=concurrent"),
		WITH(memory_of_a_cycle, "mode=concurrent"),
		WITH(a_wait_is_bounded, "mode=concurrent"),
		WITH(cycles_that_fail, "mode=concurrent"),
		WITH(older_stores, "mode=stop"),
		WITH(wrong_tables, "mode=stop"),
		WITH(threads_load, "mode=concurrent"),
		WITH(threads_load, "mode=concurrent,nursery=64K"),
	};

	alarm(300);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
