// SPDX-License-Identifier: GPL-2.0-or-later
#include "colocate.h"
#include "lib/base/draw.h"

#define SECOND_NS 1000000000ULL
/* Shares of a CPU: less is not worth a trial; less ends what a trial began. */
#define GAIN_ENTER 0.05
#define GAIN_KEEP 0.01
#define QUEUE_SLACK 0.25        /* CPUs that the threads may lack beyond the gain */
#define ENTER_PERIODS 2
#define LEAVE_PERIODS 4
#define USED_LEAST 300          /* pages in each half of a trial that tell anything */
#define UNCLEAR_NS (2 * SECOND_NS)
#define PAUSE_FIRST (8 * SECOND_NS)
#define PAUSE_MAX (512 * SECOND_NS)
#define HOLD_FIRST (16 * SECOND_NS)
#define HOLD_MAX (256 * SECOND_NS)

/*
 * Least progress together, as a multiple of that apart.  Pages used are counted; time in user
 * mode is sampled at clock ticks, so it only has to agree.  Leaving takes a clear loss.
 */
#define ENTER_USED 1.04
#define ENTER_USER 0.97
#define STAY_USED 0.98
#define STAY_USER 0.92

/* The sender waits for the receiver, which also loses time: an interrupt costs both. */
static double gain(const struct colocate_sample *s)
{
	return 2.0 * (double)s->out * (double)s->interrupt_ns / (double)s->wall_ns;
}

/* CPUs that program and executor use now, beyond the one that they would share. */
static double loss(const struct colocate_sample *s)
{
	return (double)(s->running_ns + s->executor_ns) / (double)s->wall_ns - 1;
}

/* Whether threads that share a CPU wait for each other more than is gained. */
static bool crowded(const struct colocate_sample *s)
{
	double wanted = (double)(s->running_ns + s->queued_ns) / (double)s->wall_ns;

	return wanted - 1 > gain(s) + QUEUE_SLACK;
}

static uint64_t doubled(uint64_t *ns, uint64_t first, uint64_t most)
{
	*ns = !*ns ? first : *ns * 2 < most ? *ns * 2 : most;
	return *ns;
}

static bool leave(struct colocate *c, enum colocate_state state, uint64_t pause_ns)
{
	c->state = state;
	c->together = c->proven = false;
	c->periods = c->streak = 0;
	c->hold_ns = 0;
	c->next_ns = c->now_ns + pause_ns;
	return false;
}

static bool stay(struct colocate *c, uint64_t hold_ns)
{
	c->state = COLOCATE_TOGETHER;
	c->together = c->proven = true;
	c->periods = c->streak = 0;
	c->next_ns = c->now_ns + hold_ns;
	return true;
}

static bool begin(struct colocate *c)
{
	c->state = COLOCATE_TRIAL;
	c->periods = 2 * COLOCATE_PAIRS;
	c->streak = c->wins = 0;
	c->sum[0] = c->sum[1] = (struct colocate_sum){ 0 };
	c->trials++;
	c->together = draw_below(&c->seed, 2);
	return c->together;
}

static double ratio(uint64_t part, uint64_t of, uint64_t part_ns, uint64_t of_ns)
{
	return of && part_ns ? (double)part / (double)of * ((double)of_ns / (double)part_ns) : 0;
}

static bool judge(struct colocate *c)
{
	const struct colocate_sum *a = &c->sum[0], *t = &c->sum[1];
	bool proven = c->proven;

	c->used = ratio(t->used, a->used, t->wall_ns, a->wall_ns);
	c->user = ratio(t->user_ns, a->user_ns, t->wall_ns, a->wall_ns);
	if (a->used < USED_LEAST || t->used < USED_LEAST)
		return proven ? stay(c, HOLD_FIRST) : leave(c, COLOCATE_QUIET, UNCLEAR_NS);
	if (c->used >= (proven ? STAY_USED : ENTER_USED) &&
	    c->user >= (proven ? STAY_USER : ENTER_USER) &&
	    (proven || 2 * c->wins > COLOCATE_PAIRS)) {
		c->pause_ns = 0;
		c->won++;
		return stay(c, doubled(&c->hold_ns, HOLD_FIRST, HOLD_MAX));
	}
	return leave(c, COLOCATE_NO_GAIN, doubled(&c->pause_ns, PAUSE_FIRST, PAUSE_MAX));
}

static bool try_on(struct colocate *c, const struct colocate_sample *s)
{
	double progress = (double)s->used / (double)s->wall_ns;
	struct colocate_sum *sum = &c->sum[c->together];

	if (c->together && crowded(s))
		return leave(c, COLOCATE_PARALLEL, UNCLEAR_NS);
	sum->wall_ns += s->wall_ns;
	sum->user_ns += s->user_ns;
	sum->used += s->used;
	if (c->periods-- % 2 == 0) {
		c->half = progress;
		c->together = !c->together;
		return c->together;
	}
	c->wins += c->together ? progress > c->half : progress < c->half;
	if (!c->periods)
		return judge(c);
	c->together = draw_below(&c->seed, 2);
	return c->together;
}

static bool keep_on(struct colocate *c, const struct colocate_sample *s)
{
	bool quiet = gain(s) < GAIN_KEEP, full = crowded(s);

	c->streak = quiet || full ? c->streak + 1 : 0;
	if (full && c->streak >= ENTER_PERIODS)
		return leave(c, COLOCATE_PARALLEL, UNCLEAR_NS);
	if (c->streak >= LEAVE_PERIODS) {
		/* What was proven holds until the next trial is due. */
		c->state = COLOCATE_QUIET;
		c->streak = 0;
		c->together = false;
		return false;
	}
	return c->now_ns < c->next_ns || quiet || full ? true : begin(c);
}

static bool stay_off(struct colocate *c, const struct colocate_sample *s)
{
	bool early = c->now_ns < c->next_ns;

	if (gain(s) < GAIN_ENTER) {
		c->state = COLOCATE_QUIET;
		c->streak = 0;
		return false;
	}
	if (early && !c->proven) {
		if (c->state == COLOCATE_QUIET && c->pause_ns)
			c->state = COLOCATE_NO_GAIN;
		return false;
	}
	if (loss(s) > gain(s)) {
		c->state = COLOCATE_PARALLEL;
		c->streak = 0;
		return false;
	}
	if (++c->streak < ENTER_PERIODS)
		return false;
	if (early) {
		c->state = COLOCATE_TOGETHER;
		c->streak = 0;
		c->together = true;
		return true;
	}
	return begin(c);
}

bool colocate_step(struct colocate *c, const struct colocate_sample *s)
{
	if (!s->wall_ns)
		return c->together;
	c->now_ns += s->wall_ns;
	if (c->periods)
		return try_on(c, s);
	return c->together ? keep_on(c, s) : stay_off(c, s);
}

bool colocate_looks(const struct colocate *c, const struct colocate_sample *s)
{
	return c->together || c->periods || (s->wall_ns && gain(s) >= GAIN_ENTER);
}
