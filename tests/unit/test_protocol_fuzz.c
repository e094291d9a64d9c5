// SPDX-License-Identifier: GPL-2.0-or-later
/* Some of `make fuzz-protocol`, its corpus, and whether it gets anywhere. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/wire/wire.h"
#include "tests/fuzz/far.h"
#include "tests/fuzz/jobs.h"
#include "tests/fuzz/secure.h"

#include <cmocka.h>

#include "fuzz_corpus.h"

#define MOST (64u << 10)

static uint8_t data[MOST];

/* Processor time of a test; a second finds what the counts below ask for. */
static clock_t fuzz_clocks(void)
{
	return (getenv("EBB_TEST_LONG") ? 10 : 1) * CLOCKS_PER_SEC;
}

static int set_up(void **state)
{
	struct error e = { 0 };

	if (fuzz_protocol_set_up(&e) || fuzz_secure_set_up(&e) || fuzz_far_set_up(&e) ||
	    fuzz_jobs_set_up(&e))
		fprintf(stderr, "%s\n", e.text);
	return e.code;
}

static int tear_down(void **state)
{
	fuzz_protocol_tear_down();
	fuzz_secure_tear_down();
	fuzz_far_tear_down();
	fuzz_jobs_tear_down();
	return 0;
}

static void numbers(void **state)
{
	clock_t end = clock() + fuzz_clocks();
	uint64_t frames[2] = { 0 }, loans = 0, accesses = 0, refused = 0, ended = 0;

	for (uint64_t seed = 1; clock() < end; seed++) {
		size_t size = 1 + seed * 977 % (seed % 16 ? 2048 : MOST);
		struct fuzz_protocol_result r;

		fuzz_protocol_bytes(seed, data, size);
		fuzz_protocol(data, size, &r);
		if (*r.wrong)
			fail_msg("%s (number %llu)", r.wrong, (unsigned long long)seed);
		frames[data[0] & FUZZ_SIDE] += r.frames;
		loans += r.loans;
		accesses += r.accesses;
		refused += r.end == -EPROTO;
		ended += r.end == -ECONNRESET;
	}
	/* All of it is reached. */
	assert_true(frames[FUZZ_DONOR] > 1000);
	assert_true(frames[FUZZ_BORROWER] > 1000);
	assert_true(loans > 100);
	assert_true(accesses > 10);
	assert_true(refused > 100);
	assert_true(ended > 100);
}

/* The same with keys: MACs, JOINs, handshakes, and a man in the middle. */
static void secure_numbers(void **state)
{
	uint64_t frames[FUZZ_SECURE_KINDS] = { 0 }, loans[FUZZ_SECURE_KINDS] = { 0 };
	uint64_t bad_marks = 0, refused[FUZZ_SECURE_KINDS] = { 0 };
	clock_t end = clock() + fuzz_clocks();

	for (uint64_t seed = 1; clock() < end; seed++) {
		size_t size = 1 + seed * 977 % 2048;
		struct fuzz_protocol_result r;
		enum fuzz_secure_kind kind;

		fuzz_secure_bytes(seed, data, size);
		kind = fuzz_secure_kind(data[0]);
		fuzz_secure(data, size, &r);
		if (*r.wrong)
			fail_msg("%s (number %llu)", r.wrong, (unsigned long long)seed);
		frames[kind] += r.frames;
		loans[kind] += r.loans;
		bad_marks += r.end == -EBADMSG;
		refused[kind] += r.end == -EACCES;
	}
	assert_true(frames[FUZZ_LINK] > 100);
	assert_true(bad_marks > 10);
	assert_true(loans[FUZZ_JOIN] > 100);
	assert_true(refused[FUZZ_HELLO] > 10);
	/* Handshakes that the man in the middle altered, and some that it passed on. */
	assert_true(loans[FUZZ_MIDDLE] > 10);
	assert_true(refused[FUZZ_MIDDLE] > 10);
	assert_true(frames[FUZZ_MIDDLE] > 40);
}

/* Frames of far memory, also while a member changes the table that it maps. */
static void far_numbers(void **state)
{
	uint64_t frames[2] = { 0 }, accesses[2] = { 0 }, refused = 0, ended = 0;
	clock_t end = clock() + fuzz_clocks();

	for (uint64_t seed = 1; clock() < end; seed++) {
		size_t size = 1 + seed * 977 % (seed % 16 ? 4096 : MOST);
		struct fuzz_protocol_result r;

		fuzz_far_bytes(seed, data, size);
		fuzz_far(data, size, &r);
		if (*r.wrong)
			fail_msg("%s (number %llu)", r.wrong, (unsigned long long)seed);
		frames[data[0] & FUZZ_FAR_SIDE] += r.frames;
		accesses[!!(data[0] & FUZZ_FAR_MAPPED)] += data[0] & FUZZ_FAR_SIDE ? 0 : r.accesses;
		refused += r.end == -EPROTO;
		ended += r.end == -ECONNRESET;
	}
	assert_true(frames[FUZZ_FAR_DONOR] > 1000);
	assert_true(frames[FUZZ_FAR_MEMBER] > 1000);
	assert_true(accesses[0] > 100);
	assert_true(accesses[1] > 100);
	assert_true(refused > 10);
	assert_true(ended > 10);
}

static void jobs_numbers(void **state)
{
	uint64_t frames = 0, places = 0, work = 0, refused = 0, ended = 0;
	clock_t end = clock() + fuzz_clocks();

	for (uint64_t seed = 1; clock() < end; seed++) {
		size_t size = 1 + seed * 977 % (seed % 16 ? 4096 : MOST);
		struct fuzz_protocol_result r;

		fuzz_jobs_bytes(seed, data, size);
		fuzz_jobs(data, size, &r);
		if (*r.wrong)
			fail_msg("%s (number %llu)", r.wrong, (unsigned long long)seed);
		frames += r.frames;
		places += r.loans;
		work += r.accesses;
		refused += r.end == -EPROTO;
		ended += r.end == -ECONNRESET;
	}
	assert_true(frames > 1000 && places > 100 && work > 1000);
	assert_true(refused > 10 && ended > 10);
}

static void corpus(void **state)
{
	run_corpus("tests/fuzz/corpus/protocol", data, sizeof(data), fuzz_protocol);
	run_corpus("tests/fuzz/corpus/secure", data, sizeof(data), fuzz_secure);
	run_corpus("tests/fuzz/corpus/far", data, sizeof(data), fuzz_far);
	run_corpus("tests/fuzz/corpus/jobs", data, sizeof(data), fuzz_jobs);
}

/* A frame of any kind, and the same with each bit of its header flipped. */
static void one_bit(void **state)
{
	struct wire_frame f = { .op = WIRE_PING, .direction = WIRE_REQUEST, .tag = 77 };
	int taken = 0;

	for (int bit = -1; bit < (int)WIRE_HEADER * 8; bit++) {
		struct fuzz_protocol_result r;

		data[0] = FUZZ_DONOR;
		wire_build(data + 1, &f);
		if (bit >= 0)
			data[1 + bit / 8] ^= (uint8_t)(1 << bit % 8);
		fuzz_protocol(data, 1 + WIRE_HEADER, &r);
		assert_string_equal(r.wrong, "");
		taken += r.frames == 1;
		if (bit < 0)
			assert_int_equal(r.frames, 1);
		if (bit >= 0 && bit < 32)
			assert_int_equal(r.end, -EPROTO); /* the magic word */
	}
	/* Tag, slab and generation are anything; another opcode may be, too. */
	assert_in_range(taken, 1 + 64 + 32 + 32, 1 + 64 + 32 + 32 + 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(numbers),
		cmocka_unit_test(secure_numbers),
		cmocka_unit_test(far_numbers),
		cmocka_unit_test(jobs_numbers),
		cmocka_unit_test(corpus),
		cmocka_unit_test(one_bit),
	};

	return cmocka_run_group_tests_name("protocol fuzz", tests, set_up, tear_down);
}
