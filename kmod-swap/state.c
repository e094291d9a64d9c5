// SPDX-License-Identifier: GPL-2.0-only
#include "state.h"

static unsigned int state_fail(struct ebb_state *s, bool resumes, bool soon)
{
	unsigned int from = s->now;

	s->broken = true;
	if (from == EBB_SWAP_LIVE && resumes) {
		s->now = EBB_SWAP_AWAY;
		s->relapsed = s->was_back && soon;
		return TO_RECORD | TO_TURN | (s->relapsed ? 0 : TO_DEPART);
	}
	s->now = EBB_SWAP_FAILED;
	/* ebb_session_open() closes a session that is still connecting. */
	return TO_RECORD | (from == EBB_SWAP_CONNECTING ? 0 : TO_TURN);
}

/* Returns what follows for a session without connections. */
static unsigned int state_away(struct ebb_state *s, bool over)
{
	if (s->now != EBB_SWAP_AWAY)
		return TO_CLOSE;
	if (over) {
		s->now = EBB_SWAP_FAILED;
		return TO_CLOSE | TO_EXPIRE;
	}
	s->broken = false;
	return TO_RESUME;
}

static unsigned int state_resumed(struct ebb_state *s)
{
	if (s->broken)
		return TO_DISCONNECT;
	s->now = EBB_SWAP_LIVE;
	s->was_back = true;
	s->suspended = false;
	return TO_USE;
}

static unsigned int state_turn(struct ebb_state *s, bool over)
{
	switch (s->now) {
	case EBB_SWAP_AWAY:
		return s->suspended ? state_away(s, over) : TO_SUSPEND;
	case EBB_SWAP_FAILED:
		return TO_CLOSE;
	default:
		return 0;
	}
}

unsigned int ebb_state_step(struct ebb_state *s, enum ebb_event event, struct ebb_facts facts)
{
	bool ended = s->now == EBB_SWAP_FAILED || s->now == EBB_SWAP_CLOSED;

	switch (event) {
	case ON_OPENED:
		if (s->broken)
			return 0;
		s->now = EBB_SWAP_LIVE;
		return TO_USE;
	case ON_FAILURE:
		if (ended || s->now == EBB_SWAP_AWAY) {
			/* A failed attempt to resume it, or over already. */
			s->broken = true;
			return 0;
		}
		return state_fail(s, facts.retained, facts.soon);
	case ON_END:
		s->broken = true;
		return ended ? 0 : state_fail(s, false, false);
	case ON_TURN:
		return state_turn(s, facts.over);
	case ON_SUSPENDED:
		s->suspended = true;
		if (s->now == EBB_SWAP_AWAY && s->relapsed)
			return TO_PAUSE;
		return state_away(s, facts.over);
	case ON_MISSED:
		return s->now == EBB_SWAP_AWAY ? TO_PAUSE : TO_CLOSE;
	case ON_REFUSED:
		s->now = EBB_SWAP_FAILED;
		return TO_CLOSE;
	case ON_RESUMED:
		return state_resumed(s);
	case ON_CLOSED:
		s->now = EBB_SWAP_CLOSED;
		return 0;
	default:
		return 0;
	}
}
