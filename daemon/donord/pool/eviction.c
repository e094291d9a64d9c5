// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "eviction.h"
#include "lib/base/clock.h"

#define SECOND 1000000000ull
/* A refused loan may be recalled again after this time. */
#define RETRY_NS (10 * SECOND)
#define DRAIN_RETRY_NS (5 * SECOND)
/*
 * A drain recalls this many slabs of each borrower at a time: more would only change the order in
 * which it copies them.  Slabs recalled longer ago no longer count.
 */
#define DRAIN_AT_ONCE 16
#define DRAIN_SLOW_NS (10 * SECOND)
/*
 * Requests that a borrower does not take now are tried again in turns of the loop: in 1/16 of its
 * time at most, and after ASK_AGAIN_NS if there is no turn.
 */
#define ASK_SHARE 16
#define ASK_AGAIN_NS 10000000ull
/* A recall without an answer is not expected to succeed after this time. */
#define SILENT_NS (10 * SECOND)
/* The memory of a revoked slab is not expected to become free after this time. */
#define LEAVING_NS SECOND
/* Slabs are revoked after memory has been short for this time. */
#define SHORT_NS (10 * SECOND)

_Static_assert(HEADROOM_EVICT_MOST + HEADROOM_EVICT_MOST / 2 <= WIRE_LOANS,
	       "the candidates of one owner fit one ACTIVITY");

int eviction_init(struct eviction *e)
{
	e->eligible = calloc(e->pool->count, sizeof(*e->eligible));
	if (!e->eligible)
		return -ENOMEM;
	if (getrandom(&e->seed, sizeof(e->seed), GRND_NONBLOCK) < 0 || !e->seed)
		e->seed = now_ns() | 1;
	return 0;
}

void eviction_free(struct eviction *e)
{
	free(e->eligible);
	e->eligible = NULL;
}

static bool may_be_asked(const struct lend_slab *s, uint64_t now, uint64_t retry)
{
	return s->state == LEND_LENT && !s->granting && s->owner->recallable &&
	       (s->asked == LEND_NOT_ASKED ||
		(s->asked == LEND_REFUSED && now - s->answered_at >= retry));
}

static bool still_lent(const struct eviction *e, const struct eviction_loan *loan)
{
	return pool_check(e->pool, loan->owner,
			  (struct wire_loan){ loan->slab, loan->generation }) == WIRE_OK;
}

static void ask_now(struct eviction *e)
{
	e->to_ask = true;
	e->ask_at = 0;
}

static void mark(struct eviction *e, uint32_t slab, uint64_t now)
{
	pool_asked(e->pool, slab, LEND_TO_ASK, now);
	ask_now(e);
}

/* Asks @b about its sampled loans, unless it has not answered the last question. */
static void ask_activity(struct eviction *e, struct borrower *b)
{
	struct wire_frame f = { .op = WIRE_ACTIVITY, .tag = e->round };
	uint32_t n = 0;

	if (b->asked)
		return;
	for (uint32_t i = 0; i < e->count; i++)
		if (e->drawn[i].owner == b)
			wire_put_loan(b->asking, n++, (struct wire_loan){ e->drawn[i].slab,
									  e->drawn[i].generation });
	f.length = n * WIRE_LOAN_SIZE;
	if (!n || !b->ops->ask(b, &f, b->asking))
		return;
	b->asked = n;
	b->asked_tag = e->round;
	e->waiting++;
}

/* Collects slabs to recall from borrowers that do, or do not, report activity. */
static uint32_t find_eligible(struct eviction *e, bool reports, uint64_t now)
{
	const struct lend_slab *slabs = e->pool->slabs;
	uint32_t n = 0;

	for (uint32_t i = 0; i < e->pool->count; i++)
		if (may_be_asked(&slabs[i], now, RETRY_NS) &&
		    slabs[i].owner->reports_activity == reports)
			e->eligible[n++] = i;
	return n;
}

/* Recalls a random sample of the loans of borrowers that do not report activity. */
static void recall_silent(struct eviction *e, uint32_t want, uint64_t now)
{
	uint32_t indices[HEADROOM_EVICT_MOST], eligible = find_eligible(e, false, now);

	want = want < eligible ? want : eligible;
	want = want < HEADROOM_EVICT_MOST ? want : HEADROOM_EVICT_MOST;
	headroom_draw(eligible, want, &e->seed, indices);
	for (uint32_t i = 0; i < want; i++)
		mark(e, e->eligible[indices[i]], now);
}

void eviction_start(struct eviction *e, const struct headroom_rule *rule, uint32_t want,
		    uint64_t now)
{
	uint32_t indices[WIRE_LOANS], eligible;

	if (e->want || !want)
		return;
	eligible = find_eligible(e, true, now);
	e->want = want < eligible ? want : eligible;
	e->count = headroom_candidates(rule, e->want, eligible);
	headroom_draw(eligible, e->count, &e->seed, indices);
	for (uint32_t i = 0; i < e->count; i++) {
		uint32_t slab = e->eligible[indices[i]];
		const struct lend_slab *s = &e->pool->slabs[slab];

		e->drawn[i] = (struct eviction_loan){ slab, s->generation, s->owner };
		e->candidates[i] = (struct headroom_candidate){ .slab = i };
	}
	recall_silent(e, want - e->want, now);
	if (!e->want)
		return;
	e->round++;
	e->counts.rounds++;
	e->deadline = now + EVICTION_ACTIVITY_NS;
	e->waiting = 0;
	for (struct borrower *b = e->pool->borrowers; b; b = b->next)
		ask_activity(e, b);
}

int eviction_rates(struct eviction *e, struct borrower *b, const struct wire_frame *f,
		   const uint8_t *payload)
{
	uint32_t n = 0;

	if (!b->asked || f->tag != b->asked_tag ||
	    (!f->status && f->length != b->asked * WIRE_LOAN_SIZE))
		return -EPROTO;
	b->asked = 0;
	/* Too late: its loans have counted as idle. */
	if (!e->want || f->tag != e->round)
		return 0;
	e->waiting--;
	for (uint32_t i = 0; !f->status && i < e->count; i++)
		if (e->drawn[i].owner == b)
			e->candidates[i].activity = (double)wire_get_rate(payload, n++);
	return 0;
}

/* Recalls the E least active of the candidates that are still lent. */
static void decide(struct eviction *e, uint64_t now)
{
	uint32_t n = 0, want = e->want;

	e->counts.silent += e->waiting;
	e->want = 0;
	for (uint32_t i = 0; i < e->count; i++)
		if (still_lent(e, &e->drawn[e->candidates[i].slab]))
			e->candidates[n++] = e->candidates[i];
	headroom_least(e->candidates, n, want);
	for (uint32_t i = 0; i < n && i < want; i++)
		mark(e, e->drawn[e->candidates[i].slab].slab, now);
}

/* Announces that @slab has been revoked; returns false when that must be tried again. */
static bool announce(const struct pool *p, uint32_t slab)
{
	struct lend_slab *s = &p->slabs[slab];
	struct wire_frame f = { .op = WIRE_REVOKED, .slab = slab, .generation = s->generation };

	s->untold = s->owner && !s->owner->ops->ask(s->owner, &f, NULL);
	return !s->untold;
}

/* Sends as many EVICTs as the protocol allows now, and announces revoked slabs. */
static void send_requests(struct eviction *e, uint64_t now)
{
	struct pool *p = e->pool;
	uint64_t began = now_ns();

	e->to_ask = false;
	for (uint32_t i = 0; i < p->count; i++) {
		struct lend_slab *s = &p->slabs[i];
		struct borrower *b = s->owner;
		struct wire_frame f = { .op = WIRE_EVICT, .slab = i, .generation = s->generation };

		if (s->untold && !announce(p, i))
			e->to_ask = true;
		if (s->state != LEND_LENT || s->asked != LEND_TO_ASK)
			continue;
		f.tag = (uint64_t)s->generation << 32 | i;
		/* A disconnected borrower is asked after it has reconnected. */
		if (s->granting || b->evicts == WIRE_EVICTS || !b->ops->ask(b, &f, NULL)) {
			e->to_ask = true;
			continue;
		}
		pool_asked(p, i, LEND_ASKED, now);
		b->evicts++;
		e->counts.asked++;
	}
	if (e->to_ask)
		e->ask_at = now + ASK_SHARE * (now_ns() - began);
}

uint64_t eviction_turn(struct eviction *e, uint64_t now)
{
	uint64_t wait = UINT64_MAX;

	e->now = now;
	if (e->want && (!e->waiting || now >= e->deadline))
		decide(e, now);
	if (e->to_ask && now >= e->ask_at)
		send_requests(e, now);
	if (e->to_ask)
		wait = e->ask_at > now + ASK_AGAIN_NS ? e->ask_at - now : ASK_AGAIN_NS;
	return e->want && e->deadline - now < wait ? e->deadline - now : wait;
}

int eviction_answer(struct eviction *e, struct borrower *b, const struct wire_frame *f)
{
	struct wire_loan loan = { f->slab, f->generation };

	if (!b->evicts || f->slab >= e->pool->count ||
	    f->tag != ((uint64_t)f->generation << 32 | f->slab))
		return -EPROTO;
	b->evicts--;
	e->ask_at = 0;
	/* UNMAP arrived first. */
	if (pool_check(e->pool, b, loan) != WIRE_OK || e->pool->slabs[f->slab].asked != LEND_ASKED)
		return 0;
	switch (f->status) {
	case WIRE_OK:
		pool_asked(e->pool, f->slab, LEND_PROMISED, e->now);
		e->counts.promised++;
		return 0;
	case WIRE_NO_SLAB:
	case WIRE_STALE:
		/* The borrower has nothing there: the loan ends without loss. */
		if (b->in_order) {
			eviction_return(e, b, loan);
			return 0;
		}
		/* Or it has not yet taken in the reply to its MAP, and will use the slab. */
		break;
	default:
		break;
	}
	pool_asked(e->pool, f->slab, LEND_REFUSED, e->now);
	e->counts.refused++;
	return 0;
}

enum wire_status eviction_return(struct eviction *e, struct borrower *b, struct wire_loan loan)
{
	enum wire_status st = pool_return(e->pool, b, loan);

	/* That of a revoked slab says that its borrower does not map it any more. */
	if (st == WIRE_STALE && e->pool->slabs[loan.slab].generation == loan.generation)
		pool_unmapped(e->pool, loan.slab);
	e->counts.returned += st == WIRE_OK && e->pool->slabs[loan.slab].asked != LEND_NOT_ASKED;
	return st;
}

void eviction_forget(struct eviction *e, struct borrower *b)
{
	if (b->asked && e->want && b->asked_tag == e->round)
		e->waiting--;
	b->asked = b->evicts = 0;
	b->away = true;
	/* A reconnecting borrower is told by the replies to REMAP, and maps nothing until then. */
	for (uint32_t i = 0; i < e->pool->count; i++)
		if (e->pool->slabs[i].owner == b)
			e->pool->slabs[i].untold = e->pool->slabs[i].mapped = false;
	/* Its reconnecting borrower is asked again. */
	ask_now(e);
}

uint32_t eviction_expected(const struct eviction *e)
{
	uint64_t long_ago = e->options.overdue ?: UINT64_MAX;
	uint32_t n = 0;

	for (uint32_t i = 0; i < e->pool->count; i++) {
		const struct lend_slab *s = &e->pool->slabs[i];

		if (s->state != LEND_LENT)
			continue;
		n += s->asked == LEND_PROMISED ? e->now - s->asked_at < long_ago :
		     s->asked == LEND_ASKED || s->asked == LEND_TO_ASK ?
		     e->now - s->asked_at < SILENT_NS : 0;
	}
	return n;
}

uint32_t eviction_moving(const struct eviction *e, uint64_t now)
{
	uint32_t n = 0;

	for (struct borrower *b = e->pool->borrowers; b; b = b->next) {
		b->moving = 0;
		b->broke_promise = false;
	}
	for (uint32_t i = 0; i < e->pool->count; i++) {
		const struct lend_slab *s = &e->pool->slabs[i];

		if (s->state != LEND_LENT || s->asked != LEND_PROMISED)
			continue;
		if (now - s->asked_at < e->options.revoke)
			s->owner->moving++;
		else
			s->owner->broke_promise = true;
	}
	/* Otherwise a borrower could put off all revocations by new promises. */
	for (const struct borrower *b = e->pool->borrowers; b; b = b->next)
		n += b->broke_promise ? 0 : b->moving;
	return n;
}

/* Logs each overdue loan once. */
static void report(struct eviction *e, uint64_t now)
{
	uint32_t n = 0, first = 0;

	for (uint32_t i = e->options.overdue ? e->pool->count : 0; i--;) {
		struct lend_slab *s = &e->pool->slabs[i];

		if (s->state != LEND_LENT || s->asked == LEND_NOT_ASKED || s->overdue ||
		    now - s->asked_at < e->options.overdue)
			continue;
		s->overdue = true;
		n++;
		first = i;
	}
	if (n)
		donor_say(e->log, LOG_LVL_WARN,
			  "%u slabs, one of borrower %s's, were recalled %llu s ago and are not back; give it another donor or a disk",
			  n, e->pool->slabs[first].owner->name,
			  (unsigned long long)(e->options.overdue / SECOND));
}

static bool may_be_revoked(const struct lend_slab *s)
{
	/* A borrower that does not hear of it would keep its mapping, and so the memory. */
	return s->state == LEND_LENT && !s->granting && s->owner->revocable &&
	       (!s->handed || s->owner->hears_revoked);
}

static void revoke_one(struct eviction *e, uint32_t slab, uint64_t now)
{
	const struct lend_slab *s = &e->pool->slabs[slab];

	donor_tell(e->log, EVENT_SLAB_REVOKED, LOG_LVL_WARN,
		   "slab %u of borrower %s: revoked, %s; the machine is running out of memory",
		   slab, s->owner->name,
		   s->backed ? "its borrower also has the pages on a disk" : "its pages there are lost");
	e->counts.revoked_backed += s->backed;
	e->counts.revoked++;
	pool_revoke(e->pool, slab, now);
	ask_now(e);
}

/* Revokes the loans recalled longest ago, up to @most. */
static void revoke(struct eviction *e, uint64_t now, uint32_t most)
{
	const struct lend_slab *slabs = e->pool->slabs;
	uint32_t oldest[HEADROOM_EVICT_MOST], n = 0; /* the oldest first */

	for (uint32_t i = 0; i < e->pool->count && most; i++) {
		uint32_t at;

		if (!may_be_revoked(&slabs[i]) || slabs[i].asked == LEND_NOT_ASKED ||
		    now - slabs[i].asked_at < e->options.revoke)
			continue;
		if (n == most && slabs[i].asked_at >= slabs[oldest[n - 1]].asked_at)
			continue;
		n += n < most;
		for (at = n - 1; at && slabs[i].asked_at < slabs[oldest[at - 1]].asked_at; at--)
			oldest[at] = oldest[at - 1];
		oldest[at] = i;
	}
	for (uint32_t i = 0; i < n; i++)
		revoke_one(e, oldest[i], now);
}

uint32_t eviction_emergency(struct eviction *e, uint32_t most, uint64_t now)
{
	struct pool *p = e->pool;
	uint32_t n = 0;

	for (int recalled = 1; recalled >= 0; recalled--)
		for (uint32_t i = p->count; i-- && n < most;) {
			const struct lend_slab *s = &p->slabs[i];

			if (!s->backed || !may_be_revoked(s) ||
			    (s->asked != LEND_NOT_ASKED) != recalled)
				continue;
			revoke_one(e, i, now);
			n++;
		}
	return n;
}

struct eviction_leaving eviction_leaving(const struct eviction *e, uint64_t now)
{
	struct eviction_leaving n = { 0 };

	for (uint32_t i = 0; i < e->pool->count; i++) {
		const struct lend_slab *s = &e->pool->slabs[i];

		if (!s->revoked || now - s->revoked_at >= LEAVING_NS)
			continue;
		n.here += s->state == LEND_DIRTY;
		n.mapped += s->mapped && s->state != LEND_DIRTY && s->state != LEND_GOING;
	}
	return n;
}

uint32_t eviction_unseen(const struct eviction *e, uint64_t began)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < e->pool->count; i++) {
		const struct lend_slab *s = &e->pool->slabs[i];

		n += s->revoked && s->state != LEND_GOING && s->revoked_at + LEAVING_NS > began;
	}
	return n;
}

/* Returns whether a loan was recalled lately. */
static bool being_drained(const struct lend_slab *s, uint64_t now)
{
	return s->state == LEND_LENT && s->asked != LEND_NOT_ASKED && s->asked != LEND_REFUSED &&
	       now - s->asked_at < DRAIN_SLOW_NS;
}

/* Recalls the next loans of each borrower. */
static void drain(struct eviction *e, uint64_t now)
{
	const struct lend_slab *slabs = e->pool->slabs;

	for (struct borrower *b = e->pool->borrowers; b; b = b->next)
		b->recalled = 0;
	for (uint32_t i = 0; i < e->pool->count; i++)
		if (being_drained(&slabs[i], now))
			slabs[i].owner->recalled++;
	for (uint32_t i = 0; i < e->pool->count; i++)
		if (may_be_asked(&slabs[i], now, DRAIN_RETRY_NS) &&
		    slabs[i].owner->recalled < DRAIN_AT_ONCE) {
			slabs[i].owner->recalled++;
			mark(e, i, now);
		}
}

void eviction_second(struct eviction *e, uint64_t now, uint64_t short_since, uint32_t most)
{
	e->now = now;
	if (e->pool->draining)
		drain(e, now);
	report(e, now);
	if (e->options.revoke && short_since && now - short_since >= SHORT_NS)
		revoke(e, now, most);
}
