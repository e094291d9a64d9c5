// SPDX-License-Identifier: GPL-2.0-or-later
#include <string.h>

#include "benefit_period.h"

_Static_assert((int)EBB_SOURCES == GOVERNOR_SOURCES, "one bit each");

#define LONGEST_NS (5 * BENEFIT_PERIOD_NS) /* a longer period is not comparable */
#define MEAN 16                 /* periods that the mean covers, older ones having less weight, */
#define MEAN_LEAST 4            /* and those before it counts */
#define USED_PAGES 8            /* a period with fewer says nothing about their source */
/* A source gains obviously if but 1/x of its pages are unused, and as few pages miss. */
#define PLAIN 8

void benefit_init(struct benefit_period *p, uint64_t seed, uint64_t tick_ns)
{
	memset(p, 0, sizeof(*p));
	p->least = (double)(BENEFIT_TICKS_LEAST * tick_ns) / (double)BENEFIT_PERIOD_NS;
	p->rule.seed = seed | 1;
	p->rule.tried = GOVERNOR_SOURCES;
}

void benefit_begin(struct benefit_period *p, const struct benefit_reading *r)
{
	p->first = *r;
	p->begun = true;
}

static uint32_t plain(const struct benefit_period *p, const struct benefit_reading *r)
{
	uint64_t misses = r->misses - p->first.misses;
	uint32_t mask = 0;

	for (uint32_t i = 0; i < EBB_SOURCES; i++) {
		uint64_t pages = r->pages[i] - p->first.pages[i];
		uint64_t used = r->used[i] - p->first.used[i];

		mask |= (uint32_t)(PLAIN * misses <= used && PLAIN * used >= (PLAIN - 1) * pages)
			<< i;
	}
	return mask;
}

/*
 * Returns the share of a CPU that the programs were in user mode, or 0 if that says too little.  By
 * the mean: to leave out single periods with few ticks would favour one side of a trial.
 */
static double progress(struct benefit_period *p, const struct benefit_reading *r)
{
	uint64_t ns = r->now_ns - p->first.now_ns;
	double now;

	if (!ns || ns > LONGEST_NS || r->user_us < p->first.user_us)
		return 0;
	now = 1000 * (double)(r->user_us - p->first.user_us) / (double)ns;
	if (p->rule.tried == GOVERNOR_SOURCES || p->rule.phase) {
		p->periods += p->periods < MEAN;
		p->user += (now - p->user) / p->periods;
	}
	return p->periods >= MEAN_LEAST && p->user >= p->least ? now : 0;
}

static struct governor_sample sample(struct benefit_period *p, const struct benefit_reading *r)
{
	struct governor_sample s = { .progress = progress(p, r), .plain = plain(p, r) };

	for (uint32_t i = 0; i < EBB_SOURCES; i++)
		s.used |= (uint32_t)(r->pages[i] - p->first.pages[i] >= USED_PAGES) << i;
	return s;
}

void benefit_end(struct benefit_period *p, const struct benefit_reading *r)
{
	struct governor_sample s = { 0 };

	if (r && p->begun)
		s = sample(p, r);
	p->begun = false;
	p->judges = s.progress > 0;
	p->paused = ~governor_step(&p->rule, &s) & ((1u << EBB_SOURCES) - 1);
}
