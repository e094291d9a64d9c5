// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <string.h>

#include "lib/base/draw.h"
#include "lib/rules/placement.h"
#include "plan.h"

void kmod_patience_connected(struct kmod_patience *p, int result, uint64_t now)
{
	uint64_t wait = KMOD_SECOND, seed = now | 1;

	for (uint32_t i = 0; result && i < p->failures && wait < KMOD_RETRY_MOST; i++)
		wait *= 2;
	if (wait > KMOD_RETRY_MOST)
		wait = KMOD_RETRY_MOST;
	if (result)
		wait = draw_back_off(&seed, wait);
	p->failures = result ? p->failures + 1 : 0;
	/* Also delays reconnects to a donor whose sessions end at once. */
	p->connect_at = now + wait;
	p->map_at = result ? p->map_at : 0;
}

static bool is_over(const struct kmod_session *s)
{
	return s->state == EBB_SWAP_CLOSED || s->state == EBB_SWAP_FAILED;
}

int kmod_plan_connect(const struct kmod_device *d, const struct kmod_donor *donors, int n,
		      const struct kmod_patience *patience, uint64_t now, int *next)
{
	while (*next < n) {
		int i = (*next)++;
		bool there = now < patience[i].connect_at;

		for (uint32_t j = 0; !there && j < d->sessions; j++)
			there = (!is_over(&d->session[j]) || d->session[j].bad_pages) &&
				kmod_donor_is(&donors[i], &d->session[j]);
		if (!there)
			return i;
	}
	return -1;
}

uint32_t kmod_plan_forget(const struct kmod_device *d, const struct kmod_donor *donors, int n,
			  uint32_t *next)
{
	while (*next < d->sessions) {
		const struct kmod_session *s = &d->session[(*next)++];
		int donor = kmod_donor_find(donors, n, s);
		bool last = donor >= 0;

		if (s->state != EBB_SWAP_CLOSED || s->bad_pages)
			continue;
		for (uint32_t i = 0; last && i < d->sessions; i++)
			last = d->session[i].number <= s->number ||
			       !kmod_donor_is(&donors[donor], &d->session[i]);
		if (!last)
			return s->number;
	}
	return KMOD_NO_SESSION;
}

static int index_of(const struct kmod_device *d, uint32_t session)
{
	for (uint32_t i = 0; i < d->sessions; i++)
		if (d->session[i].number == session)
			return (int)i;
	return -1;
}

static void hold(struct kmod_plan *p, uint32_t session, int add)
{
	int at = index_of(p->device, session);

	if (at >= 0)
		p->held[at] += (uint32_t)add;
}

void kmod_plan_start(struct kmod_plan *p)
{
	p->turn = p->at = p->unplaced = p->single = p->stuck = 0;
	for (uint32_t i = 0; i < EBB_SWAP_SESSIONS; i++)
		p->held[i] = 0;
	for (uint32_t i = 0; i < p->count; i++) {
		hold(p, p->slabs[i].session, 1);
		hold(p, p->slabs[i].second, 1);
	}
}

/* Free capacity as of the last connect or map; assume one slab even if there was none. */
static uint64_t room(const struct kmod_session *s, uint64_t slab)
{
	return s->free < slab ? slab : s->free;
}

/* Returns whether @s is on the machine of another donor of @slab: both would fail together. */
static bool beside(const struct kmod_device *d, const struct ebb_swap_slab *slab, uint32_t from,
		   const struct kmod_session *s)
{
	const uint32_t at[] = { slab->session, slab->second };

	for (int i = 0; i < 2; i++) {
		int other = at[i] != from ? index_of(d, at[i]) : -1;

		if (other >= 0 && !strcmp(d->session[other].ip, s->ip))
			return true;
	}
	return false;
}

enum machines { OTHER_MACHINES, ALL_MACHINES };

static uint32_t choose(struct kmod_plan *p, const struct ebb_swap_slab *slab, uint32_t from,
		       enum machines machines)
{
	struct place_donor all[EBB_SWAP_SESSIONS];
	int chosen;

	for (uint32_t i = 0; i < p->device->sessions; i++) {
		const struct kmod_session *s = &p->device->session[i];
		int donor = kmod_donor_find(p->donors, p->donor_count, s);

		all[i] = (struct place_donor){
			.usable = s->state == EBB_SWAP_LIVE && donor >= 0 &&
				  !kmod_session_leaving(s) && !kmod_slab_is_at(slab, s->number) &&
				  p->now >= p->patience[donor].map_at &&
				  (machines == ALL_MACHINES || !beside(p->device, slab, from, s)),
			/* Counts only this device: donors do not report others' slabs. */
			.total = room(s, p->device->slab) + p->held[i] * p->device->slab,
			.free = room(s, p->device->slab),
			.slabs = p->held[i],
		};
	}
	chosen = place_choose(all, (int)p->device->sessions, p->device->slab, &p->seed);
	return chosen < 0 ? KMOD_NO_SESSION : p->device->session[chosen].number;
}

uint32_t kmod_plan_choose(struct kmod_plan *p, const struct ebb_swap_slab *slab, uint32_t from)
{
	uint32_t chosen = choose(p, slab, from, OTHER_MACHINES);

	return chosen == KMOD_NO_SESSION ? choose(p, slab, from, ALL_MACHINES) : chosen;
}

/* Returns whether a slab must leave @session, which gets none for a while after a recall. */
static bool must_leave(struct kmod_plan *p, uint32_t session, bool recalled)
{
	int at = index_of(p->device, session);
	int donor;

	if (at < 0)
		return false;
	if (recalled) {
		donor = kmod_donor_find(p->donors, p->donor_count, &p->device->session[at]);
		if (donor >= 0)
			p->patience[donor].map_at = p->now + KMOD_RECALLED;
	}
	return recalled || kmod_session_leaving(&p->device->session[at]);
}

/* Returns whether a slab gets another donor for @session, which may be back later. */
static bool is_missed(const struct kmod_plan *p, uint32_t session)
{
	int at = index_of(p->device, session);

	return at >= 0 && p->device->session[at].state == EBB_SWAP_AWAY &&
	       p->device->session[at].away >= KMOD_REPAIR_MS;
}

/* Plans the first or the second donor of @slab. */
static bool map_step(struct kmod_plan *p, const struct ebb_swap_slab *slab, struct kmod_step *s)
{
	s->act = KMOD_MAP;
	s->session = kmod_plan_choose(p, slab, KMOD_NO_SESSION);
	if (s->session != KMOD_NO_SESSION)
		return true;
	p->unplaced += !p->turn;
	p->single += p->turn;
	return false;
}

/* Returns false if @slab needs nothing, is migrating, or cannot get what it needs. */
static bool first_turn(struct kmod_plan *p, const struct ebb_swap_slab *slab, struct kmod_step *s)
{
	bool first = must_leave(p, slab->session, slab->recalled & 1);
	bool second = must_leave(p, slab->second, slab->recalled & 2);

	if (slab->source != KMOD_NO_SESSION)
		return false;
	if (slab->session == KMOD_NO_SESSION)
		return (slab->written || !p->lazy) && map_step(p, slab, s);
	s->act = KMOD_MIGRATE;
	if (!first && !second) {
		first = is_missed(p, slab->session);
		/* Without a backup, the first write to an empty slab needs a donor, too. */
		if ((!slab->written && *p->device->backup) ||
		    (!first && !is_missed(p, slab->second)))
			return false;
		s->from = first ? slab->session : slab->second;
		s->session = kmod_plan_choose(p, slab, s->from);
		/* Its writes go to the backup meanwhile, if there is one. */
		return s->session != KMOD_NO_SESSION;
	}
	s->from = first ? slab->session : slab->second;
	s->session = kmod_plan_choose(p, slab, s->from);
	if (s->session != KMOD_NO_SESSION || *p->device->backup)
		return true;
	p->stuck++;
	return false;
}

static bool second_turn(struct kmod_plan *p, const struct ebb_swap_slab *slab, struct kmod_step *s)
{
	return slab->copies & EBB_SWAP_SECOND && slab->session != KMOD_NO_SESSION &&
	       slab->second == KMOD_NO_SESSION && (slab->written || !p->lazy) &&
	       map_step(p, slab, s);
}

#define TURNS 2

uint32_t kmod_plan_left(const struct kmod_plan *p)
{
	uint32_t seconds = 0;

	for (uint32_t i = 0; i < p->count; i++)
		seconds += (p->slabs[i].copies & EBB_SWAP_SECOND) != 0;
	return p->turn ? p->count - p->at : p->count - p->at + seconds;
}

bool kmod_plan_next(struct kmod_plan *p, struct kmod_step *s)
{
	for (; p->turn < TURNS; p->turn++, p->at = 0) {
		for (; p->at < p->count; p->at++) {
			const struct ebb_swap_slab *slab = &p->slabs[p->at];

			*s = (struct kmod_step){ .slab = p->at, .from = KMOD_NO_SESSION };
			if (p->turn ? second_turn(p, slab, s) : first_turn(p, slab, s))
				return true;
		}
	}
	return false;
}

static void moved(struct kmod_plan *p, const struct kmod_step *s)
{
	struct ebb_swap_slab *slab = &p->slabs[s->slab];
	int to = index_of(p->device, s->session);

	hold(p, s->from, -1);
	if (to >= 0) {
		struct kmod_session *session = &p->device->session[to];

		p->held[to]++;
		session->free -= session->free < p->device->slab ? session->free : p->device->slab;
	}
	if (s->act == KMOD_MIGRATE)
		slab->source = s->from;
	if (p->turn || (s->act == KMOD_MIGRATE && s->from == slab->second))
		slab->second = s->session;
	else
		slab->session = s->session;
	/* A slab with a single donor has it in .session. */
	if (slab->session == KMOD_NO_SESSION) {
		slab->session = slab->second;
		slab->second = KMOD_NO_SESSION;
	}
	slab->recalled = 0;
	p->unplaced += slab->session == KMOD_NO_SESSION;
	p->at++;
}

static bool about_slab(int result)
{
	return result == -EBUSY || result == -EEXIST || result == -EAGAIN || result == -EINVAL ||
	       result == -ERANGE || result == -ENOENT;
}

void kmod_plan_done(struct kmod_plan *p, const struct kmod_step *s, int result)
{
	int to = index_of(p->device, s->session), donor;

	if (!result) {
		moved(p, s);
		return;
	}
	/* The slab is in use, or was moved meanwhile. */
	if (to < 0 || about_slab(result)) {
		p->unplaced += p->slabs[s->slab].session == KMOD_NO_SESSION;
		p->single += p->turn;
		p->at++;
		return;
	}
	/* The donor failed: try another for the slab. */
	donor = kmod_donor_find(p->donors, p->donor_count, &p->device->session[to]);
	if (donor >= 0)
		p->patience[donor].map_at = p->now + KMOD_FULL;
}
