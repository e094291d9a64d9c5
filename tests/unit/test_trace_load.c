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

#include "lib/base/utf8.h"
#include "lib/trace/trace.h"
#include "sim/plot.h"
#include "sim/svg.h"
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

/* --- pictures ------------------------------------------------------------ */

/* Whether @text is UTF-8 of characters that XML 1.0 allows. */
static bool is_xml_text(const char *text)
{
	const unsigned char *c = (const unsigned char *)text;

	for (; *c; c += utf8_length(c))
		if (!utf8_length(c) || (utf8_control(c) && *c != '\n') || !memcmp(c, "\xef\xbf\xbe", 3) ||
		    !memcmp(c, "\xef\xbf\xbf", 3))
			return false;
	return true;
}

static void text_becomes(const char *words, const char *expected)
{
	char svg[512] = "";
	FILE *to = fmemopen(svg, sizeof(svg), "w");

	svg_text(to, 0, 0, "start", SVG_INK, words);
	fclose(to);
	assert_true(is_xml_text(svg));
	if (!strstr(svg, expected))
		print_message("%s", svg);
	assert_non_null(strstr(svg, expected));
}

/* The kernel cuts names of threads within a character; names of files are any bytes. */
static void text_is_utf8(void **state)
{
	text_becomes("потокпот", ">потокпот<");
	text_becomes("a < b > c & d", ">a &lt; b &gt; c &amp; d<");
	text_becomes("потокпо\xd1", ">потокпо?<");
	text_becomes("\xd1<", ">?&lt;<");
	text_becomes("\xf0\x9f\x98\x80 \xf0\x9f\x98.", ">😀 ???.<");
	text_becomes("a\x1b[2J\x7f\xc2\x9b" "b\t", ">a?[2J??b?<");
	text_becomes("\xff\xed\xa0\x80\xc0\xaf.", ">??????.<");
	text_becomes("\xef\xbf\xbe\xef\xbf\xbf\xef\xbf\xbd", ">??\xef\xbf\xbd<");
}

static void names_cut_within_a_character(void **state)
{
	struct loaded_trace t = { 0 };
	struct trace_writer *w = begin();
	char *svg = NULL;
	size_t size;
	FILE *to;

	name(w, 100, "потокпот");
	for (uint32_t i = 0; i < 10; i++)
		add(w, i, 100, TRACE_MISS);
	end(w, "потокпо\xd1", &t);
	assert_string_equal(t.thread[0].comm, "потокпо\xd1");
	for (enum plot_by by = PLOT_BY_KIND; by <= PLOT_BY_THREAD; by++) {
		to = open_memstream(&svg, &size);
		assert_int_equal(plot_svg(&t, by, t.info.comm, to), 0);
		fclose(to);
		assert_true(is_xml_text(svg));
		assert_non_null(strstr(svg, "потокпо?"));
		free(svg);
	}
	trace_unload(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(threads_by_faults),
		cmocka_unit_test(many_threads_in_turn),
		cmocka_unit_test(text_is_utf8),
		cmocka_unit_test(names_cut_within_a_character),
	};

	return cmocka_run_group_tests(tests, make_file, remove_file);
}
