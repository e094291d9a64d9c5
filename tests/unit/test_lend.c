// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "donord/lend.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { SLAB = 1 << 20, OWNER = 3, OTHER = 4 };

static int with_pool(void **state)
{
	static struct lend_pool pool;
	struct error e = { 0 };

	*state = &pool;
	/* The half slab at the end is not lent. */
	return lend_init(&pool, 3 * SLAB + SLAB / 2, SLAB, LEND_PRIVATE, &e);
}

static int without_pool(void **state)
{
	lend_free(*state);
	return 0;
}

static struct wire_frame access_to(uint32_t slab, uint32_t generation, uint32_t offset,
				   uint32_t length)
{
	return (struct wire_frame){ .op = WIRE_READ, .slab = slab, .generation = generation,
				    .offset = offset, .length = length };
}

static void lend_and_return(void **state)
{
	struct lend_pool *p = *state;
	uint32_t slab[3], generation[3], none;

	assert_int_equal(lend_free_bytes(p), 3 * SLAB);
	for (int i = 0; i < 3; i++)
		assert_int_equal(lend_map(p, OWNER, &slab[i], &generation[i]), WIRE_OK);
	assert_int_equal(lend_free_bytes(p), 0);
	assert_int_equal(lend_map(p, OWNER, &none, &none), WIRE_NO_SPACE);
	assert_int_not_equal(generation[0], generation[1]);
	assert_int_equal(lend_unmap(p, OTHER, slab[1], generation[1]), WIRE_NO_SLAB);
	assert_int_equal(lend_unmap(p, OWNER, slab[1], generation[1] + 1), WIRE_STALE);
	assert_int_equal(lend_unmap(p, OWNER, slab[1], generation[1]), WIRE_OK);
	assert_int_equal(lend_unmap(p, OWNER, slab[1], generation[1]), WIRE_NO_SLAB);
	assert_int_equal(lend_free_bytes(p), SLAB);
	assert_int_equal(lend_release_owner(p, OWNER), 2);
	assert_int_equal(lend_free_bytes(p), 3 * SLAB);
}

static void accesses_are_checked(void **state)
{
	struct lend_pool *p = *state;
	uint32_t slab, g;
	struct wire_frame f;
	void *at;

	assert_int_equal(lend_map(p, OWNER, &slab, &g), WIRE_OK);
	f = access_to(slab, g, SLAB - 4096, 4096);
	assert_int_equal(lend_access(p, OWNER, &f, &at), WIRE_OK);
	assert_ptr_equal(at, p->memory + slab * SLAB + SLAB - 4096);
	f = access_to(slab, g, SLAB - 4096, 8192);
	assert_int_equal(lend_access(p, OWNER, &f, &at), WIRE_BAD_RANGE);
	f = access_to(slab, g, 0xfffff000, 8192); /* wraps in 32 bits */
	assert_int_equal(lend_access(p, OWNER, &f, &at), WIRE_BAD_RANGE);
	f = access_to(slab, g - 1, 0, 4096);
	assert_int_equal(lend_access(p, OWNER, &f, &at), WIRE_STALE);
	f = access_to(slab, g, 0, 4096);
	assert_int_equal(lend_access(p, OTHER, &f, &at), WIRE_NO_SLAB);
	f = access_to(3, g, 0, 4096);
	assert_int_equal(lend_access(p, OWNER, &f, &at), WIRE_NO_SLAB);
	f = access_to(UINT32_MAX, g, 0, 4096);
	assert_int_equal(lend_access(p, OWNER, &f, &at), WIRE_NO_SLAB);
}

/* Nobody reads what another wrote, whether or not there was time to zero it. */
static void nothing_is_inherited(void **state)
{
	struct lend_pool *p = *state;
	uint32_t slab, g;

	for (int idle = 0; idle < 2; idle++) {
		for (int i = 0; i < 3; i++)
			assert_int_equal(lend_map(p, OWNER, &slab, &g), WIRE_OK);
		memset(p->memory, 0xee, 3 * SLAB);
		lend_release_owner(p, OWNER);
		if (idle)
			while (lend_zero_some(p))
				;
		assert_int_equal(p->dirty, idle ? 0 : 3);
		for (int i = 0; i < 3; i++)
			assert_int_equal(lend_map(p, OTHER, &slab, &g), WIRE_OK);
		for (size_t i = 0; i < 3 * SLAB; i++)
			if (p->memory[i])
				fail_msg("byte %zu of a new loan is %#x", i, p->memory[i]);
		lend_release_owner(p, OTHER);
	}
}

/* A reply on its way keeps the memory as it is. */
static void pinned_memory_stays(void **state)
{
	struct lend_pool *p = *state;
	uint32_t slab, g, other;

	for (int i = 0; i < 3; i++)
		assert_int_equal(lend_map(p, OWNER, &slab, &g), WIRE_OK);
	memset(p->memory + slab * SLAB, 0xdd, SLAB);
	lend_pin(p, slab);
	assert_int_equal(lend_unmap(p, OWNER, slab, g), WIRE_OK);
	assert_false(lend_zero_some(p));
	assert_int_equal(lend_map(p, OTHER, &other, &g), WIRE_NO_SPACE);
	assert_int_equal(p->memory[slab * SLAB], 0xdd);
	lend_unpin(p, slab);
	assert_int_equal(lend_map(p, OTHER, &other, &g), WIRE_OK);
	assert_int_equal(other, slab);
	assert_int_equal(p->memory[slab * SLAB], 0);
}

static void bad_sizes(void **state)
{
	struct lend_pool p;
	struct error e = { 0 };

	assert_int_equal(lend_init(&p, 1 << 30, 4096, LEND_PRIVATE, &e), -EINVAL);
	assert_non_null(strstr(e.text, "1M to 1G"));
	e.code = 0;
	assert_int_equal(lend_init(&p, SLAB - 1, SLAB, LEND_PRIVATE, &e), -EINVAL);
	assert_int_equal(e.exit_status, EXIT_USAGE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(lend_and_return, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(accesses_are_checked, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(nothing_is_inherited, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(pinned_memory_stays, with_pool, without_pool),
		cmocka_unit_test(bad_sizes),
	};

	return cmocka_run_group_tests_name("lend", tests, NULL, NULL);
}
