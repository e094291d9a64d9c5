// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "lib/base/clock.h"
#include "lib/wire/key.h"
#include "settle.h"

void kmod_view_free(struct kmod_view *v)
{
	free(v->slabs);
	v->slabs = NULL;
	v->slab_count = 0;
}

/* Derives the donor's key of that of the device. */
static int derive_key(const struct kmod_view *v, int donor, struct key *own, struct error *e)
{
	char name[KEY_DONOR];
	struct key k;
	int r;

	/* Keeps keys, also those in messages to the module, out of core dumps. */
	prctl(PR_SET_DUMPABLE, 0);
	r = key_load_own(&k, v->key_file, e);
	if (r)
		return r;
	if (strcmp(k.fingerprint, v->now.key))
		r = fail(e, EKEYREJECTED, "key %s: changed since the device was created; restore it",
			 v->key_file);
	if (!r)
		r = key_donor_name(v->donor[donor].text, "donor", name, e);
	if (!r)
		r = key_derive(own, &k, name);
	key_forget(&k);
	return r;
}

/*
 * Offers the donor's derived key.  If that is unknown there, offers the device's, which some donors
 * still share: a peer without it cannot complete the handshake, even if it forged the refusal.
 */
static int connect_donor(struct kmod_link *l, const struct kmod_view *v, int donor,
			 struct kmod_round *round, uint32_t *session, struct error *e)
{
	struct kmod_peer peer = { .ip = v->donor[donor].ip, .port = v->donor[donor].port };
	struct error no_key = { 0 }, unknown = { 0 };
	struct key own;
	int r = -ENOKEY;

	if (derive_key(v, donor, &own, &no_key)) {
		snprintf(round->no_key, sizeof(round->no_key), "%.191s", no_key.text);
	} else {
		peer.key = own.bytes;
		key_number(&own, peer.key_number);
		r = kmod_connect(l, v->device, v->class, &peer, session, &unknown);
		if (r != -ENOKEY)
			*e = unknown;
		peer.key = NULL;
		key_forget(&own);
	}
	return r == -ENOKEY ? kmod_connect(l, v->device, v->class, &peer, session, e) : r;
}

/* Sets @made to the sessions that it makes; returns their number. */
static int connect_missing(struct kmod_link *l, struct kmod_view *v, uint64_t until,
			   struct kmod_round *round, uint32_t made[static DEVICE_DONORS])
{
	int next = 0, n = 0;

	while (now_ns() < until || !next) {
		struct error why = { 0 };
		int r, i = kmod_plan_connect(&v->now, v->donor, v->donors, v->patience, now_ns(),
					     &next);

		if (i < 0)
			break;
		r = connect_donor(l, v, i, round, &made[n], &why);
		snprintf(round->refused[i], sizeof(round->refused[i]), "%.191s", why.text);
		kmod_patience_connected(&v->patience[i], r, now_ns());
		round->connected[i] = r ? r : 1;
		n += !r;
	}
	return n;
}

static bool forget_ended(struct kmod_link *l, struct kmod_view *v)
{
	uint32_t next = 0, session;
	bool gone = false;

	while ((session = kmod_plan_forget(&v->now, v->donor, v->donors, &next)) != KMOD_NO_SESSION)
		gone |= !kmod_disconnect(l, v->device, session, NULL);
	return gone;
}

static int take_step(struct kmod_link *l, struct kmod_view *v, const struct kmod_step *s,
		     struct kmod_round *round)
{
	bool backup = s->session == KMOD_NO_SESSION;
	int r = s->act == KMOD_MAP ? kmod_map(l, v->device, s->slab, s->session, &round->trouble) :
				     kmod_migrate(l, v->device, v->class, s->slab, s->from,
						  s->session, &round->trouble);

	if (r)
		return r;
	round->mapped += s->act == KMOD_MAP;
	round->migrated += s->act == KMOD_MIGRATE && !backup;
	round->fell_back += s->act == KMOD_MIGRATE && backup;
	return 0;
}

struct kmod_plan kmod_view_plan(struct kmod_view *v)
{
	struct kmod_plan p = {
		.device = &v->now, .slabs = v->slabs, .count = v->slab_count,
		.donors = v->donor, .donor_count = v->donors, .patience = v->patience,
		/* Each class borrows a whole slab, so only for slabs with pages. */
		.lazy = v->class && *v->now.backup,
		.now = now_ns(), .seed = now_ns() | 1,
	};

	kmod_plan_start(&p);
	return p;
}

void kmod_place(struct kmod_link *l, struct kmod_view *v, uint64_t budget,
		struct kmod_round *round)
{
	struct kmod_plan p = kmod_view_plan(v);
	uint64_t until = p.now + budget;
	struct kmod_step s;

	while (kmod_plan_next(&p, &s)) {
		kmod_plan_done(&p, &s, take_step(l, v, &s, round));
		if (now_ns() >= until) {
			round->left = kmod_plan_left(&p);
			break;
		}
	}
	round->unplaced = p.unplaced;
	round->single = p.single;
	round->stuck = p.stuck;
}

/* Moves the class's sessions to the front, in their order. */
static void sort_sessions(struct kmod_view *v)
{
	struct kmod_session *s = v->now.session;
	uint32_t n = 0;

	v->all = v->now.sessions;
	for (uint32_t i = 0; i < v->all; i++) {
		struct kmod_session its = s[i];

		if (its.class != v->class)
			continue;
		memmove(&s[n + 1], &s[n], (i - n) * sizeof(*s));
		s[n++] = its;
	}
	v->now.sessions = n;
}

/* A donor that returned a wrong page of one class is trusted with no other. */
static void share_bad_pages(struct kmod_view *v)
{
	struct kmod_session *s = v->now.session;

	for (uint32_t i = 0; i < v->all; i++) {
		struct kmod_donor donor;

		kmod_donor_of(&s[i], &donor);
		for (uint32_t j = 0; s[i].bad_pages && j < v->all; j++)
			if (s[j].bad_pages < s[i].bad_pages && kmod_donor_is(&donor, &s[j]))
				s[j].bad_pages = s[i].bad_pages;
	}
}

static bool has_session(const struct kmod_view *v, int donor)
{
	for (uint32_t i = 0; i < v->now.sessions; i++)
		if (kmod_donor_is(&v->donor[donor], &v->now.session[i]))
			return true;
	return false;
}

/* Sets the donors of a class to those of its sessions, ended ones included. */
static void find_donors(struct kmod_view *v)
{
	for (int i = v->given; i < v->donors;) {
		int behind = v->donors - i - 1;

		if (has_session(v, i)) {
			i++;
			continue;
		}
		memmove(&v->donor[i], &v->donor[i + 1], behind * sizeof(v->donor[0]));
		memmove(&v->patience[i], &v->patience[i + 1], behind * sizeof(v->patience[0]));
		v->donors--;
	}
	for (uint32_t i = 0; i < v->now.sessions && v->donors < DEVICE_DONORS; i++) {
		if (kmod_donor_find(v->donor, v->donors, &v->now.session[i]) >= 0)
			continue;
		v->patience[v->donors] = (struct kmod_patience){ 0 };
		kmod_donor_of(&v->now.session[i], &v->donor[v->donors++]);
	}
}

static int look_device(struct kmod_link *l, struct kmod_view *v, struct error *e)
{
	int r = kmod_status(l, v->device, &v->now, e);

	if (!r) {
		sort_sessions(v);
		share_bad_pages(v);
	}
	if (!r && v->class)
		find_donors(v);
	if (!r && v->size && v->now.size != v->size)
		r = fail(e, ENODEV, "/dev/ebb%u: not the recorded device: its size differs",
			 v->device);
	return r;
}

static bool is_over(const struct kmod_session *s)
{
	return s->state == EBB_SWAP_FAILED || s->state == EBB_SWAP_CLOSED;
}

/* Reports donors that went away, or are back, since the last look. */
static void report_away(struct kmod_view *v, struct kmod_round *round)
{
	for (uint32_t i = 0; i < v->now.sessions; i++) {
		const struct kmod_session *s = &v->now.session[i];
		int donor = kmod_donor_find(v->donor, v->donors, s);
		bool away = s->state == EBB_SWAP_AWAY;

		if (donor < 0 || is_over(s) || v->patience[donor].away == away)
			continue;
		v->patience[donor].away = away;
		v->patience[donor].absences += away;
		if (away)
			memcpy(round->away[donor], s->reason, KMOD_REASON);
		round->back[donor] = !away;
	}
}

/* Reports sessions that ended since the last look, and notes those that have not. */
static void report_lost(struct kmod_view *v, struct kmod_round *round)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < v->now.sessions; i++) {
		const struct kmod_session *s = &v->now.session[i];
		int donor = kmod_donor_find(v->donor, v->donors, s);

		for (uint32_t j = 0; is_over(s) && donor >= 0 && j < v->lives; j++)
			if (v->live[j] == s->number) {
				memcpy(round->lost[donor], s->reason, KMOD_REASON);
				v->patience[donor].losses++;
				v->patience[donor].away = false;
			}
	}
	for (uint32_t i = 0; i < v->now.sessions; i++)
		if (v->now.session[i].state == EBB_SWAP_LIVE ||
		    v->now.session[i].state == EBB_SWAP_AWAY)
			v->live[n++] = v->now.session[i].number;
	v->lives = n;
}

/* Reports donors that have returned their first wrong page since the last look. */
static void report_quarantined(struct kmod_view *v, struct kmod_round *round)
{
	for (int i = 0; i < v->donors; i++) {
		uint32_t before = v->patience[i].bad_pages, now = 0;

		for (uint32_t j = 0; j < v->now.sessions; j++)
			if (kmod_donor_is(&v->donor[i], &v->now.session[j]))
				now = v->now.session[j].bad_pages;
		round->quarantined[i] = now && !before;
		v->patience[i].bad_pages = now;
	}
}

static int look_slabs(struct kmod_link *l, struct kmod_view *v, struct error *e)
{
	kmod_view_free(v);
	v->looked = now_ns();
	return kmod_slabs(l, &v->now, v->class, &v->slabs, &v->slab_count, e);
}

int kmod_look(struct kmod_link *l, struct kmod_view *v, struct error *e)
{
	int r = look_device(l, v, e);

	return r ? r : look_slabs(l, v, e);
}

/* Returns whether the class needs donors: pages arrive there, or some still are there. */
static bool is_used(const struct kmod_view *v)
{
	bool used = !v->class || v->given;

	for (uint32_t i = 0; !used && i < v->now.cgroups; i++)
		used = v->now.cgroup[i].class == v->class;
	for (uint32_t i = 0; !used && i < v->slab_count; i++)
		used = v->slabs[i].written;
	return used;
}

/* Connects the class's donors, and looks again; the class may lose its last cgroup meanwhile. */
static int connect_used(struct kmod_link *l, struct kmod_view *v, uint64_t budget,
			struct kmod_round *round, struct error *e)
{
	uint32_t made[DEVICE_DONORS];
	int r, n;

	if (!is_used(v))
		return 0;
	n = connect_missing(l, v, now_ns() + budget, round, made);
	if (!n)
		return 0;
	r = kmod_look(l, v, e);
	if (r || is_used(v))
		return r;
	while (n)
		kmod_disconnect(l, v->device, made[--n], NULL);
	return look_device(l, v, e);
}

int kmod_settle(struct kmod_link *l, struct kmod_view *v, uint64_t budget, struct kmod_round *round,
		struct error *e)
{
	int r;

	memset(round, 0, sizeof(*round));
	r = look_device(l, v, e);
	if (!r) {
		report_lost(v, round);
		report_away(v, round);
		report_quarantined(v, round);
	}
	if (!r)
		r = connect_used(l, v, budget, round, e);
	if (!r && forget_ended(l, v))
		r = look_device(l, v, e);
	if (!r)
		r = look_slabs(l, v, e);
	/* A class may have no donor yet. */
	if (!r && v->donors && is_used(v))
		kmod_place(l, v, budget, round);
	return r;
}
