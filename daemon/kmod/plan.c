// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>

#include "plan.h"
#include "swapd/place.h"

void kmod_patience_connected(struct kmod_patience *p, int result, uint64_t now)
{
	uint64_t wait = KMOD_SECOND;

	for (uint32_t i = 0; result && i < p->failures && wait < KMOD_RETRY_MOST; i++)
		wait *= 2;
	p->failures = result ? p->failures + 1 : 0;
	/* One that comes and goes is not tried without end either. */
	p->connect_at = now + (wait < KMOD_RETRY_MOST ? wait : KMOD_RETRY_MOST);
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
			there = !is_over(&d->session[j]) && kmod_donor_is(&donors[i], &d->session[j]);
		if (!there)
			return i;
	}
	return -1;
}

static int donor_of(const struct kmod_donor *donors, int n, const struct kmod_session *s)
{
	for (int i = 0; i < n; i++)
		if (kmod_donor_is(&donors[i], s))
			return i;
	return -1;
}

uint32_t kmod_plan_forget(const struct kmod_device *d, const struct kmod_donor *donors, int n,
			  uint32_t *next)
{
	while (*next < d->sessions) {
		const struct kmod_session *s = &d->session[(*next)++];
		int donor = donor_of(donors, n, s);
		bool last = donor >= 0;

		if (s->state != EBB_SWAP_CLOSED)
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

void kmod_plan_start(struct kmod_plan *p)
{
	p->at = p->unplaced = p->stuck = 0;
	for (uint32_t i = 0; i < EBB_SWAP_SESSIONS; i++)
		p->held[i] = 0;
	for (uint32_t i = 0; i < p->count; i++) {
		int at = index_of(p->device, p->slabs[i].session);

		if (at >= 0)
			p->held[at]++;
	}
}

/* The donor told it last when we connected or mapped: one that had none may have some now. */
static uint64_t room(const struct kmod_session *s, uint64_t slab)
{
	return s->free < slab ? slab : s->free;
}

uint32_t kmod_plan_choose(struct kmod_plan *p, uint32_t from)
{
	struct place_donor all[EBB_SWAP_SESSIONS];
	int chosen;

	for (uint32_t i = 0; i < p->device->sessions; i++) {
		const struct kmod_session *s = &p->device->session[i];
		int donor = donor_of(p->donors, p->donor_count, s);

		all[i] = (struct place_donor){
			.usable = s->state == EBB_SWAP_LIVE && !s->draining && s->number != from &&
				  donor >= 0 && p->now >= p->patience[donor].map_at,
			/* What others have there is not told; what we have is. */
			.total = room(s, p->device->slab) + p->held[i] * p->device->slab,
			.free = room(s, p->device->slab),
			.slabs = p->held[i],
		};
	}
	chosen = place_choose(all, (int)p->device->sessions, p->device->slab, &p->seed);
	return chosen < 0 ? KMOD_NO_SESSION : p->device->session[chosen].number;
}

/* Whether its donor is to be left; one that asked is not asked for memory for some time. */
static bool must_leave(struct kmod_plan *p, const struct ebb_swap_slab *slab)
{
	int at = index_of(p->device, slab->session);
	int donor;

	if (at < 0)
		return false;
	if (slab->asked) {
		donor = donor_of(p->donors, p->donor_count, &p->device->session[at]);
		if (donor >= 0)
			p->patience[donor].map_at = p->now + KMOD_ASKED_BACK;
	}
	return slab->asked || p->device->session[at].draining;
}

/* What @slab needs: true, or false when it is nothing, or is under way, or cannot be. */
static bool step_of(struct kmod_plan *p, const struct ebb_swap_slab *slab, struct kmod_step *s)
{
	if (slab->source != KMOD_NO_SESSION)
		return false;
	s->session = kmod_plan_choose(p, slab->session);
	if (slab->session == KMOD_NO_SESSION) {
		s->act = KMOD_MAP;
		p->unplaced += s->session == KMOD_NO_SESSION;
		return s->session != KMOD_NO_SESSION;
	}
	s->act = KMOD_MIGRATE;
	if (s->session != KMOD_NO_SESSION || *p->device->backup)
		return true;
	p->stuck++;
	return false;
}

static bool needs_donor(const struct kmod_plan *p, const struct ebb_swap_slab *slab)
{
	return slab->session == KMOD_NO_SESSION && (slab->written || !p->lazy);
}

bool kmod_plan_next(struct kmod_plan *p, struct kmod_step *s)
{
	for (; p->at < p->count; p->at++) {
		const struct ebb_swap_slab *slab = &p->slabs[p->at];

		s->slab = p->at;
		if ((needs_donor(p, slab) || must_leave(p, slab)) && step_of(p, slab, s))
			return true;
	}
	return false;
}

static void moved(struct kmod_plan *p, const struct kmod_step *s)
{
	struct ebb_swap_slab *slab = &p->slabs[s->slab];
	int to = index_of(p->device, s->session), from = index_of(p->device, slab->session);

	if (from >= 0)
		p->held[from]--;
	if (to >= 0) {
		struct kmod_session *session = &p->device->session[to];

		p->held[to]++;
		session->free -= session->free < p->device->slab ? session->free : p->device->slab;
	}
	slab->source = slab->session;
	slab->session = s->session;
	slab->asked = 0;
	p->unplaced += s->session == KMOD_NO_SESSION;
	p->at++;
}

void kmod_plan_done(struct kmod_plan *p, const struct kmod_step *s, int result)
{
	int to = index_of(p->device, s->session), donor;

	if (!result) {
		moved(p, s);
		return;
	}
	/* About the slab: it is in use, or has moved meanwhile. */
	if (to < 0 || result == -EBUSY || result == -EEXIST || result == -EAGAIN ||
	    result == -EINVAL || result == -ERANGE) {
		p->unplaced += p->slabs[s->slab].session == KMOD_NO_SESSION;
		p->at++;
		return;
	}
	/* About the donor: the slab tries another. */
	donor = donor_of(p->donors, p->donor_count, &p->device->session[to]);
	if (donor >= 0)
		p->patience[donor].map_at = p->now + KMOD_FULL;
}
