// SPDX-License-Identifier: GPL-2.0-or-later
/* Reconnects a successor to its predecessor's donors. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "failover.h"
#include "swapd/page/page_map.h"
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

/* Returns whether a page is only at donors that this process cannot use. */
static bool misses_pages(const struct swapd *s)
{
	for (uint32_t i = 0; i < s->engine.table.count; i++) {
		const struct slab *slab = &s->engine.table.slabs[i];
		uint8_t copies = slab_mapped(slab) | slab_away(slab), missing = 0;

		for (int c = 0; c < SLAB_COPIES; c++)
			if (copies >> c & 1 && s->donors.unprepared >> slab->copy[c].donor & 1)
				missing |= (uint8_t)(1u << c);
		for (int c = 0; missing >> c; c++)
			if (missing >> c & 1 &&
			    page_map_is_only(s->engine.map, i, c, copies & (uint8_t)~missing))
				return true;
	}
	return false;
}

/*
 * Makes the entries of all donors.  A slab at one without an entry is off the table for good, so a
 * process that has too little memory for an only replica tries for a while, and then ends: another
 * one may do better.  Returns 0 or -errno.
 */
static int make_entries(struct swapd *s)
{
	int r = donors_prepare(&s->donors);

	if (!r || !misses_pages(s))
		return 0;
	while (r && now_ns() < s->donors.resume_until) {
		count_add(&s->shared->beats, 1);
		usleep(LOOK_MS * 1000);
		r = donors_prepare(&s->donors);
	}
	if (!r || !misses_pages(s))
		return 0;
	failover_last_words(s, "donors with only replicas cannot be used: %s; raise LimitMEMLOCK= and LimitNOFILE=, or free memory",
			    strerror(-r));
	return r;
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
	r = make_entries(s);
	if (r)
		return r;
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
