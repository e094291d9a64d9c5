// SPDX-License-Identifier: GPL-2.0-or-later
/* ebbgc_far.h: which donors trace and compact, after failures.  libebbfar's functions are here. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <ebbgc_far.h>

#include <cmocka.h>

enum { CYCLES = 40 };

static struct {
	int compaction;			/* its result */
	uint32_t left_out, faults;	/* bits of pools */
	unsigned asked;			/* to compact */
} fake;

/* --- libebbfar -------------------------------------------------------------------- */

const char *ebbfar_why(const ebbfar_t *far)
{
	(void)far;
	return "";
}

int ebbfar_maps(const ebbfar_t *far)
{
	(void)far;
	return 0;
}

int ebbfar_alloc(ebbfar_t *far, size_t size, struct ebbfar_extent *x)
{
	(void)far, (void)size, (void)x;
	return -ENOSPC;
}

int ebbfar_write(ebbfar_t *far, const struct ebbfar_extent *x, uint64_t offset, const void *data,
		 size_t n)
{
	(void)far, (void)x, (void)offset, (void)data, (void)n;
	return -EIO;
}

int ebbfar_read(ebbfar_t *far, const struct ebbfar_extent *x, uint64_t offset, void *data, size_t n)
{
	(void)far, (void)x, (void)offset, (void)data, (void)n;
	return -EIO;
}

int ebbfar_free(ebbfar_t *far, const struct ebbfar_extent *x)
{
	(void)far, (void)x;
	return -EIO;
}

int ebbfar_heap_new(const struct ebbfar_heap_options *o, ebbfar_heap_t **heap)
{
	(void)o;
	*heap = (ebbfar_heap_t *)&fake;
	return 0;
}

void ebbfar_heap_free(ebbfar_heap_t *heap)
{
	(void)heap;
}

int ebbfar_heap_type(ebbfar_heap_t *heap, uint32_t type, const struct ebbfar_layout *layout)
{
	(void)heap, (void)type, (void)layout;
	return 0;
}

int ebbfar_heap_region(ebbfar_heap_t *heap, const struct ebbfar_region *region)
{
	(void)heap, (void)region;
	return 0;
}

int ebbfar_heap_leave_out(ebbfar_heap_t *heap, unsigned pool)
{
	(void)heap;
	fake.left_out |= 1u << pool;
	return 0;
}

int ebbfar_heap_push(ebbfar_heap_t *heap, uint32_t region, uint32_t word, uint64_t bits)
{
	(void)heap, (void)region, (void)word, (void)bits;
	return 0;
}

int ebbfar_heap_trace(ebbfar_heap_t *heap, unsigned wait_ms)
{
	(void)heap, (void)wait_ms;
	return 0;
}

int ebbfar_heap_end(ebbfar_heap_t *heap, int commit, unsigned wait_ms)
{
	(void)heap, (void)commit, (void)wait_ms;
	return fake.faults ? -EIO : 0;
}

uint32_t ebbfar_heap_faults(const ebbfar_heap_t *heap)
{
	(void)heap;
	return fake.faults;
}

int ebbfar_heap_evacuate(ebbfar_heap_t *heap, const struct ebbfar_region *region,
			 const uint64_t *keep, unsigned wait_ms, struct ebbfar_extent *to)
{
	(void)heap, (void)keep, (void)wait_ms;
	*to = (struct ebbfar_extent){ .size = 16 };
	assert_false(fake.left_out >> region->pool & 1);
	fake.asked++;
	return fake.compaction;
}

/* --- cycles ----------------------------------------------------------------------- */

/* Runs cycles with a compaction after each; returns in how many of them the donor takes part. */
static unsigned cycles(int compaction, uint32_t faults)
{
	struct ebbgc_far_donors d = { .count = 1, .pools = { (ebbfar_t *)&fake } };
	const struct ebbgc_far_region region = { .slot_bytes = 16 };
	const struct ebbgc_far_cycle cycle = { .type_count = 0 };
	const uint64_t keep = 1;
	struct ebbgc_far_place to;
	struct ebbgc_far_store s;
	unsigned traced = 0;

	memset(&fake, 0, sizeof(fake));
	fake.compaction = compaction;
	assert_int_equal(ebbgc_far_donors(&s, &d), 0);
	for (int i = 0; i < CYCLES; i++) {
		fake.left_out = 0;
		assert_int_equal(s.jobs->begin(s.arg, &cycle), 0);
		fake.faults = fake.left_out ? 0 : faults;
		traced += !fake.left_out;
		s.jobs->end(s.arg, true, 1000);
		assert_true(s.jobs->compact(s.arg, &region, &keep, 250, &to) <= 0);
	}
	return traced;
}

static void compactions_that_fail_do_not_end_tracing(void **state)
{
	/* A donor whose share of its processor is used up, and one that still has another cycle. */
	assert_int_equal(cycles(-EAGAIN, 0), CYCLES);
	assert_int_equal(fake.asked, CYCLES);
	assert_int_equal(cycles(-EBUSY, 0), CYCLES);
	assert_int_equal(fake.asked, CYCLES);
	assert_int_equal(cycles(-EPROTO, 0), CYCLES);
	assert_int_equal(fake.asked, CYCLES / EBBGC_FAR_RESTS);
}

static void donors_that_fail_to_trace_are_left_out(void **state)
{
	/* In the cycles 0, 2, 5, 10, 19 and 36. */
	assert_int_equal(cycles(0, 1), 6);
	assert_int_equal(fake.asked, 6);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(compactions_that_fail_do_not_end_tracing),
		cmocka_unit_test(donors_that_fail_to_trace_are_left_out),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
