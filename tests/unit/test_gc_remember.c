// SPDX-License-Identifier: GPL-2.0-or-later
/* The remembered set of a nursery: what is entered that needs no entry. */
#include <unistd.h>
#include "gc_test.h"
#include "object.h"

static const struct ebbgc_layout leaf_layout = {
	.name = "leaf", .flags = EBBGC_LEAF, .size = 8, .element_size = 1, .length_width = 8,
};

#define LEAF_BYTES 100000

/* Fills a region with nodes that refer to themselves; returns its last one. */
static ebbgc_ref_t region_fill(ebbgc_mutator_t *m, ebbgc_type_t node, ebbgc_ref_t *list)
{
	ebbgc_ref_t r;

	do {
		r = ebbgc_alloc(m, node);
		assert_false(ebbgc_is_null(r));
		ebbgc_init(&node_of(r)->left, *list);
		ebbgc_init(&node_of(r)->right, r);
		*list = r;
	} while (r.bits % REGION_SIZE != REGION_SIZE - sizeof(struct node));
	return r;
}

/*
 * ebbgc_overwrite() of a large leaf, which holds no slot: a minor cycle must not look for an object
 * before it.
 */
static void large_leaves(void **state)
{
	ebbgc_heap_t *heap = checked_heap_with("mode=concurrent,nursery=1M", 16 << 20);
	ebbgc_ref_t roots[2] = { EBBGC_NULL, EBBGC_NULL };
	struct ebbgc_frame frame;
	ebbgc_type_t node, leaf;
	ebbgc_mutator_t *m;
	ebbgc_ref_t last;
	uint64_t minor;

	assert_int_equal(ebbgc_type_register(heap, &node_layout, &node), 0);
	assert_int_equal(ebbgc_type_register(heap, &leaf_layout, &leaf), 0);
	assert_int_equal(ebbgc_attach(heap, &m), 0);
	ebbgc_frame_push(m, &frame, roots, 2);
	last = region_fill(m, node, &roots[0]);
	roots[1] = ebbgc_alloc_length(m, leaf, LEAF_BYTES);
	memset((char *)ebbgc_ptr(roots[1]) + 8, 0x55, LEAF_BYTES);
	assert_int_equal(region_of(heap, roots[1].bits), region_of(heap, last.bits) + 1);
	assert_int_equal(ebbgc_collect(m), 0);
	ebbgc_overwrite(m, roots[1], EBBGC_NULL);
	for (minor = stats_of(heap).minor_cycles; stats_of(heap).minor_cycles == minor;)
		for (int i = 0; i < 1000; i++)
			assert_false(ebbgc_is_null(ebbgc_alloc(m, node)));
	assert_true(stats_of(heap).remembered > 0);
	assert_int_equal(((unsigned char *)ebbgc_ptr(roots[1]))[LEAF_BYTES], 0x55);
	assert_int_equal(stats_of(heap).check_failures, 0);
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(large_leaves),
	};

	alarm(120);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
