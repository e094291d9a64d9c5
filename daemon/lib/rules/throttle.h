/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Throttling by accuracy, after feedback directed prefetching (Srinath et al.,
 * "Feedback Directed Prefetching", HPCA 2007): while few prefetched pages of a cgroup
 * are used, only a sample of its policy's requests is executed.  A wrong policy then
 * costs little.
 */
#ifndef EBB_THROTTLE_H
#define EBB_THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

#define THROTTLE_SETTLED 256    /* pages used or wasted between two judgements */
#define THROTTLE_SHARE 2        /* throttled when less than 1 / this was used */
#define THROTTLE_SAMPLE 16      /* then one request in so many is executed, */
#define THROTTLE_SAMPLED 64     /* and judged after so many pages */

/* A page outstanding for so long is unused, or used by chance: see throttle_tick(). */
#define THROTTLE_TIMELY_MIN 100000000ULL
#define THROTTLE_TIMELY_MAX 10000000000ULL
#define THROTTLE_SLACK 256      /* faults */
#define THROTTLE_PAUSE_NS 300000000ULL /* without a fault: the program pauses */

struct throttle {
	uint64_t used, unused;  /* totals at the last judgement */
	uint32_t sample;        /* one request in so many is executed; 0: all */
	uint32_t turn;
	uint64_t faults;        /* at the last tick */
	uint64_t fault_ns;      /* mean time from one to the next, pauses apart; 0: not known */
	uint64_t timely_ns;     /* 0: not known */
	uint64_t told;          /* @by_chance at the last tick */
	uint64_t by_chance;     /* hits by chance that followed no pause */
	uint64_t active_ns;     /* time of the last tick with a fault */
	uint64_t resumed_ns;    /* time of the first one after a pause */
};

/*
 * A tick at @now; totals: @faults, misses and hits, and of the hits those that
 * came after timely_ns, @by_chance.
 *
 * Random accesses touch any page eventually, and half of the uselessly
 * prefetched pages are used before they are evicted.  A page that a policy
 * predicted is used before @room other pages are: no more than these may wait.
 * A program that pauses uses its outstanding pages when it resumes.
 */
static inline void throttle_tick(struct throttle *t, uint64_t faults, uint64_t by_chance,
				 uint32_t room, uint64_t now)
{
	uint64_t mean, timely;

	if (faults == t->faults)
		return;
	if (now - t->active_ns > THROTTLE_PAUSE_NS)
		t->resumed_ns = now;
	if (now - t->resumed_ns > t->timely_ns)
		t->by_chance += by_chance - t->told;
	t->told = by_chance;
	if (now != t->resumed_ns) {
		mean = (now - t->active_ns) / (faults - t->faults);
		t->fault_ns = t->fault_ns ? (3 * t->fault_ns + mean) / 4 : mean;
		timely = t->fault_ns * (room + THROTTLE_SLACK);
		if (timely < THROTTLE_TIMELY_MIN)
			timely = THROTTLE_TIMELY_MIN;
		t->timely_ns = timely < THROTTLE_TIMELY_MAX ? timely : THROTTLE_TIMELY_MAX;
	}
	t->active_ns = now;
	t->faults = faults;
}

/* Returns whether the program had time, pauses apart, to use a page prefetched at @issued_ns. */
static inline bool throttle_waited(const struct throttle *t, uint64_t issued_ns)
{
	uint64_t since = issued_ns > t->resumed_ns ? issued_ns : t->resumed_ns;

	return since + (t->timely_ns ? t->timely_ns : THROTTLE_TIMELY_MAX) <= t->active_ns;
}

/*
 * Totals, in pages.  @unused counts pages wasted, used by chance, and outstanding for long:
 * a useless page is counted as wasted only when it is dropped, possibly thousands of pages
 * later.  @unused may decrease, when such a page is used after all.
 */
static inline void throttle_judge(struct throttle *t, uint64_t used, uint64_t unused)
{
	int64_t u = (int64_t)(used - t->used), w = (int64_t)(unused - t->unused);

	/*
	 * Judge earlier, with an equal sample: a pattern that starts to repeat must show at once.
	 */
	if (u + w < (t->sample ? THROTTLE_SAMPLED : THROTTLE_SETTLED))
		return;
	t->sample = THROTTLE_SHARE * u >= u + w ? 0 : THROTTLE_SAMPLE;
	t->used = used;
	t->unused = unused;
}

/* Returns whether the next request is executed. */
static inline bool throttle_passes(struct throttle *t)
{
	return !t->sample || t->turn++ % t->sample == 0;
}

#endif
