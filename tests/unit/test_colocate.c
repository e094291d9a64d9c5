// SPDX-License-Identifier: GPL-2.0-or-later
/* The choice of the CPU that programs and the executor share. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/rules/colocate.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

/* CPUs @allowed and @confined, as bits. */
static struct colocate_cpus cpus_of(unsigned int allowed, unsigned int confined, int busiest)
{
	static const uint32_t none[CPU_SETSIZE];
	struct colocate_cpus c = { .sharers = none, .busiest = busiest };

	for (int i = 0; i < 32; i++) {
		if (allowed >> i & 1)
			CPU_SET(i, &c.allowed);
		if (confined >> i & 1)
			CPU_SET(i, &c.confined);
	}
	return c;
}

static void the_cpu_is_the_busiest_threads_if_possible(void **state)
{
	struct colocate_cpus c = cpus_of(0xf, 0, 2);

	assert_int_equal(colocate_choose(&c), 2);
	c = cpus_of(0xf, 0, -1);
	assert_int_equal(colocate_choose(&c), 0);
	/* It runs where the executor may not. */
	c = cpus_of(0xc, 0, 1);
	assert_int_equal(colocate_choose(&c), 2);
	/* A user has confined another process there. */
	c = cpus_of(0x3, 0x1, 0);
	assert_int_equal(colocate_choose(&c), 1);
	c = cpus_of(0x3, 0x3, 0);
	assert_int_equal(colocate_choose(&c), -1);
	c = cpus_of(0, 0, 0);
	assert_int_equal(colocate_choose(&c), -1);
}

static void cgroups_spread_over_cpus(void **state)
{
	uint32_t sharers[CPU_SETSIZE] = { 2, 1, 1, 3 };
	struct colocate_cpus c = cpus_of(0xf, 0, 3);

	c.sharers = sharers;
	assert_int_equal(colocate_choose(&c), 1);
	c.busiest = 2;
	assert_int_equal(colocate_choose(&c), 2);
	sharers[0] = 0;
	assert_int_equal(colocate_choose(&c), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_cpu_is_the_busiest_threads_if_possible),
		cmocka_unit_test(cgroups_spread_over_cpus),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
