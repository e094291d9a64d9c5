// SPDX-License-Identifier: GPL-2.0-or-later
/* Streams that pass windows of a process made up here: what leaves, when, and as what. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ebbd/prefetch/collapser.h"
#include "ebbd/prefetch/page_out.h"
#include "ebbd/prefetch/window.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define MIB (1ULL << 20)
#define SECOND 1000000000ULL
#define LEAF 77
#define PAGES (64 * COLLAPSE_PAGES)
#define KEPT 2
#define BASE (1000 * COLLAPSE_PAGES)    /* first page of the process's memory */

enum page { MAPPED, SHARED, LEFT_SMALL, LEFT_HUGE };

static struct {
	enum page page[PAGES];
	bool huge[PAGES / COLLAPSE_PAGES];
	uint32_t calls, most;           /* of MADV_COLLAPSE, and windows in one of them */
	uint64_t twice;                 /* pages paged out that had left before */
	uint64_t unused, swapped_in, limit;
	bool unsupported, forbidden, rejects, scatters, crammed, executed;
	uint32_t looks, frames;         /* at the cgroup's memory, and at frames */
	bool writing;                   /* small pages that left are being written, */
	uint64_t done;                  /* but for so many, which are written, */
	bool written;                   /* or are written at once, */
	uint64_t kept[KEPT];            /* and those of the last windows are still charged */
	uint32_t lefts;
	struct collapse rule;
	struct ebb_executor executor;
	struct executor_stats stats;
	struct target target;
	struct collapser *c;
	uint64_t now;
} w;

/* --- the kernel --------------------------------------------------------------- */

int clock_gettime(clockid_t id, struct timespec *t)
{
	*t = (struct timespec){ .tv_sec = (time_t)(w.now / SECOND),
				.tv_nsec = (long)(w.now % SECOND) };
	return 0;
}

int windows_open(struct windows *o, struct error *e)
{
	*o = (struct windows){ -1, -1, -1, -1 };
	return w.unsupported ? -ENOSYS : 0;
}

void windows_close(struct windows *o)
{
}

bool windows_allowed(const struct windows *o)
{
	return !w.forbidden;
}

bool target_current(const struct target *t)
{
	return !w.executed;
}

struct window window_look(const struct target *t, uint64_t vpn)
{
	uint64_t i = vpn - BASE;
	struct window at = { .private = true, .whole = true };

	assert_int_equal(i % COLLAPSE_PAGES, 0);
	assert_true(i < PAGES);
	for (uint64_t k = i; k < i + COLLAPSE_PAGES; k++) {
		at.present += w.page[k] <= SHARED;
		at.private &= w.page[k] == MAPPED;
		at.whole &= w.page[k] == LEFT_HUGE && !w.scatters;
	}
	at.huge = w.huge[i / COLLAPSE_PAGES] && at.present;
	for (int k = 0; k < WINDOW_FRAMES; k++)
		at.frame[k] = vpn + k * COLLAPSE_PAGES / WINDOW_FRAMES;
	return at;
}

void window_collapse(const struct target *t, uint64_t vpn, uint32_t n)
{
	if (w.rejects)
		return;
	w.calls++;
	w.now += n * COLLAPSE_PAGES * 2000;
	w.most = n > w.most ? n : w.most;
	for (uint32_t i = 0; i < n; i++) {
		assert_true(window_look(t, vpn + i * COLLAPSE_PAGES).private);
		w.huge[(vpn - BASE) / COLLAPSE_PAGES + i] = true;
	}
}

static void leave(uint64_t vpn, enum page how)
{
	assert_true(vpn >= BASE && vpn < BASE + PAGES);
	w.twice += w.page[vpn - BASE] > SHARED;
	w.page[vpn - BASE] = how;
	if (vpn % COLLAPSE_PAGES == COLLAPSE_PAGES - 1)
		w.kept[w.lefts++ % KEPT] = vpn / COLLAPSE_PAGES;
}

uint32_t window_page_out(const struct target *t, uint64_t vpn)
{
	assert_true(window_look(t, vpn).huge);
	w.now += COLLAPSE_PAGES * 1000;
	for (uint32_t i = 0; i < COLLAPSE_PAGES; i++)
		leave(vpn + i, LEFT_HUGE);
	return COLLAPSE_PAGES;
}

enum frame_state windows_frame(const struct windows *o, uint64_t frame, uint32_t pages,
			       uint64_t cgroup)
{
	assert_int_equal(cgroup, LEAF);
	if (w.page[frame - BASE] > SHARED)
		assert_int_equal(pages > 1, w.page[frame - BASE] == LEFT_HUGE);
	w.frames++;
	if (w.writing && w.page[frame - BASE] == LEFT_SMALL)
		return frame < BASE + w.done ? FRAME_FREEABLE : FRAME_OUTGOING;
	for (int i = 0; w.written && i < KEPT; i++)
		if (w.kept[i] == frame / COLLAPSE_PAGES)
			return FRAME_FREEABLE;
	return FRAME_OTHER;
}

uint64_t page_out_pages(const struct target *t, uint64_t first, int64_t stride, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		leave(first + (uint64_t)stride * i, LEFT_SMALL);
	w.executor.written += count;
	w.now += count * 16000;
	return count;
}

/* --- ebbd ---------------------------------------------------------------------- */

uint32_t page_out_due(const struct ebb_request *r, uint64_t limit, uint64_t *first)
{
	*first = r->first;
	return r->passed;
}

uint64_t leaf_limit(const struct leaf *leaf)
{
	return w.limit;
}

uint64_t leaf_unused(const struct leaf *leaf)
{
	w.looks++;
	return w.unused;
}

bool leaf_make_room(struct leaf *leaf, uint32_t pages)
{
	assert_true(pages > COLLAPSE_PAGES);
	return !w.crammed;
}

struct collapse *budget_collapse(struct budget *b)
{
	return &w.rule;
}

uint64_t budget_swapped_in(const struct budget *b)
{
	return w.swapped_in;
}

/* --- tests --------------------------------------------------------------------- */

static const struct collapse_job job = { .target = &w.target };

static void begin(enum collapse_wish wish, bool on)
{
	memset(&w, 0, sizeof(w));
	w.target = (struct target){ .tgid = 5, .exec = 1, .leaf = LEAF };
	w.unused = w.limit = 64 * MIB;
	w.now = SECOND;
	if (on)
		w.rule.state = COLLAPSE_ON;
	w.c = collapser_new(wish, &w.executor, &w.stats);
	assert_non_null(w.c);
}

static uint64_t pass(uint64_t first, int64_t stride, uint32_t n)
{
	struct ebb_request r = { .first = first, .stride = stride, .passed = n };

	w.now += 1000;
	return collapser_behind(w.c, &job, &r, w.now);
}

static uint64_t count(enum page how)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < PAGES; i++)
		n += w.page[i] == how;
	return n;
}

/* A stream passes @pages, @each at a time; returns how many left. */
static uint64_t stream(uint64_t first, int64_t stride, uint64_t pages, uint32_t each)
{
	uint64_t left = 0, before, now;

	for (uint64_t i = 0; i < pages; i += each) {
		before = count(LEFT_SMALL);
		left += pass(first + (uint64_t)stride * i, stride, each);
		/* However much has to leave, prefetches do not wait for much of it. */
		now = count(LEFT_SMALL) - before;
		assert_true(now <= COLLAPSE_PAGES + each || now <= 3 * each);
	}
	return left;
}

static void pages_leave_at_once_unless_it_is_on(void **state)
{
	static const struct {
		enum collapse_wish wish;
		bool on, unsupported;
		int64_t stride;
		enum collapse_reason reason;
	} row[] = {
		{ COLLAPSE_NEVER, true, false, 1, COLLAPSE_NONE },
		{ COLLAPSE_AUTO, false, false, 1, COLLAPSE_NONE },
		{ COLLAPSE_AUTO, true, false, 2, COLLAPSE_NONE },
		{ COLLAPSE_AUTO, true, false, -7, COLLAPSE_NONE },
		{ COLLAPSE_AUTO, true, true, 1, COLLAPSE_UNSUPPORTED },
	};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		begin(row[i].wish, row[i].on);
		collapser_free(&w.c);
		w.unsupported = row[i].unsupported;
		w.c = collapser_new(row[i].wish, &w.executor, &w.stats);
		for (int k = 0; k < 16; k++)
			assert_int_equal(pass(BASE + 8000 + row[i].stride * 64 * k, row[i].stride,
					      64), 64);
		assert_int_equal(count(LEFT_SMALL), 16 * 64);
		assert_int_equal(w.calls, 0);
		assert_int_equal(w.rule.reason, row[i].reason);
		collapser_free(&w.c);
	}
}

/* Of a stream that begins and ends inside of a window, in both directions. */
static void windows_leave_as_huge_pages(void **state)
{
	for (int step = 1; step >= -1; step -= 2) {
		uint64_t passed = 13 * COLLAPSE_PAGES + 300, first = step > 0 ? BASE + 200 :
								  BASE + PAGES - 201, left;

		begin(COLLAPSE_AUTO, true);
		left = stream(first, step, passed / 60 * 60, 60);
		assert_int_equal(w.twice, 0);
		/* The fragment at the beginning, and nothing else. */
		assert_int_equal(count(LEFT_SMALL), COLLAPSE_PAGES - 200);
		/* Of 12 whole windows the last two are still mapped. */
		assert_int_equal(count(LEFT_HUGE), 10 * COLLAPSE_PAGES);
		assert_int_equal(left, count(LEFT_SMALL) + count(LEFT_HUGE));
		assert_int_equal(w.calls, 6);
		assert_int_equal(w.most, 2);
		assert_int_equal(w.stats.collapsed, 12 * COLLAPSE_PAGES);
		assert_int_equal(w.rule.windows, 12);
		assert_int_equal(w.rule.whole, 10);
		/* What an idle stream has left goes when it has rested. */
		collapser_sweep(w.c, w.now + SECOND);
		assert_int_equal(count(LEFT_HUGE), 10 * COLLAPSE_PAGES);
		collapser_sweep(w.c, w.now + SECOND + 1);
		assert_int_equal(count(LEFT_HUGE), 12 * COLLAPSE_PAGES);
		assert_int_equal(count(MAPPED), PAGES - passed / 60 * 60);
		assert_int_equal(w.twice, 0);
		assert_int_equal(left + w.stats.paged_out, passed / 60 * 60);
		collapser_free(&w.c);
	}
}

static void at_the_limit_earlier_windows_make_room(void **state)
{
	begin(COLLAPSE_AUTO, true);
	w.unused = 0;
	stream(BASE, 1, 8 * COLLAPSE_PAGES, 64);
	/* Nothing has been written that was left. */
	assert_int_equal(w.calls, 0);
	assert_in_range(count(LEFT_SMALL), 4 * COLLAPSE_PAGES, 6 * COLLAPSE_PAGES);
	/* The last of them have been: they make room for the next ones, and so on. */
	w.written = true;
	stream(BASE + 8 * COLLAPSE_PAGES, 1, 8 * COLLAPSE_PAGES, 64);
	assert_true(w.calls >= 3);
	assert_int_equal(count(LEFT_SMALL), 6 * COLLAPSE_PAGES);
	assert_int_equal(w.twice, 0);
	collapser_free(&w.c);
}

static void shared_windows_leave_small(void **state)
{
	begin(COLLAPSE_AUTO, true);
	for (int i = 0; i < 16; i += 4)
		w.page[i * COLLAPSE_PAGES + 3] = SHARED;
	stream(BASE, 1, 16 * COLLAPSE_PAGES + 64, 64);
	collapser_sweep(w.c, w.now + 2 * SECOND);
	collapser_sweep(w.c, w.now + 2 * SECOND);
	assert_int_equal(count(LEFT_SMALL), 4 * COLLAPSE_PAGES + 64);
	assert_int_equal(count(LEFT_HUGE), 12 * COLLAPSE_PAGES);
	assert_int_equal(w.rule.rejected, 4);
	collapser_free(&w.c);
}

static void requests_may_be_lost(void **state)
{
	begin(COLLAPSE_AUTO, true);
	for (uint64_t i = 0; i < 8 * COLLAPSE_PAGES; i += 64)
		if (i / 64 % 5)
			pass(BASE + i, 1, 64);
	/* From the first page that was told of on. */
	assert_int_equal(count(LEFT_SMALL), COLLAPSE_PAGES - 64);
	assert_int_equal(w.rule.windows, 6);
	assert_int_equal(w.twice, 0);
	collapser_free(&w.c);
}

/* What the kernel rejects, and swap that has no 512 slots in sequence. */
static void windows_that_are_not_huge_switch_it_off(void **state)
{
	for (int rejects = 0; rejects < 2; rejects++) {
		begin(COLLAPSE_AUTO, true);
		w.rejects = rejects;
		w.scatters = !rejects;
		stream(BASE, 1, 30 * COLLAPSE_PAGES, 64);
		assert_int_equal(w.rule.reason, rejects ? COLLAPSE_REFUSED : COLLAPSE_SCATTERED);
		assert_int_equal(count(LEFT_HUGE), rejects ? 0 : 6 * COLLAPSE_PAGES);
		assert_int_equal(w.twice, 0);
		assert_true(count(LEFT_SMALL) > 20 * COLLAPSE_PAGES);
		collapser_free(&w.c);
	}
}

static void what_is_left_goes_when_it_switches_off(void **state)
{
	begin(COLLAPSE_AUTO, true);
	stream(BASE, 1, 5 * COLLAPSE_PAGES + 64, 64);
	assert_true(count(LEFT_HUGE) == 2 * COLLAPSE_PAGES);
	w.rule.state = COLLAPSE_OFF;
	w.rule.retry_ns = UINT64_MAX;
	/* Huge pages at once, a window of small ones at a time, with requests or without. */
	assert_int_equal(pass(BASE + 5 * COLLAPSE_PAGES + 64, 1, 64), 3 * COLLAPSE_PAGES + 64);
	collapser_sweep(w.c, w.now);
	assert_int_equal(w.stats.paged_out, 64);
	assert_int_equal(pass(BASE + 5 * COLLAPSE_PAGES + 128, 1, 64), 64);
	assert_int_equal(w.twice, 0);
	assert_int_equal(count(MAPPED), PAGES - 5 * COLLAPSE_PAGES - 192);
	collapser_free(&w.c);
}

/* On again before the rest of the time before has left. */
static void what_is_left_goes_while_new_windows_are_collapsed(void **state)
{
	begin(COLLAPSE_AUTO, true);
	stream(BASE, 1, 2 * COLLAPSE_PAGES - 64, 64);
	w.rule.state = COLLAPSE_OFF;
	w.rule.retry_ns = UINT64_MAX;
	pass(BASE + 2 * COLLAPSE_PAGES - 64, 1, 64);
	w.rule.state = COLLAPSE_ON;
	stream(BASE + 2 * COLLAPSE_PAGES, 1, 4 * COLLAPSE_PAGES + 64, 64);
	for (int i = 0; i < 3; i++)
		collapser_sweep(w.c, w.now += 2 * SECOND);
	assert_int_equal(count(LEFT_SMALL), 2 * COLLAPSE_PAGES + 64);
	assert_int_equal(count(LEFT_HUGE), 4 * COLLAPSE_PAGES);
	assert_int_equal(w.twice, 0);
	collapser_free(&w.c);
}

static void each_window_is_decided_about_once(void **state)
{
	begin(COLLAPSE_AUTO, true);
	w.unused = 0;
	stream(BASE, 1, 24 * COLLAPSE_PAGES, 8);
	assert_in_range(w.looks, 1, 24);
	collapser_free(&w.c);
}

/* While pages are being written, each request looks whether they have been; at a few of them. */
static void what_is_being_written_is_waited_for(void **state)
{
	uint32_t before;

	begin(COLLAPSE_AUTO, true);
	w.unused = 0;
	w.writing = true;
	stream(BASE, 1, 4 * COLLAPSE_PAGES + 64, 64);
	assert_int_equal(count(LEFT_SMALL), 2 * COLLAPSE_PAGES);
	assert_int_equal(w.calls, 0);
	before = w.looks;
	stream(BASE + 4 * COLLAPSE_PAGES + 64, 1, 256, 64);
	assert_in_range(w.looks - before, 3, 4);
	assert_int_equal(w.calls, 0);
	w.writing = false;
	w.written = true;
	stream(BASE + 4 * COLLAPSE_PAGES + 320, 1, 64, 64);
	assert_int_equal(w.calls, 1);
	collapser_free(&w.c);
}

static void much_that_is_being_written_costs_little(void **state)
{
	struct collapse_job j = job;

	begin(COLLAPSE_AUTO, true);
	w.unused = 0;
	w.writing = true;
	for (int i = 0; i < 64; i++) {
		struct ebb_request r = { .first = BASE + i * COLLAPSE_PAGES, .stride = 1,
					 .passed = COLLAPSE_PAGES };

		w.rule.crowded = (struct collapse_tally){ 0 };
		w.frames = 0;
		collapser_behind(w.c, &j, &r, w.now += 1000);
		assert_true(w.frames <= 4 * WINDOW_FRAMES);
		assert_int_equal(w.done ? 0 : w.calls, 0);
		/* What left first is written first. */
		if (i == 57)
			w.done = 4 * COLLAPSE_PAGES;
	}
	assert_int_equal(w.rule.state, COLLAPSE_ON);
	assert_true(count(LEFT_SMALL) > 40 * COLLAPSE_PAGES);
	assert_true(w.calls > 0);
	collapser_free(&w.c);
}

static void settings_that_forbid_it_switch_it_off(void **state)
{
	begin(COLLAPSE_AUTO, true);
	w.forbidden = true;
	stream(BASE, 1, 8 * COLLAPSE_PAGES, 64);
	assert_int_equal(w.calls, 0);
	assert_int_equal(w.rule.reason, COLLAPSE_UNSUPPORTED);
	assert_int_equal(w.rule.state, COLLAPSE_OFF);
	assert_int_equal(count(LEFT_SMALL), 8 * COLLAPSE_PAGES);
	assert_int_equal(w.twice, 0);
	collapser_free(&w.c);
}

/* Reclaim before the call fails: no reason to try all the same, nor to keep the pages. */
static void without_room_it_switches_off(void **state)
{
	begin(COLLAPSE_AUTO, true);
	w.crammed = true;
	stream(BASE, 1, 30 * COLLAPSE_PAGES, 64);
	assert_int_equal(w.calls, 0);
	assert_int_equal(w.rule.reason, COLLAPSE_CROWDED);
	assert_true(count(LEFT_SMALL) > 28 * COLLAPSE_PAGES);
	assert_int_equal(w.twice, 0);
	collapser_free(&w.c);
}

/* With each request it passes more than leaves with one. */
static void a_fast_stream_leaves_no_backlog(void **state)
{
	for (int crowded = 0; crowded < 2; crowded++) {
		begin(COLLAPSE_AUTO, true);
		w.unused = crowded ? 0 : 64 * MIB;
		stream(BASE, 1, PAGES, 2048);
		assert_in_range(count(MAPPED), 0, 16 * COLLAPSE_PAGES);
		assert_int_equal(w.twice, 0);
		collapser_free(&w.c);
	}
}

/* As the time of a call grows, so that fewer windows are ready than it waited for. */
static void a_shorter_call_does_not_wait_for_more(void **state)
{
	begin(COLLAPSE_AUTO, true);
	w.limit = 512 * MIB;
	w.unused = 0;
	w.rule.collapse_ns = 1000000;
	stream(BASE, 1, 19 * COLLAPSE_PAGES, 64);
	assert_int_equal(count(LEFT_SMALL) + count(LEFT_HUGE), 0);
	w.rule.collapse_ns = SECOND;
	stream(BASE + 19 * COLLAPSE_PAGES, 1, 64, 64);
	assert_true(count(LEFT_SMALL) > 0);
	collapser_free(&w.c);
}

/* Nothing is known of a limit that another cgroup has, or had. */
static void below_the_least_limit_pages_leave_at_once(void **state)
{
	begin(COLLAPSE_AUTO, true);
	stream(BASE, 1, COLLAPSE_PAGES + 64, 64);
	w.limit = 63 * MIB;
	stream(BASE + COLLAPSE_PAGES + 64, 1, COLLAPSE_PAGES - 64, 64);
	assert_int_equal(count(LEFT_SMALL), 2 * COLLAPSE_PAGES);
	assert_int_equal(w.rule.state, COLLAPSE_ON);
	assert_int_equal(w.rule.small_pages, 0);
	collapser_free(&w.c);
}

/* Whatever happens meanwhile, each page that a stream passes leaves once, soon after it. */
static void each_page_leaves_once(void **state)
{
	static const uint64_t limits[] = { 32 * MIB, 64 * MIB, 512 * MIB };
	uint32_t seed = 1;

	for (int round = 0; round < 500; round++) {
		int64_t stride = round & 1 ? 1 : -1;
		uint64_t at = rand_r(&seed) % 3000, begin_at = at, n;

		begin(COLLAPSE_AUTO, true);
		w.limit = limits[rand_r(&seed) % 3];
		for (; at < PAGES; at += n) {
			n = 1 + rand_r(&seed) % (rand_r(&seed) % 8 ? 128 : 2048);
			n = n < PAGES - at ? n : PAGES - at;
			switch (rand_r(&seed) % 64) {
			case 0:
				w.rule.state = COLLAPSE_OFF;
				w.rule.retry_ns = UINT64_MAX;
				break;
			case 1: case 2: case 3:
				w.rule.state = COLLAPSE_ON;
				w.rule.collapse_ns = rand_r(&seed) % 8 * 1000000;
				break;
			case 4:
				w.limit = limits[rand_r(&seed) % 3];
				break;
			case 5: case 6:
				w.unused = rand_r(&seed) % 2 * 64 * MIB;
				break;
			case 7:
				w.rejects = !w.rejects;
				break;
			case 8:
				w.forbidden = rand_r(&seed) % 4 == 0;
				break;
			case 9:
				w.crammed = !w.crammed;
				break;
			case 10: case 11: case 12:
				w.page[stride > 0 ? at + n - 1 : PAGES - at - n] = SHARED;
				break;
			case 13:
				collapser_sweep(w.c, w.now + rand_r(&seed) % 2 * 2 * SECOND);
				break;
			case 14:
				w.written = !w.written;
			}
			pass(stride > 0 ? BASE + at : BASE + PAGES - 1 - at, stride, (uint32_t)n);
		}
		for (uint64_t i = 0; i < 2 * PAGES; i += 1024)
			collapser_sweep(w.c, w.now += 2 * SECOND);
		assert_int_equal(count(LEFT_SMALL) + count(LEFT_HUGE), PAGES - begin_at);
		assert_int_equal(w.twice, 0);
		collapser_free(&w.c);
	}
}

static void more_streams_than_are_followed_leave_at_once(void **state)
{
	struct target many[33];
	struct collapse_job j;

	begin(COLLAPSE_AUTO, true);
	for (int i = 0; i < 33; i++) {
		struct ebb_request r = { .first = BASE + i * COLLAPSE_PAGES, .stride = 1,
					 .passed = 64 };

		many[i] = (struct target){ .tgid = 5 + i, .exec = 1, .leaf = LEAF };
		j = (struct collapse_job){ .target = &many[i] };
		assert_int_equal(collapser_behind(w.c, &j, &r, w.now), i < 32 ? 0 : 64);
	}
	/* What the processes have passed is not lost with what ebbd knows about them. */
	collapser_forget(w.c, &many[3]);
	assert_int_equal(w.stats.paged_out, 64);
	assert_int_equal(w.page[3 * COLLAPSE_PAGES], LEFT_SMALL);
	many[3].tgid = 99;
	assert_int_equal(collapser_behind(w.c, &(struct collapse_job){ .target = &many[3] },
					  &(struct ebb_request){ .first = BASE, .stride = 1,
								 .passed = 64 }, w.now), 0);
	w.executed = true;
	collapser_sweep(w.c, w.now + 2 * SECOND);
	assert_int_equal(w.stats.paged_out, 64);
	collapser_free(&w.c);
}

/* The program uses each window again before an eighth of its memory was swapped in, or later. */
static void windows_that_return_early_switch_it_off(void **state)
{
	for (int early = 0; early < 2; early++) {
		begin(COLLAPSE_AUTO, true);
		for (int i = 0; i < 48; i++) {
			stream(BASE + i * COLLAPSE_PAGES, 1, COLLAPSE_PAGES, 64);
			w.swapped_in += COLLAPSE_PAGES;
			for (uint64_t k = 0; early && k < PAGES; k++)
				w.page[k] = w.page[k] == LEFT_HUGE ? MAPPED : w.page[k];
		}
		assert_int_equal(w.rule.trips, early);
		assert_int_equal(w.rule.reason, early ? COLLAPSE_RETURNED : COLLAPSE_NONE);
		assert_int_equal(w.rule.again >= 5, early);
		collapser_free(&w.c);
	}
}

/* A stream takes the same windows again and again, and they have left again when judged. */
static void windows_that_leave_again_have_returned(void **state)
{
	static const struct {
		uint64_t swapped_in;    /* pages in a pass */
		enum collapse_reason reason;
	} row[] = {
		{ 3 * COLLAPSE_PAGES, COLLAPSE_RETURNED },
		{ 8 * COLLAPSE_PAGES, COLLAPSE_NONE },
	};

	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		begin(COLLAPSE_AUTO, true);
		for (int pass = 0; pass < 12 && w.rule.state == COLLAPSE_ON; pass++) {
			stream(BASE, 1, 4 * COLLAPSE_PAGES + 128, 64);
			w.swapped_in += row[i].swapped_in;
			collapser_sweep(w.c, w.now += 2 * SECOND);
			memset(w.page, 0, sizeof(w.page));
			memset(w.huge, 0, sizeof(w.huge));
		}
		assert_int_equal(w.rule.reason, row[i].reason);
		collapser_free(&w.c);
	}
}

static void streams_do_not_mix(void **state)
{
	begin(COLLAPSE_AUTO, true);
	for (uint64_t i = 0; i < 4 * COLLAPSE_PAGES + 64; i += 64) {
		pass(BASE + i, 1, 64);
		pass(BASE + 20 * COLLAPSE_PAGES + i, 1, 64);
		pass(BASE + 20 * COLLAPSE_PAGES - 1 - i, -1, 64);
	}
	assert_int_equal(w.twice, 0);
	assert_int_equal(count(LEFT_SMALL), 0);
	assert_int_equal(w.rule.windows, 12);
	/* A process that executes another program is not paged out. */
	w.target.exec++;
	pass(BASE + 4 * COLLAPSE_PAGES + 64, 1, 64);
	collapser_sweep(w.c, w.now + 2 * SECOND);
	assert_int_equal(count(LEFT_SMALL), 64);
	assert_int_equal(count(LEFT_HUGE), w.rule.whole * COLLAPSE_PAGES);
	assert_int_equal(w.rule.whole, 6);
	collapser_free(&w.c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pages_leave_at_once_unless_it_is_on),
		cmocka_unit_test(windows_leave_as_huge_pages),
		cmocka_unit_test(at_the_limit_earlier_windows_make_room),
		cmocka_unit_test(shared_windows_leave_small),
		cmocka_unit_test(requests_may_be_lost),
		cmocka_unit_test(windows_that_are_not_huge_switch_it_off),
		cmocka_unit_test(what_is_left_goes_when_it_switches_off),
		cmocka_unit_test(what_is_left_goes_while_new_windows_are_collapsed),
		cmocka_unit_test(each_window_is_decided_about_once),
		cmocka_unit_test(what_is_being_written_is_waited_for),
		cmocka_unit_test(much_that_is_being_written_costs_little),
		cmocka_unit_test(settings_that_forbid_it_switch_it_off),
		cmocka_unit_test(without_room_it_switches_off),
		cmocka_unit_test(a_fast_stream_leaves_no_backlog),
		cmocka_unit_test(a_shorter_call_does_not_wait_for_more),
		cmocka_unit_test(below_the_least_limit_pages_leave_at_once),
		cmocka_unit_test(more_streams_than_are_followed_leave_at_once),
		cmocka_unit_test(each_page_leaves_once),
		cmocka_unit_test(windows_that_return_early_switch_it_off),
		cmocka_unit_test(windows_that_leave_again_have_returned),
		cmocka_unit_test(streams_do_not_mix),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
