// SPDX-License-Identifier: GPL-2.0-or-later
/* Cached look-ups in governors, a map of the test's own that cannot always be emptied. */
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

static struct plane plane = { .governors = MAP };
static struct {
	uint32_t cached;        /* its entries */
	bool fails;
	int calls, lines;       /* of the kernel, and lines logged */
} map;

void log_line(enum log_level level, const char *fmt, ...)
{
	map.lines++;
}

void log_event(enum log_event event, enum log_level level, const char *fmt, ...)
{
	map.lines++;
}

int bpf_map_lookup_and_delete_batch(int fd, void *in, void *out, void *keys, void *values,
				    __u32 *count, const struct bpf_map_batch_opts *opts)
{
	assert_int_equal(fd, MAP);
	map.calls++;
	if (map.fails) {
		*count = 0;
		return -(errno = ENOMEM);
	}
	/* As the kernel does, whole buckets: less than there is room for. */
	*count = map.cached < *count - 1 ? map.cached : *count - 1;
	memset(keys, 0, *count * sizeof(uint64_t));
	memset(values, 0, *count * sizeof(uint64_t));
	map.cached -= *count;
	return map.cached ? 0 : -(errno = ENOENT);
}

static int begin(void **unused)
{
	memset(&map, 0, sizeof(map));
	map.cached = EBB_MAX_GOVERNORS;
	plane.flushes = 0;
	return 0;
}

static void cached_entries_go_and_those_of_look_ups_meanwhile(void **unused)
{
	plane_flush_cache(&plane);
	assert_int_equal(map.cached, 0);
	/* Not one for each entry. */
	assert_int_equal(map.calls, 2);
	for (int second = 0; second < 2; second++) {
		map.cached = 1;
		plane_flush_late(&plane);
		assert_int_equal(map.cached, 0);
	}
	map.calls = 0;
	plane_flush_late(&plane);
	assert_int_equal(map.calls, 0);
}

static void a_flush_that_failed_is_repeated(void **unused)
{
	map.fails = true;
	plane_flush_cache(&plane);
	for (int second = 0; second < 5; second++)
		plane_flush_late(&plane);
	assert_int_equal(map.calls, 6);
	assert_int_equal(map.lines, 1);
	assert_int_equal(map.cached, EBB_MAX_GOVERNORS);
	map.fails = false;
	plane_flush_late(&plane);
	assert_int_equal(map.cached, 0);
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
