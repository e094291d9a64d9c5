// SPDX-License-Identifier: GPL-2.0-or-later
/* policies/linux.bpf.c, compiled natively, against the rules it follows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "policies/linux.bpf.c"

#define BASE 0x7f0000000ULL     /* the first page that a page table maps */

struct asked {
	struct ebb_policy_sim sim;
	struct linux_state state;
	uint64_t low, high;             /* pages asked for since the last fault, [low, high) */
	unsigned int pages;
};

static int asked_request(void *data, const struct ebb_request *r)
{
	struct asked *a = data;

	for (uint32_t i = 0; i < r->count; i++) {
		uint64_t page = r->first + (uint64_t)r->stride * i;

		if (!a->pages || page < a->low)
			a->low = page;
		if (!a->pages || page >= a->high)
			a->high = page + 1;
		a->pages++;
	}
	return 0;
}

static void begin(struct asked *a)
{
	memset(a, 0, sizeof(*a));
	a->sim.state = &a->state;
	a->sim.request = asked_request;
	a->sim.data = a;
	ebb_policy_defaults(&linux_policy, &a->sim.params);
}

static void fault(struct asked *a, uint64_t page, int kind)
{
	struct ebb_fault f = { .vpn = BASE + page, .tgid = 1, .tid = 1, .exec = 1, .kind = kind };

	a->pages = 0;
	linux_policy.run(&a->sim, &f);
}

/* The window contains the fault's page, which is not asked for. */
static void assert_window(const struct asked *a, uint64_t low, uint64_t high)
{
	assert_int_equal(a->low, BASE + low);
	assert_int_equal(a->high, BASE + high);
}

/* 4 hits are assumed at first: 6 pages, rounded up to 8, around the page. */
static void starts_with_eight(void **unused)
{
	struct asked a;

	begin(&a);
	fault(&a, 100, EBB_MISS);
	assert_int_equal(a.pages, 7);
	assert_window(&a, 97, 105);
}

/* Without hits 2 pages if it goes on next door, else 1, but never less than half. */
static void shrinks_by_half(void **unused)
{
	static const unsigned int pages[] = { 7, 3, 1, 0, 0 };
	struct asked a;

	begin(&a);
	for (int i = 0; i < 5; i++) {
		fault(&a, 100 * (i + 1), EBB_MISS);
		assert_int_equal(a.pages, pages[i]);
	}
	fault(&a, 501, EBB_MISS);
	assert_int_equal(a.pages, 1);
	assert_window(&a, 502, 503);
	fault(&a, 500, EBB_MISS);
	assert_int_equal(a.pages, 1);
	assert_window(&a, 499, 500);
}

static void hits_widen(void **unused)
{
	static const struct {
		unsigned int hits, page_cluster, pages;
	} row[] = {
		{ 1, 3, 4 }, { 2, 3, 4 }, { 3, 3, 8 }, { 6, 3, 8 }, { 30, 3, 8 }, { 14, 4, 16 },
		{ 15, 5, 32 }, { 63, 5, 32 }, { 7, 0, 0 }, { 7, 1, 2 },
	};
	struct asked a;

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		uint64_t page = 100;

		begin(&a);
		for (int k = 0; k < 4; k++)
			fault(&a, 100 * k, EBB_MISS);
		a.sim.params.v[PAGE_CLUSTER] = row[i].page_cluster;
		for (unsigned int k = 0; k < row[i].hits; k++)
			fault(&a, page++, EBB_HIT);
		fault(&a, page, EBB_MISS);
		assert_int_equal(a.pages, row[i].pages ? row[i].pages - 1 : 0);
		if (a.pages)
			assert_window(&a, page + 1, page + row[i].pages);
	}
}

/* Forward from the page, backward up to it. */
static void goes_where_the_program_goes(void **unused)
{
	struct asked a;

	begin(&a);
	fault(&a, 99, EBB_HIT);
	fault(&a, 100, EBB_MISS);
	assert_window(&a, 101, 108);
	begin(&a);
	fault(&a, 101, EBB_HIT);
	fault(&a, 100, EBB_MISS);
	assert_window(&a, 93, 100);
}

static void stays_in_its_page_table(void **unused)
{
	struct asked a;

	begin(&a);
	fault(&a, 510, EBB_MISS);
	assert_window(&a, 507, 512);
	begin(&a);
	fault(&a, 513, EBB_MISS);
	assert_window(&a, 512, 518);
	begin(&a);
	fault(&a, 511, EBB_HIT);
	fault(&a, 512, EBB_MISS);
	assert_window(&a, 513, 520);
}

/* Each region of the address space has its own state. */
static void regions_are_apart(void **unused)
{
	struct asked a;

	begin(&a);
	for (int i = 1; i < 5; i++)
		fault(&a, 100 * i, EBB_MISS);
	assert_int_equal(a.pages, 0);
	fault(&a, (1 << 18) + 100, EBB_MISS);
	assert_int_equal(a.pages, 7);
	fault(&a, 500, EBB_MISS);
	assert_int_equal(a.pages, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(starts_with_eight),
		cmocka_unit_test(shrinks_by_half),
		cmocka_unit_test(hits_widen),
		cmocka_unit_test(goes_where_the_program_goes),
		cmocka_unit_test(stays_in_its_page_table),
		cmocka_unit_test(regions_are_apart),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
