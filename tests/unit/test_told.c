// SPDX-License-Identifier: GPL-2.0-or-later
/* What a thread tells ebbd of the mappings that it faults in: bpf/told.bpf.h, natively. */
#include <linux/bpf.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ebbd/prefetch/target.h"

#define SEC(name)
#define __uint(name, value) int(*name)[value]
#define __type(name, value) value *name
#undef __always_inline
#define __always_inline inline
#include "bpf/told.bpf.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define SECOND 1000000000ULL
#define MS 1000000ULL
#define LEAF 77
#define PAGES 100               /* of a mapping */

static struct task_stamp s;

/* A fault on page @vpn of a mapping from @first to @end - 1: as in bpf/fault. */
static bool tells(uint64_t vpn, uint64_t first, uint64_t end, uint64_t now)
{
	if (is_told(&s, vpn, LEAF, now) || !may_tell(&s, now))
		return false;
	s.tells++;
	told_end(&s, first, end, LEAF, now);
	return true;
}

static uint32_t rotates(uint64_t mappings, uint64_t faults, uint64_t *now, uint64_t apart)
{
	uint32_t told = 0;

	for (uint64_t i = 0; i < faults; i++, *now += apart) {
		uint64_t first = i % mappings * 2 * PAGES;

		told += tells(first + i % PAGES, first, first + PAGES, *now);
	}
	return told;
}

static void a_mapping_is_told_four_times_a_second(void **state)
{
	uint64_t now = SECOND;

	s = (struct task_stamp){ 0 };
	assert_true(tells(0, 0, PAGES, now));
	assert_false(tells(PAGES - 1, 0, PAGES, now + 240 * MS));
	assert_true(tells(0, 0, PAGES, now + 260 * MS));
	/* Beside it, and the others that the thread knows not. */
	assert_true(tells(PAGES, PAGES, PAGES + 1, now + 260 * MS));
	assert_false(tells(PAGES, PAGES, PAGES + 1, now + 261 * MS));
	assert_false(is_told(&s, PAGES + 1, LEAF, now + 261 * MS));
	/* In another cgroup nothing is told. */
	assert_false(is_told(&s, PAGES, LEAF + 1, now + 261 * MS));
}

/* Sixteen mappings, such as the arrays of a program, cost one tell each. */
static void mappings_in_rotation_are_told_once(void **state)
{
	uint64_t now = SECOND;

	for (uint64_t n = 1; n <= EBB_TOLD; n++) {
		s = (struct task_stamp){ 0 };
		now += SECOND;
		assert_int_equal(rotates(n, 2000, &now, 100000), n);
		assert_true(rotates(n, 10000, &now, 100000) <= 5 * n);
	}
}

/* So many that a thread cannot remember them: all are told, then no more. */
static void a_thread_tells_no_more_than_is_remembered(void **state)
{
	uint64_t now = SECOND, mappings[] = { EBB_TOLD + 1, 32, TARGET_SPANS, 1000 };

	assert_int_equal(TELLS, TARGET_SPANS);
	for (int i = 0; i < 4; i++) {
		s = (struct task_stamp){ 0 };
		now += SECOND;
		assert_int_equal(rotates(mappings[i], 2000, &now, 100000), TELLS);
		assert_true(rotates(mappings[i], 10000, &now, 100000) <= 5 * TELLS);
	}
}

static void a_mapping_of_any_size_is_told(void **state)
{
	uint64_t huge = 1ULL << 33;

	s = (struct task_stamp){ 0 };
	assert_false(is_told(&s, 0, 0, 0));
	assert_true(tells(huge, huge, 2 * huge, SECOND));
	assert_false(tells(huge + (1ULL << 32) - 2, huge, 2 * huge, SECOND));
	assert_false(is_told(&s, huge - 1, LEAF, SECOND));
	assert_false(is_told(&s, 2 * huge, LEAF, SECOND));
}

/* The stamps' time is short: it wraps. */
static void the_time_may_wrap(void **state)
{
	uint64_t wraps = 1ULL << (32 + TOLD_SHIFT), now = wraps - 100 * MS;

	s = (struct task_stamp){ 0 };
	assert_int_equal(rotates(3, 2000, &now, 100000), 3);
	assert_true(now > wraps);
	assert_int_equal(rotates(3, 2000, &now, 100000), 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_mapping_is_told_four_times_a_second),
		cmocka_unit_test(mappings_in_rotation_are_told_once),
		cmocka_unit_test(a_thread_tells_no_more_than_is_remembered),
		cmocka_unit_test(a_mapping_of_any_size_is_told),
		cmocka_unit_test(the_time_may_wrap),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
