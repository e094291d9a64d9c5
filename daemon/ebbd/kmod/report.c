// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdio.h>

#include <ebb/page.h>
#include "lib/base/json.h"
#include "report.h"

/* Returns the donor's newest session. */
static const struct kmod_session *session_of(const struct kmod_device *d,
					     const struct kmod_donor *donor)
{
	const struct kmod_session *found = NULL;

	for (uint32_t i = 0; i < d->sessions; i++)
		if (kmod_donor_is(donor, &d->session[i]) &&
		    (!found || d->session[i].number > found->number))
			found = &d->session[i];
	return found;
}

/* Returns the donor's address; donors that are not recorded have none. */
static const char *name_of(const struct kmod_view *v, uint32_t session)
{
	for (uint32_t i = 0; i < v->now.sessions; i++)
		for (int j = 0; v->now.session[i].number == session && j < v->donors; j++)
			if (kmod_donor_is(&v->donor[j], &v->now.session[i]))
				return v->donor[j].text;
	return "?";
}

static const char *state_text(const struct kmod_session *s, uint32_t slabs)
{
	if (!s)
		return "down";
	if (s->bad_pages && (s->state != EBB_SWAP_LIVE || !slabs))
		return "quarantined";
	return s->state == EBB_SWAP_LIVE ? "up" : s->state == EBB_SWAP_AWAY ? "away" :
	       s->state == EBB_SWAP_CONNECTING ? "connecting" : "down";
}

static uint32_t held(const struct kmod_view *v, uint32_t session)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < v->slab_count; i++)
		n += kmod_slab_is_at(&v->slabs[i], session);
	return n;
}

/* Returns whether a donor that does not have @slab has free capacity for it. */
static bool somewhere(const struct kmod_view *v, const struct ebb_swap_slab *slab)
{
	for (uint32_t i = 0; i < v->now.sessions; i++) {
		const struct kmod_session *s = &v->now.session[i];

		if (!kmod_slab_is_at(slab, s->number) && s->state == EBB_SWAP_LIVE &&
		    !kmod_session_leaving(s) && s->free >= v->now.slab)
			return true;
	}
	return false;
}

void kmod_report_drain_estimate(const struct kmod_view *v, int donor, struct json_object *a)
{
	const struct kmod_session *s = session_of(&v->now, &v->donor[donor]);
	struct json_object *o = json_object_new_object();
	uint32_t slabs = 0, move = 0, rest;

	for (uint32_t i = 0; s && i < v->slab_count; i++) {
		const struct ebb_swap_slab *slab = &v->slabs[i];

		if (!kmod_slab_is_at(slab, s->number))
			continue;
		slabs++;
		move += slab->source == s->number || somewhere(v, slab);
	}
	rest = slabs - move;
	json_add_int(o, "slabs", slabs);
	json_add_int(o, "move", move);
	json_add_int(o, "to_disk", *v->now.backup ? rest : 0);
	json_add_int(o, "stuck", *v->now.backup ? 0 : rest);
	if (rest && !*v->now.backup)
		json_add_text(o, "why", "no other donor has free capacity, and the device has no backup; lend more memory");
	json_object_object_add(a, "outlook", o);
}

static struct json_object *donors_json(const struct kmod_view *v)
{
	struct json_object *list = json_object_new_array();

	for (int i = 0; i < v->donors; i++) {
		const struct kmod_session *s = session_of(&v->now, &v->donor[i]);
		struct json_object *o = json_object_new_object();
		uint32_t slabs = s ? held(v, s->number) : 0;

		json_add_text(o, "address", v->donor[i].text);
		json_add_text(o, "transport", "rdma");
		json_add_text(o, "state", state_text(s, slabs));
		if (s && kmod_session_leaving(s))
			json_add_text(o, "leaving", s->bad_pages ? "quarantined" : "drained");
		json_add_bool(o, "tls", false);
		json_add_int(o, "free", s && s->state == EBB_SWAP_LIVE ? s->free : 0);
		json_add_int(o, "slabs", slabs);
		json_add_int(o, "losses", v->patience[i].losses);
		json_add_int(o, "absences", v->patience[i].absences);
		json_add_int(o, "bad_pages", s ? s->bad_pages : 0);
		if (s && *s->reason)
			json_add_text(o, "last_loss", s->reason);
		if (s && kmod_session_leaving(s))
			kmod_report_drain_estimate(v, i, o);
		json_object_array_add(list, o);
	}
	return list;
}

/* Returns whether the donor of replica @copy lacks pages. */
static bool lacks(const struct ebb_swap_slab *slab, uint32_t copy)
{
	return slab->copies & EBB_SWAP_LACKING(copy);
}

static void add_copies(const struct kmod_view *v, struct json_object *a)
{
	struct json_object *copies = json_object_new_object(), *slabs = json_object_new_object();
	uint64_t mapped = 0, there = 0, wanted = 0, filling = 0, leaving = 0, live = 0;

	for (uint32_t i = 0; i < v->slab_count; i++) {
		const struct ebb_swap_slab *s = &v->slabs[i];
		bool first = s->session != KMOD_NO_SESSION, second = s->second != KMOD_NO_SESSION;

		live += s->written;
		mapped += first;
		there += (uint64_t)first + second;
		wanted += s->copies & EBB_SWAP_SECOND ? 2 : 1;
		filling += (first && lacks(s, EBB_SWAP_DONOR)) +
			   (second && lacks(s, EBB_SWAP_SECOND));
		leaving += s->source != KMOD_NO_SESSION;
	}
	json_add_int(copies, "wanted", v->now.copies[0] & EBB_SWAP_SECOND ? 2 : 1);
	json_add_int(copies, "present", there - filling);
	json_add_int(copies, "missing", wanted - there);
	json_add_int(copies, "filling", filling);
	json_add_int(copies, "leaving", leaving);
	json_object_object_add(a, "copies", copies);
	json_add_int(a, "live", live * EBB_PAGE);
	json_add_int(a, "mapped", there * v->now.slab);
	json_add_int(slabs, "total", v->slab_count);
	json_add_int(slabs, "unmapped", v->slab_count - mapped);
	json_add_int(slabs, "mapped", mapped);
	json_object_object_add(a, "slabs", slabs);
}

static struct json_object *class_json(const struct kmod_view *v, uint32_t class)
{
	struct json_object *cgroups = json_object_new_array(), *donors = json_object_new_array();
	struct json_object *o = json_object_new_object();

	for (uint32_t i = 0; i < v->now.cgroups; i++)
		if (v->now.cgroup[i].class == class)
			json_object_array_add(cgroups,
					      json_object_new_int64((int64_t)v->now.cgroup[i].id));
	for (uint32_t i = 0; i < v->all; i++) {
		struct kmod_donor donor;

		if (v->now.session[i].class != class || v->now.session[i].state != EBB_SWAP_LIVE)
			continue;
		kmod_donor_of(&v->now.session[i], &donor);
		json_object_array_add(donors, json_object_new_string(donor.text));
	}
	json_add_int(o, "class", class);
	json_add_text(o, "durability", kmod_durability(v->now.copies[class]));
	json_add_bool(o, "sealed", v->now.sealed & 1u << class);
	json_object_object_add(o, "cgroups", cgroups);
	json_object_object_add(o, "donors", donors);
	return o;
}

static void add_classes(const struct kmod_view *v, struct json_object *a)
{
	struct json_object *list = NULL;

	for (uint32_t class = 1; class < EBB_SWAP_CLASSES; class++) {
		if (!v->now.copies[class])
			continue;
		if (!list)
			list = json_object_new_array();
		json_object_array_add(list, class_json(v, class));
	}
	if (list)
		json_object_object_add(a, "classes", list);
}

void kmod_report_status(const struct kmod_view *v, const char *name, struct json_object *a)
{
	struct json_object *backup;
	char block[32];

	snprintf(block, sizeof(block), "/dev/ebb%u", v->device);
	json_add_text(a, "name", name);
	json_add_text(a, "frontend", "kmod");
	json_add_text(a, "file", block);
	json_add_int(a, "size", v->now.size);
	json_add_int(a, "slab", v->now.slab);
	json_add_int(a, "deadline_ms", v->now.deadline);
	json_add_text(a, "durability", kmod_durability(v->now.copies[0]));
	json_add_bool(a, "aborted", false);
	json_add_bool(a, "sealed", v->now.sealed & 1);
	if (*v->now.key)
		json_add_text(a, "key", v->now.key);
	if (*v->now.backup) {
		backup = json_object_new_object();
		json_add_text(backup, "path", v->now.backup);
		json_add_bool(backup, "direct", true);
		json_add_bool(backup, "failing", v->now.count[EBB_SWAP_C_BACKUP_ERRORS] > 0);
		json_add_int(backup, "errors", v->now.count[EBB_SWAP_C_BACKUP_ERRORS]);
		json_add_int(backup, "queue", v->now.pool_used / EBB_PAGE);
		json_object_object_add(a, "backup", backup);
	}
	add_copies(v, a);
	json_object_object_add(a, "donors", donors_json(v));
	add_classes(v, a);
}

void kmod_report_stats(const struct kmod_view *v, struct json_object *a)
{
	static const struct { const char *key; int count; } list[] = {
		{ "requests", EBB_SWAP_C_REQUESTS },
		{ "pages_read_donor", EBB_SWAP_C_READ_DONOR },
		{ "pages_read_backup", EBB_SWAP_C_READ_BACKUP },
		{ "pages_read_pool", EBB_SWAP_C_READ_POOL },
		{ "pages_read_zero", EBB_SWAP_C_READ_ZERO },
		{ "pages_written_donor", EBB_SWAP_C_WRITE_DONOR },
		{ "pages_written_backup", EBB_SWAP_C_WRITE_BACKUP },
		{ "pages_discarded", EBB_SWAP_C_DISCARDED },
		{ "pages_repaired", EBB_SWAP_C_COPIED },
		{ "requests_read_failed", EBB_SWAP_C_READ_FAILED },
		{ "requests_write_failed", EBB_SWAP_C_WRITE_FAILED },
		{ "messages", EBB_SWAP_C_MESSAGES },
		{ "doorbells", EBB_SWAP_C_DOORBELLS },
		{ "conflicts", EBB_SWAP_C_CONFLICTS },
		{ "requests_waited", EBB_SWAP_C_AWAY_WAITS },
		{ "donor_errors", EBB_SWAP_C_DONOR_ERRORS },
		{ "backup_errors", EBB_SWAP_C_BACKUP_ERRORS },
		{ "copy_errors", EBB_SWAP_C_COPY_ERRORS },
		{ "deadlines", EBB_SWAP_C_DEADLINES },
		{ "pool_full", EBB_SWAP_C_POOL_FULL },
		{ "seal_broken", EBB_SWAP_C_SEAL_BROKEN },
		{ "reads_ahead", EBB_SWAP_C_AHEAD },
		{ "reads_ahead_held", EBB_SWAP_C_AHEAD_HELD },
		{ "reads_overtaking", EBB_SWAP_C_OVERTAKES },
	};

	uint64_t losses = 0;

	for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
		json_add_int(a, list[i].key, v->now.count[list[i].count]);
	json_add_int(a, "bytes_read_donor", v->now.count[EBB_SWAP_C_READ_DONOR] * EBB_PAGE);
	json_add_int(a, "bytes_read_backup", v->now.count[EBB_SWAP_C_READ_BACKUP] * EBB_PAGE);
	json_add_int(a, "bytes_written_donor", v->now.count[EBB_SWAP_C_WRITE_DONOR] * EBB_PAGE);
	json_add_int(a, "backup_queue", v->now.pool_used / EBB_PAGE);
	for (int i = 0; i < v->donors; i++)
		losses += v->patience[i].losses;
	json_add_int(a, "donor_losses", losses);
	json_object_object_add(a, "donors", donors_json(v));
}

static bool is_away(const struct kmod_view *v, uint32_t session)
{
	for (uint32_t i = 0; i < v->now.sessions; i++)
		if (v->now.session[i].number == session)
			return v->now.session[i].state == EBB_SWAP_AWAY;
	return false;
}

static void add_copy(const struct kmod_view *v, struct json_object *list, uint32_t session,
		     const char *state)
{
	struct json_object *o = json_object_new_object();

	json_add_text(o, "donor", name_of(v, session));
	json_add_text(o, "state", is_away(v, session) ? "away" : state);
	json_object_array_add(list, o);
}

static struct json_object *slab_json(const struct kmod_view *v, uint32_t index,
				     const struct ebb_swap_slab *before, double seconds)
{
	const struct ebb_swap_slab *s = &v->slabs[index];
	struct json_object *o = json_object_new_object(), *copies = json_object_new_array();
	uint64_t pages = before ?
				 s->reads + s->writes - before[index].reads - before[index].writes :
				 0;

	json_add_int(o, "slab", index);
	json_add_text(o, "state", s->session != KMOD_NO_SESSION ? "mapped" : "unmapped");
	json_add_int(o, "live", s->written);
	json_add_int(o, "reads", s->reads);
	json_add_int(o, "writes", s->writes);
	json_add_int(o, "donor_only", s->donor_only);
	json_object_object_add(
		o, "activity",
		before && seconds > 0 ? json_object_new_double((double)pages / seconds) : NULL);
	if (s->session != KMOD_NO_SESSION)
		add_copy(v, copies, s->session,
			 lacks(s, EBB_SWAP_DONOR) ? "filling" : "complete");
	if (s->second != KMOD_NO_SESSION)
		add_copy(v, copies, s->second,
			 lacks(s, EBB_SWAP_SECOND) ? "filling" : "complete");
	if (s->source != KMOD_NO_SESSION)
		add_copy(v, copies, s->source, "leaving");
	json_object_object_add(o, "copies", copies);
	return o;
}

void kmod_report_slabs(const struct kmod_view *v, const char *name,
		       const struct ebb_swap_slab *before, double seconds, uint32_t from,
		       struct json_object *a)
{
	struct json_object *list = json_object_new_array();
	uint32_t i;

	for (i = from; i < v->slab_count && json_object_array_length(list) < KMOD_SLABS_AT_ONCE;
	     i++)
		if (v->slabs[i].written || v->slabs[i].session != KMOD_NO_SESSION ||
		    v->slabs[i].source != KMOD_NO_SESSION)
			json_object_array_add(list, slab_json(v, i, before, seconds));
	json_add_text(a, "name", name);
	json_add_int(a, "slab", v->now.slab);
	json_add_int(a, "total", v->slab_count);
	json_add_int(a, "wanted", v->now.copies[0] & EBB_SWAP_SECOND ? 2 : 1);
	json_object_object_add(a, "slabs", list);
	if (i < v->slab_count)
		json_add_int(a, "next", i);
}
