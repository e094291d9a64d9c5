// SPDX-License-Identifier: GPL-2.0-or-later
/* Pages in flight on each device, by what the block layer would report. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ebbd/prefetch/pacing.h"
#include "lib/control/device.h"

#define MS 1000000ULL
#define STEP (100 * MS)

enum { DEVICES = EBB_MAX_DEVICES + 1, TYPE = 3, FIRST_FD = 1000 };

static const struct executor_config config = { .batch = 64, .inflight = 128, .beside = 8 };
static struct ebb_waits waits;
static const struct plane plane = { .devices = 77, .waits = &waits };
/* Of device i, with the swap type TYPE + i. */
static struct sim {
	bool there, replaced;       /* by another disk with its number: the open files fail */
	uint64_t completed, in_flight;
} sim[DEVICES];
static uint64_t now;

int device_record_each(int (*each)(const struct device_record *d, void *data), void *data)
{
	for (uint32_t i = 0; i < DEVICES; i++) {
		struct device_record r = { .major = 7, .minor = i };

		if (sim[i].there && each(&r, data))
			return 1;
	}
	return 0;
}

int bpf_map_lookup_elem(int fd, const void *key, void *value)
{
	uint32_t minor = *(const uint32_t *)key & 0xfffff, type = EBB_SWAP_TYPE + TYPE + minor;

	assert_int_equal(fd, plane.devices);
	memcpy(value, &type, sizeof(type));
	return 0;
}

static const char *const files[] = { "inflight", "stat", "queue/nr_requests" };

int open(const char *path, int flags, ...)
{
	uint32_t minor;
	char name[32];

	if (sscanf(path, "/sys/dev/block/7:%u/%31s", &minor, name) != 2)
		return (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0);
	for (int i = 0; i < 3; i++)
		if (!strcmp(name, files[i])) {
			sim[minor].replaced = false;
			return FIRST_FD + (int)minor * 3 + i;
		}
	abort();
}

ssize_t pread(int fd, void *buf, size_t size, off_t at)
{
	const struct sim *s = &sim[(fd - FIRST_FD) / 3];

	if (s->replaced)
		return -1;
	switch ((fd - FIRST_FD) % 3) {
	case 0:
		return snprintf(buf, size, "%8llu %8u\n", (unsigned long long)s->in_flight, 5u);
	case 1:
		return snprintf(buf, size, "%8llu 0 %llu\n", (unsigned long long)s->completed, 8ull);
	}
	return snprintf(buf, size, "64\n");
}

/* Their descriptors are none. */
int close(int fd)
{
	return fd >= FIRST_FD ? 0 : (int)syscall(SYS_close, fd);
}

static struct pacing *begin(void)
{
	struct pacing *p = pacing_new(&plane, &config);

	memset(&waits, 0, sizeof(waits));
	memset(sim, 0, sizeof(sim));
	sim[0].there = sim[1].there = true;
	now = 1000 * MS;
	pacing_refresh(p);
	pacing_adapt(p, now);
	return p;
}

/* A step in which @misses of @bucket end on device @i, and @pages are requested. */
static void step_beside(struct pacing *p, int i, uint32_t misses, uint32_t bucket, uint32_t pages,
			bool beside)
{
	waits.misses[TYPE + i][bucket] += misses;
	if (pages)
		pacing_requested(p, (uint32_t)(TYPE + i), pages, beside, now);
	now += STEP;
	pacing_adapt(p, now);
}

static void step(struct pacing *p, int i, uint32_t misses, uint32_t bucket, uint32_t pages)
{
	step_beside(p, i, misses, bucket, pages, true);
}

/* Has misses on device @i that are fast without prefetches, and slow with them. */
static void limit(struct pacing *p, int i)
{
	step(p, i, 1000, 16, 0);
	assert_false(pacing_limits(p, (uint32_t)(TYPE + i)));
	step(p, i, 1000, 30, 5000);
	assert_true(pacing_limits(p, (uint32_t)(TYPE + i)));
}

static uint32_t limit_of(const struct pacing *p, uint32_t minor)
{
	for (int i = 0; i < EBB_MAX_DEVICES; i++)
		if (pacing_view(p)->device[i].dev == (7u << 20 | minor))
			return pacing_view(p)->device[i].limit;
	return 0;
}

static void each_device_has_its_own(void **unused)
{
	struct pacing *p = begin();

	assert_int_equal(limit_of(p, 0), UINT32_MAX);
	limit(p, 1);
	assert_int_equal(limit_of(p, 0), UINT32_MAX);
	assert_int_equal(limit_of(p, 1), config.beside);
	assert_false(pacing_limits(p, TYPE));
	assert_int_equal(pacing_take(p, TYPE, 64, now), 64);
	assert_int_equal(pacing_take(p, TYPE + 1, 64, now), config.beside);
	/* Unknown: it may be either. */
	assert_false(pacing_limits(p, PACING_UNKNOWN));
	/* It was removed; another one has its number later. */
	sim[1].there = false;
	pacing_refresh(p);
	assert_false(pacing_limits(p, TYPE + 1));
	limit(p, 0);
	assert_true(pacing_limits(p, PACING_UNKNOWN));
	sim[1].there = true;
	pacing_refresh(p);
	assert_false(pacing_limits(p, TYPE + 1));
	pacing_free(&p);
	assert_null(p);
}

/* A program alone on its device keeps all, even if it misses a lot, or others do elsewhere. */
static void own_misses_limit_nothing(void **unused)
{
	struct pacing *p = begin();

	step_beside(p, 0, 1000, 16, 0, false);
	for (int i = 0; i < 100; i++) {
		step_beside(p, 0, 1000, 40, 5000, false);
		assert_false(pacing_limits(p, TYPE));
	}
	limit(p, 1);
	step_beside(p, 0, 1000, 40, 5000, false);
	assert_false(pacing_limits(p, TYPE));
	pacing_free(&p);
}

/* Another disk gets the number of one that was removed, before its record was missed. */
static void a_replaced_disk_is_new(void **unused)
{
	struct pacing *p = begin();

	limit(p, 0);
	limit(p, 1);
	sim[1].replaced = true;
	assert_int_equal(pacing_reads(p), 0);
	pacing_refresh(p);
	assert_false(sim[1].replaced);
	assert_true(pacing_limits(p, TYPE));
	assert_false(pacing_limits(p, TYPE + 1));
	sim[1].in_flight = 4;
	assert_int_equal(pacing_reads(p), 4);
	limit(p, 1);
	pacing_free(&p);
}

/* A record more than devices can be known: those that are known stay so. */
static void too_many_records(void **unused)
{
	struct pacing *p = begin();

	sim[0].there = false;
	for (uint32_t i = 1; i < DEVICES; i++)
		sim[i].there = true;
	pacing_refresh(p);
	pacing_refresh(p);
	limit(p, DEVICES - 1);
	sim[0].there = true;
	pacing_refresh(p);
	assert_true(pacing_limits(p, TYPE + DEVICES - 1));
	pacing_free(&p);
}

static void reads_of_others_are_not_in_flight(void **unused)
{
	struct pacing *p = begin();

	limit(p, 0);
	/* Misses of others, before and after. */
	sim[0].completed = 500;
	sim[0].in_flight = 7;
	assert_int_equal(pacing_take(p, TYPE, 64, now), 8);
	sim[0].in_flight += 1;
	pacing_requested(p, TYPE, 8, true, now);
	sim[0].in_flight += 3;
	assert_int_equal(pacing_take(p, TYPE, 64, now), 0);
	sim[0].completed += 7;
	sim[0].in_flight -= 7;
	assert_int_equal(pacing_take(p, TYPE, 64, now), 0);
	assert_int_equal(pacing_take(p, TYPE, 1, now), 0);
	/* This one is ours. */
	sim[0].completed += 1;
	sim[0].in_flight -= 1;
	assert_int_equal(pacing_take(p, TYPE, 64, now), 8);
	assert_int_equal(pacing_reads(p), 3);
	pacing_free(&p);
}

/* Shorter calls cost the executor's thread time: that the limit is not reached does not tell. */
static void a_shorter_call_is_held_up(void **unused)
{
	struct pacing *p = begin();

	limit(p, 0);
	for (int i = 0; i < 10; i++) {
		pacing_take(p, TYPE, 8, now);
		step(p, 0, 1000, 16, 100);
		now += STEP;
	}
	assert_int_equal(limit_of(p, 0), config.beside);
	for (int i = 0; i < 10; i++) {
		pacing_take(p, TYPE, 9, now);
		step(p, 0, 1000, 16, 100);
		now += STEP;
	}
	assert_true(limit_of(p, 0) > config.beside);
	pacing_free(&p);
}

static void batches_add_up(void **unused)
{
	struct pacing *p = begin();

	limit(p, 0);
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(pacing_take(p, TYPE, 2, now), 2);
		sim[0].in_flight += 2;
		pacing_requested(p, TYPE, 2, true, now);
	}
	assert_int_equal(pacing_take(p, TYPE, 2, now), 0);
	sim[0].completed += 2;
	sim[0].in_flight -= 2;
	assert_int_equal(pacing_take(p, TYPE, 4, now), 0);
	assert_int_equal(pacing_take(p, TYPE, 2, now), 2);
	pacing_free(&p);
}

/* A device that counts nothing, or whose donor is away, stops nothing for good. */
static void a_device_that_does_not_complete(void **unused)
{
	struct pacing *p = begin();

	limit(p, 0);
	sim[0].in_flight = 8;
	pacing_requested(p, TYPE, 8, true, now);
	now += 199 * MS;
	assert_int_equal(pacing_take(p, TYPE, 8, now), 0);
	now += MS;
	assert_int_equal(pacing_take(p, TYPE, 8, now), 8);
	pacing_free(&p);
}

/* A quarter of the device's queue is for misses.  Calls are of half the limit. */
static void some_requests_are_for_misses(void **unused)
{
	struct pacing *p = begin();

	limit(p, 0);
	for (int i = 0; i < 40; i++) {
		uint32_t call = limit_of(p, 0) < 16 ? 8 : limit_of(p, 0) / 2;

		assert_int_equal(pacing_take(p, TYPE, 64, now), call);
		sim[0].in_flight = 1;
		pacing_requested(p, TYPE, limit_of(p, 0), true, now);
		assert_int_equal(pacing_take(p, TYPE, 64, now), 0);
		sim[0].completed++;
		sim[0].in_flight = 0;
		step(p, 0, 1000, 16, 5000);
		now += STEP;
		assert_in_range(limit_of(p, 0), config.beside, 48);
	}
	assert_int_equal(limit_of(p, 0), 48);
	pacing_free(&p);
}

static void no_limit_if_beside_is_inflight(void **unused)
{
	static const struct executor_config off = { .batch = 64, .inflight = 128, .beside = 128 };
	struct pacing *p = pacing_new(&plane, &off);

	memset(sim, 0, sizeof(sim));
	sim[0].there = true;
	pacing_refresh(p);
	step(p, 0, 1000, 16, 0);
	for (int i = 0; i < 100; i++) {
		step(p, 0, 1000, 40, 5000);
		assert_false(pacing_limits(p, TYPE));
	}
	pacing_free(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_device_has_its_own),
		cmocka_unit_test(own_misses_limit_nothing),
		cmocka_unit_test(a_replaced_disk_is_new),
		cmocka_unit_test(too_many_records),
		cmocka_unit_test(reads_of_others_are_not_in_flight),
		cmocka_unit_test(a_shorter_call_is_held_up),
		cmocka_unit_test(batches_add_up),
		cmocka_unit_test(a_device_that_does_not_complete),
		cmocka_unit_test(some_requests_are_for_misses),
		cmocka_unit_test(no_limit_if_beside_is_inflight),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
