// SPDX-License-Identifier: GPL-2.0-or-later
/* Two seconds of `make fuzz-kmod`, its corpus, and whether it gets anywhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <ebb/swap.h>

#include "tests/fuzz/kmod.h"

#include <cmocka.h>

#include "fuzz_corpus.h"

#define MOST (16u << 10)

static uint8_t data[MOST];

static void numbers(void **state)
{
	uint64_t frames = 0, loans = 0, recalls = 0, ends[EBB_SWAP_CAUSE_PROTOCOL + 1] = { 0 };
	clock_t end = clock() + 2 * CLOCKS_PER_SEC;

	for (uint64_t seed = 1; clock() < end; seed++) {
		size_t size = 1 + seed * 977 % 4096;
		struct fuzz_protocol_result r;

		fuzz_kmod_bytes(seed, data, size);
		fuzz_kmod(data, size, &r);
		if (*r.wrong)
			fail_msg("%s (number %llu)", r.wrong, (unsigned long long)seed);
		frames += r.frames;
		loans += r.loans;
		recalls += r.accesses;
		ends[-r.end]++;
	}
	/* All of it is reached. */
	assert_true(frames > 1000);
	assert_true(loans > 100);
	assert_true(recalls > 100);
	for (int cause = EBB_SWAP_CAUSE_NONE; cause <= EBB_SWAP_CAUSE_PROTOCOL; cause++)
		assert_true(cause == EBB_SWAP_CAUSE_COMMAND || ends[cause] > 3);
}

/* Opens a session of one connection of a device with a backup; see fuzz_kmod(). */
static const uint8_t opens[] = { 4, 0, 0, 0, 0, 0, 0, 0, 0 };
static const uint8_t evicts[] = { 0, 0, 12, 0, 0, 0 };
/* Runs two of the works: the probe, and the one that answers EVICTs. */
static const uint8_t works[] = { 5, 5 };

static size_t put(size_t at, const uint8_t *bytes, size_t n)
{
	memcpy(data + at, bytes, n);
	return at + n;
}

static void unanswered_recalls(void **state)
{
	size_t n = put(0, opens, sizeof(opens));
	struct fuzz_protocol_result r;

	for (int i = 0; i < 16; i++)
		n = put(n, evicts, sizeof(evicts));
	fuzz_kmod(data, n, &r);
	assert_string_equal(r.wrong, "");
	assert_int_equal(r.end, EBB_SWAP_CAUSE_NONE);
	n = put(n, evicts, sizeof(evicts));
	fuzz_kmod(data, n, &r);
	assert_string_equal(r.wrong, "");
	assert_int_equal(r.end, -EBB_SWAP_CAUSE_PROTOCOL);
}

/* Beyond 256 a second, a donor's recalls cost no search for their slabs. */
static void recalls_a_second(void **state)
{
	size_t n = put(0, opens, sizeof(opens));
	struct fuzz_protocol_result r;

	for (int i = 0; i < 300; i++) {
		n = put(n, evicts, sizeof(evicts));
		n = put(n, works, sizeof(works));
	}
	fuzz_kmod(data, n, &r);
	assert_string_equal(r.wrong, "");
	assert_int_equal(r.end, EBB_SWAP_CAUSE_NONE);
	assert_int_equal(r.accesses, 300);
	assert_int_equal(r.sum, 300 - 256);
}

/* 4000 slabs must be resumed well within the grace period, however far the donor is. */
static void thousands_of_slabs(void **state)
{
	static const uint32_t slabs[] = { 1, 12, 13, 4000 };

	for (size_t i = 0; i < sizeof(slabs) / sizeof(*slabs); i++) {
		struct fuzz_protocol_result r;
		/* Beside HELLO and RELEASE. */
		uint32_t trips = fuzz_kmod_resume(slabs[i], &r) - 2;

		assert_string_equal(r.wrong, "");
		assert_int_equal(r.end, EBB_SWAP_CAUSE_NONE);
		assert_int_equal(r.loans, slabs[i]);
		assert_int_equal(r.sum, slabs[i]);
		assert_int_equal(trips, (slabs[i] + 11) / 12);
	}
}

static void corpus(void **state)
{
	run_corpus("tests/fuzz/corpus/kmod", data, sizeof(data), fuzz_kmod);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unanswered_recalls),
		cmocka_unit_test(recalls_a_second),
		cmocka_unit_test(thousands_of_slabs),
		cmocka_unit_test(numbers),
		cmocka_unit_test(corpus),
	};

	return cmocka_run_group_tests_name("kmod fuzz", tests, NULL, NULL);
}
