// SPDX-License-Identifier: GPL-2.0-or-later
/* The rule that pauses sources of requests which slow a program down, on simulated programs. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/rules/governor.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

#define SEEDS 200
#define SECONDS 10 /* periods */

/* A program whose progress each source multiplies. */
struct program {
	double effect[GOVERNOR_SOURCES]; /* of each source: 1.05 = 5 % more progress */
	double noise;           /* standard deviation of a period's logarithm */
	double phases;          /* that of a phase's, of 0.5 to 4 s */
	double rests;           /* share of the phases in which it does nothing */
	double apart;           /* progress in the only phases that use sources; 0 = all use them */
	uint32_t burst;         /* periods of such a phase */
	double trend;           /* growth of its logarithm per period, which starts over after 30 */
	uint32_t used, plain;
	uint64_t seed;
	uint32_t periods, left, turns;
	double phase;
	double done, best;      /* progress, and what it were with the sources that gain */
	uint32_t mask;          /* sources allowed */
	struct governor rule;
};

static double uniform(struct program *p)
{
	p->seed = p->seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return ((double)(p->seed >> 11) + 1) / 0x1p53;
}

static double normal(struct program *p)
{
	double r = sqrt(-2 * log(uniform(p)));

	return r * cos(2 * M_PI * uniform(p));
}

static struct program program(uint64_t seed, double noise)
{
	struct program p = { .noise = noise, .used = 1, .seed = seed * 77, .mask = ~0U,
			     .rule = { .seed = seed } };

	for (int i = 0; i < GOVERNOR_SOURCES; i++)
		p.effect[i] = 1;
	return p;
}

static void run(struct program *p, uint32_t periods)
{
	for (uint32_t n = 0; n < periods; n++) {
		struct governor_sample s = { .used = p->used & p->mask, .plain = p->plain };
		double now, best = 1;

		if (!p->left--) {
			p->left = (uint32_t)(5 + 35 * uniform(p));
			p->phase = uniform(p) < p->rests ? 0 : exp(p->phases * normal(p));
			if (p->apart > 0 && ++p->turns % 4 == 0) {
				p->left = p->burst - 1;
				p->phase *= p->apart;
			}
		}
		if (p->apart > 0 && p->turns % 4)
			s.used = 0;
		s.progress = now = p->phase * exp(p->noise * normal(p) +
						  p->trend * (p->periods % 30));
		for (int i = 0; i < GOVERNOR_SOURCES; i++) {
			if (p->mask & 1u << i)
				s.progress *= p->effect[i];
			best *= fmax(p->effect[i], 1);
		}
		p->done += s.progress;
		p->best += now * best;
		p->mask = governor_step(&p->rule, &s);
		p->periods++;
	}
}

/* What the program has lost against the best choice of sources. */
static double lost(const struct program *p)
{
	return 1 - p->done / p->best;
}

static bool backs_off(const struct program *p, uint32_t source)
{
	return p->rule.source[source].state == GOVERNOR_BACKS_OFF;
}

/* Runs until the source backs off; returns the periods, or @most. */
static uint32_t found(struct program *p, uint32_t source, uint32_t most)
{
	while (p->periods < most && !backs_off(p, source))
		run(p, 1);
	return p->periods;
}

/* A loss is found in time: in how many of the runs, and how much was lost in five minutes. */
static void finds(double loss, double noise, double phases, uint32_t most)
{
	uint32_t in_time = 0;
	double worst = 0, sum = 0;

	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct program p = program(seed, noise);

		p.effect[0] = 1 - loss;
		p.phases = phases;
		in_time += found(&p, 0, most) < most;
		run(&p, 300 * SECONDS - p.periods);
		worst = fmax(worst, lost(&p));
		sum += lost(&p);
	}
	print_message("loss %.2f, noise %.2f, phases %.1f: %u of %u in %u periods; ", loss, noise,
		      phases, in_time, SEEDS, most);
	print_message("lost %.4f, at most %.4f\n", sum / SEEDS, worst);
	assert_true(in_time >= SEEDS * 95 / 100);
	assert_true(worst <= 0.02);
}

static void losses_are_found(void **unused)
{
	finds(0.05, 0.03, 0, 20 * SECONDS);
	finds(0.05, 0.05, 0, 40 * SECONDS);
	finds(0.05, 0.05, 0.3, 80 * SECONDS);
	finds(0.1, 0.1, 0.3, 60 * SECONDS);
	finds(0.25, 0.1, 0.3, 20 * SECONDS);
	finds(0.25, 0.2, 0.3, 60 * SECONDS);
}

/* How often a source without effect, or with a small gain, backs off in five minutes. */
static void quiet(double effect, double noise, double phases)
{
	uint32_t alarms = 0;

	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct program p = program(seed, noise);

		p.effect[0] = effect;
		p.phases = phases;
		alarms += found(&p, 0, 300 * SECONDS) < 300 * SECONDS;
	}
	print_message("effect %.2f, noise %.2f, phases %.1f: %u false alarms of %u\n", effect, noise,
		      phases, alarms, SEEDS);
	assert_true(alarms <= SEEDS * (effect > 1 ? 1 : 3) / 100);
}

static void false_alarms_are_rare(void **unused)
{
	quiet(1, 0.05, 0);
	quiet(1, 0.2, 0);
	quiet(1, 0.05, 0.5);
	quiet(1, 0.1, 1);
	quiet(1.05, 0.05, 0.3);
	quiet(1.05, 0.2, 0.3);
	quiet(4, 0.1, 0.3);
}

/* Trials of what gains a lot cost little. */
static void trials_are_cheap(void **unused)
{
	for (int plain = 0; plain < 2; plain++) {
		double sum = 0;

		for (uint64_t seed = 1; seed <= SEEDS; seed++) {
			struct program p = program(seed, 0.1);

			p.effect[0] = 4;
			p.plain = plain;
			run(&p, 30 * SECONDS);
			assert_false(backs_off(&p, 0));
			sum += lost(&p);
		}
		print_message("trials cost %.4f in 30 s%s\n", sum / SEEDS, plain ? ", plain" : "");
		assert_true(sum / SEEDS <= (plain ? 0.008 : 0.012));
	}
}

static void sources_are_judged_apart(void **unused)
{
	uint32_t right = 0;

	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct program p = program(seed, 0.05);

		p.used = 7;
		p.effect[0] = 1.3;
		p.effect[1] = 0.9;
		p.effect[2] = 1.05;
		run(&p, 120 * SECONDS);
		right += !backs_off(&p, 0) && backs_off(&p, 1) && !backs_off(&p, 2);
		assert_int_equal(p.rule.source[3].trials, 0);
	}
	print_message("%u of %u right\n", right, SEEDS);
	assert_true(right >= SEEDS * 95 / 100);
}

/* A source returns once the program gains by it. */
static void programs_change(void **unused)
{
	uint32_t back = 0;

	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct program p = program(seed, 0.05);

		p.effect[0] = 0.8;
		run(&p, 60 * SECONDS);
		assert_true(backs_off(&p, 0));
		p.effect[0] = 1.5;
		run(&p, 300 * SECONDS);
		back += !backs_off(&p, 0);
	}
	print_message("%u of %u back\n", back, SEEDS);
	assert_true(back >= SEEDS * 95 / 100);
}

/* A program that speeds up steadily, and starts over: the period after a trial tells. */
static void trends_cancel(void **unused)
{
	static const double trend[] = { 0.04, -0.04 };

	for (int i = 0; i < 2; i++) {
		uint32_t alarms = 0, gains = 0;

		for (uint64_t seed = 1; seed <= SEEDS; seed++) {
			struct program p = program(seed, 0.02);

			p.trend = trend[i];
			alarms += found(&p, 0, 300 * SECONDS) < 300 * SECONDS;
			gains += p.rule.source[0].state == GOVERNOR_GAINS;
		}
		print_message("trend %.2f: %u losses, %u gains of %u\n", trend[i], alarms, gains,
			      SEEDS);
		assert_true(alarms + gains <= SEEDS * 3 / 100);
	}
}

/* Sources used for some periods at a time, in which the program is faster or slower than before. */
static void trials_are_within_use(void **unused)
{
	static const double apart[] = { 1.4, 0.7 };
	static const uint32_t burst[] = { 1, 2, 3, 6 };

	for (int i = 0; i < 8; i++) {
		uint32_t alarms = 0, gains = 0;

		for (uint64_t seed = 1; seed <= SEEDS; seed++) {
			struct program p = program(seed, 0.03);

			p.apart = apart[i % 2];
			p.burst = burst[i / 2];
			run(&p, 300 * SECONDS);
			alarms += backs_off(&p, 0);
			gains += p.rule.source[0].state == GOVERNOR_GAINS;
		}
		print_message("used for %u periods at %.1f of the speed: %u losses, %u gains of %u\n",
			      burst[i / 2], apart[i % 2], alarms, gains, SEEDS);
		assert_true(alarms + gains <= SEEDS * 5 / 100);
	}
}

/* Periods without progress are no measurement, and end a trial. */
static void a_program_that_rests(void **unused)
{
	uint32_t alarms = 0;

	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct program p = program(seed, 0.05);

		p.rests = 0.5;
		run(&p, 100 * SECONDS);
		alarms += backs_off(&p, 0);
		p.rests = 1;
		p.left = 0;
		run(&p, 10 * SECONDS);
		assert_int_equal(p.mask, backs_off(&p, 0) ? 14 : 15);
	}
	print_message("%u false alarms of %u\n", alarms, SEEDS);
	assert_true(alarms <= SEEDS / 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(losses_are_found), cmocka_unit_test(false_alarms_are_rare),
		cmocka_unit_test(trials_are_cheap), cmocka_unit_test(sources_are_judged_apart),
		cmocka_unit_test(programs_change), cmocka_unit_test(a_program_that_rests),
		cmocka_unit_test(trends_cancel), cmocka_unit_test(trials_are_within_use),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
