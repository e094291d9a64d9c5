// SPDX-License-Identifier: GPL-2.0-or-later
/* bpf/epoch.bpf.h, compiled natively, on maps of the test's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <ebb/abi.h>

#define TGID 7
#define OWNER 42
#define SLOT 3
#define PERCENT 10

/* What else the BPF programs have. */
struct mm_pages {
	__s64 in, out;
};

static bool folds;              /* the kernel counts on each CPU first */
#define MM_PAGES_FROM_6_2 folds

static struct ebb_meta meta;
static __u32 epoch_slots;
static __u64 epochs;
static struct ebb_counters counters;

static void *bpf_map_lookup_elem(void *map, const void *key)
{
	if (map == &epoch_slots)
		assert_int_equal(*(const __u32 *)key, TGID);
	else if (map == &epochs)
		assert_int_equal(*(const __u32 *)key, SLOT);
	return map;
}

static struct ebb_counters *counters_of(__u64 owner)
{
	assert_int_equal(owner, OWNER);
	return &counters;
}

#define count_atomic(c, field, n) ((c)->field += (n))
#undef __always_inline
#define __always_inline inline
/* ebbd writes the constant before it loads the program. */
#define const
#include "bpf/epoch.bpf.h"
#undef const

static struct ebb_proc process;

static int begin(void **state)
{
	meta = (struct ebb_meta){ .epoch_percent = PERCENT, .hooks = EBB_HOOKS_FENTRY };
	process = (struct ebb_proc){ .cgroup = OWNER };
	counters = (struct ebb_counters){ 0 };
	epoch_slots = SLOT;
	epochs = 0;
	possible_cpus = 1;
	folds = true;
	return 0;
}

/* Swaps in @churn pages, of the memory that the kernel counts; returns the epochs that end. */
static uint64_t look(__s64 in, __s64 out, uint64_t churn)
{
	uint64_t before = process.epoch;

	process.swapped_in += churn;
	proc_look(&process, TGID, (struct mm_pages){ in, out }, OWNER);
	assert_int_equal(process.epoch, epochs);
	assert_int_equal(process.epoch, counters.epochs);
	return process.epoch - before;
}

/* A tenth of its memory each, on every kernel. */
static void churn_ends_epochs(void **state)
{
	for (int i = 0; i < 2; i++) {
		begin(NULL);
		folds = i;
		assert_int_equal(look(6000, 4000, 1000), 0);
		assert_int_equal(look(6000, 4000, 1), 1);
		assert_int_equal(process.base, 1000);
		assert_int_equal(look(6000, 4000, 998), 0);
		/* The epoch before left one page, and this leaves 99. */
		assert_int_equal(look(6000, 4000, 1100), 2);
		assert_int_equal(process.base, 3000);
	}
}

/* As of a process of which few pages have been folded. */
static void a_short_count_ends_few_epochs(void **state)
{
	for (uint32_t cpus = 1; cpus <= 4096; cpus *= 2)
		for (__s64 in = 2; in <= 32; in++) {
			begin(NULL);
			possible_cpus = cpus;
			assert_in_range(look(in, 0, 1000), 0, 4);
			assert_in_range(look(in, 0, 1), 0, 1);
			assert_in_range(look(in, 0, 1), 0, 1);
		}
	/* So few that a page in and out would end one. */
	begin(NULL);
	folds = false;
	assert_int_equal(look(2, 0, 1000), 4);
	assert_int_equal(process.base, 1000);
	assert_int_equal(look(2, 0, 1), 0);
}

/* With 256 CPUs, 512 MiB may be missing: a tenth of that ends an epoch. */
static void nothing_folded_is_some_memory(void **state)
{
	const uint64_t length = (256 * 512 * PERCENT + 99) / 100;

	possible_cpus = 256;
	assert_int_equal(look(0, 0, length), 0);
	assert_int_equal(look(0, 0, 1), 1);
	/* A small process on a small machine is as large as it is. */
	begin(NULL);
	possible_cpus = 2;
	assert_int_equal(look(200, 0, 20), 0);
	assert_int_equal(look(200, 0, 1), 1);
	/* Before 6.2, none is missing. */
	begin(NULL);
	folds = false;
	assert_int_equal(look(0, 0, 1000), 0);
	assert_int_equal(look(20, 0, 0), 4);
}

/* Pages dropped clean, which without bpf/exact only the count of swapped-out pages shows. */
static void dropped_pages_are_churn(void **state)
{
	meta.hooks = EBB_HOOKS_TRACEPOINTS;
	assert_int_equal(look(10000, 0, 0), 0);
	assert_int_equal(look(9000, 1000, 0), 0);
	assert_int_equal(look(8999, 1001, 0), 1);
	assert_int_equal(process.swapped_out, 1001);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(churn_ends_epochs, begin),
		cmocka_unit_test_setup(a_short_count_ends_few_epochs, begin),
		cmocka_unit_test_setup(nothing_folded_is_some_memory, begin),
		cmocka_unit_test_setup(dropped_pages_are_churn, begin),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
