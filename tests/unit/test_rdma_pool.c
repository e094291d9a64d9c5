// SPDX-License-Identifier: GPL-2.0-or-later
/* Memory for kernels that comes and goes; nothing is registered with a device here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "donord/pool/rdma_pool.h"

#include <cmocka.h>

enum { SLAB = 2 * 4096, SLABS = 8 };

#define SECOND 1000000000ull
/* Somebody's. */
#define OWNER ((struct rdma_session *)0x100)

static struct rdma_pool p;
static uint64_t now = 1000 * SECOND;

static int with_pool(void **state)
{
	struct error e = { 0 };

	return rdma_pool_init(&p, SLABS * SLAB, SLAB, &e);
}

static int without_pool(void **state)
{
	rdma_pool_free(&p);
	return 0;
}

/* As rdma_pool_lend() does, but for the key. */
static void lend(uint32_t from, uint32_t n)
{
	for (uint32_t i = from; i < from + n; i++) {
		p.slabs[i].owner = OWNER;
		memset(rdma_pool_memory(&p, &p.slabs[i]), 0x5a, SLAB);
		p.lent++;
	}
}

static uint32_t turns(void)
{
	uint32_t n = 1;

	while (rdma_pool_turn(&p, now)) {
		n++;
		assert_true(n < 100);
	}
	return n;
}

static uint32_t resident(void)
{
	unsigned char pages[SLABS * SLAB / 4096];
	uint32_t n = 0;

	assert_int_equal(mincore(p.memory, SLABS * SLAB, pages), 0);
	for (size_t i = 0; i < sizeof(pages); i++)
		n += pages[i] & 1;
	return n * 4096 / SLAB;
}

static void nothing_to_do(void **state)
{
	assert_int_equal(rdma_pool_idle(&p), SLABS);
	assert_int_equal(resident(), SLABS);
	assert_false(rdma_pool_turn(&p, now));
	lend(0, 3);
	assert_false(rdma_pool_turn(&p, now));
	assert_int_equal(p.wanted, 0);
	assert_int_equal(rdma_pool_idle(&p), SLABS - 3);
	assert_int_equal(rdma_pool_room(&p), SLABS);
}

/* Free slabs go first, then as many lent ones are wanted as are too many. */
static void gives_back(void **state)
{
	lend(0, 5);
	rdma_pool_limit(&p, 6);
	assert_int_equal(turns(), 2);
	assert_int_equal(rdma_pool_present(&p), 6);
	assert_int_equal(resident(), 6);
	assert_int_equal(p.wanted, 0);
	assert_int_equal(rdma_pool_idle(&p), 1);

	rdma_pool_limit(&p, 3);
	turns();
	assert_int_equal(rdma_pool_present(&p), 5);
	assert_int_equal(p.wanted, 2);
	assert_int_equal(rdma_pool_idle(&p), 0);
	assert_int_equal(rdma_pool_room(&p), 5);

	/* What comes back is not zeroed, as it goes. */
	for (uint32_t i = 0; i < 5; i++)
		if (p.slabs[i].wanted)
			rdma_pool_take_back(&p, &p.slabs[i]);
	assert_int_equal(p.wanted, 0);
	turns();
	assert_int_equal(rdma_pool_present(&p), 3);
	assert_int_equal(p.dirty, 0);
	assert_int_equal(resident(), 3);
}

/* The machine's memory is back before all of it has come. */
static void wants_no_more(void **state)
{
	lend(0, SLABS);
	rdma_pool_limit(&p, 2);
	turns();
	assert_int_equal(p.wanted, 6);
	rdma_pool_limit(&p, 7);
	turns();
	assert_int_equal(p.wanted, 1);
	rdma_pool_limit(&p, 1000);
	turns();
	assert_int_equal(p.wanted, 0);
	assert_int_equal(rdma_pool_present(&p), SLABS);
}

/* What was given back comes back as zeroes. */
static void makes_again(void **state)
{
	lend(0, SLABS);
	rdma_pool_limit(&p, 0);
	for (uint32_t i = 0; i < SLABS; i++)
		rdma_pool_take_back(&p, &p.slabs[i]);
	turns();
	assert_int_equal(resident(), 0);
	assert_int_equal(rdma_pool_room(&p), 0);
	rdma_pool_limit(&p, SLABS);
	turns();
	assert_int_equal(rdma_pool_idle(&p), SLABS);
	assert_int_equal(resident(), SLABS);
	for (size_t i = 0; i < SLABS * SLAB; i++)
		assert_int_equal(p.memory[i], 0);
}

/* Also what came back and was not given to the machine meanwhile. */
static void zeroes(void **state)
{
	lend(2, 2);
	rdma_pool_take_back(&p, &p.slabs[2]);
	rdma_pool_take_back(&p, &p.slabs[3]);
	assert_int_equal(turns(), 2);
	assert_int_equal(p.dirty, 0);
	for (size_t i = 0; i < SLABS * SLAB; i++)
		assert_int_equal(p.memory[i], 0);
}

static void drains(void **state)
{
	lend(0, 4);
	rdma_pool_drain(&p, true);
	turns();
	assert_int_equal(p.wanted, 4);
	assert_int_equal(rdma_pool_present(&p), 4);
	assert_int_equal(rdma_pool_idle(&p), 0);
	rdma_pool_drain(&p, false);
	turns();
	assert_int_equal(p.wanted, 0);
	assert_int_equal(rdma_pool_idle(&p), 4);
}

/* Others are asked for instead of one that is refused, or does not come in a minute. */
static void asks_others(void **state)
{
	uint32_t first;

	lend(0, 2);
	rdma_pool_limit(&p, 1);
	turns();
	assert_int_equal(p.wanted, 1);
	first = p.slabs[0].wanted ? 0 : 1;
	rdma_pool_refused(&p, first);
	turns();
	assert_false(p.slabs[first].wanted);
	assert_true(p.slabs[!first].wanted);
	/* Both are refused: nobody is asked for a while. */
	rdma_pool_refused(&p, !first);
	turns();
	assert_int_equal(p.wanted, 0);
	now += 11 * SECOND;
	turns();
	assert_int_equal(p.wanted, 1);
	first = p.slabs[0].wanted ? 0 : 1;
	now += 61 * SECOND;
	turns();
	assert_true(p.slabs[!first].wanted && !p.slabs[first].wanted);
	/* A drain is about all of them. */
	rdma_pool_refused(&p, !first);
	rdma_pool_drain(&p, true);
	turns();
	assert_int_equal(p.wanted, 2);
}

/* Every slab is as likely to be asked back as any other. */
static void draws(void **state)
{
	uint32_t seen[SLABS] = { 0 };

	lend(0, SLABS);
	for (int round = 0; round < 4000; round++) {
		rdma_pool_limit(&p, SLABS - 2);
		rdma_pool_turn(&p, now);
		for (uint32_t i = 0; i < SLABS; i++)
			seen[i] += p.slabs[i].wanted;
		rdma_pool_limit(&p, SLABS);
		rdma_pool_turn(&p, now);
	}
	for (uint32_t i = 0; i < SLABS; i++)
		assert_in_range(seen[i], 850, 1150);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(nothing_to_do, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(gives_back, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(wants_no_more, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(makes_again, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(zeroes, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(drains, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(asks_others, with_pool, without_pool),
		cmocka_unit_test_setup_teardown(draws, with_pool, without_pool),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
