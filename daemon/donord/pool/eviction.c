// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

#include "donord/donord.h"

/* A loan whose pages had nowhere to go may be asked for again. */
#define RETRY_NS (10 * SECOND)
#define DRAIN_RETRY_NS (5 * SECOND)
/*
 * A drain asks each borrower for so many at a time: more would only make it copy
 * them in an order of its own.  Those that are slow do not hold up the others.
 */
#define DRAIN_AT_ONCE 16
#define DRAIN_SLOW_NS (10 * SECOND)
/* Who does not even answer EVICT in that time is not waited for. */
#define SILENT_NS (10 * SECOND)
/* So long the machine must be about to run out before anything is revoked. */
#define SHORT_NS (10 * SECOND)

_Static_assert(HEADROOM_EVICT_MOST + HEADROOM_EVICT_MOST / 2 <= WIRE_LOANS,
	       "the candidates of one owner fit one ACTIVITY");

int eviction_init(struct lender *l)
{
	struct eviction *e = &l->eviction;

	e->eligible = calloc(l->pool->count, sizeof(*e->eligible));
	if (!e->eligible)
		return -ENOMEM;
	if (getrandom(&e->seed, sizeof(e->seed), GRND_NONBLOCK) < 0 || !e->seed)
		e->seed = now_ns() | 1;
	return 0;
}

void eviction_free(struct lender *l)
{
	free(l->eviction.eligible);
	l->eviction.eligible = NULL;
}

static bool may_be_asked(const struct lend_slab *s, uint64_t now, uint64_t retry)
{
	return s->state == LEND_LENT &&
	       (s->asked == LEND_NOT_ASKED ||
		(s->asked == LEND_REFUSED && now - s->answered_at >= retry));
}

static bool still_lent(const struct lender *l, const struct eviction_loan *loan)
{
	return lend_check(l->pool, loan->owner, loan->slab, loan->generation) == WIRE_OK;
}

static void mark(struct lender *l, uint32_t slab, uint64_t now)
{
	struct lend_slab *s = &l->pool->slabs[slab];

	if (s->asked == LEND_NOT_ASKED)
		s->asked_at = now;
	s->asked = LEND_TO_ASK;
	l->eviction.to_ask = true;
}

/* Asks @c about those drawn that it owns, unless it owes the last answer still. */
static void ask_activity(struct lender *l, struct connection *c)
{
	struct eviction *e = &l->eviction;
	struct wire_frame f = { .op = WIRE_ACTIVITY, .tag = e->round };
	uint32_t n = 0;

	if (!connection_may_be_asked(c) || c->asked)
		return;
	for (uint32_t i = 0; i < e->count; i++)
		if (e->drawn[i].owner == c->number)
			wire_put_loan(c->asking, n++, (struct wire_loan){ e->drawn[i].slab,
									  e->drawn[i].generation });
	if (!n)
		return;
	f.length = n * WIRE_LOAN_SIZE;
	c->asked = n;
	c->asked_tag = e->round;
	e->waiting++;
	connection_ask(c, &f, c->asking);
	connection_flush(c);
}

void eviction_start(struct lender *l, uint32_t want, uint64_t now)
{
	struct eviction *e = &l->eviction;
	uint32_t indices[WIRE_LOANS], eligible = 0;

	if (e->want || !want)
		return;
	for (uint32_t i = 0; i < l->pool->count; i++)
		if (may_be_asked(&l->pool->slabs[i], now, RETRY_NS))
			e->eligible[eligible++] = i;
	if (!eligible)
		return;
	e->want = want < eligible ? want : eligible;
	e->count = headroom_candidates(&l->rule, e->want, eligible);
	headroom_draw(eligible, e->count, &e->seed, indices);
	for (uint32_t i = 0; i < e->count; i++) {
		uint32_t slab = e->eligible[indices[i]];
		const struct lend_slab *s = &l->pool->slabs[slab];

		e->drawn[i] = (struct eviction_loan){ slab, s->generation, s->owner };
		e->candidates[i] = (struct headroom_candidate){ .slab = i };
	}
	e->round++;
	e->counts.rounds++;
	e->deadline = now + EVICTION_ACTIVITY_NS;
	e->waiting = 0;
	for (int i = 0; i < CONNECTIONS; i++)
		ask_activity(l, &l->connections[i]);
}

int eviction_rates(struct lender *l, struct connection *c, const struct wire_frame *f,
		      const uint8_t *payload)
{
	struct eviction *e = &l->eviction;
	uint32_t n = 0;

	if (!c->asked || f->tag != c->asked_tag ||
	    (!f->status && f->length != c->asked * WIRE_LOAN_SIZE))
		return -EPROTO;
	c->asked = 0;
	/* Late: it has counted as idle. */
	if (!e->want || f->tag != e->round)
		return 0;
	e->waiting--;
	for (uint32_t i = 0; !f->status && i < e->count; i++)
		if (e->drawn[i].owner == c->number)
			e->candidates[i].activity = (double)wire_get_rate(payload, n++);
	return 0;
}

/* The E least active that are still lent. */
static void decide(struct lender *l, uint64_t now)
{
	struct eviction *e = &l->eviction;
	uint32_t n = 0, want = e->want;

	e->counts.silent += e->waiting;
	e->want = 0;
	for (uint32_t i = 0; i < e->count; i++)
		if (still_lent(l, &e->drawn[e->candidates[i].slab]))
			e->candidates[n++] = e->candidates[i];
	headroom_least(e->candidates, n, want);
	for (uint32_t i = 0; i < n && i < want; i++)
		mark(l, e->drawn[e->candidates[i].slab].slab, now);
}

/* Sends the EVICTs that the protocol allows now. */
static void send_evicts(struct lender *l, uint64_t now)
{
	struct lend_pool *p = l->pool;

	l->eviction.to_ask = false;
	for (uint32_t i = 0; i < p->count; i++) {
		struct lend_slab *s = &p->slabs[i];
		struct connection *c = &l->connections[s->owner];
		struct wire_frame f = { .op = WIRE_EVICT, .slab = i, .generation = s->generation };

		if (s->state != LEND_LENT || s->asked != LEND_TO_ASK)
			continue;
		/* Of one that is gone, the successor is asked. */
		if (!connection_may_be_asked(c) || c->evicts == WIRE_EVICTS) {
			l->eviction.to_ask = true;
			continue;
		}
		f.tag = (uint64_t)s->generation << 32 | i;
		s->asked = LEND_ASKED;
		s->answered_at = now;
		c->evicts++;
		l->eviction.counts.asked++;
		connection_ask(c, &f, NULL);
	}
	for (int i = 0; i < CONNECTIONS; i++) {
		struct connection *c = &l->connections[i];

		if (c->fd >= 0 && c->tx.count && !c->writing)
			connection_flush(c);
	}
}

uint64_t eviction_turn(struct lender *l, uint64_t now)
{
	struct eviction *e = &l->eviction;

	if (e->want && (!e->waiting || now >= e->deadline))
		decide(l, now);
	if (e->to_ask)
		send_evicts(l, now);
	return e->want ? e->deadline - now : UINT64_MAX;
}

int eviction_answer(struct lender *l, struct connection *c, const struct wire_frame *f)
{
	struct lend_pool *p = l->pool;
	struct lend_slab *s;

	if (!c->evicts || f->slab >= p->count ||
	    f->tag != ((uint64_t)f->generation << 32 | f->slab))
		return -EPROTO;
	c->evicts--;
	s = &p->slabs[f->slab];
	/* UNMAP was quicker. */
	if (lend_check(p, c->number, f->slab, f->generation) != WIRE_OK || s->asked != LEND_ASKED)
		return 0;
	s->answered_at = l->now;
	switch (f->status) {
	case WIRE_OK:
		s->asked = LEND_PROMISED;
		l->eviction.counts.promised++;
		return 0;
	case WIRE_NO_SLAB:
	case WIRE_STALE:
		/* It has nothing there, so nothing is lost. */
		connection_unmap(c, f->slab, f->generation);
		return 0;
	default:
		s->asked = LEND_REFUSED;
		l->eviction.counts.refused++;
		return 0;
	}
}

void eviction_returned(struct lender *l, uint32_t slab)
{
	l->eviction.counts.returned += l->pool->slabs[slab].asked != LEND_NOT_ASKED;
}

void eviction_forget(struct lender *l, struct connection *c)
{
	if (c->asked && l->eviction.want && c->asked_tag == l->eviction.round)
		l->eviction.waiting--;
	c->asked = 0;
}

uint32_t eviction_expected(const struct lender *l)
{
	uint64_t long_ago = l->options.overdue ?: UINT64_MAX;
	uint32_t n = 0;

	for (uint32_t i = 0; i < l->pool->count; i++) {
		const struct lend_slab *s = &l->pool->slabs[i];

		if (s->state != LEND_LENT)
			continue;
		n += s->asked == LEND_PROMISED ? l->now - s->asked_at < long_ago :
		     s->asked == LEND_ASKED || s->asked == LEND_TO_ASK ?
		     l->now - s->asked_at < SILENT_NS : 0;
	}
	return n;
}

/* Says once of each what was asked back long ago and is not back. */
static void report(struct lender *l, uint64_t now)
{
	uint32_t n = 0, first = 0;

	for (uint32_t i = l->options.overdue ? l->pool->count : 0; i--; ) {
		struct lend_slab *s = &l->pool->slabs[i];

		if (s->state != LEND_LENT || s->asked == LEND_NOT_ASKED || s->overdue ||
		    now - s->asked_at < l->options.overdue)
			continue;
		s->overdue = true;
		n++;
		first = i;
	}
	if (n)
		lender_say(l, LOG_LVL_WARN,
			   "%u slabs, one of borrower %s's, were asked back %llu s ago and are not back; see whether it has another donor or a disk for them",
			   n, l->connections[l->pool->slabs[first].owner].name,
			   (unsigned long long)(l->options.overdue / SECOND));
}

/* The one asked back longest ago whose time is over; pool->count = none. */
static uint32_t next_to_revoke(const struct lender *l, uint64_t now)
{
	const struct lend_pool *p = l->pool;
	uint32_t found = p->count;

	for (uint32_t i = 0; i < p->count; i++) {
		const struct lend_slab *s = &p->slabs[i];

		/* What is handed over would not come back. */
		if (s->state != LEND_LENT || s->asked == LEND_NOT_ASKED || s->handed ||
		    now - s->asked_at < l->options.revoke)
			continue;
		if (found == p->count || s->asked_at < p->slabs[found].asked_at)
			found = i;
	}
	return found;
}

static void revoke(struct lender *l, uint64_t now)
{
	if (!l->options.revoke || !l->short_since || now - l->short_since < SHORT_NS)
		return;
	for (uint32_t n = 0; n < l->rule.evict; n++) {
		uint32_t slab = next_to_revoke(l, now);

		if (slab == l->pool->count)
			return;
		lender_tell(l, EVENT_SLAB_REVOKED, LOG_LVL_WARN,
			   "slab %u of borrower %s: revoked, its pages there are lost; the machine is running out of memory",
			   slab, l->connections[l->pool->slabs[slab].owner].name);
		/* Before anybody else may be lent it. */
		rdma_queue_forget(l, slab);
		lend_revoke(l->pool, slab);
		l->eviction.counts.revoked++;
	}
}

/* Some of each borrower's. */
static void drain(struct lender *l, uint64_t now)
{
	uint32_t asked[CONNECTIONS] = { 0 };

	for (uint32_t i = 0; i < l->pool->count; i++) {
		const struct lend_slab *s = &l->pool->slabs[i];

		if (s->state == LEND_LENT && s->asked != LEND_NOT_ASKED &&
		    s->asked != LEND_REFUSED && now - s->asked_at < DRAIN_SLOW_NS)
			asked[s->owner]++;
	}
	for (uint32_t i = 0; i < l->pool->count; i++) {
		const struct lend_slab *s = &l->pool->slabs[i];

		if (!may_be_asked(s, now, DRAIN_RETRY_NS) || asked[s->owner] >= DRAIN_AT_ONCE)
			continue;
		asked[s->owner]++;
		mark(l, i, now);
	}
}

void eviction_second(struct lender *l, uint64_t now)
{
	if (l->draining)
		drain(l, now);
	report(l, now);
	revoke(l, now);
}
