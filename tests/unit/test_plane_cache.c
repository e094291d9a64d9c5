// SPDX-License-Identifier: GPL-2.0-or-later
/* Cached look-ups in maps/cgroups, on a map of the test's own that cannot always be read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail
#include <bpf/bpf.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "ebbd/plane/plane.h"
#include "lib/base/log.h"

#define MAP 77

static struct plane plane = { .cgroups = MAP };
static struct {
	bool attached, cached;  /* its entries */
	bool fails;
	int reads, lines;       /* look-ups, and lines logged */
} map;

void log_line(enum log_level level, const char *fmt, ...)
{
	map.lines++;
}

void log_event(enum log_event event, enum log_level level, const char *fmt, ...)
{
	map.lines++;
}

/* Entry 1 is an attached cgroup's, entry 2 is cached. */
int bpf_map_lookup_batch(int fd, void *in, void *out, void *keys, void *values, __u32 *count,
			 const struct bpf_map_batch_opts *opts)
{
	struct ebb_cgroup *c = values;
	uint64_t *id = keys;

	assert_int_equal(fd, MAP);
	map.reads++;
	*count = 0;
	if (map.fails)
		return -(errno = ENOMEM);
	if (map.attached) {
		id[*count] = 1;
		c[(*count)++] = (struct ebb_cgroup){ .flags = EBB_CGROUP_ATTACHED };
	}
	if (map.cached) {
		id[*count] = 2;
		c[(*count)++] = (struct ebb_cgroup){ .flags = EBB_CGROUP_INHERITED };
	}
	return -(errno = ENOENT);
}

int bpf_map_delete_elem(int fd, const void *key)
{
	assert_int_equal(fd, MAP);
	assert_int_equal(*(const uint64_t *)key, 2);
	map.cached = false;
	return 0;
}

static int begin(void **unused)
{
	memset(&map, 0, sizeof(map));
	map.attached = map.cached = true;
	plane.flushes = 0;
	return 0;
}

static void cached_entries_go_and_those_of_look_ups_meanwhile(void **unused)
{
	plane_flush_cache(&plane);
	assert_true(map.attached);
	assert_false(map.cached);
	for (int second = 0; second < 2; second++) {
		map.cached = true;
		plane_flush_late(&plane);
		assert_false(map.cached);
	}
	map.reads = 0;
	plane_flush_late(&plane);
	assert_int_equal(map.reads, 0);
}

static void a_flush_that_failed_is_repeated(void **unused)
{
	map.fails = true;
	plane_flush_cache(&plane);
	for (int second = 0; second < 5; second++)
		plane_flush_late(&plane);
	assert_int_equal(map.reads, 6);
	assert_int_equal(map.lines, 1);
	assert_true(map.cached);
	map.fails = false;
	plane_flush_late(&plane);
	assert_false(map.cached);
	assert_true(map.attached);
	assert_int_equal(map.lines, 1);
	/* Another failure is told, too. */
	map.fails = true;
	plane_flush_cache(&plane);
	assert_int_equal(map.lines, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(cached_entries_go_and_those_of_look_ups_meanwhile, begin),
		cmocka_unit_test_setup(a_flush_that_failed_is_repeated, begin),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
