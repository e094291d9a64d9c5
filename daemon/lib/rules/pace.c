// SPDX-License-Identifier: GPL-2.0-or-later
#include "pace.h"

static uint64_t bucket_begin(uint32_t bucket)
{
	return (4ull + bucket % 4) << (EBB_WAIT_SHIFT - 2 + bucket / 4);
}

uint64_t pace_quantile(const uint32_t misses[EBB_WAITS], uint32_t sum, uint32_t percent)
{
	uint64_t wanted = (uint64_t)sum * percent, below = 0;
	uint64_t begin = 0, width = 0;

	for (uint32_t i = 0; i < EBB_WAITS; i++) {
		if (!misses[i])
			continue;
		begin = bucket_begin(i);
		width = bucket_begin(i + 1) - begin;
		if (below + misses[i] * 100ull >= wanted)
			return begin + width * (wanted - below) / (misses[i] * 100ull);
		below += misses[i] * 100ull;
	}
	return begin + width;
}

/* Returns how many misses of the judgement took longer than @ns, times 100. */
static int64_t longer(const struct pace *p, uint64_t ns)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < EBB_WAITS; i++) {
		uint64_t begin = bucket_begin(i), end = bucket_begin(i + 1);

		if (begin >= ns)
			sum += p->sum.misses[i] * 100ull;
		else if (end > ns)
			sum += p->sum.misses[i] * 100ull * (end - ns) / (end - begin);
	}
	return (int64_t)sum;
}

/*
 * Compares the share of misses that took longer than @ns with @percent.  Returns 0 while the
 * difference may be chance: within three standard deviations, and one miss.  The 99th percentile of
 * few misses is that of one or two, and would often double by chance.
 */
static int compare(const struct pace *p, uint64_t ns, uint32_t percent)
{
	int64_t more = longer(p, ns) - (int64_t)p->misses * percent;
	uint64_t by = (uint64_t)(more < 0 ? -more : more);

	by = by > 100 ? by - 100 : 0;
	if (by * by <= 9ull * p->misses * percent * (100 - percent))
		return 0;
	return more < 0 ? -1 : 1;
}

/* Adopts the judgement's latency if that is clearly lower: no misses are faster than idle ones. */
static void learn_lower(struct pace_times *t, const struct pace *p)
{
	if (!t->median || p->now.median >= t->median || compare(p, t->median, 50) >= 0)
		return;
	/* The tail of few misses is uncertain. */
	t->tail = t->tail * p->now.median / t->median;
	t->median = p->now.median;
}

static uint64_t nearer(uint64_t old, uint64_t now)
{
	return now > old ? old + (now - old) / 8 : old - (old - now) / 8;
}

static void learn(struct pace_times *t, const struct pace *p)
{
	learn_lower(t, p);
	if (t->median)
		*t = (struct pace_times){ nearer(t->median, p->now.median),
					  nearer(t->tail, p->now.tail) };
	else
		*t = p->now;
}

static uint64_t most_of(uint64_t idle, uint32_t percent, uint64_t least, uint32_t percent_least)
{
	uint64_t a = idle * percent / 100, b = least * percent_least / 100;

	return a > b ? a : b;
}

enum verdict { FAST, UNCERTAIN, SLOW };

/* Returns whether prefetches delay misses too much; SLOW while no latency is known. */
static enum verdict verdict_of(const struct pace *p)
{
	uint64_t median = most_of(p->idle.median, PACE_MEDIAN, p->least.median, PACE_MEDIAN_LEAST),
		 tail = most_of(p->idle.tail, PACE_TAIL, p->least.tail, PACE_TAIL_LEAST);

	if (compare(p, median, 50) > 0 || compare(p, tail, 1) > 0)
		return SLOW;
	return p->now.median > median || p->now.tail > tail ? UNCERTAIN : FAST;
}

static uint32_t within(uint64_t limit, struct pace_range range)
{
	return limit < range.least ? range.least : limit > range.most ? range.most :
	       (uint32_t)limit;
}

static void begin_probe(struct pace *p, struct pace_range range)
{
	p->after_probe = p->limit;
	p->limit = range.least;
}

static void end_probe(struct pace *p)
{
	p->limit = p->after_probe;
	p->after_probe = 0;
}

/* Begins to limit. */
static void begin(struct pace *p, struct pace_range range)
{
	uint64_t latency = p->idle.median * PACE_MEDIAN / 100;

	p->judgements = 0;
	p->least = (struct pace_times){ 0 };
	p->limit = within(!latency ? range.most / 2 :
			  p->sum.ns ? p->sum.pages * latency / p->sum.ns : 0, range);
	begin_probe(p, range);
}

static void adapt(struct pace *p, struct pace_range range)
{
	enum verdict verdict;

	if (p->limit <= range.least) {
		learn(&p->least, p);
		if (!p->idle.median)
			p->idle = p->least;
	}
	if (p->after_probe) {
		end_probe(p);
	} else {
		verdict = verdict_of(p);
		if (verdict == SLOW)
			p->limit = within(p->limit * 3ull / 4, range);
		else if (verdict == FAST && p->sum.held)
			p->limit = within(p->limit + PACE_STEP, range);
	}
	if (++p->judgements % PACE_PROBE == 0)
		begin_probe(p, range);
}

static void judge(struct pace *p, struct pace_range range)
{
	p->now = (struct pace_times){ pace_quantile(p->sum.misses, p->misses, 50),
				      pace_quantile(p->sum.misses, p->misses, 99) };
	/* So few prefetches delay no median, and hardly one miss in 100. */
	if (p->sum.pages * 16 < p->misses) {
		learn(&p->idle, p);
		if (p->after_probe)
			end_probe(p);
		return;
	}
	learn_lower(&p->idle, p);
	learn_lower(&p->least, p);
	if (p->limit != PACE_NONE)
		adapt(p, range);
	else if (p->left && verdict_of(p) == SLOW)
		begin(p, range);
}

static void add(struct pace *p, const struct pace_seen *seen)
{
	p->sum.ns += seen->ns;
	p->sum.pages += seen->pages;
	p->sum.held |= seen->held;
	p->steps++;
	for (uint32_t i = 0; i < EBB_WAITS; i++) {
		p->sum.misses[i] += seen->misses[i];
		p->misses += seen->misses[i];
	}
}

static void forget(struct pace *p)
{
	p->sum = (struct pace_seen){ 0 };
	p->misses = p->steps = 0;
}

void pace_init(struct pace *p)
{
	*p = (struct pace){ .limit = PACE_NONE };
}

/* Returns whether the misses that ended are enough to look at. */
static bool counts(const struct pace_seen *seen)
{
	uint64_t misses = 0, ns = 0;

	for (uint32_t i = 0; i < EBB_WAITS; i++) {
		misses += seen->misses[i];
		ns += seen->misses[i] * bucket_begin(i);
	}
	return misses >= NEIGHBOUR_MISSES || ns >= NEIGHBOUR_WAIT_NS;
}

void pace_step(struct pace *p, struct pace_range range, const struct pace_seen *seen)
{
	add(p, seen);
	if (seen->waiting && counts(seen))
		p->left = NEIGHBOUR_TICKS;
	else if (p->left && !--p->left) {
		p->limit = PACE_NONE;
		p->after_probe = 0;
	}
	if (p->misses < PACE_ENOUGH && p->steps < PACE_PATIENCE)
		return;
	if (p->misses >= PACE_LEAST_MISSES)
		judge(p, range);
	else if (p->steps < PACE_FORGET)
		return;
	forget(p);
}
