// SPDX-License-Identifier: GPL-2.0-only
/* kmod-swap/state.c by itself. */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kmod-swap/state.h"
#include "world.h"

static void wrong(const char *what)
{
	if (!*session_wrong)
		strncpy(session_wrong, what, sizeof(session_wrong) - 1);
}

enum phase { NO_PHASE, SUSPENDING, RESUMING, DISCONNECTING, CLOSING, PHASES };

/* A session as lifecycle.c treats it, without its connections. */
struct life {
	struct ebb_state s;
	enum phase phase;
	bool queued;              /* the work item, at once or after a pause */
};

enum state_mutant { NO_MUTANT, NEW_ABSENCE, NEVER_OVER, STAYS_AWAY, STUCK_CLOSE, REBIRTH,
		    NO_RECORD };

static int state_mutant;

static unsigned int mutated(struct ebb_state *s, enum ebb_event event, struct ebb_facts facts)
{
	struct ebb_state old = *s;
	unsigned int todo;

	if (state_mutant == NEVER_OVER)
		facts.over = false;
	if (state_mutant == STAYS_AWAY && event == ON_REFUSED)
		event = ON_MISSED;
	todo = ebb_state_step(s, event, facts);
	if (state_mutant == NEW_ABSENCE && todo & TO_RECORD && s->now == EBB_SWAP_AWAY)
		todo |= TO_DEPART;
	if (state_mutant == STUCK_CLOSE && event == ON_SUSPENDED && s->now == EBB_SWAP_FAILED)
		todo = 0;
	if (state_mutant == REBIRTH && event == ON_MISSED && old.now == EBB_SWAP_FAILED) {
		s->now = EBB_SWAP_AWAY;
		todo = TO_PAUSE;
	}
	if (state_mutant == NO_RECORD && event == ON_END)
		todo &= ~(unsigned int)TO_RECORD;
	return todo;
}

/* Applies @event and checks the step by itself. */
static unsigned int life_step(struct life *l, enum ebb_event event, struct ebb_facts facts)
{
	const struct ebb_state old = l->s;
	unsigned int todo = mutated(&l->s, event, facts), now = l->s.now;
	bool told = event == ON_FAILURE || event == ON_END, ended = now == EBB_SWAP_FAILED;

	if ((old.now == EBB_SWAP_FAILED && !ended && now != EBB_SWAP_CLOSED) ||
	    (old.now == EBB_SWAP_CLOSED && now != EBB_SWAP_CLOSED))
		wrong("an ended session goes on");
	if (now == EBB_SWAP_LIVE && (l->s.broken || l->s.suspended))
		wrong("a session is live without connections");
	if (!(todo & TO_USE) != !(now == EBB_SWAP_LIVE && old.now != now))
		wrong("it is used when it is not live, or not used when it is");
	if (told && !(todo & TO_RECORD) != (now == old.now))
		wrong("a cause is not recorded, or replaces the first");
	if (told && !l->s.broken)
		wrong("connections that failed are used");
	if (now == EBB_SWAP_AWAY && old.now == EBB_SWAP_LIVE && !facts.retained)
		wrong("a session is away that the donor does not retain");
	if (event == ON_END && now != EBB_SWAP_FAILED && now != EBB_SWAP_CLOSED)
		wrong("an order to end is not final");
	if (todo & (TO_TURN | TO_PAUSE))
		l->queued = true;
	if (!told) {
		l->phase = todo & TO_SUSPEND    ? SUSPENDING :
			   todo & TO_RESUME     ? RESUMING :
			   todo & TO_DISCONNECT ? DISCONNECTING :
			   todo & TO_CLOSE      ? CLOSING :
						  NO_PHASE;
	}
	if (l->phase == NO_PHASE && !l->queued && (now == EBB_SWAP_AWAY || ended) &&
	    old.now != EBB_SWAP_CONNECTING)
		wrong("nothing will end or resume the session");
	return todo;
}

static const enum ebb_event after[PHASES][3] = {
	[SUSPENDING] = { ON_SUSPENDED, EBB_EVENTS, EBB_EVENTS },
	[RESUMING] = { ON_MISSED, ON_REFUSED, ON_RESUMED },
	[DISCONNECTING] = { ON_MISSED, EBB_EVENTS, EBB_EVENTS },
	[CLOSING] = { ON_CLOSED, EBB_EVENTS, EBB_EVENTS },
};

enum donor { GOOD, UNREACHABLE, FORGETS, FLAPS, DONORS };

/* What becomes of @l if nothing but the donor's condition decides; a turn takes a second. */
static void life_ends(struct life l, enum donor donor)
{
	const uint32_t grace = 30;
	uint32_t away_at = 0, back_at = 0, now = 100;
	unsigned int todo = 0;

	if (l.s.now == EBB_SWAP_CONNECTING || (l.s.now == EBB_SWAP_LIVE && donor != FLAPS))
		return;
	away_at = now;
	for (int i = 0; i < 400 && l.s.now != EBB_SWAP_CLOSED; i++, now++) {
		struct ebb_facts facts = {
			.retained = true,
			.soon = back_at + 5 > now,
			.over = now > away_at + grace,
		};
		enum ebb_event event = after[l.phase][0];

		if (l.s.now == EBB_SWAP_LIVE && donor == GOOD)
			return;
		if (l.s.now == EBB_SWAP_LIVE) {
			event = ON_FAILURE;
		} else if (l.phase == NO_PHASE) {
			l.queued = false;
			event = ON_TURN;
		} else if (l.phase == RESUMING && donor == FORGETS) {
			event = ON_REFUSED;
		} else if (l.phase == RESUMING && donor != UNREACHABLE) {
			event = ON_RESUMED;
			back_at = now;
		}
		todo = life_step(&l, event, facts);
		if (todo & TO_DEPART)
			away_at = now;
		if (donor == FORGETS && event == ON_REFUSED && todo & TO_PAUSE)
			wrong("a session goes on that the donor has forgotten");
	}
	if (l.s.now != EBB_SWAP_CLOSED)
		wrong("an absence does not end");
}

enum { LIVES = 5 * 16 * PHASES * 2 };

static uint32_t number_of(const struct life *l)
{
	return ((((((l->s.now * 2u + l->s.broken) * 2 + l->s.suspended) * 2 + l->s.was_back) * 2 +
		  l->s.relapsed) * PHASES) + l->phase) * 2 + l->queued;
}

uint32_t session_states(int which)
{
	static bool seen[LIVES];
	static struct life list[LIVES];
	uint32_t n = 1;

	*session_wrong = 0;
	state_mutant = which;
	memset(seen, 0, sizeof(seen));
	list[0] = (struct life){ .phase = NO_PHASE };
	seen[number_of(&list[0])] = true;
	for (uint32_t at = 0; at < n; at++) {
		for (enum donor d = GOOD; d < DONORS; d++)
			life_ends(list[at], d);
		for (uint32_t choice = 0; choice < EBB_EVENTS * 8u; choice++) {
			struct ebb_facts facts = { choice & 1, choice & 2, choice & 4 };
			enum ebb_event event = (enum ebb_event)(choice / 8);
			struct life l = list[at];
			bool may = event == ON_FAILURE || event == ON_END;

			may |= event == ON_OPENED && l.s.now == EBB_SWAP_CONNECTING;
			/* ebb_session_open() closes such a session. */
			if (l.s.now == EBB_SWAP_FAILED && l.phase == NO_PHASE && !l.queued)
				continue;
			if (event == ON_TURN && l.phase == NO_PHASE && l.queued) {
				l.queued = false;
				may = true;
			}
			for (int i = 0; i < 3 && l.phase != NO_PHASE; i++)
				may |= event == after[l.phase][i];
			if (!may)
				continue;
			life_step(&l, event, facts);
			if (!seen[number_of(&l)]) {
				seen[number_of(&l)] = true;
				list[n++] = l;
			}
		}
	}
	return n;
}
