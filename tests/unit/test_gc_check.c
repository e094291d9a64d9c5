// SPDX-License-Identifier: GPL-2.0-or-later
/* The checking mode finds faults: a store that hides an object, a missing root. */
#include <pthread.h>
#include <unistd.h>
#include "gc_test.h"

struct watch {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int marking;		/* 1: the collector waits, 2: it may go on */
	unsigned int failures;
	char text[128];
};

static void on_event(void *arg, const struct ebbgc_event *e)
{
	struct watch *w = arg;

	pthread_mutex_lock(&w->lock);
	if (e->kind == EBBGC_EVENT_MARK_BEGIN && w->marking == 0) {
		w->marking = 1;
		pthread_cond_broadcast(&w->changed);
		while (w->marking == 1)
			pthread_cond_wait(&w->changed, &w->lock);
	} else if (e->kind == EBBGC_EVENT_CHECK_FAILED) {
		w->failures++;
		strncpy(w->text, e->text, sizeof(w->text) - 1);
	}
	pthread_mutex_unlock(&w->lock);
}

/* Begins a cycle that waits after the snapshot, before it marks anything. */
static void begin_cycle(struct watch *w, ebbgc_mutator_t *m)
{
	ebbgc_collect_start(m);
	for (int marking = 0; !marking; usleep(100)) {
		ebbgc_poll(m);
		pthread_mutex_lock(&w->lock);
		marking = w->marking;
		pthread_mutex_unlock(&w->lock);
	}
}

static void end_cycle(struct watch *w, ebbgc_mutator_t *m, ebbgc_heap_t *heap)
{
	pthread_mutex_lock(&w->lock);
	w->marking = 2;
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
	while (!stats_of(heap).cycles) {
		ebbgc_poll(m);
		usleep(100);
	}
}

enum store { STORE_FUSED, STORE_RAW };

/*
 * After the snapshot, before anything is marked, moves a list of `length` from an object that is
 * still to be traced to a new one, which is black.
 */
static unsigned int hide(enum store how, unsigned int length, uint64_t budget_ns)
{
	struct watch watch = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, "" };
	ebbgc_ref_t roots[3] = { 0 };
	struct ebbgc_options o;
	struct ebbgc_frame frame;
	ebbgc_mutator_t *m;
	ebbgc_heap_t *heap;
	ebbgc_type_t node;

	ebbgc_options_init(&o);
	o.check = true;
	o.event = on_event;
	o.event_arg = &watch;
	o.max_bytes = 16 << 20;
	o.pause_budget_ns = budget_ns;
	assert_int_equal(ebbgc_heap_create(&o, &heap), 0);
	assert_int_equal(ebbgc_type_register(heap, &node_layout, &node), 0);
	assert_int_equal(ebbgc_attach(heap, &m), 0);
	ebbgc_frame_push(m, &frame, roots, 2);
	roots[0] = ebbgc_alloc(m, node);
	for (unsigned int i = 0; i < length; i++) {
		ebbgc_ref_t r = ebbgc_alloc(m, node);

		ebbgc_init(&node_of(r)->left, ebbgc_load(m, roots[0], &node_of(roots[0])->left));
		ebbgc_store(m, roots[0], &node_of(roots[0])->left, r);
	}

	begin_cycle(&watch, m);
	roots[1] = ebbgc_alloc(m, node);
	ebbgc_store(m, roots[1], &node_of(roots[1])->left,
		    ebbgc_load(m, roots[0], &node_of(roots[0])->left));
	if (how == STORE_FUSED)
		ebbgc_store(m, roots[0], &node_of(roots[0])->left, EBBGC_NULL);
	else
		ebbgc_init(&node_of(roots[0])->left, EBBGC_NULL);
	end_cycle(&watch, m, heap);
	if (how == STORE_RAW)
		assert_string_equal(watch.text, "reachable, but not marked");
	assert_int_equal(stats_of(heap).check_failures, watch.failures);
	/* Only the thread's log leads to the list, which is more work than a pause of 1 ns does. */
	assert_true(how == STORE_RAW || (stats_of(heap).remarks > 0) == (budget_ns == 1));
	assert_int_equal(stats_of(heap).logged_references, how == STORE_FUSED);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
	return watch.failures;
}

static void raw_store_is_found(void **state)
{
	assert_int_equal(hide(STORE_RAW, 1, 1), 1);
}

static void fused_store_hides_nothing(void **state)
{
	assert_int_equal(hide(STORE_FUSED, 20000, 1), 0);
	assert_int_equal(hide(STORE_FUSED, 20000, UINT64_MAX), 0);
}

/*
 * Only the log leads to an array that is dropped after the snapshot.  Its bytes count as live: they
 * determine the heap's target size.
 */
static void logged_array_is_counted_whole(void **state)
{
	struct watch watch = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, "" };
	const size_t large = 1 << 20;
	ebbgc_ref_t root = { 0 };
	struct ebbgc_options o;
	struct ebbgc_frame frame;
	ebbgc_type_t node, refs;
	ebbgc_mutator_t *m;
	ebbgc_heap_t *heap;

	ebbgc_options_init(&o);
	o.event = on_event;
	o.event_arg = &watch;
	assert_int_equal(ebbgc_heap_create(&o, &heap), 0);
	assert_int_equal(ebbgc_type_register(heap, &node_layout, &node), 0);
	assert_int_equal(ebbgc_type_register(heap, &refs_layout, &refs), 0);
	assert_int_equal(ebbgc_attach(heap, &m), 0);
	ebbgc_frame_push(m, &frame, &root, 1);
	root = ebbgc_alloc(m, node);
	ebbgc_store(m, root, &node_of(root)->left, ebbgc_alloc_length(m, refs, large / 8));
	begin_cycle(&watch, m);
	ebbgc_store(m, root, &node_of(root)->left, EBBGC_NULL);
	end_cycle(&watch, m, heap);
	assert_int_equal(stats_of(heap).logged_references, 1);
	assert_in_range(stats_of(heap).live_bytes, large, large + (128 << 10));
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

/* An object without a root is freed; a later reference to it is reported. */
static void missing_root_is_found(void **state)
{
	struct watch watch = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 2, 0, "" };
	ebbgc_ref_t root = { 0 }, unrooted;
	struct ebbgc_options o;
	struct ebbgc_frame frame;
	ebbgc_mutator_t *m;
	ebbgc_heap_t *heap;
	ebbgc_type_t node;

	ebbgc_options_init(&o);
	o.check = true;
	o.event = on_event;
	o.event_arg = &watch;
	assert_int_equal(ebbgc_heap_create(&o, &heap), 0);
	assert_int_equal(ebbgc_type_register(heap, &node_layout, &node), 0);
	assert_int_equal(ebbgc_attach(heap, &m), 0);
	ebbgc_frame_push(m, &frame, &root, 1);
	unrooted = ebbgc_alloc(m, node);
	root = ebbgc_alloc(m, node);
	assert_int_equal(ebbgc_collect(m), 0);
	assert_int_equal(watch.failures, 0);
	ebbgc_store(m, root, &node_of(root)->left, unrooted);
	assert_int_equal(ebbgc_collect(m), 0);
	assert_true(watch.failures >= 1);
	assert_string_equal(watch.text, "refers to no object");
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(raw_store_is_found),
		cmocka_unit_test(fused_store_hides_nothing),
		cmocka_unit_test(logged_array_is_counted_whole),
		cmocka_unit_test(missing_root_is_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
