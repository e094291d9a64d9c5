// SPDX-License-Identifier: GPL-2.0-or-later
/* Marking in address order: what is ahead waits for the finger, what is behind is next. */
#include <errno.h>
#include "gc_test.h"
#include "heap.h"
#include "object.h"

#define ROOTS 64u

static const void *traced[2 * ROOTS];
static size_t count;

static void trace(void *object, ebbgc_visit_fn visit, void *arg)
{
	struct node *n = object;

	assert_true(count < 2 * ROOTS);
	traced[count++] = object;
	visit(arg, &n->left);
}

struct fixture {
	ebbgc_heap_t *heap;
	ebbgc_mutator_t *m;
	ebbgc_type_t type;
	ebbgc_ref_t roots[ROOTS];
	struct ebbgc_frame frame;
};

static void begin(struct fixture *f, const char *options)
{
	static const struct ebbgc_layout layout = {
		.name = "traced", .size = sizeof(struct node), .trace = trace,
	};
	struct ebbgc_options o;

	memset(f, 0, sizeof(*f));
	ebbgc_options_init(&o);
	assert_int_equal(ebbgc_debug(&o, options), 0);
	o.max_bytes = 16 << 20;
	o.markers = 1;
	assert_int_equal(ebbgc_heap_create(&o, &f->heap), 0);
	assert_int_equal(ebbgc_type_register(f->heap, &layout, &f->type), 0);
	assert_int_equal(ebbgc_attach(f->heap, &f->m), 0);
	ebbgc_frame_push(f->m, &f->frame, f->roots, ROOTS);
}

static void end(struct fixture *f)
{
	ebbgc_detach(f->m);
	assert_int_equal(ebbgc_heap_destroy(f->heap), 0);
}

/* Roots in any sequence are traced by ascending address, each once. */
static void roots_are_traced_by_address(void **state)
{
	struct fixture f;

	begin(&f, *state);
	/* 37 has no factor in common with 64. */
	for (size_t i = 0; i < ROOTS; i++)
		f.roots[37 * i % ROOTS] = ebbgc_alloc(f.m, f.type);
	count = 0;
	assert_int_equal(ebbgc_collect(f.m), 0);
	assert_int_equal(count, ROOTS);
	for (size_t i = 1; i < ROOTS; i++)
		assert_true(traced[i] > traced[i - 1]);
	end(&f);
}

/* A reference back is followed at once, one ahead when the finger gets there. */
static void references_back_come_next(void **state)
{
	ebbgc_ref_t all[ROOTS];
	struct fixture f;

	begin(&f, *state);
	for (size_t i = 0; i < ROOTS; i++)
		f.roots[i] = all[i] = ebbgc_alloc(f.m, f.type);
	ebbgc_store(f.m, all[10], &node_of(all[10])->left, all[30]);
	ebbgc_store(f.m, all[20], &node_of(all[20])->left, all[5]);
	ebbgc_store(f.m, all[5], &node_of(all[5])->left, all[4]);
	for (size_t i = 0; i < ROOTS; i++)
		if (i != 10 && i != 20)
			f.roots[i] = EBBGC_NULL;
	count = 0;
	assert_int_equal(ebbgc_collect(f.m), 0);
	assert_int_equal(count, 5);
	assert_ptr_equal(traced[0], ebbgc_ptr(all[10]));
	assert_ptr_equal(traced[1], ebbgc_ptr(all[20]));
	assert_ptr_equal(traced[2], ebbgc_ptr(all[5]));
	assert_ptr_equal(traced[3], ebbgc_ptr(all[4]));
	assert_ptr_equal(traced[4], ebbgc_ptr(all[30]));
	assert_int_equal(stats_of(f.heap).marked_objects, 5);
	end(&f);
}

static void it_is_no_order_of_memliner(void **state)
{
	ebbgc_heap_t *heap = NULL;
	struct ebbgc_options o;

	ebbgc_options_init(&o);
	assert_int_equal(ebbgc_debug(&o, "mode=memliner,address"), 0);
	assert_int_equal(ebbgc_heap_create(&o, &heap), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		{ "concurrent: roots", roots_are_traced_by_address, NULL, NULL,
		  (void *)"mode=concurrent,address" },
		{ "stop the world: roots", roots_are_traced_by_address, NULL, NULL,
		  (void *)"mode=stop,address" },
		{ "references back", references_back_come_next, NULL, NULL,
		  (void *)"mode=stop,address" },
		cmocka_unit_test(it_is_no_order_of_memliner),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
