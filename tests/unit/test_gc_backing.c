// SPDX-License-Identifier: GPL-2.0-or-later
/* What the kernel can still back, by files made up here. */
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "gc_test.h"
#include "heap.h"

#define MIB (UINT64_C(1) << 20)

static char root[64];

static int root_make(void **unused)
{
	strcpy(root, "/tmp/ebbgc-backing.XXXXXX");
	return mkdtemp(root) ? 0 : -1;
}

static int root_remove(void **unused)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -r %s", root);
	return system(command);
}

/* Below the root, with the directories on its way. */
static void put(const char *path, const char *text)
{
	char full[256];
	FILE *f;

	snprintf(full, sizeof(full), "%s/%s", root, path);
	for (char *p = strchr(full + strlen(root) + 1, '/'); p; p = strchr(p + 1, '/')) {
		*p = '\0';
		mkdir(full, 0700);
		*p = '/';
	}
	f = fopen(full, "we");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static uint64_t left(void)
{
	char proc[96], cgroups[96];

	snprintf(proc, sizeof(proc), "%s/proc", root);
	snprintf(cgroups, sizeof(cgroups), "%s/cgroup", root);
	return backing_left(proc, cgroups);
}

/* 1000 MiB of memory, 300 MiB of swap. */
static void machine(const char *cgroup)
{
	put("proc/meminfo", "MemTotal: 4096000 kB\nMemAvailable: 1024000 kB\nSwapTotal: 9 kB\n"
			    "SwapFree:         307200 kB\n");
	put("proc/self/cgroup", cgroup);
}

static void nothing_known(void **unused)
{
	assert_int_equal(left(), UINT64_MAX);
}

static void of_the_machine(void **unused)
{
	machine("0::/\n");
	assert_int_equal(left(), 1300 * MIB);
}

static void of_a_cgroup(void **unused)
{
	machine("0::/a/b\n");
	put("cgroup/a/memory.max", "max\n");
	put("cgroup/a/b/memory.max", "104857600\n");
	put("cgroup/a/b/memory.current", "94371840\n");
	put("cgroup/a/b/memory.stat", "anon 1\ninactive_file 1048576\nactive_file 2097152\n");
	assert_int_equal(left(), (10 + 3 + 300) * MIB);
	put("cgroup/a/b/memory.swap.max", "20971520\n");
	put("cgroup/a/b/memory.swap.current", "4194304\n");
	assert_int_equal(left(), (10 + 3 + 16) * MIB);
	put("cgroup/a/b/memory.swap.max", "0\n");
	assert_int_equal(left(), (10 + 3) * MIB);
	/* Over its limit, which was lowered. */
	put("cgroup/a/b/memory.current", "209715200\n");
	assert_int_equal(left(), 3 * MIB);
}

static void of_the_cgroups_around(void **unused)
{
	machine("0::/a/b\n");
	put("cgroup/a/memory.max", "8388608\n");
	put("cgroup/a/memory.current", "1048576\n");
	put("cgroup/a/memory.swap.max", "0\n");
	put("cgroup/a/b/memory.max", "104857600\n");
	put("cgroup/a/b/memory.current", "0\n");
	assert_int_equal(left(), 7 * MIB);
}

/* Further down than a path can be told: what is around it counts. */
static void of_the_cgroups_far_above(void **unused)
{
	char cgroup[2000] = "0::/a/b/";

	memset(cgroup + strlen(cgroup), 'c', sizeof(cgroup) - strlen(cgroup) - 1);
	machine(cgroup);
	put("cgroup/a/memory.max", "8388608\n");
	put("cgroup/a/memory.swap.max", "0\n");
	assert_int_equal(left(), 8 * MIB);
}

static void of_version_1(void **unused)
{
	machine("4:cpu,cpuacct:/\n3:memory,hugetlb:/x\n0::/\n");
	put("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
	put("cgroup/memory/memory.usage_in_bytes", "0\n");
	put("cgroup/memory/x/memory.limit_in_bytes", "104857600\n");
	put("cgroup/memory/x/memory.usage_in_bytes", "94371840\n");
	put("cgroup/memory/x/memory.stat", "inactive_file 99\ntotal_inactive_file 1048576\n"
					   "total_active_file 0\n");
	assert_int_equal(left(), (10 + 1 + 300) * MIB);
	put("cgroup/memory/x/memory.memsw.limit_in_bytes", "125829120\n");
	put("cgroup/memory/x/memory.memsw.usage_in_bytes", "104857600\n");
	assert_int_equal(left(), (20 + 1) * MIB);
}

/* Who has no descriptor left to look with looks again, and so does who saw much. */
static void nothing_to_look_with(void **unused)
{
	struct backing b = { .bytes = 0 };
	struct rlimit most, none;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &most), 0);
	none = (struct rlimit){ 0, most.rlim_max };
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	assert_true(backing_take(&b, 4096));
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &most), 0);
	assert_true(b.bytes < BACKING_MOST);
	assert_true(backing_take(&b, 3 * MIB));
	assert_false(backing_take(&b, UINT64_C(1) << 50));
}

/* Takes before it looks again what is an eighth of what there is. */
static void nothing_left(void **unused)
{
	struct backing b = { .bytes = 3 * MIB };

	assert_true(backing_take(&b, 2 * MIB));
	assert_true(backing_take(&b, MIB));
	assert_int_equal(b.bytes, 0);
	assert_false(backing_take(&b, UINT64_C(1) << 50));
	assert_true(backing_take(&b, 4096));
	b = (struct backing){ .off = true };
	assert_true(backing_take(&b, UINT64_C(1) << 50));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(nothing_known, root_make, root_remove),
		cmocka_unit_test_setup_teardown(of_the_machine, root_make, root_remove),
		cmocka_unit_test_setup_teardown(of_a_cgroup, root_make, root_remove),
		cmocka_unit_test_setup_teardown(of_the_cgroups_around, root_make, root_remove),
		cmocka_unit_test_setup_teardown(of_the_cgroups_far_above, root_make, root_remove),
		cmocka_unit_test_setup_teardown(of_version_1, root_make, root_remove),
		cmocka_unit_test(nothing_to_look_with),
		cmocka_unit_test(nothing_left),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
