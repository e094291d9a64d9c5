// SPDX-License-Identifier: GPL-2.0-or-later
/* The limit of prefetches in flight, on a simulated device with a program that misses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#undef fail

#include "lib/rules/pace.h"

#define US 1000ull
#define MS (1000 * US)
#define SECOND (1000 * MS)
#define STEP (100 * MS)

enum { BATCH = 64, CALL = 8, AHEAD = 512, BATCHES = 64, INFLIGHT = 128, MOST_MISSES = 1 << 17 };

static const struct pace_range range = { 8, 128 };

struct batch {
	uint64_t ends;
	uint32_t pages;
};

/*
 * A device that takes 60 us for any read, and serves one at a time: 6 us for one page, 3 us for
 * each of a prefetch, all times .slower percent of that.  One program misses all the time, with
 * 10 us between two misses.  Another is prefetched for: up to AHEAD pages, in the calls that
 * prefetch/pacing.c makes, of which each takes 8 us and 1 us per page.
 */
struct world {
	/* settings */
	bool paced;                 /* by struct pace */
	bool misses_first;          /* the device serves them before prefetches */
	uint64_t each_ns;           /* the other program's time for a page */
	uint64_t other_ns;          /* what each miss takes longer, whatever is in flight */
	uint32_t slower;            /* percent of the device's usual time */
	uint32_t read_us;           /* time of a read, */
	bool outliers;              /* ten times as much for one in 100 misses */
	uint32_t one_us, more_us;   /* of the device, for one page and for each of a prefetch */
	bool missing, prefetching;  /* which programs run */

	struct pace pace;
	uint64_t now, step_at;
	uint64_t free_at;           /* the device has served what it has */
	uint64_t demand_free_at;    /* and all misses, if these come first */
	uint64_t miss_at;           /* the next miss */
	uint64_t call_at;           /* the next call */
	uint64_t used_at;           /* the other program needs its next page */
	uint64_t requested, used;   /* its pages */
	struct batch batch[BATCHES];
	uint64_t first, last;       /* batches in flight */
	struct pace_seen seen;
	/* since the last count_anew() */
	uint64_t used_before;
	uint64_t *took;
	uint32_t misses;
	uint32_t lowest, highest;   /* limits */
	uint32_t random;
};

static uint32_t draw(struct world *w, uint32_t n)
{
	w->random = w->random * 1664525 + 1013904223;
	return (w->random >> 8) % n;
}

static uint32_t log2_of(uint64_t ns)
{
	return ns ? 63u - (uint32_t)__builtin_clzll(ns) : 0;
}

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t takes(const struct world *w, uint32_t us)
{
	return us * US * w->slower / 100;
}

static void miss(struct world *w)
{
	uint64_t *queue = w->misses_first ? &w->demand_free_at : &w->free_at, ns;

	*queue = later(*queue, w->now) + takes(w, w->one_us);
	/* One of 200 has other troubles. */
	ns = *queue + takes(w, w->read_us + draw(w, 10) + (draw(w, 200) ? 0 : 100)) + w->other_ns -
	     w->now;
	if (w->outliers && !draw(w, 100))
		ns += 9 * takes(w, w->read_us);
	if (w->misses_first)
		w->free_at = later(w->free_at, w->now) + takes(w, w->one_us);
	w->seen.misses[ebb_wait_bucket(ns, log2_of(ns))]++;
	w->took[w->misses++ % MOST_MISSES] = ns;
	w->miss_at = w->now + ns + 10 * US;
}

static uint32_t in_flight(struct world *w)
{
	uint32_t pages = 0;

	while (w->first < w->last && w->batch[w->first % BATCHES].ends <= w->now)
		w->first++;
	for (uint64_t i = w->first; i < w->last; i++)
		pages += w->batch[i % BATCHES].pages;
	return pages;
}

/* Requests what is wanted and allowed; returns when to try again. */
static uint64_t prefetch(struct world *w)
{
	bool paced = w->paced && w->pace.limit != PACE_NONE;
	uint32_t limit = paced ? w->pace.limit : INFLIGHT, n = BATCH;

	if (w->call_at > w->now)
		return w->call_at;
	if (paced)
		n = limit < 2 * CALL ? CALL : limit / 2 < BATCH ? limit / 2 : BATCH;
	if (w->requested + n > w->used + AHEAD)
		return UINT64_MAX;
	if (in_flight(w) + n > limit || w->last - w->first == BATCHES) {
		w->seen.held |= paced;
		return w->batch[w->first % BATCHES].ends + 20 * US;
	}
	w->seen.held |= paced && n < BATCH;
	w->free_at = later(w->free_at, w->now) + takes(w, n * w->more_us);
	w->batch[w->last++ % BATCHES] = (struct batch){ w->free_at + takes(w, w->read_us), n };
	w->requested += n;
	w->seen.pages += n;
	w->call_at = w->now + (8 + n) * US;
	return w->call_at;
}

/* The other program has its next page if this is not in flight. */
static void use(struct world *w)
{
	if (w->used + in_flight(w) < w->requested) {
		w->used++;
		w->used_at = w->now + w->each_ns;
	} else if (w->first < w->last) {
		w->used_at = w->batch[w->first % BATCHES].ends;
	} else {
		w->used_at = w->now + US;
	}
}

static void step(struct world *w)
{
	w->seen.ns = STEP;
	w->seen.waiting = w->missing;
	pace_step(&w->pace, range, &w->seen);
	w->seen = (struct pace_seen){ 0 };
	w->step_at += STEP;
	if (w->pace.limit < w->lowest)
		w->lowest = w->pace.limit;
	if (w->pace.limit > w->highest)
		w->highest = w->pace.limit;
}

static void run(struct world *w, uint64_t ns)
{
	uint64_t until = w->now + ns, retry = 0;

	w->step_at = w->now + STEP;
	w->miss_at = later(w->miss_at, w->now);
	w->used_at = later(w->used_at, w->now);
	while (w->now < until) {
		if (w->missing && w->miss_at <= w->now)
			miss(w);
		if (w->prefetching && w->used_at <= w->now)
			use(w);
		if (w->prefetching)
			retry = prefetch(w);
		if (w->step_at <= w->now)
			step(w);
		until = until < w->now ? w->now : until;
		w->now = w->step_at;
		if (w->missing && w->miss_at < w->now)
			w->now = w->miss_at;
		if (w->prefetching && w->used_at < w->now)
			w->now = w->used_at;
		if (w->prefetching && retry < w->now)
			w->now = retry;
	}
}

static void count_anew(struct world *w)
{
	w->misses = 0;
	w->used_before = w->used;
	w->lowest = PACE_NONE;
	w->highest = 0;
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static struct pace_times times(struct world *w)
{
	uint32_t n = w->misses < MOST_MISSES ? w->misses : MOST_MISSES;

	assert_true(n > 100);
	qsort(w->took, n, sizeof(*w->took), by_size);
	return (struct pace_times){ w->took[n / 2], w->took[n * 99ull / 100] };
}

static void begin(struct world *w)
{
	*w = (struct world){ .random = 1, .each_ns = 9 * US, .slower = 100, .read_us = 60,
			     .one_us = 6, .more_us = 3 };
	w->took = calloc(MOST_MISSES, sizeof(*w->took));
	assert_non_null(w->took);
	pace_init(&w->pace);
	w->paced = true;
}

/* Returns what misses take on the idle device, of which @w has 2 s. */
static struct pace_times idle(struct world *w)
{
	struct pace_times t;

	w->missing = true;
	count_anew(w);
	run(w, 2 * SECOND);
	t = times(w);
	assert_int_equal(w->pace.limit, PACE_NONE);
	return t;
}

/* Returns the pages that the other program uses in 5 s alone. */
static uint64_t pages_alone(uint64_t each_ns)
{
	struct world w;
	uint64_t pages;

	begin(&w);
	w.each_ns = each_ns;
	w.prefetching = true;
	run(&w, 5 * SECOND);
	pages = w.used;
	assert_int_equal(w.pace.limit, PACE_NONE);
	free(w.took);
	return pages;
}

struct result {
	struct pace_times idle, beside;
	uint64_t pages;             /* of the other program in 5 s */
};

/* Both run, of which the last 5 of 15 s count. */
static struct result both(struct world *w)
{
	struct result r = { .idle = idle(w) };

	w->prefetching = true;
	run(w, 10 * SECOND);
	count_anew(w);
	run(w, 5 * SECOND);
	r.beside = times(w);
	r.pages = w->used - w->used_before;
	return r;
}

/* A stream that needs a third of the device: its bursts are what the slowest misses wait for. */
static void misses_beside_a_stream(void **unused)
{
	uint64_t alone = pages_alone(9 * US);
	struct result r;
	struct world w;

	begin(&w);
	w.paced = false;
	r = both(&w);
	assert_true(r.beside.tail > r.idle.tail * 5 / 2 || r.beside.median > r.idle.median * 3 / 2);
	free(w.took);

	begin(&w);
	r = both(&w);
	assert_true(w.highest < PACE_NONE);
	assert_true(r.beside.median <= r.idle.median * 3 / 2);
	assert_true(r.beside.tail <= r.idle.tail * 5 / 2);
	assert_true(r.pages >= alone * 7 / 10);
	free(w.took);
}

/* One that takes all that the device gives. */
static void misses_beside_a_greedy_one(void **unused)
{
	struct result r, free_for_all;
	struct world w;

	begin(&w);
	w.paced = false;
	w.each_ns = 1;
	free_for_all = both(&w);
	free(w.took);

	begin(&w);
	w.each_ns = 1;
	r = both(&w);
	assert_true(free_for_all.beside.median > 3 * r.idle.median);
	assert_true(r.beside.median <= r.idle.median * 3 / 2);
	assert_true(r.beside.tail <= r.idle.tail * 5 / 2);
	assert_true(w.lowest >= range.least);
	assert_true(r.pages >= pages_alone(1) * 7 / 10);
	free(w.took);
}

/* The idle latency was learned while the device was four times as slow, or as fast. */
static void the_device_changes(void **unused)
{
	static const struct { uint32_t before, after; } change[] = {
		{ 400, 100 }, { 100, 25 }, { 25, 100 }, { 100, 400 },
	};

	for (int i = 0; i < 4; i++) {
		struct pace_times unpaced, t;
		struct world w;
		uint64_t pages;

		begin(&w);
		w.slower = change[i].after;
		unpaced = idle(&w);
		free(w.took);
		begin(&w);
		w.prefetching = true;
		w.each_ns = 1;
		w.slower = change[i].after;
		run(&w, 5 * SECOND);
		pages = w.used;
		free(w.took);

		begin(&w);
		w.each_ns = 1;
		w.slower = change[i].before;
		idle(&w);
		w.prefetching = true;
		run(&w, 5 * SECOND);
		w.slower = change[i].after;
		run(&w, 10 * SECOND);
		count_anew(&w);
		run(&w, 5 * SECOND);
		t = times(&w);
		assert_true(t.median <= unpaced.median * 3 / 2);
		assert_true(t.tail <= unpaced.tail * 5 / 2);
		/*
		 * Where it is slower, the idle latency is unknown: PACE_MEDIAN_LEAST leaves less in
		 * flight than misses would bear.
		 */
		assert_true(w.used - w.used_before >=
			    pages * (change[i].after > change[i].before ? 4 : 7) / 10);
		free(w.took);
	}
}

/* A disk.  The more misses are delayed, the fewer there are. */
static void a_slow_device(void **unused)
{
	struct result r;
	struct world w;

	begin(&w);
	w.read_us = 100;
	w.one_us = 6000;
	w.more_us = 200;
	w.each_ns = 1;
	w.paced = false;
	r = both(&w);
	assert_true(r.beside.median > 4 * r.idle.median);
	free(w.took);

	begin(&w);
	w.read_us = 100;
	w.one_us = 6000;
	w.more_us = 200;
	w.each_ns = 1;
	r.idle = idle(&w);
	w.prefetching = true;
	run(&w, 30 * SECOND);
	count_anew(&w);
	run(&w, 20 * SECOND);
	r.beside = times(&w);
	assert_true(r.beside.median <= r.idle.median * 2);
	assert_true(r.beside.tail <= r.idle.tail * 5 / 2);
	free(w.took);
}

/* The 99th percentile of a hundred misses a second is that of one, whatever is in flight. */
static void rare_slow_misses(void **unused)
{
	struct result r;
	struct world w;
	uint64_t pages;

	begin(&w);
	w.misses_first = w.outliers = true;
	w.read_us = 10000;
	w.more_us = 20;
	w.each_ns = 1;
	w.paced = false;
	r = both(&w);
	pages = r.pages;
	free(w.took);

	begin(&w);
	w.misses_first = w.outliers = true;
	w.read_us = 10000;
	w.more_us = 20;
	w.each_ns = 1;
	r.idle = idle(&w);
	w.prefetching = true;
	run(&w, 60 * SECOND);
	count_anew(&w);
	run(&w, 60 * SECOND);
	/* At most, three quarters of the device's queue. */
	assert_true(w.used - w.used_before >= pages * 12 * 7 / 10);
	free(w.took);
}

/* After a burst of slow misses the other has its speed again. */
static void a_burst(void **unused)
{
	struct world w;
	uint64_t before;

	begin(&w);
	idle(&w);
	w.prefetching = true;
	run(&w, 5 * SECOND);
	count_anew(&w);
	run(&w, SECOND);
	before = w.used - w.used_before;
	w.other_ns = 500 * US;
	run(&w, SECOND);
	w.other_ns = 0;
	run(&w, SECOND);
	count_anew(&w);
	run(&w, SECOND);
	assert_true(w.used - w.used_before >= before * 95 / 100);
	free(w.took);
}

/* Where misses pass, nothing is limited. */
static void misses_that_pass(void **unused)
{
	uint64_t alone = pages_alone(9 * US);
	struct result r;
	struct world w;

	begin(&w);
	w.misses_first = true;
	r = both(&w);
	assert_int_equal(w.lowest, PACE_NONE);
	assert_true(r.beside.median <= r.idle.median * 11 / 10);
	assert_true(r.pages >= alone * 95 / 100);
	free(w.took);
}

/* Misses that are slow beside the other for lack of a processor stay slow without prefetches. */
static void another_cause(void **unused)
{
	uint64_t alone = pages_alone(4 * US);
	struct world w;

	begin(&w);
	w.misses_first = true;
	w.each_ns = 4 * US;
	idle(&w);
	w.other_ns = 150 * US;
	w.prefetching = true;
	run(&w, 10 * SECOND);
	count_anew(&w);
	run(&w, 5 * SECOND);
	/* It is looked at again and again. */
	assert_int_equal(w.lowest, range.least);
	assert_true(w.highest >= 4 * range.least);
	assert_true(w.used - w.used_before >= alone * 9 / 10);
	free(w.took);
}

/* The other was there first: what misses take without prefetches is not known. */
static void a_late_comer(void **unused)
{
	uint64_t alone = pages_alone(9 * US);
	struct pace_times of_idle, t;
	struct world w;

	begin(&w);
	of_idle = idle(&w);
	free(w.took);
	begin(&w);
	w.prefetching = true;
	run(&w, SECOND);
	assert_int_equal(w.pace.limit, PACE_NONE);
	w.missing = true;
	run(&w, 10 * SECOND);
	count_anew(&w);
	run(&w, 5 * SECOND);
	t = times(&w);
	assert_true(w.highest < PACE_NONE);
	assert_true(t.median <= of_idle.median * 3 / 2);
	assert_true(w.used - w.used_before >= alone * 7 / 10);
	free(w.took);
}

/* A program that mostly hits is not slowed down for its few misses. */
static void a_lone_program(void **unused)
{
	struct pace p;

	pace_init(&p);
	for (int i = 0; i < 1000; i++) {
		struct pace_seen s = { .ns = STEP, .pages = 10000, .held = true };

		s.misses[i % EBB_WAITS] = 400;
		pace_step(&p, range, &s);
		assert_int_equal(p.limit, PACE_NONE);
	}
}

/* Steps with @misses of bucket @bucket, beside @pages. */
static void steps(struct pace *p, int n, uint32_t misses, uint32_t bucket, uint64_t pages)
{
	for (int i = 0; i < n; i++) {
		struct pace_seen s = { .ns = STEP, .pages = pages, .waiting = misses > 0,
				       .held = true };

		s.misses[bucket] = misses;
		pace_step(p, range, &s);
	}
}

static void the_limit_ends_with_the_misses(void **unused)
{
	struct pace p;

	pace_init(&p);
	steps(&p, 1, 1000, 18, 0);
	assert_int_equal(p.limit, PACE_NONE);
	steps(&p, 1, 1000, 26, 5000);
	assert_int_equal(p.limit, range.least);
	steps(&p, NEIGHBOUR_TICKS - 1, 0, 0, 5000);
	assert_true(p.limit < PACE_NONE);
	steps(&p, 1, 0, 0, 5000);
	assert_int_equal(p.limit, PACE_NONE);
	/* Few misses are no reason. */
	steps(&p, 100, NEIGHBOUR_MISSES - 1, 26, 5000);
	assert_int_equal(p.limit, PACE_NONE);
}

/* The rate times the latency that a read may have: 1.3 of what misses take on the idle device. */
static void the_first_limit_is_littles_law(void **unused)
{
	uint32_t slow = 4 * (19 - EBB_WAIT_SHIFT);  /* 0.52 ms and more */
	uint64_t latency, first;
	struct pace p;

	pace_init(&p);
	steps(&p, 1, 1000, slow, 0);
	latency = p.idle.median * 130 / 100;
	assert_in_range(latency, 680 * US, 852 * US);
	first = 6000 * latency / STEP;
	steps(&p, 1, 1000, slow + 8, 6000);
	/* First at the least limit, where misses are fast; */
	assert_int_equal(p.limit, range.least);
	steps(&p, 1, 1000, slow, 5000);
	assert_int_equal(p.limit, first);
	/* then eight pages more at a time, */
	steps(&p, 1, 1000, slow, 5000);
	assert_int_equal(p.limit, first + PACE_STEP);
	/* and three quarters when they are slow. */
	steps(&p, 1, 1000, slow + 8, 5000);
	assert_int_equal(p.limit, (first + PACE_STEP) * 3 / 4);
	steps(&p, 30, 1000, slow, 5000);
	assert_int_equal(p.limit, range.most);
	steps(&p, 20, 1000, slow + 8, 5000);
	assert_int_equal(p.limit, range.least);
}

/* A probe ends although the prefetches that it is about have ended. */
static void a_pause_ends_a_probe(void **unused)
{
	struct pace p;

	pace_init(&p);
	steps(&p, 1, 1000, 28, 0);
	steps(&p, 1, 1000, 40, 5000);
	assert_int_equal(p.limit, range.least);
	steps(&p, 1, 1000, 28, 0);
	assert_true(p.limit > range.least);
}

/* What does not use its limit gets no higher one, whose burst would come later. */
static void an_unused_limit_stays(void **unused)
{
	struct pace_seen s = { .ns = STEP, .pages = 5000, .waiting = true };
	struct pace p;

	pace_init(&p);
	steps(&p, 1, 1000, 18, 0);
	steps(&p, 1, 1000, 26, 5000);
	s.misses[18] = 1000;
	for (int i = 0; i < 30; i++)
		pace_step(&p, range, &s);
	assert_int_equal(p.limit, range.least);
}

/* What misses take without prefetches was learned when they were slow for another cause. */
static void a_lower_time_is_believed(void **unused)
{
	struct pace p;

	pace_init(&p);
	steps(&p, 1, 1000, 34, 0);
	steps(&p, 1, 1000, 44, 5000);
	assert_int_equal(p.limit, range.least);
	steps(&p, 1, 1000, 18, 5000);
	assert_in_range(p.idle.median, 98 * US, 115 * US);
	assert_in_range(p.idle.tail, 98 * US, 115 * US);
	steps(&p, 3, 1000, 18, 5000);
	assert_true(p.limit > range.least);
	/* More than twice as long, but less than it was. */
	steps(&p, 10, 1000, 24, 5000);
	assert_int_equal(p.limit, range.least);
}

/* At the least limit misses took long, for another cause that has ended. */
static void each_limit_is_learned_anew(void **unused)
{
	struct pace p;

	pace_init(&p);
	steps(&p, 1, 1000, 18, 0);
	steps(&p, 3, 1000, 34, 5000);
	assert_in_range(p.least.median, 1570 * US, 1840 * US);
	steps(&p, NEIGHBOUR_TICKS, 0, 0, 5000);
	assert_int_equal(p.limit, PACE_NONE);
	steps(&p, 1, 1000, 40, 5000);
	steps(&p, 1, 1000, 18, 5000);
	assert_in_range(p.least.median, 98 * US, 115 * US);
}

static void few_misses_are_judged_later(void **unused)
{
	struct pace p;

	pace_init(&p);
	steps(&p, 1, 1000, 18, 0);
	steps(&p, PACE_PATIENCE - 1, 20, 26, 5000);
	assert_int_equal(p.limit, PACE_NONE);
	steps(&p, 1, 20, 26, 5000);
	assert_int_equal(p.limit, range.least);
}

static void quantiles(void **unused)
{
	uint32_t n[EBB_WAITS] = { 0 };

	assert_int_equal(pace_quantile(n, 0, 50), 0);
	for (uint64_t ns = 4096; ns < 1ull << 28; ns += ns / 3) {
		uint32_t bucket = ebb_wait_bucket(ns, log2_of(ns));

		memset(n, 0, sizeof(n));
		n[bucket] = 7;
		assert_in_range(pace_quantile(n, 7, 50), ns * 3 / 4, ns * 5 / 4);
		assert_in_range(pace_quantile(n, 7, 99), ns * 3 / 4, ns * 5 / 4);
	}
	assert_int_equal(ebb_wait_bucket(0, 0), 0);
	assert_int_equal(ebb_wait_bucket(4095, 11), 0);
	assert_int_equal(ebb_wait_bucket(4096, 12), 0);
	assert_int_equal(ebb_wait_bucket(5120, 12), 1);
	assert_int_equal(ebb_wait_bucket(8191, 12), 3);
	assert_int_equal(ebb_wait_bucket(8192, 13), 4);
	assert_int_equal(ebb_wait_bucket(~0ull, 31), EBB_WAITS - 1);
	memset(n, 0, sizeof(n));
	n[10] = 98;
	n[20] = 2;
	assert_in_range(pace_quantile(n, 100, 50), 24576, 28672);
	assert_in_range(pace_quantile(n, 100, 98), 24576, 28672);
	assert_in_range(pace_quantile(n, 100, 99), 131072, 163840);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(misses_beside_a_stream),
		cmocka_unit_test(misses_beside_a_greedy_one),
		cmocka_unit_test(the_device_changes),
		cmocka_unit_test(a_slow_device),
		cmocka_unit_test(rare_slow_misses),
		cmocka_unit_test(a_burst),
		cmocka_unit_test(misses_that_pass),
		cmocka_unit_test(another_cause),
		cmocka_unit_test(a_late_comer),
		cmocka_unit_test(a_lone_program),
		cmocka_unit_test(the_limit_ends_with_the_misses),
		cmocka_unit_test(the_first_limit_is_littles_law),
		cmocka_unit_test(a_pause_ends_a_probe),
		cmocka_unit_test(an_unused_limit_stays),
		cmocka_unit_test(a_lower_time_is_believed),
		cmocka_unit_test(each_limit_is_learned_anew),
		cmocka_unit_test(few_misses_are_judged_later),
		cmocka_unit_test(quantiles),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
