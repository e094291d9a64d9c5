// SPDX-License-Identifier: GPL-2.0-or-later
/* Whether the pages of swap fit elsewhere.  No machine has memory and swap for those here. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <ebb/page.h>
#include "ebbctl/device/swaps.h"
#include "lib/host/cgroup.h"
#include "lib/host/cgroup_files.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define MIB (1ull << 20)

/* The only cgroup; its limit is 1 GiB. */
static struct cgroup_memory memory;

int cgroup_each(int (*each)(const char *dir, void *data), void *data)
{
	return each("/x", data);
}

int cgroup_memory_read(const char *dir, struct cgroup_memory *m)
{
	*m = memory;
	return 0;
}

int cgroup_resolve(const char *name, struct cgroup_ref *c, struct error *e)
{
	strcpy(c->rel, name);
	return 0;
}

uint64_t cgroup_limit(const struct cgroup_ref *c)
{
	return 1024 * MIB;
}

static void devices_need_room_for_all_their_pages(void **state)
{
	const uint64_t available = memory_available();
	const struct swap_area areas[] = {
		{ .path = "/dev/none0", .size = 1ull << 60, .used = available / 2 },
		{ .path = "/dev/none1", .size = 1ull << 60, .used = 1ull << 59 },
	};
	struct error e = { 0 };

	assert_true(available > 0);
	assert_int_equal(swaps_can_leave("a, b", areas, 2, "wait", &e), -EBUSY);
	assert_int_equal(e.exit_status, EXIT_REFUSED);
	assert_memory_equal(e.text, "devices a, b: 512", strlen("devices a, b: 512"));
	assert_non_null(strstr(e.text, "end programs, or wait"));
	e = (struct error){ 0 };
	assert_int_equal(swaps_can_leave("b", areas + 1, 1, "wait", &e), -EBUSY);
	assert_memory_equal(e.text, "device b: 512", strlen("device b: 512"));
}

static void nothing_needs_no_room(void **state)
{
	const struct swap_area area = { .path = "/dev/none0", .size = 1ull << 60 };

	assert_int_equal(swaps_can_leave("a", &area, 1, "wait", NULL), 0);
}

/* More than fits in other swap of this machine: some of the pages stay in memory. */
static struct swap_area area_without_other_swap(void)
{
	struct swap_area areas[SWAPS_MAX], area = { .path = "/dev/none0", .size = 1ull << 60,
						    .used = EBB_PAGE };
	int n = swaps_read(areas);

	for (int i = 0; i < n; i++)
		area.used += areas[i].size - areas[i].used;
	return area;
}

static void pages_need_room_in_their_cgroups(void **state)
{
	const struct swap_area area = area_without_other_swap();
	struct error e = { 0 };

	memory = (struct cgroup_memory){ .anon = 100 * MIB, .shared = 500 * MIB,
					 .swapped = 424 * MIB };
	assert_int_equal(swaps_can_leave("a", &area, 1, "wait", &e), 0);
	memory.shared += MIB;
	assert_int_equal(swaps_can_leave("a", &area, 1, "wait", &e), -EBUSY);
	assert_non_null(strstr(e.text, "(424 MiB swapped out, 601 MiB resident, limit 1.0 GiB)"));
	memory = (struct cgroup_memory){ .anon = 2048 * MIB };
	assert_int_equal(swaps_can_leave("a", &area, 1, "wait", NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(devices_need_room_for_all_their_pages),
		cmocka_unit_test(nothing_needs_no_room),
		cmocka_unit_test(pages_need_room_in_their_cgroups),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
