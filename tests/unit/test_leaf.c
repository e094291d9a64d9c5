// SPDX-License-Identifier: GPL-2.0-or-later
/* What leaf cgroups may have outstanding, on directories and counters of the test's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail
#include <bpf/bpf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <ebb/abi.h>
#include "ebbd/prefetch/leaf.h"
#include "lib/base/files.h"

#define MIB (1ULL << 20)
#define HEADROOM 8
#define ROOM(mib) ((mib)*MIB / 4096 / HEADROOM)
#define SECOND 1000000000ULL
#define LEAVES (EBB_MAX_LEAVES + 8)

/* maps/leaves, by id. */
static struct ebb_leaf map[LEAVES];
static char root[] = "/tmp/ebb-test-leaf.XXXXXX";

int bpf_map_lookup_elem(int fd, const void *key, void *value)
{
	memcpy(value, &map[*(const uint64_t *)key], sizeof(map[0]));
	return 0;
}

int bpf_map_update_elem(int fd, const void *key, const void *value, __u64 flags)
{
	memcpy(&map[*(const uint64_t *)key], value, sizeof(map[0]));
	return 0;
}

int bpf_map_delete_elem(int fd, const void *key)
{
	memset(&map[*(const uint64_t *)key], 0, sizeof(map[0]));
	return 0;
}

static uint64_t total_swap = 1024 * MIB, free_swap = 1024 * MIB;

int sysinfo(struct sysinfo *s)
{
	*s = (struct sysinfo){ .totalswap = total_swap >> 12, .freeswap = free_swap >> 12,
			       .mem_unit = 4096 };
	return 0;
}

static void write_file(const char *dir, const char *name, const char *text)
{
	char path[256];
	FILE *f;

	snprintf(path, sizeof(path), "%s%s/%s", root, dir, name);
	f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	assert_int_equal(fclose(f), 0);
}

static const char *read_back(const char *dir, const char *name)
{
	static char text[64];
	char path[256];

	snprintf(path, sizeof(path), "%s%s/%s", root, dir, name);
	return file_read(path, text, sizeof(text)) < 0 ? "" : text;
}

static void limit(const char *dir, uint64_t mib)
{
	char text[32] = "max";

	if (mib)
		snprintf(text, sizeof(text), "%llu", (unsigned long long)(mib * MIB));
	write_file(dir, "memory.max", text);
}

static void use(const char *dir, uint64_t mib)
{
	char text[32];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)(mib * MIB));
	write_file(dir, "memory.current", text);
	write_file(dir, "memory.reclaim", "");
}

/* A leaf /slice/child below a slice, in a hierarchy that is mounted at root. */
static struct leaf *leaf_at(struct leaves *l, uint64_t id, const char *rel, uint64_t now)
{
	static struct cgroup_ref c;

	memset(&c, 0, sizeof(c));
	snprintf(c.path, sizeof(c.path), "%s%s", root, rel);
	snprintf(c.rel, sizeof(c.rel), "%s", rel);
	c.id = id;
	c.v2 = true;
	leaves_add(l, &c, now);
	return leaf_find(l, id, now);
}

static void the_tightest_limit_decides(void **unused)
{
	struct leaves *l = leaves_new(0, HEADROOM);
	struct leaf *child, *other;

	limit("/slice", 0);
	limit("/slice/child", 64);
	limit("/slice/other", 0);
	child = leaf_at(l, 1, "/slice/child", SECOND);
	other = leaf_at(l, 2, "/slice/other", SECOND);
	assert_int_equal(leaf_limit(child), 64 * MIB);
	assert_int_equal(leaf_take(l, child, 30000), ROOM(64));
	assert_int_equal(leaf_limit(other), UINT64_MAX);
	assert_int_equal(leaf_take(l, other, 30000), 30000);
	assert_int_equal(map[1].room, ROOM(64));
	/* An ancestor's limit is one of its own, a second later. */
	limit("/slice", 32);
	assert_int_equal(leaf_limit(leaf_find(l, 1, 2 * SECOND - 1)), 64 * MIB);
	assert_int_equal(leaf_limit(leaf_find(l, 1, 2 * SECOND)), 32 * MIB);
	assert_int_equal(leaf_take(l, child, 30000), ROOM(32));
	assert_int_equal(leaf_take(l, leaf_find(l, 2, 2 * SECOND), 30000), ROOM(32));
	assert_int_equal(map[1].room, ROOM(32));
	leaves_free(&l);
}

static void pages_in_flight_fill_the_room(void **unused)
{
	struct leaves *l = leaves_new(0, HEADROOM);
	struct leaf *child, *other;

	limit("/slice", 0);
	limit("/slice/child", 64);
	limit("/slice/other", 64);
	child = leaf_at(l, 1, "/slice/child", SECOND);
	other = leaf_at(l, 2, "/slice/other", SECOND);
	leaf_settle(child, ROOM(64) - 8);
	assert_int_equal(leaf_take(l, child, 64), 8);
	assert_int_equal(leaf_take(l, other, 64), 64);
	map[1].used = 20;
	assert_int_equal(leaf_take(l, child, 64), 28);
	leaf_settle(child, 28);
	/* A sweep finds 100 of them still in flight; the others are used, idle or have expired. */
	leaves_learn(l, 70, 1, SECOND);
	leaves_sweep_begin(l);
	for (int i = 0; i < 100; i++)
		leaves_sweep_page(l, 70);
	leaves_sweep_page(l, 71);
	map[1].used = 500;
	leaves_sweep_end(l, SECOND);
	assert_int_equal(leaf_take(l, child, 30000), ROOM(64) - 100);
	map[1].used = 530;
	assert_int_equal(leaf_take(l, child, 30000), ROOM(64) - 70);
	leaves_free(&l);
}

static void room_is_made_at_each_limit(void **unused)
{
	struct leaves *l = leaves_new(0, HEADROOM);
	struct leaf *child;

	limit("/slice", 128);
	limit("/slice/child", 64);
	use("/slice", 100);
	use("/slice/child", 60);
	child = leaf_at(l, 1, "/slice/child", SECOND);
	assert_true(leaf_make_room(child, 1024));
	assert_string_equal(read_back("/slice/child", "memory.reclaim"), "");
	/* The child is nearly full: its own pages go. */
	use("/slice/child", 62);
	assert_true(leaf_make_room(child, 1024));
	assert_string_equal(read_back("/slice/child", "memory.reclaim"), "2097152");
	assert_string_equal(read_back("/slice", "memory.reclaim"), "");
	/* The slice is: pages of any of its cgroups. */
	use("/slice/child", 10);
	use("/slice", 127);
	assert_true(leaf_make_room(child, 1024));
	assert_string_equal(read_back("/slice/child", "memory.reclaim"), "");
	assert_string_equal(read_back("/slice", "memory.reclaim"), "3145728");
	leaves_free(&l);
}

/* Its user has lowered the limit; the kernel reclaims all that it is told to, however long. */
static void far_above_its_limit_nothing_is_reclaimed(void **unused)
{
	struct leaves *l = leaves_new(0, HEADROOM);
	struct leaf *child;

	limit("/slice", 0);
	limit("/slice/child", 64);
	use("/slice", 640);
	use("/slice/child", 640);
	child = leaf_at(l, 1, "/slice/child", SECOND);
	assert_false(leaf_make_room(child, 1024));
	assert_string_equal(read_back("/slice/child", "memory.reclaim"), "");
	leaves_free(&l);
}

static void the_nearest_limit_tells_what_is_unused(void **unused)
{
	struct leaves *l = leaves_new(0, HEADROOM);

	limit("/slice", 128);
	limit("/slice/child", 64);
	limit("/slice/other", 0);
	use("/slice", 100);
	use("/slice/child", 60);
	assert_int_equal(leaf_unused(leaf_at(l, 1, "/slice/child", SECOND)), 4 * MIB);
	assert_int_equal(leaf_unused(leaf_at(l, 2, "/slice/other", SECOND)), 28 * MIB);
	use("/slice", 127);
	assert_int_equal(leaf_unused(leaf_find(l, 1, SECOND)), MIB);
	use("/slice", 129);
	assert_int_equal(leaf_unused(leaf_find(l, 1, SECOND)), 0);
	limit("/slice", 0);
	assert_int_equal(leaf_unused(leaf_find(l, 2, 2 * SECOND)), UINT64_MAX);
	leaves_free(&l);
}

static void much_under_writeback_stops_it(void **unused)
{
	struct leaves *l = leaves_new(0, HEADROOM);
	struct leaf *child;

	limit("/slice", 0);
	limit("/slice/child", 64);
	use("/slice/child", 10);
	write_file("/slice/child", "memory.stat", "anon 1\nfile_writeback 17825792\n");
	child = leaf_at(l, 1, "/slice/child", SECOND);
	assert_true(leaf_make_room(child, 1));
	leaf_settle(child, ROOM(64));
	assert_false(leaf_make_room(child, 1));
	write_file("/slice/child", "memory.stat", "anon 1\nfile_writeback 1048576\n");
	assert_true(leaf_make_room(child, 1));
	leaves_free(&l);
}

static void full_swap_stops_it(void **unused)
{
	struct leaves *l = leaves_new(0, HEADROOM);
	struct leaf *child, *other;

	limit("/slice", 0);
	limit("/slice/child", 64);
	limit("/slice/other", 0);
	use("/slice/child", 10);
	child = leaf_at(l, 1, "/slice/child", SECOND);
	other = leaf_at(l, 2, "/slice/other", SECOND);
	free_swap = 33 * MIB;
	assert_true(leaf_make_room(child, 256));
	assert_false(leaf_make_room(child, 257));
	/* The machine's memory counts where the cgroup has no limit. */
	assert_false(leaf_make_room(other, 257));
	/* Of a small swap a part is enough. */
	total_swap = 16 * MIB;
	free_swap = 2 * MIB;
	assert_true(leaf_make_room(child, 256));
	assert_false(leaf_make_room(child, 257));
	total_swap = free_swap = 1024 * MIB;
	leaves_free(&l);
}

static void a_full_swap_limit_stops_it(void **unused)
{
	struct leaves *l = leaves_new(0, HEADROOM);
	struct leaf *child;

	limit("/slice", 0);
	limit("/slice/child", 64);
	use("/slice/child", 10);
	write_file("/slice", "memory.swap.max", "67108864");
	write_file("/slice", "memory.swap.current", "66060288");
	child = leaf_at(l, 1, "/slice/child", SECOND);
	assert_true(leaf_make_room(child, 256));
	assert_false(leaf_make_room(child, 257));
	/* A limit on swap is none on memory. */
	assert_int_equal(leaf_limit(child), 64 * MIB);
	assert_int_equal(leaf_unused(child), 54 * MIB);
	write_file("/slice", "memory.swap.max", "max");
	assert_true(leaf_make_room(leaf_find(l, 1, 2 * SECOND), 257));
	leaves_free(&l);
}

static void unused_leaves_are_forgotten(void **unused)
{
	struct leaves *l = leaves_new(0, HEADROOM);

	limit("/slice", 0);
	limit("/slice/child", 64);
	leaf_at(l, 1, "/slice/child", SECOND);
	leaf_at(l, 2, "/slice/other", SECOND);
	leaves_learn(l, 70, 2, 40 * SECOND);
	leaves_sweep_begin(l);
	leaves_sweep_end(l, 62 * SECOND);
	assert_null(leaf_find(l, 1, 62 * SECOND));
	assert_non_null(leaf_find(l, 2, 62 * SECOND));
	assert_int_equal(map[1].room, 0);
	leaves_free(&l);
}

/* A user may have more cgroups that page than are remembered. */
static void the_leaf_learnt_first_gives_way(void **unused)
{
	struct leaves *l = leaves_new(0, HEADROOM);
	uint64_t id;

	limit("/slice", 0);
	limit("/slice/child", 64);
	for (id = 1; id <= EBB_MAX_LEAVES; id++)
		leaf_at(l, id, "/slice/child", id * 1000);
	leaves_learn(l, 70, 1, id * 1000);
	leaf_at(l, id, "/slice/other", (id + 1) * 1000);
	id++;
	assert_non_null(leaf_find(l, id - 1, id * 1000));
	assert_non_null(leaf_find(l, 1, id * 1000));
	assert_null(leaf_find(l, 2, id * 1000));
	assert_int_equal(map[2].room, 0);
	leaves_free(&l);
}

static const char *const directories[] = { "/slice", "/slice/child", "/slice/other" };

static int make_cgroups(void **unused)
{
	char path[256];
	int r = mkdtemp(root) ? 0 : -1;

	for (size_t i = 0; !r && i < sizeof(directories) / sizeof(directories[0]); i++) {
		snprintf(path, sizeof(path), "%s%s", root, directories[i]);
		r = mkdir(path, 0700);
	}
	return r;
}

static int remove_cgroups(void **unused)
{
	static const char *const files[] = { "memory.max", "memory.current", "memory.reclaim",
					     "memory.stat", "memory.swap.max",
					     "memory.swap.current" };
	char path[256];

	for (size_t i = sizeof(directories) / sizeof(directories[0]); i-- > 0;) {
		for (size_t k = 0; k < sizeof(files) / sizeof(files[0]); k++) {
			snprintf(path, sizeof(path), "%s%s/%s", root, directories[i], files[k]);
			unlink(path);
		}
		snprintf(path, sizeof(path), "%s%s", root, directories[i]);
		if (rmdir(path))
			return -1;
	}
	return rmdir(root);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_tightest_limit_decides),
		cmocka_unit_test(pages_in_flight_fill_the_room),
		cmocka_unit_test(room_is_made_at_each_limit),
		cmocka_unit_test(the_nearest_limit_tells_what_is_unused),
		cmocka_unit_test(much_under_writeback_stops_it),
		cmocka_unit_test(full_swap_stops_it),
		cmocka_unit_test(a_full_swap_limit_stops_it),
		cmocka_unit_test(unused_leaves_are_forgotten),
		cmocka_unit_test(far_above_its_limit_nothing_is_reclaimed),
		cmocka_unit_test(the_leaf_learnt_first_gives_way),
	};

	return cmocka_run_group_tests(tests, make_cgroups, remove_cgroups);
}
