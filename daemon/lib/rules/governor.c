// SPDX-License-Identifier: GPL-2.0-or-later
#include <math.h>

#include "governor.h"
#include "lib/base/draw.h"

#define CLEAR 3.8               /* standard errors that are clear */
#define SUSPECT 1.0             /* those that ask for more trials */
#define LEAST 0.01              /* a smaller gain or loss changes nothing */
#define TRIALS_MIN 5
#define DECAY 0.99              /* weight of a trial after the next one */
#define OUTLIER 0.7             /* larger logarithms count as this: a factor of two */
#define JUMP 0.5                /* a change beyond a trial that makes it worthless */
#define CHANGES 32              /* that their mean covers, older ones having less weight */
#define CHANGE_LEAST 1e-5       /* no program is steadier than 0.3 % */
/* The trial's period, and half of each of two others: variance of one period times 1.5. */
#define TRIAL_VARIANCE 1.5

/* Mean periods between trials. */
#define SOON 3
#define FIRST 12
#define RARE 96
#define RAREST 768

static double clip(double x, double most)
{
	return x > most ? most : x < -most ? -most : x;
}

double governor_gain(const struct governor *g, uint32_t source, double *error)
{
	const struct governor_source *s = &g->source[source];
	double variance = g->change > 2 * CHANGE_LEAST ? g->change / 2 : CHANGE_LEAST;

	*error = INFINITY;
	if (!s->weight)
		return 0;
	*error = sqrt(TRIAL_VARIANCE * variance * s->square) / s->weight;
	return s->sum / s->weight;
}

static void wait_for(struct governor *g, struct governor_source *s, uint32_t interval)
{
	s->interval = interval;
	s->due = 1 + interval / 2 + draw_below(&g->seed, interval);
}

/* The state has changed: older trials say how it was before. */
static void enter(struct governor_source *s, enum governor_state state)
{
	s->state = state;
	s->trials = 0;
	s->weight = s->square = s->sum = 0;
}

static uint32_t rarer(const struct governor_source *s)
{
	return 2 * s->interval < RAREST ? 2 * s->interval : RAREST;
}

static void judge(struct governor *g, struct governor_source *s)
{
	double error, gain = governor_gain(g, (uint32_t)(s - g->source), &error);
	bool off = s->state == GOVERNOR_BACKS_OFF;
	double against = (off ? gain : -gain) / error;

	if (s->trials >= TRIALS_MIN && against >= CLEAR && (off ? gain : -gain) >= LEAST) {
		s->found = gain;
		enter(s, off ? GOVERNOR_UNKNOWN : GOVERNOR_BACKS_OFF);
		wait_for(g, s, off ? FIRST : RARE / 2);
		return;
	}
	if (against <= -CLEAR && s->trials >= 2) {
		s->found = gain;
		if (!off)
			s->state = GOVERNOR_GAINS;
		wait_for(g, s, s->interval < RARE ? RARE : rarer(s));
		return;
	}
	if (s->state == GOVERNOR_GAINS) {
		s->found = 0;
		s->state = GOVERNOR_UNKNOWN;
	}
	/* A trial of what backs off is a loss if nothing has changed. */
	if (off)
		wait_for(g, s, against >= SUSPECT ? RARE / 4 : rarer(s));
	else
		wait_for(g, s, against >= SUSPECT ? SOON : FIRST);
}

/* Returns whether source @i has a use to try: one that backs off requests in trials only. */
static bool may_try(const struct governor_source *s, const struct governor_sample *m, uint32_t i)
{
	return s->state == GOVERNOR_BACKS_OFF || m->used & 1u << i;
}

/* Counts down to the next trials, and begins one that is due. */
static void begin(struct governor *g, const struct governor_sample *m)
{
	uint32_t start = draw_below(&g->seed, GOVERNOR_SOURCES);
	bool found = false;

	for (uint32_t k = 0; k < GOVERNOR_SOURCES; k++) {
		uint32_t i = (start + k) % GOVERNOR_SOURCES;
		struct governor_source *s = &g->source[i];

		if (!s->interval)
			wait_for(g, s, m->plain & 1u << i ? RARE : FIRST);
		/* Elsewhere, trials would begin with the source's use, where progress changes. */
		if (s->due && may_try(s, m, i))
			s->due--;
		if (s->due || !may_try(s, m, i) || found)
			continue;
		g->tried = i;
		g->phase = 0;
		found = true;
	}
}

/*
 * Ends the trial, unless its source was not used: one that backs off in it, another one after it.
 * In a phase without it the program may be faster or slower for other reasons.
 */
static void end(struct governor *g, const struct governor_sample *m, double after)
{
	struct governor_source *s = &g->source[g->tried];
	double beside = (g->before + after) / 2, more = g->during - beside;

	bool used = (s->state == GOVERNOR_BACKS_OFF ? g->used : m->used) & 1u << g->tried;

	g->tried = GOVERNOR_SOURCES;
	if (!used || fabs(after - g->before) > JUMP) {
		wait_for(g, s, s->interval);
		return;
	}
	s->trials++;
	s->weight = s->weight * DECAY + 1;
	s->square = s->square * DECAY * DECAY + 1;
	s->sum = s->sum * DECAY + clip(s->state == GOVERNOR_BACKS_OFF ? more : -more, OUTLIER);
	judge(g, s);
}

static uint32_t allowed(const struct governor *g)
{
	uint32_t mask = 0;

	for (uint32_t i = 0; i < GOVERNOR_SOURCES; i++) {
		bool on = g->source[i].state != GOVERNOR_BACKS_OFF;

		mask |= (uint32_t)(on != (g->tried == i && g->phase == 0)) << i;
	}
	return mask;
}

uint32_t governor_step(struct governor *g, const struct governor_sample *m)
{
	bool useful = m->progress > 0;
	double now = useful ? log(m->progress) : 0, change;

	if (!g->running || !useful) {
		/* A program that rests has no trials, and its next period nothing before it. */
		g->running = useful;
		g->tried = GOVERNOR_SOURCES;
		g->before = now;
		return allowed(g);
	}
	if (g->tried < GOVERNOR_SOURCES && g->phase == 0) {
		g->during = now;
		g->used = m->used;
		g->phase = 1;
		return allowed(g);
	}
	change = clip(now - g->before, JUMP);
	change *= change;
	/* A plain mean at first: one change alone may be close to 0. */
	g->changes += g->changes < CHANGES;
	g->change += (change - g->change) / g->changes;
	if (g->tried < GOVERNOR_SOURCES)
		end(g, m, now);
	g->before = now;
	begin(g, m);
	return allowed(g);
}
