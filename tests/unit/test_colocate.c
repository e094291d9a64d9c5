// SPDX-License-Identifier: GPL-2.0-or-later
/* The rule that lets programs share the executor's CPU, on simulated programs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "lib/rules/colocate.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define PERIODS_A_SECOND 4
#define SECOND_NS 1000000000.0

/*
 * A program whose threads work for @work_ns on a page, and page: each page costs the executor and a
 * thread CPU time, more if an interrupt is sent.  Time in user mode is seen through clock ticks.
 */
struct program {
	uint32_t threads;
	double work_ns, fault_ns, executor_ns, interrupt_ns, lost_ns;
	double out;             /* pages out for each page used */
	double phases;          /* share by which the work of a page varies from second to second */
	double phase;
	bool pages;
	uint32_t period;
	uint64_t seed;
	double done;            /* pages */
	uint32_t together;      /* periods */
	struct colocate rule;
};

/* From -1 to 1. */
static double noise(struct program *p)
{
	p->seed = p->seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return (double)(p->seed >> 11) / 0x1p52 - 1;
}

static struct program program_like_sqlite(uint64_t seed)
{
	return (struct program){
		.threads = 1, .work_ns = 20000, .fault_ns = 6000, .executor_ns = 13000,
		.interrupt_ns = 10000, .lost_ns = 20000, .out = 1, .pages = true, .seed = seed,
		.rule = { .seed = seed | 1 },
	};
}

/* Runs for a period; how fast pages are used is the result of the placement. */
static void run(struct program *p)
{
	double wall = COLOCATE_PERIOD_NS * (1 + 0.02 * noise(p));
	double sent, thread, executor, page, n, user;
	bool together = p->rule.together;
	struct colocate_sample s;

	if (p->period++ % PERIODS_A_SECOND == 0)
		p->phase = 1 + p->phases * noise(p);
	sent = together ? 0 : p->interrupt_ns * p->out;
	thread = p->work_ns * p->phase + p->fault_ns + sent / 2;
	executor = p->executor_ns + sent;
	if (together)
		page = (thread + executor) + p->lost_ns / 5 / p->threads;
	else
		page = (thread + p->lost_ns) / p->threads > executor ?
		       (thread + p->lost_ns) / p->threads : executor;
	n = p->pages ? wall / page : 0;
	user = n * p->work_ns * p->phase * (1 + 0.08 * noise(p));
	p->done += n;
	p->together += together;
	s = (struct colocate_sample){
		.wall_ns = (uint64_t)wall, .running_ns = (uint64_t)(p->pages ? n * thread : wall),
		.user_ns = (uint64_t)user, .executor_ns = (uint64_t)(n * executor),
		.out = (uint64_t)(n * p->out), .used = (uint64_t)(n * (1 + 0.01 * noise(p))),
		.interrupt_ns = (uint64_t)p->interrupt_ns,
	};
	if (together)
		s.queued_ns = (uint64_t)(wall * p->threads * 0.98) - s.running_ns;
	colocate_step(&p->rule, &s);
}

static void run_for(struct program *p, double seconds)
{
	for (int i = 0; i < seconds * PERIODS_A_SECOND; i++)
		run(p);
}

/* Pages done, as a multiple of those without the rule. */
static double speed(struct program p, double seconds)
{
	struct program off = p;

	off.rule.next_ns = UINT64_MAX;
	run_for(&off, seconds);
	run_for(&p, seconds);
	assert_int_equal(off.together, 0);
	return p.done / off.done;
}

static void a_program_that_gains_is_soon_together(void **state)
{
	int late = 0;

	for (uint64_t seed = 1; seed <= 200; seed++) {
		struct program p = program_like_sqlite(seed);

		run_for(&p, 3);
		late += p.rule.state != COLOCATE_TOGETHER;
		run_for(&p, 60);
		assert_true(p.rule.won >= 1);
		assert_true(p.together > 40 * PERIODS_A_SECOND);
	}
	assert_true(late < 10);
}

static void phases_do_not_mislead(void **state)
{
	for (uint64_t seed = 1; seed <= 200; seed++) {
		struct program p = program_like_sqlite(seed);

		p.phases = 0.5;
		assert_true(speed(p, 120) > 1.1);
		/* As above, but nothing is lost that could be gained. */
		p = program_like_sqlite(seed);
		p.phases = 0.5;
		p.lost_ns = 0;
		p.executor_ns = 9000;
		assert_true(speed(p, 120) > 0.97);
	}
}

static void two_busy_threads_keep_their_cpus(void **state)
{
	struct program p = program_like_sqlite(1);

	p.threads = 2;
	p.work_ns = 60000;
	run_for(&p, 60);
	assert_int_equal(p.rule.trials, 0);
	assert_int_equal(p.rule.state, COLOCATE_PARALLEL);
}

static void a_thread_that_joins_ends_it_at_once(void **state)
{
	struct program p = program_like_sqlite(1);

	run_for(&p, 10);
	assert_int_equal(p.rule.state, COLOCATE_TOGETHER);
	p.threads = 4;
	p.work_ns = 100000;
	run_for(&p, 0.75);
	assert_false(p.rule.together);
	assert_int_equal(p.rule.state, COLOCATE_PARALLEL);
}

/* A trial is lost: the prediction was wrong. */
static void losses_are_small_and_grow_rare(void **state)
{
	struct program p = program_like_sqlite(1);
	uint64_t first;

	/* The executor keeps up on a CPU of its own, so that nothing is lost apart. */
	p.lost_ns = 0;
	p.executor_ns = 9000;
	assert_true(speed(p, 600) > 0.99);
	run_for(&p, 60);
	first = p.rule.trials;
	assert_int_equal(p.rule.won, 0);
	assert_true(first >= 2 && first <= 5);
	run_for(&p, 600);
	assert_true(p.rule.trials <= first + 4);
	assert_int_equal(p.rule.state, COLOCATE_NO_GAIN);
}

static void cheap_interrupts_are_not_worth_it(void **state)
{
	struct program p = program_like_sqlite(1);

	p.interrupt_ns = 500;
	run_for(&p, 60);
	assert_int_equal(p.rule.trials, 0);
	assert_int_equal(p.rule.state, COLOCATE_QUIET);
	p = program_like_sqlite(1);
	p.out = 0.05;
	run_for(&p, 60);
	assert_int_equal(p.rule.trials, 0);
}

/* Without page-outs they part within a second; what was proven is not tried again at once. */
static void pauses_need_no_trial(void **state)
{
	struct program p = program_like_sqlite(1);

	run_for(&p, 4);
	assert_int_equal(p.rule.state, COLOCATE_TOGETHER);
	p.pages = false;
	run_for(&p, 1.25);
	assert_false(p.rule.together);
	assert_int_equal(p.rule.state, COLOCATE_QUIET);
	p.pages = true;
	run_for(&p, 1);
	assert_int_equal(p.rule.state, COLOCATE_TOGETHER);
	assert_int_equal(p.rule.trials, 1);
}

static void it_is_given_up_when_it_loses_later(void **state)
{
	struct program p = program_like_sqlite(1);

	run_for(&p, 10);
	assert_int_equal(p.rule.state, COLOCATE_TOGETHER);
	p.lost_ns = 0;
	p.executor_ns = 30000;
	run_for(&p, 40);
	assert_false(p.rule.together);
}

/* A trial in which almost nothing happens proves nothing. */
static void an_empty_trial_tells_nothing(void **state)
{
	struct program p = program_like_sqlite(1);

	while (!p.rule.trials)
		run(&p);
	p.pages = false;
	run_for(&p, 2);
	assert_false(p.rule.together);
	assert_int_equal(p.rule.won, 0);
	p.pages = true;
	run_for(&p, 6);
	assert_int_equal(p.rule.state, COLOCATE_TOGETHER);
}

static void periods_without_length_change_nothing(void **state)
{
	struct colocate c = { .seed = 1 };
	struct colocate_sample s = { .out = 1000, .interrupt_ns = 10000 };

	assert_false(colocate_looks(&c, &s));
	assert_false(colocate_step(&c, &s));
	assert_int_equal(c.state, COLOCATE_QUIET);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_program_that_gains_is_soon_together),
		cmocka_unit_test(phases_do_not_mislead),
		cmocka_unit_test(two_busy_threads_keep_their_cpus),
		cmocka_unit_test(a_thread_that_joins_ends_it_at_once),
		cmocka_unit_test(losses_are_small_and_grow_rare),
		cmocka_unit_test(cheap_interrupts_are_not_worth_it),
		cmocka_unit_test(pauses_need_no_trial),
		cmocka_unit_test(it_is_given_up_when_it_loses_later),
		cmocka_unit_test(an_empty_trial_tells_nothing),
		cmocka_unit_test(periods_without_length_change_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
