// SPDX-License-Identifier: GPL-2.0-or-later
/* A worker whose calls hang: another thread continues, and the first ends when its call returns. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include "ebbd/prefetch/worker.h"
#include "lib/base/clock.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define STACK (256u << 10)
#define OWNER 7000u          /* of process n: OWNER + n */

/* Reads a byte of a pipe for each piece of work: a call that hangs until there is one. */
struct reader {
	struct worker *worker;
	int pipe[WORKER_HUNG + 2][2];
	atomic_uint at;          /* the process of the next call; its pipe, too */
	atomic_bool calls, outside, released;
	atomic_uint threads, returned, errors;
	unsigned int hung;
	uint32_t tgid;
	uint64_t owner;
};

static void run(struct worker *w, void *data)
{
	struct pollfd wake = { .fd = worker_wake(w), .events = POLLIN };
	struct reader *r = data;
	char byte;

	r->threads++;
	while (poll(&wake, 1, 1) <= 0) {
		unsigned int at = r->at;

		if (!r->outside)
			worker_beat(w);
		if (!r->calls || worker_excludes(w, at + 1, 0))
			continue;
		worker_call_begin(at + 1, OWNER + at + 1);
		if (read(r->pipe[at][0], &byte, 1) != 1)
			r->errors++;
		errno = EXDEV;
		if (!worker_call_returned()) {
			r->released = true;
			worker_quit();
		}
		r->errors += errno != EXDEV;
		r->returned++;
	}
}

static void hung(void *data, uint32_t tgid, uint64_t owner)
{
	struct reader *r = data;

	r->hung++;
	r->tgid = tgid;
	r->owner = owner;
}

#define REST_NS 200000000u

static const struct worker_kind kind = { "test-worker", "reading", run, hung, REST_NS };

static int setup(void **state)
{
	static struct reader r;
	struct error e;

	r = (struct reader){ .at = 0 };
	for (int i = 0; i < WORKER_HUNG + 2; i++)
		assert_int_equal(pipe(r.pipe[i]), 0);
	assert_int_equal(worker_start(&r.worker, &kind, &r, STACK, &e), 0);
	*state = &r;
	return 0;
}

static int teardown(void **state)
{
	struct reader *r = *state;

	r->calls = false;
	for (int i = 0; i < WORKER_HUNG + 2; i++) {
		assert_int_equal(write(r->pipe[i][1], "", 1), 1);
		close(r->pipe[i][1]);
	}
	worker_stop(&r->worker);
	assert_null(r->worker);
	assert_int_equal(r->errors, 0);
	return 0;
}

/* Waits until @n is @wanted; fails after a time that no idle machine needs. */
static void until(const atomic_uint *n, unsigned int wanted)
{
	for (int i = 0; *n != wanted; i++) {
		assert_true(i < 30000);
		usleep(1000);
	}
}

/* Ticks as often as a hung thread needs; returns the last result. */
static uint32_t ticks(struct reader *r, unsigned int n)
{
	uint32_t still = 0;

	usleep(20000); /* the thread is in its call */
	for (unsigned int i = 0; i < n; i++)
		still = worker_tick(r->worker);
	return still;
}

/* Has the call on process 1 return; returns for how long that is excluded then. */
static uint64_t excluded_ns(struct reader *r)
{
	uint64_t start = now_ns();

	r->calls = false;
	assert_int_equal(write(r->pipe[0][1], "", 1), 1);
	while (worker_excludes(r->worker, 1, 0)) {
		assert_true(now_ns() - start < 30000000000ULL);
		worker_tick(r->worker);
		usleep(1000);
	}
	return now_ns() - start;
}

static void test_a_thread_that_hangs_is_replaced(void **state)
{
	struct reader *r = *state;

	until(&r->threads, 1);
	r->calls = true;
	/* The first one may see progress. */
	ticks(r, WORKER_HUNG_TICKS + 1);
	until(&r->threads, 2);
	assert_int_equal(r->hung, 1);
	assert_int_equal(r->tgid, 1);
	assert_int_equal(r->owner, OWNER + 1);
	assert_true(worker_excludes(r->worker, 1, 0));
	assert_true(worker_excludes(r->worker, 99, OWNER + 1));
	assert_false(worker_excludes(r->worker, 99, OWNER + 2));
	assert_false(worker_excludes(r->worker, 99, 0));
	assert_false(r->released);

	/* The call returns: the thread touches nothing more, and the process takes part again. */
	assert_true(excluded_ns(r) >= REST_NS);
	assert_true(r->released);
	assert_int_equal(r->returned, 0);

	r->calls = true;
	assert_int_equal(write(r->pipe[0][1], "", 1), 1);
	until(&r->returned, 1);
	assert_int_equal(r->threads, 2);
}

static void test_a_call_that_takes_less_is_no_hang(void **state)
{
	struct reader *r = *state;

	until(&r->threads, 1);
	r->calls = true;
	assert_in_range(ticks(r, WORKER_HUNG_TICKS - 1), 1, WORKER_HUNG_TICKS - 1);
	assert_int_equal(write(r->pipe[0][1], "", 1), 1);
	until(&r->returned, 1);
	assert_int_equal(r->hung, 0);
	assert_int_equal(r->threads, 1);
}

static void test_a_thread_that_hangs_outside_of_calls_is_not_replaced(void **state)
{
	struct reader *r = *state;

	until(&r->threads, 1);
	r->outside = true;
	assert_true(ticks(r, 3 * WORKER_HUNG_TICKS) > 2 * WORKER_HUNG_TICKS);
	assert_int_equal(r->hung, 0);
	r->outside = false;
	usleep(20000);
	assert_int_equal(worker_tick(r->worker), 0);
}

static void test_a_process_rests_longer_each_time(void **state)
{
	struct reader *r = *state;

	for (unsigned int i = 0; i < 3; i++) {
		until(&r->threads, i + 1);
		r->calls = true;
		ticks(r, WORKER_HUNG_TICKS + 1);
		until(&r->threads, i + 2);
		assert_true(excluded_ns(r) >= (uint64_t)REST_NS << i);
	}
}

static void test_so_many_may_hang(void **state)
{
	struct reader *r = *state;

	until(&r->threads, 1);
	r->calls = true;
	for (unsigned int i = 0; i < WORKER_HUNG; i++) {
		r->at = i;
		ticks(r, WORKER_HUNG_TICKS + 1);
		until(&r->threads, i + 2);
	}
	assert_int_equal(r->hung, WORKER_HUNG);
	r->at = WORKER_HUNG;
	/* For the watchdog. */
	assert_true(ticks(r, 3 * WORKER_HUNG_TICKS) > 2 * WORKER_HUNG_TICKS);
	assert_int_equal(r->hung, WORKER_HUNG);
	assert_int_equal(worker_at(r->worker), WORKER_HUNG + 1);

	/* One returns: its place is for the last. */
	assert_int_equal(write(r->pipe[3][1], "", 1), 1);
	usleep(100000);
	ticks(r, 11);
	assert_int_equal(r->hung, WORKER_HUNG + 1);
	usleep(REST_NS / 1000);
	assert_false(worker_excludes(r->worker, 4, 0));
	assert_true(worker_excludes(r->worker, WORKER_HUNG + 1, 0));
}

static void test_stopping_does_not_wait_for_it(void **state)
{
	struct reader *r = *state;
	uint64_t start = now_ns();

	until(&r->threads, 1);
	r->calls = true;
	ticks(r, WORKER_HUNG_TICKS + 1);
	until(&r->threads, 2);
	r->at = 1;
	usleep(20000);
	worker_stop(&r->worker);
	assert_true(now_ns() - start < 5 * 3000000000ULL);
	assert_null(r->worker);
}

static void test_other_threads_call_without_effect(void **state)
{
	worker_call_begin(1, 1);
	assert_true(worker_call_returned());
	worker_call_begin(1, 1);
	worker_call_end();
}

int main(void)
{
#define WITH_READER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
	const struct CMUnitTest tests[] = {
		WITH_READER(test_a_thread_that_hangs_is_replaced),
		WITH_READER(test_a_call_that_takes_less_is_no_hang),
		WITH_READER(test_a_thread_that_hangs_outside_of_calls_is_not_replaced),
		WITH_READER(test_a_process_rests_longer_each_time),
		WITH_READER(test_so_many_may_hang),
		WITH_READER(test_stopping_does_not_wait_for_it),
		cmocka_unit_test(test_other_threads_call_without_effect),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
