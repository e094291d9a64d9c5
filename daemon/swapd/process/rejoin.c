// SPDX-License-Identifier: GPL-2.0-or-later
/* Reconnects a successor to its predecessor's donors. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "failover.h"
#include "swapd/replicas/slab_mapping.h"
#include "swapd/serve.h"
#include "swapd/swapd.h"

/*
 * Least time for which a donor with our slabs is retried: without a backup or another replica, only
 * it has the pages.
 */
#define PATIENCE 2000000000ull
/* A donor re-creates slabs that were released to it within little more than a second. */
#define ROOM_PATIENCE 2000000000ull
/* Interval of looks at unresponsive donors. */
#define LOOK_MS 10
/* Between two looks at a file that a predecessor has: a moment, as a rule. */
#define CLAIM_MS 1
#define OTHERS_LATER 300000000ull

/* Returns whether to wait for @d before serving. */
static bool is_expected(const struct donor *d, uint64_t now)
{
	bool early = now < d->table->resume_until;

	switch (d->state) {
	case DONOR_ABSENT:
	case DONOR_QUARANTINED:
		return false;
	case DONOR_UP:
		/* Without current figures a first write might find no free capacity. */
		return d->mapping || d->pinged || (d->resume && (early || d->unmapped_since));
	case DONOR_DOWN:
		return (d->resume || d->retry_at <= now) && early;
	}
	return early;
}

void failover_tend(struct swapd *s, int ms)
{
	struct epoll_event ev[MAX_DONORS];
	int n;

	engine_run(&s->engine);
	engine_begin_large(&s->engine);
	donors_flush(&s->donors);
	if (engine_is_ready(&s->engine))
		ms = 0;
	n = epoll_wait(s->donors.env.epoll_fd, ev, MAX_DONORS, ms);
	for (int i = 0; i < n; i++)
		donors_event(&s->donors, &ev[i]);
	serve_tend(s);
	donors_tick(&s->donors, now_ns());
	engine_tick(&s->engine, now_ns());
}

int failover_donors(struct swapd *s)
{
	bool claimed = !backup_there(&s->engine.backup) || s->shared->no_claim;

	for (;;) {
		uint64_t now = now_ns();
		bool expected = false;

		claimed = claimed || !backup_claim(&s->engine.backup);
		/* A disk may block forever: no beats then, so that the watchdog notices. */
		if (claimed || now < s->donors.resume_until)
			count_add(&s->shared->beats, 1);
		for (int i = 0; i < s->donors.count; i++) {
			struct donor *d = &s->donors.donor[i];

			expected |= is_expected(d, now);
			if (donor_up(d) && d->unreachable)
				return d->unreachable;
			if (donor_up(d) && d->resume && now >= d->retry_at)
				mapping_resume(&s->replicas, d);
		}
		if (!expected && claimed)
			return 0;
		failover_tend(s, claimed ? LOOK_MS : CLAIM_MS);
	}
}

/*
 * Donors with our slabs are away from now on.  Donors that state no grace period are lost unless
 * they are back before this server serves.
 */
static void expect_back(struct swapd *s, uint64_t now)
{
	for (int i = 0; i < s->donors.count; i++) {
		struct donor *d = &s->donors.donor[i];

		d->away_since = now;
		d->away_until = now + (d->grace > s->donors.resume_for ? d->grace :
								      s->donors.resume_for);
		d->backoff = RESUME_RETRY;
	}
}

/*
 * Tries donors with our slabs first, and waits for them.  Without a backup, also donors that were
 * connected before: a first write may find no free capacity elsewhere.
 */
static void let_go_first(struct swapd *s, uint64_t now)
{
	bool any = false;

	for (int i = 0; i < s->donors.count; i++)
		any |= s->donors.donor[i].resume != RESUME_NOTHING;
	for (int i = 0; i < s->donors.count && any; i++) {
		struct donor *d = &s->donors.donor[i];

		if (!d->resume && (backup_there(&s->engine.backup) || !d->identity))
			d->retry_at = now + OTHERS_LATER;
	}
}

void failover_last_words(struct swapd *s, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(s->shared->last_words, sizeof(s->shared->last_words), format, args);
	va_end(args);
}

int failover(struct swapd *s)
{
	uint64_t start = now_ns();
	int r;

	/* Requests are counted again when they restart; until then none counts as stalled. */
	__atomic_store_n(&s->count->received, s->count->completed, __ATOMIC_RELAXED);
	__atomic_store_n(&s->count->held, 0, __ATOMIC_RELAXED);
	s->donors.resume_for = 2 * s->options.deadline > PATIENCE ? 2 * s->options.deadline :
			       PATIENCE;
	s->donors.resume_until = start + s->donors.resume_for;
	donors_take_over(&s->donors, start);
	failover_slabs(s);
	expect_back(s, start);
	let_go_first(s, start);
	r = failover_donors(s);
	if (r) {
		failover_last_words(s, "slabs at a donor cannot be mapped: %s; raise LimitMEMLOCK= or free memory",
				    strerror(-r));
		return r;
	}
	s->replicas.room_until = now_ns() + ROOM_PATIENCE;
	/* What waits for donors does so from now on. */
	engine_tick(&s->engine, now_ns());
	r = failover_slots(s, s->engine.slots.count);
	if (r)
		return r;
	donors_flush(&s->donors);
	__atomic_store_n(&s->shared->failover_ns, now_ns() - start, __ATOMIC_RELAXED);
	return 0;
}
