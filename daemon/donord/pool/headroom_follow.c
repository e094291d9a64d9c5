// SPDX-License-Identifier: GPL-2.0-or-later
#include <string.h>

#include "headroom_follow.h"

/* Seconds without a sample after which that is logged. */
#define LATE 10
/* Between two samples while an emergency is near. */
#define NEAR_NS 100000000ull
/*
 * Time in which borrowers can release recalled slabs before others are revoked, unless so little is
 * left that the kernel may kill a program meanwhile.
 */
#define EMERGENCY_NS 1000000000ull
/*
 * Most slabs revoked per sample in an emergency.  There are up to 11 samples a second: 11 GiB/s
 * with slabs of 64 MiB.  With 64 EVICTs and an ACTIVITY, which counts as 8, a borrower gets at most
 * the 256 a second that it tolerates.
 */
#define EMERGENCY_MOST (HEADROOM_EVICT_MOST / 4)

/* Number of slabs that the donor cannot reclaim: lent without recall, or withdrawn. */
static uint32_t pinned(const struct pool *p)
{
	uint32_t n = p->in[LEND_WITHDRAWN];

	for (uint32_t i = 0; i < p->count; i++)
		n += p->slabs[i].state == LEND_LENT && !p->slabs[i].owner->recallable;
	return n;
}

int headroom_follow_start(struct headroom_follow *f, uint32_t *slabs, struct error *e)
{
	struct headroom_plan plan = { .allocate = f->pool->count };
	int r = machine_sample(&f->machine, &f->sample, f->headroom ? e : NULL);

	if (r && f->headroom)
		return r;
	f->rule = headroom_rule_default(f->sample.memory, f->pool->slab_size);
	if (f->headroom) {
		f->rule.headroom = f->headroom;
		f->rule.most = f->pool->count * f->pool->slab_size;
		headroom_sample(&f->room, &f->rule, &f->sample, 0);
		f->pool->follows = true;
		f->pool->allowed = headroom_slabs(&f->room, &f->rule);
		headroom_plan(&f->room, &f->rule, 0, 0, &plan);
	}
	*slabs = plan.allocate;
	return 0;
}

static uint64_t reserve(const struct headroom_follow *f)
{
	return headroom_reserve(f->sample.memory, f->headroom);
}

/* Sets *@since to the start of a condition, or to 0 where it is not met. */
static void set_since(uint64_t *since, bool met, uint64_t now)
{
	*since = !met ? 0 : *since ? *since : now;
}

/* Returns the bytes that the machine lacks while memory is short; see --revoke-after. */
static uint64_t shortage(const struct headroom_follow *f)
{
	uint64_t least = f->headroom ? f->rule.headroom / 2 : reserve(f);

	return f->sample.available < least ? least - f->sample.available : 0;
}

static void take_sample(struct headroom_follow *f, uint64_t now)
{
	uint32_t mapped = eviction_leaving(f->eviction, now).mapped;

	if (f->headroom) {
		headroom_sample(&f->room, &f->rule, &f->sample, pool_allocated(f->pool) + mapped);
		f->pool->allowed = headroom_slabs(&f->room, &f->rule);
	}
	set_since(&f->short_since, shortage(f), now);
}

static void follow(struct headroom_follow *f, uint64_t now)
{
	struct pool *p = f->pool;
	uint32_t expected = eviction_expected(f->eviction), pins = pinned(p);
	struct headroom_plan plan;

	f->room.pinned = pins;
	/* Count slabs being made as present, and recalled slabs as released. */
	headroom_plan(&f->room, &f->rule, pool_free_slabs(p) + p->in[LEND_COMING],
		      p->in[LEND_LENT] + p->in[LEND_WITHDRAWN] - expected - pins, &plan);
	pool_grow(p, plan.allocate);
	pool_shrink(p, plan.release);
	eviction_start(f->eviction, &f->rule, plan.evict, now);
	f->gives_back = plan.release || plan.evict || expected;
}

/*
 * Counts places of a fixed amount that lack their memory, as far as the machine keeps twice its
 * reserve.
 */
static uint32_t missing(const struct headroom_follow *f)
{
	const struct pool *p = f->pool;
	uint64_t keep = 2 * reserve(f), spare;

	if (f->no_emergency || !f->sample.memory)
		return p->in[LEND_ABSENT];
	spare = f->sample.available > keep ? (f->sample.available - keep) / p->slab_size : 0;
	spare = spare > p->in[LEND_COMING] ? spare - p->in[LEND_COMING] : 0;
	return spare < p->in[LEND_ABSENT] ? (uint32_t)spare : p->in[LEND_ABSENT];
}

/* Returns how many of the @want slabs that an emergency requires are not being dropped yet. */
static uint32_t drop_free(struct pool *p, uint32_t want)
{
	want = want > p->in[LEND_GOING] ? want - p->in[LEND_GOING] : 0;
	return want - pool_shrink(p, want);
}

static void meet_emergency(struct headroom_follow *f, uint64_t now)
{
	struct pool *p = f->pool;
	struct eviction_leaving leaving;
	uint64_t lack = headroom_emergency(&f->sample, reserve(f));
	uint32_t want = (uint32_t)((lack + p->slab_size - 1) / p->slab_size), expected;

	f->near = f->sample.available < 2 * reserve(f);
	set_since(&f->emergency_since, lack, now);
	if (!lack)
		return;
	want = drop_free(p, want);
	leaving = eviction_leaving(f->eviction, now);
	want -= leaving.here + leaving.mapped < want ? leaving.here + leaving.mapped : want;
	expected = eviction_expected(f->eviction);
	/* With HeadRoom they have been recalled. */
	if (!f->headroom && want > expected)
		eviction_start(f->eviction, &f->rule, want - expected, now);
	if (now - f->emergency_since < EMERGENCY_NS && f->sample.available >= reserve(f) / 4)
		return;
	want = want < EMERGENCY_MOST ? want : EMERGENCY_MOST;
	drop_free(p, p->in[LEND_GOING] + eviction_emergency(f->eviction, want, now));
}

/*
 * Returns how many slabs must be revoked to end the shortage, without those whose memory is being
 * freed, or was freed since the sample began.
 */
static uint32_t to_revoke(const struct headroom_follow *f, uint64_t now)
{
	const struct pool *p = f->pool;
	uint64_t want = (shortage(f) + p->slab_size - 1) / p->slab_size;
	uint64_t coming = (uint64_t)p->in[LEND_GOING] +
			  eviction_unseen(f->eviction, f->sample_began) +
			  eviction_moving(f->eviction, now);

	want = want > coming ? want - coming : 0;
	return want < f->rule.evict ? (uint32_t)want : f->rule.evict;
}

/* @sampled: f->sample is new.  An old one does not show whether more must be revoked. */
static void work(struct headroom_follow *f, bool sampled, uint64_t now)
{
	struct pool *p = f->pool;

	f->due = false;
	f->gives_back = p->draining || f->emergency_since;
	if (p->draining)
		pool_shrink(p, pool_free_slabs(p));
	else if (f->headroom)
		follow(f, now);
	else
		pool_grow(p, missing(f));
	eviction_second(f->eviction, now, f->short_since, sampled ? to_revoke(f, now) : 0);
}

void headroom_follow_second(struct headroom_follow *f, uint64_t now)
{
	if (f->due) {
		if (++f->late == LATE)
			donor_say(f->log, LOG_LVL_WARN,
				  "memory: its statistics take more than %d s to read; not following changes until then",
				  LATE);
		work(f, false, now);
	}
	f->due = true;
	machine_watch_ask(&f->watch);
}

uint64_t headroom_follow_turn(struct headroom_follow *f, uint64_t now)
{
	if (!f->near)
		return UINT64_MAX;
	if (now >= f->sample_at) {
		machine_watch_ask(&f->watch);
		f->sample_at = now + NEAR_NS;
	}
	return f->sample_at - now;
}

void headroom_follow_woken(struct headroom_follow *f, uint64_t now)
{
	struct error e = { 0 };
	int r = machine_watch_take(&f->watch, &f->sample, &f->sample_began, &e);

	if (!r)
		return;
	if (r < 0 && !f->sample_failed)
		donor_say(f->log, LOG_LVL_WARN, "%s", e.text);
	f->sample_failed = r < 0;
	f->late = 0;
	/* The averages are of one sample a second. */
	if (r > 0 && f->due)
		take_sample(f, now);
	if (f->due)
		work(f, r > 0, now);
	if (r > 0 && !f->no_emergency)
		meet_emergency(f, now);
}

uint64_t headroom_follow_total(const struct headroom_follow *f)
{
	return pool_total(f->pool) * f->pool->slab_size;
}

uint64_t headroom_follow_free(const struct headroom_follow *f)
{
	return f->pool->draining ? 0 : pool_free_slabs(f->pool) * f->pool->slab_size;
}

uint32_t headroom_follow_tell(const struct headroom_follow *f, const struct borrower *b,
			      struct wire_donor *d)
{
	const struct pool *p = f->pool;
	uint64_t lent = p->in[LEND_LENT] * p->slab_size;
	uint64_t idle = pool_allocated(p) * p->slab_size - lent;
	uint64_t used = f->sample.memory - f->sample.available;
	uint32_t room = pool_room(p, b);

	*d = (struct wire_donor){
		.flags = p->draining ? WIRE_DRAINING : 0,
		.slab_size = p->slab_size, .total = headroom_follow_total(f),
		.free = headroom_follow_free(f), .memory = f->sample.memory,
		.identity = f->identity, .reserved = b->reserved,
	};
	/* Free slabs do not count as used. */
	used = used > idle + lent ? used - idle : lent;
	d->used = used < d->memory ? used : d->memory;
	d->free = d->free < room * p->slab_size ? d->free : room * p->slab_size;
	return pool_total(p) - room;
}
