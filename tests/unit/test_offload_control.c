// SPDX-License-Identifier: GPL-2.0-or-later
/* The controller of offloading, alone and on simulated programs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#undef fail
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ebbd/attach/offload_control.h"

#define PAGES 32768             /* 128 MiB */
#define PERIOD_NS 500000000ULL
#define MISS_NS 60000ULL
#define MIB (1ULL << 20)
#define AGES 1024               /* periods a test may last */

/*
 * A program of one thread that touches each page at a rate of its own, and a
 * kernel that takes what was not touched for longest.
 */
struct program {
	double rate[PAGES];     /* touches a second; as chances once it runs */
	bool begun;
	uint32_t touched[PAGES];/* period of the last touch */
	bool resident[PAGES];
	uint32_t now, in;
	uint64_t random;
	struct offload_control control;
	uint32_t target;
};

static double uniform(struct program *p)
{
	p->random = p->random * 6364136223846793005ULL + 1442695040888963407ULL;
	return (double)(p->random >> 11) / 0x1p53;
}

static struct program *program_new(uint32_t target)
{
	struct program *p = calloc(1, sizeof(*p));

	p->target = target;
	p->in = PAGES;
	p->random = 1;
	for (int i = 0; i < PAGES; i++)
		p->resident[i] = true;
	return p;
}

/* Runs for a period; what it would report of it. */
static struct offload_sample run(struct program *p)
{
	struct offload_sample s = { .wall_ns = PERIOD_NS, .target = p->target };

	p->now++;
	for (int i = 0; i < PAGES && !p->begun; i++)
		p->rate[i] = -expm1(-p->rate[i] * PERIOD_NS / 1e9);
	p->begun = true;
	for (int i = 0; i < PAGES; i++) {
		if (uniform(p) >= p->rate[i])
			continue;
		p->touched[i] = p->now;
		if (p->resident[i])
			continue;
		p->resident[i] = true;
		p->in++;
		s.lost_ns += MISS_NS;
	}
	if (s.lost_ns > PERIOD_NS * 9 / 10)
		s.lost_ns = PERIOD_NS * 9 / 10;
	s.running_ns = PERIOD_NS - s.lost_ns;
	s.resident = (uint64_t)p->in << 12;
	return s;
}

static void reclaim(struct program *p, uint64_t bytes)
{
	uint64_t pages = bytes >> 12, sum = 0;
	uint32_t of_age[AGES] = { 0 }, last = 0;

	for (int i = 0; i < PAGES; i++)
		of_age[p->touched[i]] += p->resident[i];
	while (last < p->now && (sum += of_age[last]) < pages)
		last++;
	for (int k = 0; pages && k < PAGES; k++) {
		int i = (int)((k * 7919ULL) % PAGES);

		if (!p->resident[i] || p->touched[i] > last)
			continue;
		p->resident[i] = false;
		p->in--;
		pages--;
	}
}

struct course {
	double mean, worst;     /* slowdown */
	uint64_t resident;      /* bytes at the end */
};

/* @settle periods unmeasured, then @measured. */
static struct course drive(struct program *p, int settle, int measured)
{
	struct course c = { 0 };
	double lost = 0, ran = 0;

	for (int i = 0; i < settle + measured; i++) {
		struct offload_sample s = run(p);

		if (i >= settle) {
			lost += (double)s.lost_ns;
			ran += (double)s.running_ns;
			c.worst = fmax(c.worst, offload_slowdown(&s));
		}
		reclaim(p, offload_next(&p->control, &s));
	}
	c.mean = lost / ran;
	c.resident = (uint64_t)p->in << 12;
	return c;
}

/* A quarter hot, the rest never touched: all but the hot part goes, for next to nothing. */
static void what_is_cold_goes(void **unused)
{
	struct program *p = program_new(20);
	struct course c;

	for (int i = 0; i < PAGES / 4; i++)
		p->rate[i] = 20;
	c = drive(p, 0, 30);
	assert_true(c.resident < 64 * MIB);
	c = drive(p, 0, 200);
	assert_true(c.resident < 36 * MIB);
	assert_true(c.resident >= 30 * MIB);
	assert_true(c.mean < 0.02);
	free(p);
}

/*
 * Six misses of 23 ms in one period, as a guest in emulation had them while reclaim had yet
 * to find out what was in use: more than the target, and no reason to leave it all there.
 */
static void one_bad_period_is_not_the_floor(void **unused)
{
	struct program *p = program_new(20);
	struct offload_sample s;
	struct course c;

	for (int i = 0; i < PAGES / 4; i++)
		p->rate[i] = 20;
	s = run(p);
	offload_next(&p->control, &s);
	s = run(p);
	s.lost_ns = 6 * 23000000ULL;
	assert_int_equal(offload_next(&p->control, &s), 0);
	assert_int_equal(p->control.state, OFFLOAD_BACKS_OFF);
	c = drive(p, 0, 80);
	assert_true(c.resident < 64 * MIB);
	assert_true(c.mean < 0.02);
	free(p);
}

/* Rates over five orders of magnitude: any slowdown can be had, and the target is. */
static void the_target_is_met(void **unused)
{
	static const uint32_t targets[] = { 5, 10, 20, 50, 100 };

	for (size_t k = 0; k < sizeof(targets) / sizeof(targets[0]); k++) {
		struct program *p = program_new(targets[k]);
		double target = targets[k] / 1000.0;
		struct course c;

		for (int i = 0; i < PAGES; i++)
			p->rate[i] = 20 * pow(10, -5.0 * i / PAGES);
		c = drive(p, 240, 480);
		assert_true(c.mean > target * 0.5);
		assert_true(c.mean < target * 1.5);
		assert_true(c.worst < target * 2.5);
		free(p);
	}
}

static void even_use_is_left_alone(void **unused)
{
	struct program *p = program_new(20);
	struct course c;

	for (int i = 0; i < PAGES; i++)
		p->rate[i] = 2;
	c = drive(p, 0, 400);
	assert_true(c.resident > 115 * MIB);
	assert_true(c.mean < 0.02);
	assert_true(c.worst < 0.30);
	free(p);
}

/* The cold part is needed again: not one byte more is taken while it comes back. */
static void backs_off_at_once(void **unused)
{
	struct program *p = program_new(20);
	struct offload_sample s;

	for (int i = 0; i < PAGES / 4; i++)
		p->rate[i] = 20;
	drive(p, 0, 100);
	for (int i = 0; i < PAGES; i++)
		p->rate[i] = 1;
	p->begun = false;
	s = run(p);
	assert_true(offload_slowdown(&s) > 0.04);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(offload_next(&p->control, &s), 0);
		assert_int_equal(p->control.state, OFFLOAD_BACKS_OFF);
		s = run(p);
	}
	drive(p, 0, 20);
	assert_true(p->in > PAGES * 8 / 10);
	free(p);
}

static void bounds(void **unused)
{
	struct offload_sample s = { .wall_ns = PERIOD_NS, .running_ns = PERIOD_NS,
				    .resident = 64 * MIB };
	struct offload_control c = { 0 };
	uint64_t take;

	assert_int_equal(offload_next(&c, &s), 0);
	assert_int_equal(c.state, OFFLOAD_OFF);
	s.target = 500;
	for (int i = 0; i < 400; i++) {
		take = offload_next(&c, &s);
		assert_true(take <= s.resident / OFFLOAD_STEP_SHARE);
		s.resident -= take;
		assert_true(s.resident >= OFFLOAD_RESIDENT_MIN);
	}
	assert_true(s.resident < OFFLOAD_RESIDENT_MIN + OFFLOAD_STEP_MIN);
	assert_int_equal(c.state, OFFLOAD_AT_FLOOR);
	/* Switched off, it forgets. */
	s.target = 0;
	assert_int_equal(offload_next(&c, &s), 0);
	assert_int_equal(c.step, 0);
	/* A cgroup that has nothing. */
	s = (struct offload_sample){ .target = 20 };
	assert_int_equal(offload_next(&c, &s), 0);
}

/* However often the slowdown is too much. */
static void pauses_of_2_to_32_seconds(void **unused)
{
	struct offload_sample s = { .wall_ns = PERIOD_NS, .running_ns = PERIOD_NS / 2,
				    .lost_ns = PERIOD_NS / 2, .resident = 64 * MIB, .target = 20 };
	struct offload_control c = { 0 };
	uint64_t longest = 0, shortest = UINT64_MAX, pause = 0;

	for (int i = 0; i < 400; i++) {
		assert_int_equal(offload_next(&c, &s), 0);
		assert_int_equal(c.state, OFFLOAD_BACKS_OFF);
		pause++;
		if (c.pause)
			continue;
		longest = pause > longest ? pause : longest;
		shortest = pause < shortest ? pause : shortest;
		pause = 0;
	}
	assert_int_equal((shortest - 1) * PERIOD_NS, 2000000000);
	assert_int_equal((longest - 1) * PERIOD_NS, 32000000000);
}

static void slowdown_is_time_lost_for_time_run(void **unused)
{
	struct offload_sample s = { .wall_ns = 1000, .running_ns = 1000, .lost_ns = 20 };

	assert_true(fabs(offload_slowdown(&s) - 0.02) < 1e-9);
	/* Four threads. */
	s.running_ns = 4000;
	assert_true(fabs(offload_slowdown(&s) - 0.005) < 1e-9);
	/* One that sleeps. */
	s.running_ns = 0;
	assert_true(fabs(offload_slowdown(&s) - 0.2) < 1e-9);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(slowdown_is_time_lost_for_time_run),
		cmocka_unit_test(bounds),
		cmocka_unit_test(what_is_cold_goes),
		cmocka_unit_test(one_bad_period_is_not_the_floor),
		cmocka_unit_test(the_target_is_met),
		cmocka_unit_test(even_use_is_left_alone),
		cmocka_unit_test(backs_off_at_once),
		cmocka_unit_test(pauses_of_2_to_32_seconds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
