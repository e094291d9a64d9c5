// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

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

/* What a borrower may still have mapped is never another's. */
static void hand_over_and_replace(uint32_t size)
{
	struct lend_pool p;
	struct error e = { 0 };
	uint32_t slab, again, g1, g2;
	uint8_t *kept;
	int seals;

	assert_int_equal(lend_init(&p, size, size, LEND_SHARED, &e), 0);
	assert_int_equal(lend_map(&p, OWNER, &slab, &g1), WIRE_OK);
	seals = fcntl(lend_hand_over(&p, slab), F_GET_SEALS);
	assert_int_equal(seals & F_SEAL_SHRINK, F_SEAL_SHRINK);
	kept = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, lend_hand_over(&p, slab), 0);
	assert_ptr_not_equal(kept, MAP_FAILED);
	memset(kept, 0x5a, size);
	assert_int_equal(p.memory[size - 1], 0x5a);
	assert_int_equal(lend_unmap(&p, OWNER, slab, g1), WIRE_OK);
	/* At once, without time to prepare it. */
	assert_int_equal(lend_map(&p, OTHER, &again, &g2), WIRE_OK);
	assert_int_equal(again, slab);
	for (uint32_t i = 0; i < size; i++)
		assert_int_equal(p.memory[i], 0);
	memset(kept, 0x11, size);
	assert_int_equal(p.memory[0], 0);
	/* Now in idle time, and pinned at first. */
	memset(p.memory, 0x22, size);
	lend_hand_over(&p, again);
	lend_pin(&p, again);
	assert_int_equal(lend_release_owner(&p, OTHER), 1);
	assert_false(lend_zero_some(&p));
	assert_int_equal(p.memory[0], 0x22);
	lend_unpin(&p, again);
	while (lend_zero_some(&p))
		;
	assert_int_equal(p.clean, 1);
	assert_int_equal(p.dirty, 0);
	for (uint32_t i = 0; i < size; i++)
		assert_int_equal(p.memory[i], 0);
	/* Not handed over, a slab keeps its memory. */
	assert_int_equal(lend_map(&p, OWNER, &slab, &g1), WIRE_OK);
	seals = p.slabs[slab].fd;
	assert_int_equal(lend_unmap(&p, OWNER, slab, g1), WIRE_OK);
	while (lend_zero_some(&p))
		;
	assert_int_equal(p.slabs[slab].fd, seals);
	assert_int_equal(lend_total_bytes(&p), size);
	munmap(kept, size);
	lend_free(&p);
}

static void handed_over_and_replaced(void **state)
{
	hand_over_and_replace(SLAB);
	/* Of a huge page, where there is one. */
	hand_over_and_replace(2 * SLAB);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(lend_and_return, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(accesses_are_checked, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(nothing_is_inherited, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(pinned_memory_stays, with_pool, without_pool),
		cmocka_unit_test(bad_sizes),
		cmocka_unit_test(handed_over_and_replaced),
	};

	return cmocka_run_group_tests_name("lend", tests, NULL, NULL);
}
