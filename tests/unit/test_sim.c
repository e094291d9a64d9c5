// SPDX-License-Identifier: GPL-2.0-or-later
/* daemon/sim: traces made here, replayed, and compared with computed counts. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim/replay.h"
#include "trace_file.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define PAGE 4096ULL
#define BASE 0x7f0000000ULL
#define US 1000ULL

/* A policy that asks for what a test wants. */
enum { STEP, COUNT, OP };
EBB_POLICY(probe, "asks for count pages, step pages ahead",
	EBB_PARAM(STEP, "step", 1, 0, 1 << 20, ""),
	EBB_PARAM(COUNT, "count", 0, 0, 1024, ""),
	EBB_PARAM(OP, "op", 0, 0, 3, ""))

static void probe_fault(const struct ebb_fault *f, const struct ebb_params *p)
{
	__u64 list[EBB_LIST_MAX] = { 0 };

	if (!p->v[COUNT])
		return;
	if (p->v[OP] == EBB_OP_LIST) {
		for (uint64_t i = 0; i < EBB_LIST_MAX; i++)
			list[i] = f->vpn + p->v[STEP] * (i + 1);
		ebb_prefetch_list(f, list, p->v[COUNT]);
	} else if (p->v[OP] == EBB_OP_COLD) {
		ebb_cold(f, f->vpn, 1, p->v[COUNT]);
	} else if (p->v[OP] == EBB_OP_OUT) {
		/* Every other one: with all of them out, none would gain. */
		if (f->vpn & 1)
			ebb_out(f, f->vpn - p->v[STEP], -1, p->v[COUNT]);
	} else {
		ebb_prefetch(f, f->vpn + p->v[STEP], 1, p->v[COUNT]);
	}
}
EBB_POLICY_STATELESS(probe, probe_fault)

static struct trace_writer *begin(uint64_t pages)
{
	struct trace_info info = { .page_shift = 12, .memory = pages * PAGE };
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	struct trace_writer *w;

	assert_int_equal(trace_writer_new(&w, fd, path, &info, NULL), 0);
	return w;
}

static void add(struct trace_writer *w, enum trace_kind kind, uint64_t us, uint64_t page,
		uint32_t tid, uint32_t cluster)
{
	struct trace_record r = {
		.time_ns = us * US, .duration_ns = kind == TRACE_OUT ? 0 : 5 * US,
		.vpn = BASE + page, .tgid = 10, .tid = kind == TRACE_OUT ? 0 : tid,
		.kind = kind, .cluster = cluster, .role = tid == 99,
	};

	assert_int_equal(trace_write(w, &r, NULL), 0);
}

static void end(struct trace_writer *w, struct sim_history *h)
{
	_cleanup_trace_ struct trace_reader *r = NULL;

	assert_int_equal(trace_writer_end(&w, 0, "", NULL), 0);
	assert_int_equal(trace_open(&r, path, TRACE_WHOLE, NULL), 0);
	assert_int_equal(sim_history_read(h, r, NULL), 0);
}

/* Passes over @pages pages, one miss every 20 us. */
static void walk(struct sim_history *h, uint64_t memory, uint64_t pages, int passes)
{
	struct trace_writer *w = begin(memory);
	uint64_t us = 100;

	for (int k = 0; k < passes; k++)
		for (uint64_t i = 0; i < pages; i++, us += 20)
			add(w, TRACE_MISS, us, i, 10, 1);
	end(w, h);
}

static struct sim_result replay(const struct sim_history *h, struct sim_config c)
{
	struct sim_result x;

	c.policy = c.policy ? c.policy : &probe_policy;
	c.headroom = c.headroom ? c.headroom : 1;
	c.memory = c.memory ? c.memory : h->info.memory;
	assert_int_equal(sim_replay(h, &c, &x, NULL), 0);
	assert_int_equal(x.hits + x.late + x.misses + x.readahead + x.spared, h->accesses);
	assert_int_equal(x.hits + x.late + x.wasted + x.outstanding, x.prefetched);
	return x;
}

static struct sim_config probing(uint64_t step, uint64_t count, uint32_t op)
{
	return (struct sim_config){ .params.v = { step, count, op }, .latency_ns = 5 * US,
				    .wakeup_ns = 1 * US };
}

static uint64_t next_random(uint64_t *seed)
{
	*seed ^= *seed >> 12;
	*seed ^= *seed << 25;
	*seed ^= *seed >> 27;
	return *seed * 0x2545f4914f6cdd1dULL;
}

/* Three threads at random, dirty pages and clean ones, records out of order. */
static void muddle(struct sim_history *h)
{
	struct trace_writer *w = begin(300);
	uint64_t seed = 7;

	for (uint64_t i = 0; i < 20000; i++) {
		uint64_t a = next_random(&seed);

		add(w, a % 3 ? TRACE_MISS : TRACE_OUT, 100 + 20 * i + a % 50, (a >> 32) % 1000,
		    10 + a % 7 / 3, 1);
	}
	end(w, h);
}

static void nothing_prefetched_is_what_was_recorded(void **unused)
{
	_cleanup_history_ struct sim_history h = { 0 };
	struct sim_result x;

	muddle(&h);
	x = replay(&h, probing(1, 0, 0));
	/* Threads move against each other: a page two of them missed may be missed once. */
	assert_true(x.misses <= h.recorded[TRACE_MISS]);
	assert_true(x.misses * 100 >= h.recorded[TRACE_MISS] * 95);
	sim_history_free(&h);

	walk(&h, 100, 150, 4);
	x = replay(&h, probing(1, 0, 0));
	assert_int_equal(x.misses, 600);
	assert_int_equal(x.miss_ns, 600 * 5 * US);
	/* The gaps are the program's own, whatever the device. */
	assert_int_equal(x.span_ns, 599 * 20 * US + 5 * US);
}

static void same_every_time(void **unused)
{
	struct sim_result x, y;
	struct sim_history h = { 0 };

	muddle(&h);
	x = replay(&h, probing(1, 8, 0));
	sim_history_free(&h);
	muddle(&h);
	y = replay(&h, probing(1, 8, 0));
	assert_memory_equal(&x, &y, sizeof(x));
	y = replay(&h, probing(1, 8, 0));
	assert_memory_equal(&x, &y, sizeof(x));
	sim_history_free(&h);
}

/* Each fault asks for the next page, which takes 1 + 5 us of the 15 there are. */
static void next_page_in_time(void **unused)
{
	_cleanup_history_ struct sim_history h = { 0 };
	struct sim_result x;

	walk(&h, 100, 150, 1);
	x = replay(&h, probing(1, 1, 0));
	assert_int_equal(x.misses, 1);
	assert_int_equal(x.hits, 149);
	assert_int_equal(x.late, 0);
	/* Behind the last page there is none that the trace knows. */
	assert_int_equal(x.prefetched, 149);
	assert_int_equal(x.not_swapped, 1);
	assert_int_equal(x.requests, 150);
	x = replay(&h, probing(1, 1, EBB_OP_LIST));
	assert_int_equal(x.hits, 149);
}

static void late_and_later(void **unused)
{
	_cleanup_history_ struct sim_history h = { 0 };
	struct sim_config c = probing(1, 1, 0);
	struct sim_result x;

	walk(&h, 100, 150, 1);
	c.latency_ns = 40 * US;
	x = replay(&h, c);
	assert_int_equal(x.misses, 1);
	assert_int_equal(x.late, 149);
	/* Asked for 15 us before, 1 us of which passed until anybody looked. */
	assert_int_equal(x.late_ns, 149 * (40 + 1 - 15 + 1) * US);
	/* An executor that wakes up too late finds the program waiting. */
	c.wakeup_ns = 16 * US;
	x = replay(&h, c);
	assert_int_equal(x.misses, 150);
	assert_int_equal(x.prefetched, 0);
}

static void bandwidth_bounds(void **unused)
{
	_cleanup_history_ struct sim_history h = { 0 };
	struct sim_config c = probing(1, 64, 0);

	walk(&h, 1000, 1500, 1);
	assert_int_equal(replay(&h, c).late, 0);
	/* A page takes 40 us: every page is waited for. */
	c.bandwidth = PAGE * 25000;
	assert_true(replay(&h, c).late > 1000);
	assert_true(replay(&h, c).span_ns >= 1499 * 40 * US);
}

/* Pages in a row keep the device busy a third of the time that others do. */
static void busy_device(void **unused)
{
	_cleanup_history_ struct sim_history h = { 0 };
	struct sim_config row = probing(1, 64, 0), apart = probing(0, 1, EBB_OP_LIST);
	struct sim_result x;

	walk(&h, 1000, 1500, 1);
	row.busy_ns = 90 * US;
	x = replay(&h, row);
	assert_true(x.late > 1000);
	assert_in_range(x.span_ns, 1400 * 30 * US, 1600 * 30 * US);
	/* Each miss is read alone: it waits behind no other read. */
	apart.params.v[COUNT] = 0;
	apart.busy_ns = 90 * US;
	x = replay(&h, apart);
	assert_int_equal(x.miss_ns, 1500 * 90 * US);
	apart.busy_ns = 4 * US;
	assert_int_equal(replay(&h, apart).miss_ns, 1500 * 5 * US);
}

/* @misses misses, each requesting a page that is never used, at a memory of 100 pages. */
static struct sim_result useless(uint64_t misses)
{
	_cleanup_history_ struct sim_history h = { 0 };
	struct trace_writer *w = begin(100);

	for (uint64_t i = 0; i < misses; i++) {
		add(w, TRACE_OUT, 10, 10000 + i, 0, 0);
		add(w, TRACE_MISS, 100 + 20 * i, i, 10, 1);
	}
	end(w, &h);
	return replay(&h, probing(10000, 1, 0));
}

/* An unused prefetched page is evicted after half of memory was swapped in after it. */
static void unread_pages_are_wasted(void **unused)
{
	struct sim_result x = useless(200);

	assert_int_equal(x.misses, 200);
	assert_int_equal(x.prefetched, 200);
	/* Each miss brings two pages: its own, and the one that is wasted. */
	assert_int_equal(x.outstanding, 50 / 2 + 1);
	assert_int_equal(x.wasted, 200 - 50 / 2 - 1);
}

/* Useless prefetches delay misses, but by no more than the executor's in-flight limit. */
static void vain_reads_hold_up_misses(void **unused)
{
	_cleanup_history_ struct sim_history h = { 0 };
	struct sim_config c = probing(10000, 1024, 0);
	struct trace_writer *w = begin(10000);

	for (uint64_t i = 0; i < 512; i++)
		add(w, TRACE_OUT, 10, 10000 + 2 * i, 0, 0);
	for (uint64_t i = 0; i < 4; i++)
		add(w, TRACE_MISS, 100 + 20 * i, 2 * i, 10, 1);
	end(w, &h);
	c.busy_ns = 15 * US;
	/* The first asks for 512 pages; the others would wait for all of them. */
	assert_int_equal(replay(&h, c).miss_ns, (15 + 3 * (128 + 1) * 15) * US);
	c.params.v[COUNT] = 0;
	assert_int_equal(replay(&h, c).miss_ns, 4 * 15 * US);
}

static void who_wastes_is_throttled(void **unused)
{
	struct sim_result x = useless(3000);

	assert_int_equal(x.prefetched + x.throttled, 3000);
	assert_in_range(x.prefetched, 400, 500); /* 256, those in flight, then one in sixteen */
}

static void headroom_bounds(void **unused)
{
	_cleanup_history_ struct sim_history h = { 0 };
	struct sim_config c = probing(1, 100, 0);
	struct sim_result x;

	walk(&h, 80, 1000, 1);
	c.headroom = 8;
	x = replay(&h, c);
	assert_true(x.dropped > 0);
	assert_true(x.outstanding <= 10);
}

/* Pages the kernel read with a miss: unseen touches, and hits once somebody prefetches them. */
static void what_readahead_hid(void **unused)
{
	_cleanup_history_ struct sim_history h = { 0 };
	struct trace_writer *w = begin(1000);
	struct sim_result x;

	for (uint64_t i = 0; i < 100; i++)
		add(w, TRACE_MISS, 100 + 50 * i, 8 * i, 10, 8);
	end(w, &h);
	assert_int_equal(h.accesses, 99 * 8 + 1);
	x = replay(&h, probing(1, 0, 0));
	assert_int_equal(x.misses, 100);
	assert_int_equal(x.readahead, 99 * 7);
	x = replay(&h, probing(8, 8, 0));
	assert_true(x.hits > 600);
	assert_true(x.misses < 50);
}

/* Reads around that led nowhere are not taken for touches. */
static void jumps_hide_nothing(void **unused)
{
	_cleanup_history_ struct sim_history h = { 0 };
	struct trace_writer *w = begin(1000);

	for (uint64_t i = 0; i < 100; i++)
		add(w, TRACE_MISS, 100 + 50 * i, i * 7919 % 1000 * 100, 10, 4);
	end(w, &h);
	assert_int_equal(h.accesses, 100);
}

static void larger_memory_spares(void **unused)
{
	_cleanup_history_ struct sim_history h = { 0 };
	struct sim_config c = probing(1, 0, 0);
	struct sim_result x;
	uint64_t last = UINT64_MAX;

	walk(&h, 100, 200, 5);
	for (uint64_t pages = 100; pages <= 200; pages += 25) {
		c.memory = pages * PAGE;
		x = replay(&h, c);
		assert_true(x.misses <= last);
		last = x.misses;
	}
	/* It all fits: each page is missed once. */
	assert_int_equal(x.misses, 200);
	assert_int_equal(x.spared, 800);
}

/* Swap-outs of pages that a larger memory still holds. */
static void swap_outs_are_departures(void **unused)
{
	_cleanup_history_ struct sim_history h = { 0 };
	struct trace_writer *w = begin(100);
	struct sim_config c = probing(1, 0, 0);

	for (uint64_t i = 0; i < 50; i++)
		add(w, TRACE_OUT, 10 + i, i, 0, 0);
	for (uint64_t i = 0; i < 50; i++)
		add(w, TRACE_MISS, 1000 + 20 * i, i, 10, 1);
	end(w, &h);
	assert_int_equal(replay(&h, c).misses, 50);
	c.memory = 150 * PAGE;
	assert_int_equal(replay(&h, c).misses, 0);
	c.memory = 120 * PAGE;
	assert_int_equal(replay(&h, c).misses, 30);
}

/* A folio that went out whole is all of its pages. */
static void folios_count_their_pages(void **unused)
{
	_cleanup_history_ struct sim_history h = { 0 };
	struct trace_writer *w = begin(100);

	add(w, TRACE_OUT, 10, 512, 0, 16);
	add(w, TRACE_MISS, 100, 515, 10, 1);
	end(w, &h);
	assert_int_equal(h.pages, 16);
	assert_int_equal(replay(&h, probing(1, 4, 0)).prefetched, 4);
}

/* What is paged out early makes room for what would have left. */
static void paging_out_makes_room(void **unused)
{
	_cleanup_history_ struct sim_history h = { 0 };
	struct sim_result x;

	walk(&h, 100, 150, 4);
	x = replay(&h, probing(1, 1, EBB_OP_OUT));
	assert_true(x.paged_out > 100);
	assert_true(x.misses < 500);
	assert_true(x.misses >= 150);
}

/* Cold pages stay: reclaim's order among resident pages is not simulated. */
static void cold_is_counted(void **unused)
{
	_cleanup_history_ struct sim_history h = { 0 };
	struct sim_result x;

	walk(&h, 100, 150, 2);
	x = replay(&h, probing(1, 3, EBB_OP_COLD));
	assert_int_equal(x.cold_pages, 3 * x.misses);
	assert_int_equal(x.misses, 300);
	assert_int_equal(x.prefetched + x.requests, 0);
}

static void roles_are_kept_apart(void **unused)
{
	_cleanup_history_ struct sim_history h = { 0 };
	struct trace_writer *w = begin(100);
	struct sim_result x;

	for (uint64_t i = 0; i < 100; i++)
		add(w, TRACE_MISS, 100 + 20 * i, i, i % 4 ? 10 : 99, 1);
	end(w, &h);
	x = replay(&h, probing(1, 0, 0));
	assert_int_equal(x.gc_misses, 25);
	assert_int_equal(x.misses, 100);
}

static void refuses_what_it_cannot_know(void **unused)
{
	_cleanup_history_ struct sim_history h = { 0 };
	struct sim_config c = probing(1, 0, 0);
	struct error e = { 0 };
	struct sim_result x;

	walk(&h, 100, 150, 1);
	c.policy = &probe_policy;
	c.headroom = 8;
	c.memory = 99 * PAGE;
	assert_int_equal(sim_replay(&h, &c, &x, &e), -EINVAL);
	assert_int_equal(e.exit_status, EXIT_USAGE);
	assert_non_null(strstr(e.text, "below the recorded"));
	sim_history_free(&h);

	walk(&h, 0, 150, 1);
	e = (struct error){ 0 };
	assert_int_equal(sim_replay(&h, &c, &x, &e), -EINVAL);
	assert_non_null(strstr(e.text, "without a memory limit"));
}

static void empty_is_fine(void **unused)
{
	_cleanup_history_ struct sim_history h = { 0 };
	struct sim_result x;

	end(begin(100), &h);
	x = replay(&h, probing(1, 1, 0));
	assert_int_equal(x.misses + x.span_ns, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_prefetched_is_what_was_recorded),
		cmocka_unit_test(same_every_time),
		cmocka_unit_test(next_page_in_time),
		cmocka_unit_test(late_and_later),
		cmocka_unit_test(bandwidth_bounds),
		cmocka_unit_test(busy_device),
		cmocka_unit_test(vain_reads_hold_up_misses),
		cmocka_unit_test(unread_pages_are_wasted),
		cmocka_unit_test(who_wastes_is_throttled),
		cmocka_unit_test(headroom_bounds),
		cmocka_unit_test(what_readahead_hid),
		cmocka_unit_test(jumps_hide_nothing),
		cmocka_unit_test(larger_memory_spares),
		cmocka_unit_test(swap_outs_are_departures),
		cmocka_unit_test(folios_count_their_pages),
		cmocka_unit_test(paging_out_makes_room),
		cmocka_unit_test(cold_is_counted),
		cmocka_unit_test(roles_are_kept_apart),
		cmocka_unit_test(refuses_what_it_cannot_know),
		cmocka_unit_test(empty_is_fine),
	};

	return cmocka_run_group_tests(tests, make_file, remove_file);
}
