// SPDX-License-Identifier: GPL-2.0-or-later
/* A whole trace as `trace show`, `trace plot` and `report` read it. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "lib/trace/trace.h"
#include "sim/trace_load.h"
#include "trace_file.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define NAMES_MAX 65536         /* that a reader keeps */

static struct trace_writer *begin(void)
{
	struct trace_info info = { .page_shift = 12, .memory = 64 << 20, .policy = "none" };
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	struct trace_writer *w;

	assert_int_equal(trace_writer_new(&w, fd, path, &info, NULL), 0);
	return w;
}

static void add(struct trace_writer *w, uint32_t i, uint32_t tid, enum trace_kind kind)
{
	struct trace_record r = { .time_ns = i * 1000ULL, .duration_ns = 10, .vpn = 1000 + i % 512,
				  .tgid = 10, .tid = tid, .kind = kind };

	assert_int_equal(trace_write(w, &r, NULL), 0);
}

static void name(struct trace_writer *w, uint32_t tid, const char *comm)
{
	struct trace_thread t = { .tgid = 10, .tid = tid };

	snprintf(t.comm, sizeof(t.comm), "%.15s", comm);
	assert_int_equal(trace_write_thread(w, &t, NULL), 0);
}

static void end(struct trace_writer *w, const char *comm, struct loaded_trace *t)
{
	assert_int_equal(trace_writer_end(&w, 0, comm, NULL), 0);
	assert_int_equal(trace_load(t, path, TRACE_WHOLE, NULL), 0);
}

static void threads_by_faults(void **state)
{
	_cleanup_loaded_ struct loaded_trace t = { 0 };
	struct trace_writer *w = begin();

	name(w, 100, "early");
	for (uint32_t i = 0; i < 30; i++)
		add(w, i, 100 + (i % 6 + 2) / 3, i % 2 ? TRACE_HIT : TRACE_MISS);
	name(w, 101, "one");
	name(w, 100, "zero");
	end(w, "one", &t);
	assert_int_equal(t.threads, 3);
	assert_int_equal(t.thread[0].tid, 101);
	assert_string_equal(t.thread[0].comm, "one");
	assert_int_equal(t.thread[0].count[TRACE_HIT] + t.thread[0].count[TRACE_MISS], 15);
	/* The last name of a thread is its name. */
	assert_int_equal(t.thread[1].tid, 102);
	assert_string_equal(t.thread[1].comm, "");
	assert_int_equal(t.thread[2].tid, 100);
	assert_string_equal(t.thread[2].comm, "zero");
	assert_int_equal(t.thread[2].count[TRACE_MISS], 5);
}

/* Returns processor time in ns of loading @records faults of @threads threads, in turn. */
static double load_time(uint32_t threads, uint32_t records)
{
	_cleanup_loaded_ struct loaded_trace t = { 0 };
	struct trace_writer *w = begin();
	struct timespec from, to;
	char comm[16];

	for (uint32_t i = 0; i < threads; i++) {
		snprintf(comm, sizeof(comm), "t%u", i);
		name(w, 1000 + i, comm);
	}
	for (uint32_t i = 0; i < records; i++)
		add(w, i, 1000 + i % threads, TRACE_MISS);
	assert_int_equal(trace_writer_end(&w, 0, "", NULL), 0);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
	assert_int_equal(trace_load(&t, path, TRACE_WHOLE, NULL), 0);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
	assert_int_equal(t.threads, threads);
	for (uint32_t i = 0; i < threads; i++) {
		assert_int_equal(t.thread[i].tid, 1000 + i);
		assert_int_equal(t.thread[i].count[TRACE_MISS], records / threads);
		snprintf(comm, sizeof(comm), "t%u", i);
		assert_string_equal(t.thread[i].comm, i < NAMES_MAX ? comm : "");
	}
	return (double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec);
}

/* The time per fault hardly grows with the number of threads; with linear searches, 50 times. */
static void many_threads_in_turn(void **state)
{
	double few = load_time(1000, 200000), many = load_time(100000, 200000);

	if (many > 10 * few)
		print_message("1000 threads: %.0f ms, 100000 threads: %.0f ms\n", few / 1e6, many / 1e6);
	assert_true(many <= 10 * few);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(threads_by_faults),
		cmocka_unit_test(many_threads_in_turn),
	};

	return cmocka_run_group_tests(tests, make_file, remove_file);
}
