// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Threads, one to eight, change graphs of objects that leave and return all the time, and compare
 * each load with a shadow graph in plain memory.  They share some objects, which they replace by
 * compare-and-swap.  Cycles free what is dead in the store, too, of which some let it trace.
 */
#include <sched.h>
#include <stdio.h>
#include <unistd.h>
#include "gc_jobs.h"

#define TABLES 8u		/* of a thread */
#define SLOTS 60u		/* of a table */
#define OWN (TABLES * SLOTS)
#define NODES 60000u		/* that a thread makes, at most */
#define SHARED 400u
#define THREADS_MOST 8u

struct world {
	ebbgc_heap_t *heap;
	ebbgc_type_t node, refs, fixed, leaf;
	ebbgc_ref_t shared;	/* a root: an array of nodes */
	struct store store;
	unsigned int steps;
	bool small, flaky;	/* the store */
};

/* A node by its number in the shadow; 0: none. */
struct shadow {
	uint32_t left, right;
	uint64_t value;
};

struct worker {
	struct world *w;
	ebbgc_mutator_t *m;
	struct ebbgc_frame frame;
	ebbgc_ref_t top, a, b;	/* roots: an array of tables */
	uint64_t seed;
	struct shadow *nodes;
	uint32_t made, slots[OWN];
};

static uint64_t next(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

static int slow_read(void *arg, const struct ebbgc_far_place *place, size_t offset, void *to,
		     size_t bytes)
{
	struct store *s = arg;

	if (__atomic_fetch_add(&s->calls, 1, __ATOMIC_RELAXED) % 16 == 0)
		sched_yield();
	return store_read(arg, place, offset, to, bytes);
}

/* Some reads fail: a load tries again, a far cycle is abandoned. */
static int flaky_read(void *arg, const struct ebbgc_far_place *place, size_t offset, void *to,
		      size_t bytes)
{
	struct store *s = arg;

	if (__atomic_fetch_add(&s->calls, 1, __ATOMIC_RELAXED) % 64 == 0)
		return -EIO;
	return store_read(arg, place, offset, to, bytes);
}

static enum ebbgc_far_verdict try_again(void *arg, ebbgc_heap_t *heap, int error)
{
	assert_int_equal(error, -EIO);
	return EBBGC_FAR_RETRY;
}

/* At times the store is full, so that regions are leaving for long. */
static int small_alloc(void *arg, size_t bytes, struct ebbgc_far_place *place)
{
	struct store *s = arg;

	if (__atomic_fetch_add(&s->calls, 1, __ATOMIC_RELAXED) % 16 > 10)
		return -ENOSPC;
	return store_alloc(arg, bytes, place);
}

static ebbgc_ref_t *slot_of(ebbgc_ref_t array, size_t i)
{
	return &refs_of(array)->slots[i];
}

static ebbgc_ref_t at(ebbgc_mutator_t *m, ebbgc_ref_t array, size_t i)
{
	return ebbgc_load(m, array, slot_of(array, i));
}

static ebbgc_ref_t table_of(struct worker *t, size_t i)
{
	return at(t->m, t->top, i / SLOTS);
}

static ebbgc_ref_t node_at(struct worker *t, size_t i)
{
	return at(t->m, table_of(t, i), i % SLOTS);
}

/* Is it what the shadow says? */
static void same(const struct worker *t, ebbgc_ref_t r, uint32_t shadow)
{
	assert_int_equal(ebbgc_is_null(r), !shadow);
	if (shadow)
		assert_int_equal(node_of(r)->value, t->nodes[shadow].value);
}

static void make(struct worker *t, size_t i)
{
	ebbgc_ref_t r, table;

	if (t->made == NODES)
		return;
	r = ebbgc_alloc(t->m, t->w->node);
	assert_false(ebbgc_is_null(r));
	table = table_of(t, i);
	t->nodes[++t->made] = (struct shadow){ .value = next(&t->seed) };
	node_of(r)->value = t->nodes[t->made].value;
	ebbgc_store(t->m, table, slot_of(table, i % SLOTS), r);
	t->slots[i] = t->made;
}

static void wander(struct worker *t, size_t i)
{
	uint32_t s = t->slots[i];
	ebbgc_ref_t r = node_at(t, i);

	same(t, r, s);
	for (int k = 0; s && k < 12; k++) {
		bool left = next(&t->seed) & 1;

		r = ebbgc_load(t->m, r, left ? &node_of(r)->left : &node_of(r)->right);
		s = left ? t->nodes[s].left : t->nodes[s].right;
		same(t, r, s);
	}
}

static void join(struct worker *t, size_t i, size_t k)
{
	bool left = next(&t->seed) & 1;

	t->a = node_at(t, i);
	t->b = node_at(t, k);
	if (ebbgc_is_null(t->a))
		return;
	if (next(&t->seed) % 4 == 0)
		ebbgc_poll(t->m);
	ebbgc_store(t->m, t->a, left ? &node_of(t->a)->left : &node_of(t->a)->right, t->b);
	*(left ? &t->nodes[t->slots[i]].left : &t->nodes[t->slots[i]].right) = t->slots[k];
	t->a = t->b = EBBGC_NULL;
}

static void swap(struct worker *t, size_t i, size_t k)
{
	ebbgc_ref_t expected = node_at(t, i), value = node_at(t, k), table = table_of(t, i);

	if (next(&t->seed) % 4 == 0) {
		/* What is expected is not there. */
		expected = value;
		assert_int_equal(ebbgc_cas(t->m, table, slot_of(table, i % SLOTS), &expected,
					   EBBGC_NULL), t->slots[i] == t->slots[k]);
		if (t->slots[i] == t->slots[k])
			t->slots[i] = 0;
		else
			same(t, expected, t->slots[i]);
		return;
	}
	assert_true(ebbgc_cas(t->m, table, slot_of(table, i % SLOTS), &expected, value));
	t->slots[i] = t->slots[k];
}

/* References between shared nodes, whose values are their numbers. */
static void share(struct worker *t)
{
	ebbgc_ref_t shared = t->w->shared, r, expected;
	size_t i = next(&t->seed) % SHARED, k = next(&t->seed) % SHARED;

	r = at(t->m, shared, i);
	assert_int_equal(node_of(r)->value, i);
	expected = ebbgc_load(t->m, r, &node_of(r)->left);
	if (!ebbgc_is_null(expected)) {
		assert_true(node_of(expected)->value < SHARED);
		assert_true(ebbgc_same(expected, at(t->m, shared, node_of(expected)->value)));
	}
	if (ebbgc_cas(t->m, r, &node_of(r)->left, &expected, at(t->m, shared, k)))
		return;
	assert_true(!ebbgc_is_null(expected) && node_of(expected)->value < SHARED);
}

static void step(struct worker *t)
{
	uint64_t *s = &t->seed;
	size_t i = next(s) % OWN, k = next(s) % OWN;
	ebbgc_ref_t table, other;

	switch (next(s) % 16) {
	case 0 ... 2:
		make(t, i);
		break;
	case 3 ... 7:
		wander(t, i);
		break;
	case 8: case 9:
		join(t, i, k);
		break;
	case 10:
		swap(t, i, k);
		break;
	case 11:
		/* A whole table, without bringing its nodes. */
		table = table_of(t, i);
		other = table_of(t, k);
		ebbgc_copy(t->m, table, slot_of(table, 0), other, slot_of(other, 0), SLOTS);
		memmove(&t->slots[i / SLOTS * SLOTS], &t->slots[k / SLOTS * SLOTS],
			SLOTS * sizeof(*t->slots));
		break;
	case 12:
		ebbgc_alloc_length(t->m, t->w->leaf, next(s) % 3000);
		break;
	default:
		share(t);
	}
	if (next(s) % 32 == 0)
		ebbgc_poll(t->m);
	if (next(s) % 300 == 0) {
		int r = ebbgc_far_evict(t->m);

		assert_true(!r || (r == -ENOSPC && t->w->small));
	}
	if (next(s) % 400 == 0)
		ebbgc_collect_start(t->m);
	if (next(s) % 1500 == 0)
		ebbgc_collect(t->m);
}

static void *work(void *arg)
{
	struct worker *t = arg;
	struct world *w = t->w;

	assert_int_equal(ebbgc_attach(w->heap, &t->m), 0);
	ebbgc_frame_push(t->m, &t->frame, &t->top, 3);
	t->top = ebbgc_alloc_length(t->m, w->fixed, TABLES);
	for (size_t i = 0; i < TABLES; i++)
		ebbgc_store(t->m, t->top, slot_of(t->top, i),
			    ebbgc_alloc_length(t->m, w->refs, SLOTS));
	for (unsigned int i = 0; i < w->steps; i++)
		step(t);
	for (size_t i = 0; i < OWN; i++)
		wander(t, i);
	ebbgc_detach(t->m);
	return NULL;
}

static void shared_fill(struct world *w, ebbgc_mutator_t *m)
{
	w->shared = ebbgc_alloc_length(m, w->fixed, SHARED);
	for (size_t i = 0; i < SHARED; i++) {
		ebbgc_ref_t r = ebbgc_alloc(m, w->node);

		node_of(r)->value = i;
		ebbgc_store(m, w->shared, slot_of(w->shared, i), r);
	}
}

/* With "stacks+" in front, stacks are scanned, too; with "fast+", without the checking mode. */
static ebbgc_heap_t *heap_new(const char *words)
{
	bool stacks = !strncmp(words, "stacks+", 7), fast = !strncmp(words, "fast+", 5);
	struct ebbgc_options o;
	ebbgc_heap_t *heap;

	ebbgc_options_init(&o);
	assert_int_equal(ebbgc_debug(&o, words + 7 * stacks + 5 * fast), 0);
	o.check = !fast;
	o.stacks = stacks ? EBBGC_CONSERVATIVE : EBBGC_PRECISE;
	o.max_bytes = 512 << 20;
	o.min_bytes = 1 << 20;
	o.markers = 2;
	assert_int_equal(ebbgc_heap_create(&o, &heap), 0);
	return heap;
}

/* Returns the number of far cycles. */
static uint64_t run(const char *words, unsigned int count, unsigned int steps, uint64_t seed)
{
	static const struct ebbgc_layout leaf = {
		.name = "leaf", .flags = EBBGC_LEAF | EBBGC_MOVABLE, .size = 8, .element_size = 1,
		.length_width = 8,
	};
	struct ebbgc_layout node = node_layout, refs = refs_layout;
	struct world w = { .store = { .lock = PTHREAD_MUTEX_INITIALIZER }, .steps = steps };
	struct ebbgc_far_store store = store_of(&w.store);
	struct worker workers[THREADS_MOST] = { 0 };
	pthread_t threads[THREADS_MOST];
	struct ebbgc_far_options o;
	struct ebbgc_stats s;
	ebbgc_mutator_t *m;

	if (seed % 2)
		store.read = slow_read;
	if (seed % 3 == 0) {
		store.alloc = small_alloc;
		w.small = true;
	}
	jobs_reset();
	if (seed % 4 != 1)
		store.jobs = &jobs_table;
	ebbgc_far_options_init(&o);
	o.local_bytes = 4 << 20;
	if (seed % 5 == 0) {
		store.read = flaky_read;
		o.failed = try_again;
		w.flaky = true;
	}
	w.heap = heap_new(words);
	assert_int_equal(ebbgc_far_attach(w.heap, &store, &o), 0);
	assert_int_equal(ebbgc_type_register(w.heap, &refs, &w.fixed), 0);
	node.flags = refs.flags = EBBGC_MOVABLE;
	assert_int_equal(ebbgc_type_register(w.heap, &node, &w.node), 0);
	assert_int_equal(ebbgc_type_register(w.heap, &refs, &w.refs), 0);
	assert_int_equal(ebbgc_type_register(w.heap, &leaf, &w.leaf), 0);
	assert_int_equal(ebbgc_attach(w.heap, &m), 0);
	assert_int_equal(ebbgc_roots_add(m, &w.shared, 1), 0);
	shared_fill(&w, m);
	ebbgc_detach(m);
	for (unsigned int i = 0; i < count; i++) {
		workers[i] = (struct worker){ .w = &w, .seed = seed * 977 + i * 31 + 1,
					      .nodes = calloc(NODES + 1, sizeof(struct shadow)) };
		assert_non_null(workers[i].nodes);
		assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
	}
	for (unsigned int i = 0; i < count; i++) {
		pthread_join(threads[i], NULL);
		free(workers[i].nodes);
	}
	assert_int_equal(ebbgc_attach(w.heap, &m), 0);
	s = stats_of(w.heap);
	printf("%s, %u threads: %llu fetched, %llu rescued, %llu home, %llu regions left, %llu cycles, "
	       "%llu far, %llu by the store, %llu abandoned, %llu KiB freed\n",
	       words, count, (unsigned long long)s.fetched_objects,
	       (unsigned long long)s.rescued_objects, (unsigned long long)s.homed_objects,
	       (unsigned long long)s.left_regions, (unsigned long long)s.cycles,
	       (unsigned long long)s.far_cycles, (unsigned long long)s.far_donor_cycles,
	       (unsigned long long)s.far_abandoned,
	       (unsigned long long)s.far_freed_bytes >> 10);
	fflush(stdout);
	assert_int_equal(s.check_failures, 0);
	assert_true(!s.far_failures || w.small || w.flaky);
	assert_true(!s.far_abandoned || w.flaky);
	assert_int_equal(s.far_donor_failures, 0);
	/* Words on stacks, and few objects that threads allocate beside, may keep all in memory. */
	if (*words != 's' && steps >= 1000)
		assert_true(s.fetched_objects + s.rescued_objects + s.homed_objects >
			    (w.small ? 0 : steps / 8));
	assert_int_equal(ebbgc_roots_remove(m, &w.shared), 0);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(w.heap), 0);
	assert_int_equal(w.store.places, 0);
	return s.far_cycles;
}

static void graphs(void **state)
{
	static const unsigned int counts[] = { 1, 2, 3, 5, 8 };
	const char *words = *state, *from = getenv("EBB_TEST_SEED");
	uint64_t seed = from ? strtoull(from, NULL, 0) : 1, far_cycles = 0;
	unsigned int steps = getenv("EBBGC_TEST_SHORT") ? 3000 : 12000;

	for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++)
		far_cycles += run(words, counts[i], steps / counts[i], seed + i);
	assert_true(far_cycles > 0);
}

#define WITH(words) { "graphs: " words, graphs, NULL, NULL, (void *)words }

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH("mode=stop"),
		WITH("mode=concurrent"),
		WITH("mode=concurrent,nursery=64K"),
		WITH("mode=concurrent,address"),
		WITH("mode=stop,nursery=256K"),
		WITH("fast+mode=concurrent"),
		WITH("fast+mode=concurrent,nursery=64K"),
		WITH("stacks+mode=concurrent"),
		WITH("stacks+mode=stop,nursery=128K"),
	};

	alarm(300);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
