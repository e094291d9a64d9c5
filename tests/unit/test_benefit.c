// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * benefit=on without the kernel: programs whose CPU time is counted by timer ticks, and the periods
 * that ebbd measures of them.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "ebbd/attach/benefit_period.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define SEEDS 100
#define TICK_NS 4000000         /* CONFIG_HZ=250 */
#define MS 1000000ULL
#define SECOND 1000000000ULL

/* A program on @cpus CPUs; in user mode it spends @user of their time while no source is used. */
struct program {
	double user;
	double effect[EBB_SOURCES]; /* factor of each source that is used; 0 = not used */
	uint32_t cpus;
	double accuracy;            /* share of the prefetched pages that are used */
	double slow_ns;             /* for which a change of sources takes effect gradually */
	uint64_t seed;
	double since_ns;            /* the last change */
	double speed;               /* before it */
	double work, best;          /* in user mode, and with those sources only that gain */
	struct benefit_reading r;
	struct benefit_period period;
};

static double uniform(struct program *p)
{
	p->seed = p->seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return ((double)(p->seed >> 11) + 1) / 0x1p53;
}

static struct program program(uint64_t seed)
{
	struct program p = {
		.user = 0.6, .cpus = 1, .accuracy = 0.95, .seed = seed * 77, .speed = 1,
		.r = { .now_ns = 1000 * SECOND, .user_us = 12345 },
	};

	benefit_init(&p.period, seed * 1001, TICK_NS);
	return p;
}

static double speed(const struct program *p)
{
	double s = 1;

	for (uint32_t i = 0; i < EBB_SOURCES; i++)
		if (p->effect[i] > 0 && !(p->period.paused >> i & 1))
			s *= p->effect[i];
	return s;
}

/* Lets the program run for @ns, as the kernel accounts for it: each tick is user mode or not. */
static void run(struct program *p, uint64_t ns)
{
	double most = 1;

	for (uint32_t i = 0; i < EBB_SOURCES; i++)
		most *= p->effect[i] > 1 ? p->effect[i] : 1;
	for (uint64_t t = 0; t < ns; t += TICK_NS) {
		double share = p->user * speed(p);

		if (p->since_ns < p->slow_ns)
			share = p->user * p->speed;
		p->since_ns += TICK_NS;
		for (uint32_t cpu = 0; cpu < p->cpus; cpu++)
			p->r.user_us += uniform(p) < share ? TICK_NS / 1000 : 0;
		p->work += share;
		p->best += p->user * most;
	}
	for (uint32_t i = 0; i < EBB_SOURCES; i++) {
		uint64_t pages = p->effect[i] > 0 && !(p->period.paused >> i & 1) ? ns / 100000 : 0;

		p->r.pages[i] += pages;
		p->r.used[i] += (uint64_t)((double)pages * p->accuracy);
		p->r.misses += p->effect[i] > 0 && !pages ? ns / 200000 : 0;
	}
	p->r.now_ns += ns;
}

/* As the thread does. */
static void periods(struct program *p, uint32_t n)
{
	for (; n; n--) {
		uint32_t before = p->period.paused;
		double now = speed(p);

		benefit_end(&p->period, &p->r);
		if (p->period.paused != before) {
			p->speed = now;
			p->since_ns = 0;
			run(p, BENEFIT_SETTLE_NS);
		}
		benefit_begin(&p->period, &p->r);
		run(p, BENEFIT_PERIOD_NS);
	}
}

static bool backs_off(const struct program *p, uint32_t source)
{
	return p->period.rule.source[source].state == GOVERNOR_BACKS_OFF;
}

/* A source that takes a quarter of a program's speed is found, though ticks are coarse. */
static void a_loss_is_found(void **unused)
{
	static const struct { uint32_t cpus, seconds; } cases[] = { { 1, 120 }, { 2, 60 } };

	for (uint32_t i = 0; i < 2; i++) {
		uint32_t found = 0, gone = 0;

		for (uint64_t seed = 1; seed <= SEEDS; seed++) {
			struct program p = program(seed);

			p.cpus = cases[i].cpus;
			p.effect[EBB_SOURCE_STREAMS] = 0.75;
			p.effect[EBB_SOURCE_REPLAY] = 1.1;
			periods(&p, cases[i].seconds * 10);
			found += backs_off(&p, EBB_SOURCE_STREAMS);
			gone += backs_off(&p, EBB_SOURCE_REPLAY);
		}
		print_message("%u CPUs: found in %u of %u runs of %u s, %u false\n", cases[i].cpus,
			      found, SEEDS, cases[i].seconds, gone);
		assert_true(found >= SEEDS * 90 / 100);
		assert_true(gone <= SEEDS * 2 / 100);
	}
}

/* What gains is hardly ever paused. */
static void a_gain_costs_little(void **unused)
{
	double sum = 0, worst = 0;

	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct program p = program(seed);
		double lost;

		p.user = 0.2;
		p.effect[EBB_SOURCE_STREAMS] = 4;
		periods(&p, 600);
		assert_false(backs_off(&p, EBB_SOURCE_STREAMS));
		lost = 1 - p.work / p.best;
		sum += lost;
		worst = fmax(worst, lost);
	}
	print_message("trials cost %.4f of 60 s, at most %.4f\n", sum / SEEDS, worst);
	assert_true(sum / SEEDS <= 0.01);
	assert_true(worst <= 0.02);
}

/* Pages prefetched before a change are used after it: that is left out. */
static void changes_settle(void **unused)
{
	uint32_t found = 0;

	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct program p = program(seed);

		p.cpus = 2;
		p.slow_ns = BENEFIT_SETTLE_NS;
		p.effect[EBB_SOURCE_NEAR] = 0.7;
		periods(&p, 1200);
		found += backs_off(&p, EBB_SOURCE_NEAR);
	}
	print_message("found in %u of %u runs\n", found, SEEDS);
	assert_true(found >= SEEDS * 90 / 100);
}

static void rest(struct program *p)
{
	benefit_end(&p->period, NULL);
	p->r.now_ns += SECOND;
}

/* A trial ends when the programs rest; a source that backs off stays paused. */
static void programs_that_rest(void **unused)
{
	struct program p = program(1);
	uint32_t trials = 0;

	p.cpus = 2;
	p.effect[EBB_SOURCE_STREAMS] = 1;
	for (uint32_t i = 0; i < 400; i++) {
		periods(&p, 1);
		if (!p.period.paused)
			continue;
		trials++;
		rest(&p);
		assert_int_equal(p.period.paused, 0);
	}
	assert_true(trials > 5);
	assert_int_equal(p.period.rule.source[EBB_SOURCE_STREAMS].trials, 0);

	p.effect[EBB_SOURCE_STREAMS] = 0.6;
	while (!backs_off(&p, EBB_SOURCE_STREAMS))
		periods(&p, 1);
	rest(&p);
	assert_int_equal(p.period.paused, 1 << EBB_SOURCE_STREAMS);
	/* Longer than a period may be: it is not compared. */
	benefit_begin(&p.period, &p.r);
	run(&p, 2 * SECOND);
	benefit_end(&p.period, &p.r);
	assert_false(p.period.rule.running);
}

/*
 * Of a program with few ticks in user mode nothing is known: chance must not pause a source.  A few
 * more ticks suffice.
 */
static void few_ticks(void **unused)
{
	static const double users[] = { 0.02, 0.04, 0.08, 0.11, 0.13, 0.2 };

	for (size_t i = 0; i < sizeof(users) / sizeof(users[0]); i++) {
		uint32_t gone = 0, judged = 0;

		for (uint64_t seed = 1; seed <= SEEDS; seed++) {
			struct program p = program(seed);

			p.user = users[i];
			p.effect[EBB_SOURCE_STREAMS] = 1;
			for (uint32_t n = 0; n < 3000; n++) {
				periods(&p, 1);
				judged += p.period.judges;
			}
			gone += backs_off(&p, EBB_SOURCE_STREAMS);
		}
		print_message("user mode for %.2f: judged in %u of %u periods, %u of %u false\n",
			      users[i], judged, 3000 * SEEDS, gone, SEEDS);
		assert_true(gone <= SEEDS * 3 / 100);
		assert_true(users[i] < 0.1 ? judged < 300 * SEEDS :
			    users[i] < 0.2 || judged > 2500 * SEEDS);
	}
}

/* Sources without pages, and periods without a reading, have no trials. */
static void nothing_to_judge(void **unused)
{
	struct program p = program(1);

	periods(&p, 2000);
	assert_int_equal(p.period.paused, 0);
	for (uint32_t i = 0; i < EBB_SOURCES; i++)
		assert_int_equal(p.period.rule.source[i].trials, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_loss_is_found), cmocka_unit_test(a_gain_costs_little),
		cmocka_unit_test(changes_settle), cmocka_unit_test(programs_that_rest),
		cmocka_unit_test(few_ticks), cmocka_unit_test(nothing_to_judge),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
