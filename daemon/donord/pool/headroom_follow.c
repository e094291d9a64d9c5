// SPDX-License-Identifier: GPL-2.0-or-later
#include <string.h>

#include "headroom_follow.h"

/* Seconds without a sample after which that is logged. */
#define LATE 10

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
	if (f->headroom) {
		f->rule = headroom_rule_default(f->sample.memory, f->pool->slab_size);
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

static void take_sample(struct headroom_follow *f, uint64_t now)
{
	headroom_sample(&f->room, &f->rule, &f->sample, pool_allocated(f->pool));
	f->pool->allowed = headroom_slabs(&f->room, &f->rule);
	if (f->sample.available >= f->rule.headroom / 2)
		f->short_since = 0;
	else if (!f->short_since)
		f->short_since = now;
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

static void work(struct headroom_follow *f, uint64_t now)
{
	struct pool *p = f->pool;

	f->due = false;
	f->gives_back = p->draining;
	if (p->draining)
		pool_shrink(p, pool_free_slabs(p));
	else if (f->headroom)
		follow(f, now);
	else
		pool_grow(p, p->in[LEND_ABSENT]);
	eviction_second(f->eviction, now, f->short_since, f->rule.evict);
}

void headroom_follow_second(struct headroom_follow *f, uint64_t now)
{
	if (f->due) {
		if (++f->late == LATE)
			donor_say(f->log, LOG_LVL_WARN,
				  "memory: its statistics take more than %d s to read; not following changes until then",
				  LATE);
		work(f, now);
	}
	f->due = true;
	machine_watch_ask(&f->watch);
}

void headroom_follow_woken(struct headroom_follow *f, uint64_t now)
{
	struct error e = { 0 };
	int r = machine_watch_take(&f->watch, &f->sample, &e);

	if (!r)
		return;
	if (r < 0 && !f->sample_failed)
		donor_say(f->log, LOG_LVL_WARN, "%s", e.text);
	f->sample_failed = r < 0;
	f->late = 0;
	if (r > 0 && f->headroom)
		take_sample(f, now);
	if (f->due)
		work(f, now);
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
