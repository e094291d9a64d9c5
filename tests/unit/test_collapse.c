// SPDX-License-Identifier: GPL-2.0-or-later
/* Drop-behind by huge pages: when it begins, how much it does, and what switches it off. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/rules/collapse.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define MIB (1ULL << 20)
#define SECOND 1000000000ULL
#define US 1000ULL
/* Two windows a call. */
#define LIMIT (64 * MIB)

/* A cgroup whose small pages have told enough: of each sample, @written. */
static struct collapse sampled(uint64_t written)
{
	struct collapse c = { 0 };

	collapse_tell_small(&c, COLLAPSE_SAMPLE, written, 4 * 8000 * US, SECOND);
	return c;
}

static struct collapse on(void)
{
	struct collapse c = sampled(COLLAPSE_SAMPLE);

	assert_int_equal(c.state, COLLAPSE_ON);
	return c;
}

static void begins_where_pages_are_mostly_dirty(void **state)
{
	static const struct {
		uint64_t pages, written;
		enum collapse_state state;
		enum collapse_reason reason;
	} row[] = {
		{ COLLAPSE_SAMPLE - 1, COLLAPSE_SAMPLE - 1, COLLAPSE_SAMPLING, COLLAPSE_NONE },
		{ COLLAPSE_SAMPLE, COLLAPSE_SAMPLE, COLLAPSE_ON, COLLAPSE_NONE },
		{ COLLAPSE_SAMPLE, COLLAPSE_SAMPLE * 3 / 4, COLLAPSE_ON, COLLAPSE_NONE },
		{ COLLAPSE_SAMPLE, COLLAPSE_SAMPLE * 3 / 4 - 1, COLLAPSE_OFF, COLLAPSE_CLEAN },
		{ COLLAPSE_SAMPLE, 0, COLLAPSE_OFF, COLLAPSE_CLEAN },
	};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct collapse c = { 0 };

		collapse_tell_small(&c, row[i].pages, row[i].written, SECOND, SECOND);
		assert_int_equal(c.state, row[i].state);
		assert_int_equal(c.reason, row[i].reason);
		assert_int_equal(collapse_is_on(&c, LIMIT, SECOND), row[i].state == COLLAPSE_ON);
	}
}

static void goes_on_while_half_is_dirty(void **state)
{
	struct collapse c = on();

	collapse_tell_small(&c, COLLAPSE_PAGES, COLLAPSE_PAGES / 2, SECOND, SECOND);
	assert_int_equal(c.state, COLLAPSE_ON);
	/* A few pages tell nothing. */
	collapse_tell_small(&c, COLLAPSE_PAGES - 1, COLLAPSE_PAGES / 2 - 1, SECOND, SECOND);
	assert_int_equal(c.state, COLLAPSE_ON);
	collapse_tell_small(&c, 1, 0, SECOND, SECOND);
	assert_int_equal(c.state, COLLAPSE_OFF);
	assert_int_equal(c.reason, COLLAPSE_CLEAN);
}

static void a_call_takes_what_limit_and_time_allow(void **state)
{
	static const struct {
		uint64_t limit, collapse_ns, huge_ns;
		uint32_t windows;
	} row[] = {
		{ UINT64_MAX, 1000 * US, 0, 0 },
		{ 64 * MIB - 1, 1000 * US, 0, 0 },
		{ 64 * MIB, 1000 * US, 0, 2 },
		{ 160 * MIB, 1000 * US, 0, 5 },
		{ 160 * MIB, 0, 0, COLLAPSE_LEAST },
		{ 1024 * MIB, 100 * US, 0, COLLAPSE_WINDOWS },
		{ 1024 * MIB, 1000 * US, 0, 10 },
		{ 1024 * MIB, 6500 * US, 0, COLLAPSE_LEAST },
		{ 1024 * MIB, SECOND, 0, COLLAPSE_LEAST },
		{ 1024 * MIB, 1000 * US, 2000 * US, 5 },
	};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
		assert_int_equal(collapse_batch(&(struct collapse){
			.collapse_ns = row[i].collapse_ns, .huge_ns = row[i].huge_ns },
						row[i].limit), row[i].windows);
}

#define ROOM (COLLAPSE_BYTES + COLLAPSE_MARGIN)

static void decides_by_free_capacity(void **state)
{
	static const struct {
		struct collapse_facts f;
		struct collapse_plan plan;
	} row[] = {
		/* Not enough windows. */
		{ { .unused = LIMIT, .ready = 1 }, { COLLAPSE_WAIT, 0 } },
		/* Below the limit. */
		{ { .unused = ROOM, .ready = 2 }, { COLLAPSE_HUGE, 2 } },
		{ { .unused = ROOM, .ready = 9 }, { COLLAPSE_HUGE, 2 } },
		{ { .unused = ROOM - 1, .ready = 2 }, { COLLAPSE_WAIT, 0 } },
		/* By pages that left before. */
		{ { .freeable = ROOM, .ready = 2 }, { COLLAPSE_HUGE, 2 } },
		{ { .freeable = ROOM - 1, .ready = 2 }, { COLLAPSE_WAIT, 0 } },
		{ { .unused = COLLAPSE_MARGIN, .freeable = COLLAPSE_BYTES, .ready = 2 },
		  { COLLAPSE_HUGE, 2 } },
		/* Half of the windows make room for the others. */
		{ { .ready = 3 }, { COLLAPSE_WAIT, 0 } },
		{ { .ready = 4 }, { COLLAPSE_SMALL, 2 } },
		{ { .ready = 7 }, { COLLAPSE_SMALL, 5 } },
		/* What is being written may soon be room. */
		{ { .outgoing = 1, .ready = 5 }, { COLLAPSE_WAIT, 0 } },
		{ { .outgoing = 1, .ready = 6 }, { COLLAPSE_SMALL, 4 } },
	};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct collapse_facts f = row[i].f;
		struct collapse c = on();
		struct collapse_plan p;

		f.limit = LIMIT;
		f.now = SECOND;
		p = collapse_plan(&c, &f);
		assert_int_equal(p.action, row[i].plan.action);
		assert_int_equal(p.windows, row[i].plan.windows);
		assert_int_equal(c.crowding, p.action == COLLAPSE_SMALL ? p.windows : 0);
	}
}

static void all_leaves_small_unless_it_is_on(void **state)
{
	struct collapse_facts f = { .limit = LIMIT, .unused = LIMIT, .ready = 5, .now = SECOND };
	struct collapse c = { 0 };
	struct collapse_plan p = collapse_plan(&c, &f);

	assert_int_equal(p.action, COLLAPSE_SMALL);
	assert_int_equal(p.windows, 5);
	c = on();
	f.limit = 32 * MIB;
	p = collapse_plan(&c, &f);
	assert_int_equal(p.action, COLLAPSE_SMALL);
	assert_int_equal(p.windows, 5);
}

static void now_and_then_a_window_leaves_small(void **state)
{
	struct collapse_facts f = { .limit = LIMIT, .unused = LIMIT, .ready = 2, .now = SECOND };
	uint32_t huge = 0, small = 0;
	struct collapse c = on();

	for (int i = 0; i < 90; i++) {
		struct collapse_plan p = collapse_plan(&c, &f);

		huge += p.action == COLLAPSE_HUGE ? p.windows : 0;
		small += p.action == COLLAPSE_SMALL ? p.windows : 0;
	}
	assert_int_equal(small, 10);
	assert_int_equal(huge, 10 * COLLAPSE_REFRESH);
}

/* What the table below tells: the same of each of @n windows. */
enum told { RETURNED, SCATTERED, REFUSED, CROWDED };

static void tell(struct collapse *c, enum told what, uint32_t bad)
{
	struct collapse_facts f = { .limit = LIMIT, .unused = bad ? 0 : LIMIT, .ready = 4,
				    .now = SECOND };

	switch (what) {
	case RETURNED:
		collapse_tell_return(c, bad, SECOND);
		break;
	case SCATTERED:
		collapse_tell_out(c, 1, !bad, US, SECOND);
		break;
	case REFUSED:
		collapse_tell_collapsed(c, 1, !bad, US, SECOND);
		break;
	case CROWDED:
		collapse_plan(c, &f);
	}
}

/* The first @bad of each 16 windows speak against it. */
static void some_bad_windows_are_no_reason(void **state)
{
	static const struct {
		enum told what;
		uint32_t bad;
		enum collapse_reason reason;
	} row[] = {
		{ RETURNED, 4, COLLAPSE_NONE }, { RETURNED, 5, COLLAPSE_RETURNED },
		{ SCATTERED, 4, COLLAPSE_NONE }, { SCATTERED, 5, COLLAPSE_SCATTERED },
		{ REFUSED, 8, COLLAPSE_NONE }, { REFUSED, 9, COLLAPSE_REFUSED },
		{ CROWDED, 4, COLLAPSE_NONE }, { CROWDED, 16, COLLAPSE_CROWDED },
	};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct collapse c = on();

		for (uint32_t k = 0; k < 10 * COLLAPSE_JUDGED; k++)
			tell(&c, row[i].what, k % COLLAPSE_JUDGED < row[i].bad);
		assert_int_equal(c.reason, row[i].reason);
		assert_int_equal(c.state, row[i].reason ? COLLAPSE_OFF : COLLAPSE_ON);
		assert_int_equal(c.trips, row[i].reason != COLLAPSE_NONE);
	}
}

/* A window of small pages takes 8 ms. */
static void must_be_faster_than_small_pages(void **state)
{
	static const struct {
		uint64_t collapse_ns, out_ns;
		enum collapse_state state;
	} row[] = {
		{ 3000 * US, 1000 * US, COLLAPSE_ON },
		{ 6000 * US, 1990 * US, COLLAPSE_ON },
		{ 6000 * US, 2010 * US, COLLAPSE_OFF },
	};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct collapse c = on();

		for (uint32_t k = 0; k < COLLAPSE_JUDGED; k++) {
			assert_int_equal(c.state, COLLAPSE_ON);
			collapse_tell_collapsed(&c, 2, 2, 2 * row[i].collapse_ns, SECOND);
			collapse_tell_out(&c, 2, 2, 2 * row[i].out_ns, SECOND);
			if (2 * (k + 1) >= COLLAPSE_JUDGED)
				break;
		}
		assert_int_equal(c.state, row[i].state);
		assert_int_equal(c.reason == COLLAPSE_SLOW, row[i].state == COLLAPSE_OFF);
	}
}

/* A window of small pages takes 8 ms: what takes seconds is not tried 16 times. */
static void hopeless_calls_switch_it_off_at_once(void **state)
{
	static const struct {
		uint32_t huge;
		uint64_t ns;
		enum collapse_reason reason;
	} row[] = {
		{ 2, 2 * 31999 * US, COLLAPSE_NONE }, { 2, 2 * 32000 * US, COLLAPSE_SLOW },
		{ 0, 2 * 32000 * US, COLLAPSE_SLOW },
	};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct collapse c = on();

		collapse_tell_collapsed(&c, 2, row[i].huge, row[i].ns, SECOND);
		assert_int_equal(c.reason, row[i].reason);
	}
}

static void rejection_without_a_call_takes_no_time(void **state)
{
	struct collapse c = on();

	collapse_tell_collapsed(&c, 1, 1, 5000 * US, SECOND);
	collapse_tell_collapsed(&c, 1, 0, 0, SECOND);
	assert_int_equal(c.collapse_ns, 5000 * US);
	assert_int_equal(c.rejected, 1);
}

static void small_pages_that_cost_nothing_are_not_known(void **state)
{
	struct collapse c = { .state = COLLAPSE_ON, .since = COLLAPSE_JUDGED };

	collapse_tell_out(&c, 1, 1, SECOND, SECOND);
	assert_int_equal(c.state, COLLAPSE_ON);
}

static void fail_once(struct collapse *c, uint64_t now)
{
	collapse_tell_small(c, COLLAPSE_SAMPLE, COLLAPSE_SAMPLE, SECOND, now);
	assert_int_equal(c->state, COLLAPSE_ON);
	for (int i = 0; i < 5; i++)
		collapse_tell_return(c, true, now);
	assert_int_equal(c->state, COLLAPSE_OFF);
}

static void tries_again_ever_later(void **state)
{
	static const uint64_t pause[] = { 10, 20, 40, 80, 160, 320, 640, 640 };
	uint64_t now = SECOND;
	struct collapse c = { 0 };

	for (size_t i = 0; i < sizeof(pause) / sizeof(pause[0]); i++) {
		fail_once(&c, now);
		now += pause[i] * SECOND;
		assert_false(collapse_is_on(&c, LIMIT, now - 1));
		assert_int_equal(c.state, COLLAPSE_OFF);
		/* What it is told meanwhile changes nothing. */
		collapse_tell_small(&c, COLLAPSE_SAMPLE, COLLAPSE_SAMPLE, SECOND, now - 1);
		collapse_tell_return(&c, true, now - 1);
		assert_int_equal(c.state, COLLAPSE_OFF);
		assert_false(collapse_is_on(&c, LIMIT, now));
		assert_int_equal(c.state, COLLAPSE_SAMPLING);
	}
	/* A long success makes up for it. */
	collapse_tell_small(&c, COLLAPSE_SAMPLE, COLLAPSE_SAMPLE, SECOND, now);
	for (uint32_t i = 0; i < COLLAPSE_SETTLED / 16; i++)
		collapse_tell_collapsed(&c, 16, 16, US, now);
	fail_once(&c, now);
	assert_false(collapse_is_on(&c, LIMIT, now + 10 * SECOND - 1));
	assert_int_equal(c.state, COLLAPSE_OFF);
	collapse_is_on(&c, LIMIT, now + 10 * SECOND);
	assert_int_equal(c.state, COLLAPSE_SAMPLING);
	assert_int_equal(c.trips, 9);
}

static void starts_again_without_memory(void **state)
{
	struct collapse c = on();

	collapse_tell_collapsed(&c, 8, 5, 8 * SECOND, SECOND);
	collapse_tell_out(&c, 5, 2, SECOND, SECOND);
	c.turn = COLLAPSE_REFRESH;
	for (int i = 0; i < 5; i++)
		collapse_tell_return(&c, true, SECOND);
	collapse_is_on(&c, LIMIT, 100 * SECOND);
	assert_int_equal(c.state, COLLAPSE_SAMPLING);
	assert_int_equal(c.collapse_ns + c.huge_ns + c.small_ns + c.turn, 0);
	assert_int_equal(c.returned.all + c.scattered.all + c.refused.all, 0);
	/* The totals stay. */
	assert_int_equal(c.windows, 5);
	assert_int_equal(c.rejected, 3);
	assert_int_equal(c.whole, 2);
	assert_int_equal(c.again, 5);
}

static void what_is_excluded_has_not_failed(void **state)
{
	struct collapse c = { 0 };

	collapse_exclude(&c, COLLAPSE_UNSUPPORTED, SECOND);
	assert_false(collapse_is_on(&c, LIMIT, SECOND + COLLAPSE_RETRY_NS - 1));
	assert_int_equal(c.state, COLLAPSE_OFF);
	assert_string_equal(collapse_reason_name(c.reason), "unsupported");
	assert_int_equal(c.trips + c.failures, 0);
	collapse_is_on(&c, LIMIT, SECOND + COLLAPSE_RETRY_NS);
	assert_string_equal(collapse_state_name(c.state), "sampling");
	assert_string_equal(collapse_reason_name(COLLAPSE_LIMIT), "limit");
}

/* A low limit of one cgroup says nothing about another that shares the state. */
static void each_limit_is_its_own(void **state)
{
	struct collapse c = { 0 };

	assert_false(collapse_is_on(&c, LIMIT - 1, SECOND));
	assert_int_equal(c.reason, COLLAPSE_LIMIT);
	assert_int_equal(c.state, COLLAPSE_OFF);
	assert_false(collapse_is_on(&c, LIMIT - 1, 100 * SECOND));
	assert_int_equal(c.state, COLLAPSE_OFF);
	/* A raised limit counts at once. */
	collapse_exclude(&c, COLLAPSE_LIMIT, 100 * SECOND);
	assert_false(collapse_is_on(&c, LIMIT, 100 * SECOND));
	assert_int_equal(c.state, COLLAPSE_SAMPLING);
	/* Others do not stop the sampling, nor what it leads to. */
	for (uint32_t pages = 0; pages < COLLAPSE_SAMPLE; pages += 64) {
		assert_false(collapse_is_on(&c, LIMIT, 100 * SECOND));
		collapse_tell_small(&c, 64, 64, 1000 * US, 100 * SECOND);
		assert_false(collapse_is_on(&c, LIMIT - 1, 100 * SECOND));
	}
	assert_true(collapse_is_on(&c, LIMIT, 100 * SECOND));
	assert_false(collapse_is_on(&c, LIMIT - 1, 100 * SECOND));
	assert_true(collapse_is_on(&c, LIMIT, 100 * SECOND));
	/* Nor does a low limit shorten a pause. */
	collapse_tell_small(&c, COLLAPSE_PAGES, 0, SECOND, 100 * SECOND);
	assert_false(collapse_is_on(&c, LIMIT - 1, 100 * SECOND));
	assert_false(collapse_is_on(&c, LIMIT, 100 * SECOND + COLLAPSE_RETRY_NS - 1));
	assert_int_equal(c.reason, COLLAPSE_CLEAN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(begins_where_pages_are_mostly_dirty),
		cmocka_unit_test(goes_on_while_half_is_dirty),
		cmocka_unit_test(a_call_takes_what_limit_and_time_allow),
		cmocka_unit_test(decides_by_free_capacity),
		cmocka_unit_test(all_leaves_small_unless_it_is_on),
		cmocka_unit_test(now_and_then_a_window_leaves_small),
		cmocka_unit_test(some_bad_windows_are_no_reason),
		cmocka_unit_test(must_be_faster_than_small_pages),
		cmocka_unit_test(hopeless_calls_switch_it_off_at_once),
		cmocka_unit_test(rejection_without_a_call_takes_no_time),
		cmocka_unit_test(small_pages_that_cost_nothing_are_not_known),
		cmocka_unit_test(tries_again_ever_later),
		cmocka_unit_test(starts_again_without_memory),
		cmocka_unit_test(what_is_excluded_has_not_failed),
		cmocka_unit_test(each_limit_is_its_own),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
