// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "settle.h"

void kmod_care_free(struct kmod_care *c)
{
	free(c->slabs);
	c->slabs = NULL;
	c->slab_count = 0;
}

/* Whether a session has been made. */
static bool connect_missing(struct kmod_link *l, struct kmod_care *c, uint64_t until,
			    struct kmod_round *round)
{
	bool made = false;
	int next = 0;

	while (now_ns() < until || !next) {
		struct error why = { 0 };
		uint32_t session;
		int r, i = kmod_plan_connect(&c->now, c->donor, c->donors, c->patience, now_ns(), &next);

		if (i < 0)
			break;
		r = kmod_connect(l, c->device, c->class, c->donor[i].ip, c->donor[i].port, &session, &why);
		snprintf(round->refused[i], sizeof(round->refused[i]), "%.191s", why.text);
		kmod_patience_connected(&c->patience[i], r, now_ns());
		round->connected[i] = r ? r : 1;
		made |= !r;
	}
	return made;
}

static bool forget_ended(struct kmod_link *l, struct kmod_care *c)
{
	uint32_t next = 0, session;
	bool gone = false;

	while ((session = kmod_plan_forget(&c->now, c->donor, c->donors, &next)) != KMOD_NO_SESSION)
		gone |= !kmod_disconnect(l, c->device, session, NULL);
	return gone;
}

static int take_step(struct kmod_link *l, struct kmod_care *c, const struct kmod_step *s,
		     struct kmod_round *round)
{
	bool backup = s->session == KMOD_NO_SESSION;
	/* An older module knows of no other. */
	uint32_t from = c->slabs[s->slab].second != KMOD_NO_SESSION ? s->from : KMOD_NO_SESSION;
	int r = s->act == KMOD_MAP ? kmod_map(l, c->device, s->slab, s->session, &round->trouble) :
				     kmod_migrate(l, c->device, c->class, s->slab, from, s->session,
						  &round->trouble);

	if (r)
		return r;
	round->mapped += s->act == KMOD_MAP;
	round->migrated += s->act == KMOD_MIGRATE && !backup;
	round->retreated += s->act == KMOD_MIGRATE && backup;
	return 0;
}

struct kmod_plan kmod_care_plan(struct kmod_care *c)
{
	struct kmod_plan p = {
		.device = &c->now, .slabs = c->slabs, .count = c->slab_count,
		.donors = c->donor, .donor_count = c->donors, .patience = c->patience,
		/* Each slab may have memory for each class: only where it is needed. */
		.lazy = c->class && *c->now.backup,
		.now = now_ns(), .seed = now_ns() | 1,
	};

	kmod_plan_start(&p);
	return p;
}

void kmod_place(struct kmod_link *l, struct kmod_care *c, uint64_t budget,
		struct kmod_round *round)
{
	struct kmod_plan p = kmod_care_plan(c);
	uint64_t until = p.now + budget;
	struct kmod_step s;

	while (kmod_plan_next(&p, &s)) {
		kmod_plan_done(&p, &s, take_step(l, c, &s, round));
		if (now_ns() >= until) {
			round->left = kmod_plan_left(&p);
			break;
		}
	}
	round->unplaced = p.unplaced;
	round->single = p.single;
	round->stuck = p.stuck;
}

static bool is_donor(const struct kmod_care *c, const struct kmod_session *s)
{
	for (int i = 0; i < c->donors; i++)
		if (kmod_donor_is(&c->donor[i], s))
			return true;
	return false;
}

/* Brings the class's sessions to the front, in their order. */
static void sort_sessions(struct kmod_care *c)
{
	struct kmod_session *s = c->now.session;
	uint32_t n = 0;

	c->all = c->now.sessions;
	for (uint32_t i = 0; i < c->all; i++) {
		struct kmod_session its = s[i];

		if (its.class != c->class)
			continue;
		memmove(&s[n + 1], &s[n], (i - n) * sizeof(*s));
		s[n++] = its;
	}
	c->now.sessions = n;
}

static bool has_session(const struct kmod_care *c, int donor)
{
	for (uint32_t i = 0; i < c->now.sessions; i++)
		if (kmod_donor_is(&c->donor[donor], &c->now.session[i]))
			return true;
	return false;
}

/* Those that the class has sessions with, over or not: the last of each stays. */
static void find_donors(struct kmod_care *c)
{
	for (int i = c->given; i < c->donors;) {
		int behind = c->donors - i - 1;

		if (has_session(c, i)) {
			i++;
			continue;
		}
		memmove(&c->donor[i], &c->donor[i + 1], behind * sizeof(c->donor[0]));
		memmove(&c->patience[i], &c->patience[i + 1], behind * sizeof(c->patience[0]));
		c->donors--;
	}
	for (uint32_t i = 0; i < c->now.sessions && c->donors < DEVICE_DONORS; i++) {
		if (is_donor(c, &c->now.session[i]))
			continue;
		c->patience[c->donors] = (struct kmod_patience){ 0 };
		kmod_donor_of(&c->now.session[i], &c->donor[c->donors++]);
	}
}

static int look_device(struct kmod_link *l, struct kmod_care *c, struct error *e)
{
	int r = kmod_status(l, c->device, &c->now, e);

	if (!r)
		sort_sessions(c);
	if (!r && c->class)
		find_donors(c);
	if (!r && c->size && c->now.size != c->size)
		r = fail(e, ENODEV, "/dev/ebb%u: not the recorded device: its size differs",
			 c->device);
	return r;
}

/* Which of those that were live are over; and which are live now. */
static void tell_lost(struct kmod_care *c, struct kmod_round *round)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->now.sessions; i++) {
		const struct kmod_session *s = &c->now.session[i];

		for (uint32_t j = 0; s->state > EBB_SWAP_LIVE && j < c->lives; j++)
			for (int k = 0; c->live[j] == s->number && k < c->donors; k++)
				if (kmod_donor_is(&c->donor[k], s)) {
					memcpy(round->lost[k], s->reason, KMOD_REASON);
					c->patience[k].losses++;
				}
	}
	for (uint32_t i = 0; i < c->now.sessions; i++)
		if (c->now.session[i].state == EBB_SWAP_LIVE)
			c->live[n++] = c->now.session[i].number;
	c->lives = n;
}

static int look_slabs(struct kmod_link *l, struct kmod_care *c, struct error *e)
{
	kmod_care_free(c);
	c->looked = now_ns();
	return kmod_slabs(l, &c->now, c->class, &c->slabs, &c->slab_count, e);
}

int kmod_look(struct kmod_link *l, struct kmod_care *c, struct error *e)
{
	int r = look_device(l, c, e);

	return r ? r : look_slabs(l, c, e);
}

int kmod_settle(struct kmod_link *l, struct kmod_care *c, uint64_t budget, struct kmod_round *round,
		struct error *e)
{
	int r;

	memset(round, 0, sizeof(*round));
	r = look_device(l, c, e);
	if (!r)
		tell_lost(c, round);
	if (!r && connect_missing(l, c, now_ns() + budget, round))
		r = look_device(l, c, e);
	if (!r && forget_ended(l, c))
		r = look_device(l, c, e);
	if (!r)
		r = look_slabs(l, c, e);
	/* A class may have none yet. */
	if (!r && c->donors)
		kmod_place(l, c, budget, round);
	return r;
}
