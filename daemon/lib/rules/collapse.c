// SPDX-License-Identifier: GPL-2.0-or-later
#include "collapse.h"

const char *collapse_state_name(enum collapse_state s)
{
	static const char *const names[] = { "sampling", "on", "off" };

	return names[s];
}

const char *collapse_reason_name(enum collapse_reason r)
{
	static const char *const names[] = {
		"none", "clean", "slow", "returned", "scattered", "refused", "crowded",
		"limit", "unsupported",
	};

	return names[r];
}

/* Starts COLLAPSE_SAMPLING; what earlier windows told is no longer true. */
static void sample(struct collapse *c)
{
	c->state = COLLAPSE_SAMPLING;
	c->small_pages = c->small_written = 0;
	c->small_ns = c->collapse_ns = c->huge_ns = 0;
	c->returned = c->scattered = c->refused = c->crowded = (struct collapse_tally){ 0 };
	c->turn = 0;
}

static void trip(struct collapse *c, enum collapse_reason reason, uint64_t now)
{
	uint64_t pause = COLLAPSE_RETRY_NS;

	if (c->state == COLLAPSE_OFF)
		return;
	if (c->since >= COLLAPSE_SETTLED)
		c->failures = 0;
	for (uint32_t i = 0; i < c->failures && pause < COLLAPSE_RETRY_MAX_NS; i++)
		pause *= 2;
	c->failures++;
	c->trips++;
	c->since = 0;
	c->state = COLLAPSE_OFF;
	c->reason = reason;
	c->retry_ns = now + pause;
}

/* Counts; returns whether more than 1 / @most of the windows of a judgement are bad. */
static bool tally(struct collapse_tally *t, uint32_t all, uint32_t bad, uint32_t most)
{
	bool tripped;

	t->all += all;
	t->bad += bad;
	tripped = t->bad * most > COLLAPSE_JUDGED && t->bad * most > t->all;
	if (t->all >= COLLAPSE_JUDGED)
		*t = (struct collapse_tally){ 0 };
	return tripped;
}

static void mean(uint64_t *of, uint64_t new)
{
	*of = *of ? (3 * *of + new) / 4 : new;
}

void collapse_exclude(struct collapse *c, enum collapse_reason reason, uint64_t now)
{
	c->state = COLLAPSE_OFF;
	c->reason = reason;
	c->retry_ns = now + COLLAPSE_RETRY_NS;
}

bool collapse_is_on(struct collapse *c, uint64_t limit, uint64_t now)
{
	if (!collapse_batch(c, limit)) {
		/* Unless another of the cgroups that share @c may collapse. */
		if (c->state == COLLAPSE_SAMPLING && !c->small_pages)
			collapse_exclude(c, COLLAPSE_LIMIT, now);
		return false;
	}
	if (c->state == COLLAPSE_OFF && (c->reason == COLLAPSE_LIMIT || now >= c->retry_ns))
		sample(c);
	return c->state == COLLAPSE_ON;
}

uint32_t collapse_batch(const struct collapse *c, uint64_t limit)
{
	uint64_t n = limit == UINT64_MAX ? 0 : limit / COLLAPSE_SHARE / COLLAPSE_BYTES;
	uint64_t ns = c->collapse_ns > c->huge_ns ? c->collapse_ns : c->huge_ns;

	if (n < COLLAPSE_LEAST)
		return 0;
	if (n > COLLAPSE_WINDOWS)
		n = COLLAPSE_WINDOWS;
	/* The first call shows what a window takes. */
	if (!c->collapse_ns)
		return COLLAPSE_LEAST;
	if (n * ns > COLLAPSE_CALL_NS)
		n = COLLAPSE_CALL_NS / ns;
	return n > COLLAPSE_LEAST ? (uint32_t)n : COLLAPSE_LEAST;
}

bool collapse_has_room(const struct collapse_facts *f)
{
	return f->unused + f->freeable >= COLLAPSE_BYTES + COLLAPSE_MARGIN;
}

struct collapse_plan collapse_plan(struct collapse *c, const struct collapse_facts *f)
{
	uint32_t n = collapse_batch(c, f->limit);

	if (c->state != COLLAPSE_ON || !n)
		return (struct collapse_plan){ COLLAPSE_SMALL, f->ready };
	if (f->ready < n)
		return (struct collapse_plan){ COLLAPSE_WAIT, 0 };
	if (c->turn >= COLLAPSE_REFRESH) {
		c->turn = 0;
		return (struct collapse_plan){ COLLAPSE_SMALL, 1 };
	}
	if (collapse_has_room(f)) {
		c->turn += n;
		tally(&c->crowded, n, 0, 2);
		return (struct collapse_plan){ COLLAPSE_HUGE, n };
	}
	if (f->ready < (f->outgoing ? 3 : 2) * n)
		return (struct collapse_plan){ COLLAPSE_WAIT, 0 };
	/* What leaves now is the free capacity of the next call. */
	n = f->ready - n;
	c->crowding += n;
	if (tally(&c->crowded, n, n, 2))
		trip(c, COLLAPSE_CROWDED, f->now);
	return (struct collapse_plan){ COLLAPSE_SMALL, n };
}

void collapse_tell_small(struct collapse *c, uint64_t pages, uint64_t written, uint64_t ns,
			 uint64_t now)
{
	if (c->state == COLLAPSE_OFF || !pages)
		return;
	mean(&c->small_ns, ns * COLLAPSE_PAGES / pages);
	c->small_pages += pages;
	c->small_written += written;
	if (c->small_pages < (c->state == COLLAPSE_ON ? COLLAPSE_PAGES : COLLAPSE_SAMPLE))
		return;
	/* Hysteresis: three quarters dirty to begin, half to go on. */
	if (c->state == COLLAPSE_SAMPLING && 4 * c->small_written >= 3 * c->small_pages)
		c->state = COLLAPSE_ON;
	else if (c->state == COLLAPSE_SAMPLING || 2 * c->small_written < c->small_pages)
		trip(c, COLLAPSE_CLEAN, now);
	c->small_pages = c->small_written = 0;
}

/* Returns whether collapsing costs at least @times as much time as small pages do. */
static bool costs(const struct collapse *c, uint64_t times)
{
	return c->small_ns && c->collapse_ns + c->huge_ns >= times * c->small_ns;
}

void collapse_tell_collapsed(struct collapse *c, uint32_t windows, uint32_t huge, uint64_t ns,
			     uint64_t now)
{
	c->windows += huge;
	c->since += huge;
	c->rejected += windows - huge;
	if (windows && ns)
		mean(&c->collapse_ns, ns / windows);
	if (tally(&c->refused, windows, windows - huge, 2))
		trip(c, COLLAPSE_REFUSED, now);
	/* As where it waits for a CPU that is not scheduled, or compacts memory. */
	if (costs(c, COLLAPSE_HOPELESS))
		trip(c, COLLAPSE_SLOW, now);
}

void collapse_tell_out(struct collapse *c, uint32_t windows, uint32_t whole, uint64_t ns,
		       uint64_t now)
{
	if (!windows)
		return;
	c->whole += whole;
	mean(&c->huge_ns, ns / windows);
	if (tally(&c->scattered, windows, windows - whole, 4))
		trip(c, COLLAPSE_SCATTERED, now);
	/* The first windows may meet a cold cache. */
	if (costs(c, c->since >= COLLAPSE_JUDGED ? 1 : COLLAPSE_HOPELESS))
		trip(c, COLLAPSE_SLOW, now);
}

void collapse_tell_return(struct collapse *c, bool returned, uint64_t now)
{
	c->again += returned;
	if (tally(&c->returned, 1, returned, 4))
		trip(c, COLLAPSE_RETURNED, now);
}
