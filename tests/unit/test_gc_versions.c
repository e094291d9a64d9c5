// SPDX-License-Identifier: GPL-2.0-or-later
/* Programs built with an older or a later header than the library. */
#include <errno.h>
#include "gc_test.h"
#include "versions.h"

#define CANARY 0x5a

/* Functions that 0.1.0 exported. */
int old_options_parse(struct ebbgc_options *options, const char *text)
	__asm__("ebbgc_options_parse");
void old_options_init(struct ebbgc_options *options) __asm__("ebbgc_options_init");
int old_type_register(ebbgc_heap_t *heap, const struct ebbgc_layout *layout, ebbgc_type_t *type)
	__asm__("ebbgc_type_register");

/* A caller's struct of any version, and memory behind it. */
union versions {
	struct ebbgc_options options;
	struct ebbgc_layout layout;
	unsigned char bytes[256];
};

static void assert_untouched(const union versions *v, size_t from)
{
	for (size_t i = from; i < sizeof(*v); i++)
		assert_int_equal(v->bytes[i], CANARY);
}

static void options_of_an_older_header(void **state)
{
	const size_t size = OPTIONS_LEAST;
	ebbgc_heap_t *heap;
	union versions v;

	memset(&v, CANARY, sizeof(v));
	ebbgc_options_init_size(&v.options, size);
	assert_int_equal(v.options.struct_size, size);
	assert_untouched(&v, size);
	/* Words for members that the program does not have change nothing. */
	assert_int_equal(ebbgc_debug(&v.options, "max=16M,depth=65,park"), 0);
	assert_int_equal(v.options.max_bytes, 16 << 20);
	assert_untouched(&v, size);
	/* The canary would be features and a depth that no heap has. */
	assert_int_equal(ebbgc_heap_create(&v.options, &heap), 0);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

static void options_of_0_1_0(void **state)
{
	ebbgc_heap_t *heap;
	union versions v;

	memset(&v, CANARY, sizeof(v));
	old_options_init(&v.options);
	assert_int_equal(v.options.struct_size, OPTIONS_0_1_0);
	assert_int_equal(v.options.scan_percent, 5);
	assert_untouched(&v, OPTIONS_0_1_0);
	/* Words that are now ebbgc_debug()'s. */
	assert_int_equal(old_options_parse(&v.options, "mode=memliner,park,depth=2"), 0);
	assert_int_equal(v.options.depth, 2);
	assert_untouched(&v, OPTIONS_0_1_0);
	v.options.max_bytes = 16 << 20;
	assert_int_equal(ebbgc_heap_create(&v.options, &heap), 0);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

static void options_of_a_later_header(void **state)
{
	const size_t size = sizeof(struct ebbgc_options) + 8;
	ebbgc_heap_t *heap = NULL;
	union versions v;

	memset(&v, CANARY, sizeof(v));
	ebbgc_options_init_size(&v.options, size);
	assert_untouched(&v, size);
	assert_int_equal(ebbgc_debug(&v.options, "max=16M"), 0);
	assert_int_equal(ebbgc_heap_create(&v.options, &heap), 0);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
	heap = NULL;
	v.bytes[size - 1] = 1;
	assert_int_equal(ebbgc_heap_create(&v.options, &heap), -E2BIG);
	assert_null(heap);
	assert_int_equal(ebbgc_debug(&v.options, "max=8M"), 0);
	assert_int_equal(v.bytes[size - 1], 1);
}

/* A struct that ebbgc_options_init() has not filled in is refused. */
static void options_of_no_version(void **state)
{
	struct ebbgc_options o = { .struct_size = OPTIONS_LEAST - 1 };
	ebbgc_heap_t *heap = NULL;

	assert_int_equal(ebbgc_debug(&o, "max=16M"), -EINVAL);
	assert_int_equal(o.max_bytes, 0);
	assert_int_equal(ebbgc_heap_create(&o, &heap), -EINVAL);
	assert_null(heap);
}

static void layouts(void **state)
{
	ebbgc_heap_t *heap = checked_heap(EBBGC_CONCURRENT, 16 << 20);
	const size_t later = sizeof(struct ebbgc_layout) + 8;
	ebbgc_mutator_t *m;
	ebbgc_type_t type = 99;
	ebbgc_ref_t object;
	union versions v;

	/* The canary behind an older layout would be a callback. */
	memset(&v, CANARY, sizeof(v));
	memcpy(&v, &node_layout, LAYOUT_LEAST);
	assert_int_equal(ebbgc_type_register_size(heap, &v.layout, LAYOUT_LEAST, &type), 0);
	assert_int_equal(ebbgc_attach(heap, &m), 0);
	object = ebbgc_alloc(m, type);
	ebbgc_store(m, object, &node_of(object)->left, object);
	assert_non_null(ebbgc_handle_new(m, object));
	assert_int_equal(ebbgc_collect(m), 0);
	ebbgc_detach(m);

	memset(&v, CANARY, sizeof(v));
	v.layout = node_layout;
	assert_int_equal(old_type_register(heap, &v.layout, &type), 0);

	memset(v.bytes + sizeof(v.layout), 0, 8);
	assert_int_equal(ebbgc_type_register_size(heap, &v.layout, later, &type), 0);
	type = 99;
	v.bytes[later - 1] = 1;
	assert_int_equal(ebbgc_type_register_size(heap, &v.layout, later, &type), -E2BIG);
	assert_int_equal(ebbgc_type_register_size(heap, &v.layout, LAYOUT_LEAST - 1, &type),
			 -EINVAL);
	assert_int_equal(type, 99);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(options_of_an_older_header),
		cmocka_unit_test(options_of_0_1_0),
		cmocka_unit_test(options_of_a_later_header),
		cmocka_unit_test(options_of_no_version),
		cmocka_unit_test(layouts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
