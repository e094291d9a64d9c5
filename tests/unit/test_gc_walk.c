// SPDX-License-Identifier: GPL-2.0-or-later
/* Listing objects without a collection: alone, among threads, while a cycle marks, after fork(). */
#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include "gc_test.h"
#include "heap.h"
#include "object.h"

struct fixture {
	ebbgc_heap_t *heap;
	ebbgc_mutator_t *m;
	ebbgc_type_t node, refs;
	ebbgc_ref_t roots[3];
	struct ebbgc_frame frame;
	bool armed, waits, quit;	/* atomic */
};

/* The collector waits after the snapshot. */
static void on_event(void *arg, const struct ebbgc_event *e)
{
	struct fixture *f = arg;

	if (e->kind == EBBGC_EVENT_CHECK_FAILED)
		abort();
	if (e->kind != EBBGC_EVENT_MARK_BEGIN || !__atomic_load_n(&f->armed, __ATOMIC_ACQUIRE))
		return;
	__atomic_store_n(&f->waits, true, __ATOMIC_RELEASE);
	while (__atomic_load_n(&f->armed, __ATOMIC_ACQUIRE))
		usleep(50);
}

static void begin(struct fixture *f, const char *words)
{
	memset(f, 0, sizeof(*f));
	f->heap = checked_heap_with(words, 64 << 20);
	f->heap->options.event = on_event;
	f->heap->options.event_arg = f;
	assert_int_equal(ebbgc_type_register(f->heap, &node_layout, &f->node), 0);
	assert_int_equal(ebbgc_type_register(f->heap, &refs_layout, &f->refs), 0);
	assert_int_equal(ebbgc_attach(f->heap, &f->m), 0);
	ebbgc_frame_push(f->m, &f->frame, f->roots, 3);
}

static void end(struct fixture *f)
{
	ebbgc_detach(f->m);
	assert_int_equal(ebbgc_heap_destroy(f->heap), 0);
}

static ebbgc_ref_t node(struct fixture *f, uint64_t value)
{
	ebbgc_ref_t r = ebbgc_alloc(f->m, f->node);

	node_of(r)->value = value;
	return r;
}

struct counts {
	const struct fixture *f;
	uint64_t nodes, refs, others, last, values[8];
	ebbgc_ref_t seven;		/* the node with that value */
};

static void count(void *arg, ebbgc_ref_t object)
{
	struct counts *c = arg;
	ebbgc_type_t type = ebbgc_type_of(object);

	assert_true((object.bits & EBBGC_ADDRESS_MASK) > c->last);
	c->last = object.bits & EBBGC_ADDRESS_MASK;
	c->refs += type == c->f->refs;
	c->others += type != c->f->refs && type != c->f->node;
	if (type != c->f->node)
		return;
	c->nodes++;
	if (node_of(object)->value < 8)
		c->values[node_of(object)->value]++;
	if (node_of(object)->value == 7)
		c->seven = object;
}

static struct counts walk(struct fixture *f)
{
	struct counts c = { .f = f };

	assert_int_equal(ebbgc_heap_walk(f->m, count, &c), 0);
	return c;
}

static void all_objects_are_listed(void **state)
{
	struct counts c;
	struct fixture f;

	begin(&f, *state);
	c = walk(&f);
	assert_int_equal(c.nodes + c.refs + c.others, 0);
	f.roots[0] = ebbgc_alloc_length(f.m, f.refs, REGION_SIZE / 4);
	for (uint64_t i = 0; i < 1000; i++)
		f.roots[1] = node(&f, i);
	c = walk(&f);
	assert_int_equal(c.nodes, 1000);
	assert_int_equal(c.refs, 1);
	assert_int_equal(c.others, 0);
	assert_int_equal(stats_of(f.heap).cycles, 0);
	/* A collection frees all but one, some of them in regions that are not swept yet. */
	assert_int_equal(ebbgc_collect(f.m), 0);
	c = walk(&f);
	assert_int_equal(c.nodes, 1);
	assert_int_equal(c.refs, 1);
	assert_int_equal(stats_of(f.heap).cycles, 1);
	end(&f);
}

static void cycle_begin(struct fixture *f)
{
	__atomic_store_n(&f->armed, true, __ATOMIC_RELEASE);
	ebbgc_collect_start(f->m);
	while (!__atomic_load_n(&f->waits, __ATOMIC_ACQUIRE)) {
		ebbgc_poll(f->m);
		usleep(50);
	}
}

static void cycle_end(struct fixture *f)
{
	uint64_t cycles = stats_of(f->heap).cycles;

	__atomic_store_n(&f->armed, false, __ATOMIC_RELEASE);
	while (stats_of(f->heap).cycles == cycles) {
		ebbgc_poll(f->m);
		usleep(50);
	}
}

/* An unreachable object that the program finds while a cycle marks can be kept. */
static void found_objects_can_be_kept(void **state)
{
	struct counts c;
	struct fixture f;

	begin(&f, *state);
	f.roots[0] = node(&f, 1);
	f.roots[0] = node(&f, 7);
	ebbgc_store(f.m, f.roots[0], &node_of(f.roots[0])->left, node(&f, 5));
	f.roots[0] = EBBGC_NULL;
	cycle_begin(&f);
	c = walk(&f);
	assert_int_equal(c.values[1], 1);
	assert_int_equal(c.values[5], 1);
	assert_int_equal(c.values[7], 1);
	f.roots[0] = ebbgc_weak_read(f.m, c.seven, EBBGC_CLEAR_LAST);
	assert_int_equal(node_of(f.roots[0])->value, 7);
	cycle_end(&f);
	c = walk(&f);
	assert_int_equal(c.values[1], 0);
	assert_int_equal(c.values[5], 1);
	assert_int_equal(c.values[7], 1);
	assert_int_equal(node_of(node_of(f.roots[0])->left)->value, 5);
	end(&f);
}

static void finalizer(ebbgc_mutator_t *m, ebbgc_ref_t object, void *data)
{
	*(uint64_t *)data = node_of(object)->value;
}

/*
 * While the collector clears the first weak references, what it has not marked may still be
 * finalized, or found by EBBGC_CLEAR_LAST.
 */
static void what_may_live_again_is_listed(void **state)
{
	uint64_t finalized = 0;
	struct counts c;
	struct fixture f;

	begin(&f, *state);
	f.heap->options.pause_budget_ns = 0;
	assert_int_equal(ebbgc_finalizer_add(f.m, node(&f, 7), finalizer, &finalized), 0);
	f.roots[0] = ebbgc_weak_new(f.m, node(&f, 1));
	pthread_mutex_lock(&f.heap->clearing);
	for (ebbgc_collect_start(f.m); !f.heap->settled; usleep(50))
		ebbgc_poll(f.m);
	assert_false(f.heap->settled_last);
	c = walk(&f);
	pthread_mutex_unlock(&f.heap->clearing);
	assert_int_equal(c.values[7], 1);
	assert_int_equal(c.values[1], 1);
	while (!stats_of(f.heap).cycles) {
		ebbgc_poll(f.m);
		usleep(50);
	}
	assert_int_equal(ebbgc_finalizers_run(f.m, 2), 1);
	assert_int_equal(finalized, 7);
	end(&f);
}

/* Allocates, and walks itself at times. */
static void *other(void *arg)
{
	struct fixture *f = arg;
	ebbgc_mutator_t *m;

	assert_int_equal(ebbgc_attach(f->heap, &m), 0);
	for (uint64_t i = 0; !__atomic_load_n(&f->quit, __ATOMIC_ACQUIRE); i++) {
		struct counts c = { .f = f };

		assert_false(ebbgc_is_null(ebbgc_alloc_length(m, f->refs, i % 2000)));
		if (i % 512 == 0)
			assert_int_equal(ebbgc_heap_walk(m, count, &c), 0);
	}
	ebbgc_detach(m);
	return NULL;
}

static void walks_run_among_cycles(void **state)
{
	pthread_t threads[2];
	struct fixture f;
	struct counts c;

	begin(&f, *state);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, other, &f), 0);
	for (uint64_t i = 0; stats_of(f.heap).cycles < 10 || i < 100; i++) {
		f.roots[0] = node(&f, 3);
		if (i % 8 == 0)
			ebbgc_collect_start(f.m);
		c = walk(&f);
		assert_true(c.values[3] >= 1);
	}
	__atomic_store_n(&f.quit, true, __ATOMIC_RELEASE);
	assert_int_equal(ebbgc_blocked_begin(f.m), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	ebbgc_blocked_end(f.m);
	end(&f);
}

static void a_child_has_no_pauses(void **state)
{
	struct counts c = { 0 };
	struct fixture f;
	int status;
	pid_t pid;

	if (!FORKS)
		skip();
	begin(&f, "mode=concurrent");
	c.f = &f;
	pid = fork();
	if (!pid)
		_exit(ebbgc_heap_walk(f.m, count, &c) != -ECHILD);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	end(&f);
}

#define IN(mode, test) { #test ", " mode, test, NULL, NULL, (void *)mode }

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN("mode=concurrent", all_objects_are_listed),
		IN("mode=stop", all_objects_are_listed),
		IN("mode=memliner,plain,park,residency=simulated", all_objects_are_listed),
		IN("mode=concurrent", found_objects_can_be_kept),
		IN("mode=concurrent", what_may_live_again_is_listed),
		IN("mode=concurrent", walks_run_among_cycles),
		IN("mode=stop", walks_run_among_cycles),
		IN("mode=concurrent,nursery=64K", walks_run_among_cycles),
		IN("mode=memliner,park,drop,residency=simulated", walks_run_among_cycles),
		cmocka_unit_test(a_child_has_no_pauses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
