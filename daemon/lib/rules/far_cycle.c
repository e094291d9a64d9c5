// SPDX-License-Identifier: GPL-2.0-or-later OR BSD-2-Clause
#include <string.h>

#include "far_cycle.h"

void far_cycle_begin(struct far_cycle *c, uint32_t number, uint32_t donors)
{
	memset(c, 0, sizeof(*c));
	c->number = number;
	c->donors = donors;
	c->phase = FAR_CYCLE_MARKS;
}

void far_cycle_leave_out(struct far_cycle *c, uint32_t d)
{
	c->donor[d].begun = c->donor[d].ended = c->donor[d].lost = true;
}

void far_cycle_queue(struct far_cycle *c, uint32_t d)
{
	c->donor[d].queued = true;
}

enum far_cycle_message far_cycle_next(const struct far_cycle *c, uint32_t d)
{
	const struct far_cycle_donor *donor = &c->donor[d];

	if (donor->waits || donor->lost)
		return FAR_CYCLE_NONE;
	switch (c->phase) {
	case FAR_CYCLE_MARKS:
		return !donor->begun || donor->rest ? FAR_CYCLE_BEGIN :
		       donor->queued || donor->more ? FAR_CYCLE_TRACE : FAR_CYCLE_NONE;
	case FAR_CYCLE_ENDS:
		return donor->ended ? FAR_CYCLE_NONE : FAR_CYCLE_COMMIT;
	case FAR_CYCLE_ABANDONED:
		return donor->begun && !donor->ended ? FAR_CYCLE_ABORT : FAR_CYCLE_NONE;
	default:
		return FAR_CYCLE_NONE;
	}
}

void far_cycle_sent(struct far_cycle *c, uint32_t d, enum far_cycle_message m, bool rest)
{
	struct far_cycle_donor *donor = &c->donor[d];

	donor->waits = m;
	/* Whether it takes effect or not: a BEGIN may. */
	if (m == FAR_CYCLE_BEGIN) {
		donor->begun = true;
		donor->rest = rest;
	}
	if (m != FAR_CYCLE_TRACE)
		return;
	donor->batch++;
	donor->queued = rest;
}

/* Are the marks of all donors here? */
static bool all_ended(const struct far_cycle *c)
{
	for (uint32_t i = 0; i < c->donors; i++)
		if (!c->donor[i].ended)
			return false;
	return true;
}

bool far_cycle_replied(struct far_cycle *c, uint32_t d, enum far_cycle_message m, uint32_t batch,
		       bool more)
{
	struct far_cycle_donor *donor = &c->donor[d];

	if (!m || donor->waits != m || (m == FAR_CYCLE_TRACE && batch != donor->batch))
		return false;
	donor->waits = FAR_CYCLE_NONE;
	if (m == FAR_CYCLE_TRACE)
		donor->more = more;
	else if (m != FAR_CYCLE_BEGIN)
		donor->ended = !more;
	if (c->phase == FAR_CYCLE_ENDS && all_ended(c))
		c->phase = FAR_CYCLE_DONE;
	return true;
}

void far_cycle_fail(struct far_cycle *c, uint32_t d, bool lost)
{
	c->donor[d].waits = FAR_CYCLE_NONE;
	c->donor[d].lost |= lost;
	if (c->phase != FAR_CYCLE_DONE)
		c->phase = FAR_CYCLE_ABANDONED;
}

bool far_cycle_is_done(const struct far_cycle *c, uint32_t d)
{
	const struct far_cycle_donor *donor = &c->donor[d];

	return donor->begun && !donor->rest && !donor->waits && !donor->more && !donor->queued;
}

bool far_cycle_is_quiet(const struct far_cycle *c)
{
	for (uint32_t i = 0; i < c->donors; i++)
		if (!far_cycle_is_done(c, i))
			return false;
	return c->phase == FAR_CYCLE_MARKS;
}

bool far_cycle_end(struct far_cycle *c)
{
	if (!far_cycle_is_quiet(c))
		return false;
	c->phase = all_ended(c) ? FAR_CYCLE_DONE : FAR_CYCLE_ENDS;
	return true;
}

enum far_cycle_verdict far_cycle_begins(struct far_cycle_donor_state *s, uint32_t cycle)
{
	if (cycle == s->cycle && far_cycle_runs(s) && !s->batch)
		return FAR_CYCLE_AGAIN;
	if (cycle <= s->cycle)
		return FAR_CYCLE_STALE;
	*s = (struct far_cycle_donor_state){ .cycle = cycle, .active = true };
	return FAR_CYCLE_NEW;
}

enum far_cycle_verdict far_cycle_traces(struct far_cycle_donor_state *s, uint32_t cycle,
					uint32_t batch)
{
	if (cycle != s->cycle || !far_cycle_runs(s) || !batch)
		return FAR_CYCLE_STALE;
	if (batch == s->batch)
		return FAR_CYCLE_AGAIN;
	if (batch != s->batch + 1)
		return FAR_CYCLE_STALE;
	s->batch = batch;
	return FAR_CYCLE_NEW;
}

bool far_cycle_commits(const struct far_cycle_donor_state *s, uint32_t cycle, bool more)
{
	return cycle == s->cycle && s->active && !more;
}

void far_cycle_committed(struct far_cycle_donor_state *s)
{
	s->committed = true;
}

bool far_cycle_runs(const struct far_cycle_donor_state *s)
{
	return s->active && !s->committed;
}

bool far_cycle_keeps(const struct far_cycle_donor_state *s)
{
	return s->active;
}

void far_cycle_aborts(struct far_cycle_donor_state *s, uint32_t cycle)
{
	if (cycle == s->cycle)
		s->active = false;
}
