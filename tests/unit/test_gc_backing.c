// SPDX-License-Identifier: GPL-2.0-or-later
/* What the kernel can still back, by files that the test writes. */
#include <fcntl.h>
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

/* Writes a file below the root, and makes its directories. */
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

/* Deeper than the longest path: an outer cgroup counts. */
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

/* Without a free descriptor the files are read again next time, as they are when much is left. */
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

/* An eighth of what is left is taken before the files are read again. */
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

/* --- a heap with a limited machine --------------------------------------------------------- */

static struct {
	ebbgc_heap_t *heap;
	uint64_t bytes;
	bool measured;		/* what is used of them is what the kernel says */
	char text[64];
} allowed;

/* Returns the resident bytes of the heap that the kernel may not drop. */
static uint64_t resident(void)
{
	unsigned long from, to, kib, rss = 0, lazy = 0;
	char base[32], line[256];
	bool here = false;
	FILE *f = fdopen(open("/proc/self/smaps", O_RDONLY | O_CLOEXEC), "r");

	assert_non_null(f);
	snprintf(base, sizeof(base), "%lx-", (unsigned long)allowed.heap->base);
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			here = !strncmp(line, base, strlen(base));
		else if (here && sscanf(line, "Rss: %lu", &kib) == 1)
			rss += kib;
		else if (here && sscanf(line, "LazyFree: %lu", &kib) == 1)
			lazy += kib;
	}
	fclose(f);
	return (uint64_t)(rss - lazy) << 10;
}

FILE *fopen(const char *path, const char *mode)
{
	uint64_t taken;
	int fd;

	if (allowed.heap && !strcmp(path, "/proc/self/cgroup"))
		return NULL;
	if (allowed.heap && !strcmp(path, "/proc/meminfo")) {
		/* The reader of the files holds the lock. */
		taken = allowed.measured ?
				resident() :
				((uint64_t)allowed.heap->used + allowed.heap->committed_free)
					<< REGION_SHIFT;
		if (taken > allowed.bytes)
			taken = allowed.bytes;
		snprintf(allowed.text, sizeof(allowed.text), "MemAvailable: %llu kB\n",
			 (unsigned long long)(BACKING_RESERVE + allowed.bytes - taken) >> 10);
		return fmemopen(allowed.text, strlen(allowed.text), "r");
	}
	fd = open(path, (*mode == 'r' ? O_RDONLY : O_RDWR | O_CREAT | O_TRUNC) | O_CLOEXEC, 0600);
	return fd < 0 ? NULL : fdopen(fd, mode);
}

static const struct ebbgc_layout bytes_layout = {
	.name = "bytes", .flags = EBBGC_LEAF, .size = 8, .element_size = 1, .length_width = 8,
};

/* @more: features of the heap, "" or ",NAME...", set before its threads begin. */
static ebbgc_mutator_t *allow(uint64_t bytes, const char *more, ebbgc_type_t *node,
			      ebbgc_type_t *leaf)
{
	char options[64];
	struct ebbgc_options o;
	ebbgc_mutator_t *m;

	ebbgc_options_init(&o);
	snprintf(options, sizeof(options), "sizing=fixed,max=64M,min=1M,check%s", more);
	assert_int_equal(ebbgc_debug(&o, options), 0);
	assert_int_equal(ebbgc_heap_create(&o, &allowed.heap), 0);
	allowed.bytes = bytes;
	assert_int_equal(ebbgc_type_register(allowed.heap, &node_layout, node), 0);
	assert_int_equal(ebbgc_type_register(allowed.heap, &bytes_layout, leaf), 0);
	assert_int_equal(ebbgc_attach(allowed.heap, &m), 0);
	return m;
}

static void end(ebbgc_mutator_t *m)
{
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(allowed.heap), 0);
	allowed.heap = NULL;
	allowed.measured = false;
}

/* Without backing, free regions above the released ones are used. */
static void what_is_free_is_had(void **unused)
{
	ebbgc_type_t node, leaf;
	ebbgc_mutator_t *m = allow(8 * MIB, "", &node, &leaf);
	ebbgc_handle_t *low = ebbgc_handle_new(m, EBBGC_NULL),
		       *high = ebbgc_handle_new(m, EBBGC_NULL);

	ebbgc_handle_set(low, ebbgc_alloc_length(m, leaf, 6 * MIB));
	memset((char *)ebbgc_ptr(ebbgc_handle_get(low)) + 8, 1, 6 * MIB);
	ebbgc_handle_set(high, ebbgc_alloc_length(m, leaf, MIB));
	allowed.heap->options.resident_budget = 1;
	ebbgc_handle_set(low, EBBGC_NULL);
	assert_int_equal(ebbgc_collect(m), 0);
	assert_true(stats_of(allowed.heap).released_bytes >= 6 * MIB);
	allowed.heap->options.resident_budget = 0;
	ebbgc_handle_set(high, EBBGC_NULL);
	assert_int_equal(ebbgc_collect(m), 0);
	assert_true(allowed.heap->committed_free >= MIB >> REGION_SHIFT);
	/* Another program has the rest. */
	allowed.bytes = (uint64_t)allowed.heap->committed_free << REGION_SHIFT;
	allowed.heap->backing.bytes = 0;
	for (size_t i = 0; i < MIB / 2; i += 32)
		assert_false(ebbgc_is_null(ebbgc_alloc(m, node)));
	assert_int_equal(stats_of(allowed.heap).full_cycles, 2);
	end(m);
}

/* The memory of scattered free regions can back a large object elsewhere. */
static void what_lies_apart_is_given_back(void **unused)
{
	ebbgc_type_t node, leaf, refs;
	ebbgc_mutator_t *m = allow(8 * MIB, "", &node, &leaf);
	struct ebbgc_frame frame;
	ebbgc_ref_t kept;

	assert_int_equal(ebbgc_type_register(allowed.heap, &refs_layout, &refs), 0);
	kept = ebbgc_alloc_length(m, refs, 128);
	ebbgc_frame_push(m, &frame, &kept, 1);
	for (size_t i = 0; i < 124; i++) {
		ebbgc_ref_t one = ebbgc_alloc_length(m, leaf, 60000);

		assert_false(ebbgc_is_null(one));
		if (i & 1)
			ebbgc_store(m, kept, &refs_of(kept)->slots[i], one);
	}
	assert_false(ebbgc_is_null(ebbgc_alloc_length(m, leaf, 3 * MIB)));
	end(m);
}

/* Dropped pages still count as the heap's: it will use them again. */
static void what_is_dropped_is_no_room(void **unused)
{
	ebbgc_type_t node, leaf;
	ebbgc_mutator_t *m = allow(16 * MIB, ",drop", &node, &leaf);
	ebbgc_ref_t kept = EBBGC_NULL;
	struct ebbgc_frame frame;

	ebbgc_frame_push(m, &frame, &kept, 1);
	/* One node lives in each region. */
	for (size_t i = 0; i < 12 * MIB; i += 32) {
		ebbgc_ref_t r = ebbgc_alloc(m, node);

		assert_false(ebbgc_is_null(r));
		if (i % REGION_SIZE)
			continue;
		ebbgc_store(m, r, &node_of(r)->left, kept);
		kept = r;
	}
	assert_int_equal(ebbgc_collect(m), 0);
	assert_true(stats_of(allowed.heap).dropped_bytes >= 10 * MIB);
	allowed.measured = true;
	allowed.heap->backing.bytes = 0;
	for (;;) {
		ebbgc_ref_t r = ebbgc_alloc_length(m, leaf, 60000);

		if (ebbgc_is_null(r))
			break;
		memset((char *)ebbgc_ptr(r) + 8, 1, 60000);
		assert_int_equal(ebbgc_handle_new(m, r) == NULL, 0);
		assert_true(resident() <= allowed.bytes);
	}
	/* In existing regions. */
	for (size_t i = 0; i < 10 * MIB; i += 32) {
		ebbgc_ref_t r = ebbgc_alloc(m, node);

		assert_false(ebbgc_is_null(r));
		ebbgc_store(m, r, &node_of(r)->left, kept);
		kept = r;
	}
	assert_true(resident() <= allowed.bytes);
	end(m);
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
		cmocka_unit_test(what_is_free_is_had),
		cmocka_unit_test(what_lies_apart_is_given_back),
		cmocka_unit_test(what_is_dropped_is_no_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
