// SPDX-License-Identifier: GPL-2.0-or-later
/* The checker's rule: accepts every order that a register may show, and no other. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/programs/checker/history.c"
#include "tests/programs/checker/stamp.c"

#define DEVICE 0x1234u
#define PAGES 4u

static const struct stamp zero = { .kind = STAMP_ZERO };

static int set_up(void **state)
{
	static struct history h;

	*state = &h;
	return history_init(&h, DEVICE, PAGES);
}

static int tear_down(void **state)
{
	history_free(*state);
	return 0;
}

static struct stamp start_write(struct history *h, enum stamp_kind kind)
{
	struct stamp s = { .kind = kind, .writer = 1 };

	assert_true(history_write_start(h, 0, &s));
	return s;
}

/* A write from its start to its end. */
static struct stamp write_page(struct history *h, enum stamp_kind kind, int error)
{
	struct stamp s = start_write(h, kind);

	history_write_end(h, 0, s.generation, error);
	return s;
}

/* What a page of that content says of itself. */
static struct stamp told(struct stamp s)
{
	char memory[PAGE];

	stamp_write(memory, &s);
	if (s.kind == STAMP_BROKEN)
		memory[2000] ^= 1; /* all zeroes but for that */
	stamp_read(memory, &s);
	return s;
}

static enum history_verdict read_from(struct history *h, uint64_t start, struct stamp s)
{
	s = told(s);
	return history_read_end(h, 0, start, &s);
}

static enum history_verdict read_page(struct history *h, struct stamp s)
{
	return read_from(h, history_read_start(h, 0), s);
}

static void test_newest_acknowledged(void **state)
{
	struct history *h = *state;
	struct stamp a, b;

	assert_int_equal(read_page(h, zero), HISTORY_GOOD);
	a = write_page(h, STAMP_FULL, 0);
	assert_int_equal(read_page(h, a), HISTORY_GOOD);
	assert_int_equal(read_page(h, zero), HISTORY_LOST);
	b = write_page(h, STAMP_SAME, 0);
	assert_int_equal(read_page(h, a), HISTORY_STALE);
	assert_int_equal(read_page(h, b), HISTORY_GOOD);
	write_page(h, STAMP_ZERO, 0);
	assert_int_equal(read_page(h, b), HISTORY_STALE);
	assert_int_equal(read_page(h, zero), HISTORY_GOOD);
}

static void test_not_ours(void **state)
{
	struct history *h = *state;
	struct stamp a = write_page(h, STAMP_FULL, 0), b;

	b = a;
	b.page = 1;
	assert_int_equal(read_page(h, b), HISTORY_EXCHANGED);
	b = a;
	b.device++;
	assert_int_equal(read_page(h, b), HISTORY_EXCHANGED);
	b = a;
	b.kind = STAMP_BROKEN;
	assert_int_equal(read_page(h, b), HISTORY_ALTERED);
	b = a;
	b.generation++;
	assert_int_equal(read_page(h, b), HISTORY_ALTERED);
}

/* A read beside a write may return either, but once the new one was seen it stays. */
static void test_beside_a_write(void **state)
{
	struct history *h = *state;
	struct stamp old = write_page(h, STAMP_FULL, 0), new = start_write(h, STAMP_FULL);
	uint64_t early = history_read_start(h, 0);

	assert_int_equal(read_page(h, old), HISTORY_GOOD);
	assert_int_equal(read_page(h, new), HISTORY_GOOD);
	assert_int_equal(read_page(h, old), HISTORY_STALE);
	/* One that began before may still have been answered before. */
	assert_int_equal(read_from(h, early, old), HISTORY_GOOD);
	history_write_end(h, 0, new.generation, 0);
	assert_int_equal(read_page(h, new), HISTORY_GOOD);
}

/* Of two concurrent writes either may be the last, and one read decides which. */
static void test_two_writes(void **state)
{
	struct history *h = *state;
	struct stamp a = start_write(h, STAMP_FULL), b = start_write(h, STAMP_FULL);

	history_write_end(h, 0, b.generation, 0);
	history_write_end(h, 0, a.generation, 0);
	assert_int_equal(read_page(h, zero), HISTORY_LOST);
	assert_int_equal(read_page(h, a), HISTORY_GOOD);
	assert_int_equal(read_page(h, b), HISTORY_STALE);
}

static void test_failed_write(void **state)
{
	struct history *h = *state;
	struct stamp old = write_page(h, STAMP_FULL, 0), bad = write_page(h, STAMP_FULL, -EIO);

	assert_int_equal(read_page(h, old), HISTORY_GOOD);
	/* It was not there after it had failed: it must not come later. */
	assert_int_equal(read_page(h, bad), HISTORY_STALE);
	bad = write_page(h, STAMP_FULL, -EIO);
	assert_int_equal(read_page(h, bad), HISTORY_GOOD);
	assert_int_equal(read_page(h, old), HISTORY_STALE);
}

/* Versions that a read in flight may return are retained; a writer must use another place. */
static void test_bounded(void **state)
{
	struct history *h = *state;
	struct stamp first = write_page(h, STAMP_FULL, 0), s = { .kind = STAMP_FULL };
	uint64_t early = history_read_start(h, 0);
	int n = 0;

	while (history_write_start(h, 0, &s)) {
		history_write_end(h, 0, s.generation, 0);
		assert_true(++n < HISTORY_OPS);
	}
	assert_int_equal(read_from(h, early, first), HISTORY_GOOD);
	for (int i = 0; i < 100; i++)
		s = write_page(h, STAMP_FULL, 0);
	assert_int_equal(read_page(h, s), HISTORY_GOOD);
}

struct party {
	struct stamp wrote; /* by a write in flight */
	uint64_t start;     /* of a read in flight */
	struct stamp saw;
	enum { IDLE, BEFORE, AFTER } phase; /* of the moment it takes effect */
	bool writes;
};

/* Any number at a time, each taking effect at some moment between start and end: never wrong. */
static void test_every_real_order_is_accepted(void **state)
{
	struct history *h = *state;
	struct stamp content = zero;
	struct party crew[5] = { 0 };
	uint64_t random = 99, writes = 0;

	for (int i = 0; i < 300000; i++) {
		struct party *p = &crew[next_random(&random) % 5];

		switch (p->phase) {
		case IDLE:
			p->writes = next_random(&random) % 2;
			p->wrote = (struct stamp){ .kind = (enum stamp_kind)(next_random(&random) %
									     3) };
			if (!p->writes)
				p->start = history_read_start(h, 0);
			else if (!history_write_start(h, 0, &p->wrote))
				break;
			p->phase = BEFORE;
			break;
		case BEFORE:
			if (p->writes)
				content = p->wrote;
			else
				p->saw = content;
			p->phase = AFTER;
			break;
		case AFTER:
			if (p->writes) {
				history_write_end(h, 0, p->wrote.generation,
						  next_random(&random) % 4 ? 0 : -EIO);
				writes++;
			} else {
				assert_int_equal(read_from(h, p->start, p->saw), HISTORY_GOOD);
			}
			p->phase = IDLE;
		}
	}
	assert_true(writes > 10000);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_newest_acknowledged),
		TEST(test_not_ours),
		TEST(test_beside_a_write),
		TEST(test_two_writes),
		TEST(test_failed_write),
		TEST(test_bounded),
		TEST(test_every_real_order_is_accepted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
