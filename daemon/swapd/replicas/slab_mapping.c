// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/rules/placement.h"
#include "replicas.h"
#include "slab_mapping.h"

#define SECOND 1000000000ull
/* Time for which a write waits for a slab that was promised, without another donor. */
#define PROMISE_PATIENCE (10 * SECOND)
/* Pause between two lines in the log on slabs that a donor revokes. */
#define QUIET (10 * SECOND)
/*
 * Time, or two deadlines, in which a slab's first copies are requested elsewhere if donors refuse
 * them, go away or have full queues.  Then a write takes those that there are.
 */
#define OPENING (2 * SECOND)
/* Time for a donor that is back to free places that slabs have lost. */
#define RETURN (2 * SECOND)
/*
 * REMAPs to a donor in flight: enough for 10,000 a second at a round trip of 50 ms, and few enough
 * that the last one is answered within the deadline.  Replies of a donor on this machine take 3 ms
 * each, in which no request is served.
 */
#define REMAPS 512u
#define REMAPS_HERE 4u
/* Part of a grace period that is left for what its donor has confirmed. */
#define GRACE_LEFT SECOND
/* copy.since of a MAPPING that was refused for now, or not sent yet: to be requested later. */
#define LATER UINT64_MAX
/* Position of the copy in a tag; the slab's index is below. */
#define TAG_COPY_SHIFT 32

bool mapping_leaving(const struct replicas *rs, uint32_t index, int copy)
{
	const struct copy *c = &slab_at(rs, index)->copy[copy];

	return c->state != COPY_NONE && (c->leaving || rs->donors->donor[c->donor].leaving);
}

/* Returns whether a copy of slab @index that stays is on the machine of @d. */
static bool has_neighbour(const struct replicas *rs, uint32_t index, const struct donor *d)
{
	const struct slab *slab = slab_at(rs, index);
	uint32_t machine = wire_machine(d->identity);

	for (int c = 0; c < SLAB_COPIES && machine; c++)
		if (slab->copy[c].state != COPY_NONE && !mapping_leaving(rs, index, c) &&
		    wire_machine(rs->donors->donor[slab->copy[c].donor].identity) == machine)
			return true;
	return false;
}

enum among { OTHER_MACHINES, ALL_MACHINES };
/* Whether a donor counts that has just refused a slab that it promised. */
enum trusted { WILLING, PATIENT };

/* Returns whether another copy of slab @index may be at @d, whether its queue is full or not. */
static bool may_have(const struct replicas *rs, uint32_t index, enum among among,
		     const struct donor *d)
{
	return donor_takes(d) && slab_copy_at(slab_at(rs, index), d->index) < 0 &&
	       (among == ALL_MACHINES || !has_neighbour(rs, index, d));
}

static bool is_candidate(const struct replicas *rs, uint32_t index, enum among among,
			 const struct donor *d)
{
	return donor_has_room(d) && may_have(rs, index, among, d);
}

static bool is_trusted(const struct donor *d, enum trusted trusted, uint64_t now)
{
	return now >= d->short_until ||
	       (trusted == PATIENT && d->short_since && now - d->short_since < PROMISE_PATIENCE);
}

/* Returns the donor that has promised most, or -1. */
static int choose_promised(const struct replicas *rs, uint32_t index, enum among among,
			   enum trusted trusted)
{
	uint64_t now = now_ns();
	uint32_t most = 0;
	int chosen = -1;

	for (int i = 0; i < rs->donors->count; i++) {
		const struct donor *d = &rs->donors->donor[i];

		if (donor_promised(d) <= most || !is_trusted(d, trusted, now) || d->version < 4 ||
		    !is_candidate(rs, index, among, d))
			continue;
		most = donor_promised(d);
		chosen = i;
	}
	return chosen;
}

/*
 * Returns whether several replicas must come from promises alone.  Then only the order of
 * choose_promised() uses all of them up: the last slab, too, finds them at different donors.
 */
static bool only_promises(const struct replicas *rs)
{
	for (int i = 0; i < rs->donors->count && rs->reserves; i++) {
		const struct donor *d = &rs->donors->donor[i];

		if (donor_takes(d) && d->room / d->link.slab_size > donor_promised(d))
			return false;
	}
	return rs->reserves && rs->wanted > 1;
}

static int choose_among(struct replicas *rs, uint32_t index, enum among among, uint64_t *seed)
{
	struct place_rule rule = { rs->choices, rs->spread };
	struct place_donor candidates[MAX_DONORS];
	int promised = only_promises(rs) ? choose_promised(rs, index, among, WILLING) : -1;

	if (promised >= 0)
		return promised;
	for (int i = 0; i < rs->donors->count; i++) {
		const struct donor *d = &rs->donors->donor[i];

		candidates[i] = (struct place_donor){
			.usable = is_candidate(rs, index, among, d),
			.total = d->total,
			.free = d->free,
			.slabs = d->copies,
			.memory = d->memory,
			.used = d->used,
		};
	}
	return place_choose_by(candidates, rs->donors->count, rs->donors->env.slab, &rule, seed);
}

/*
 * Replicas that one machine can lose together are better than a single one.  A promised slab may
 * have to be made, where none is free.
 */
static int choose(struct replicas *rs, uint32_t index, enum trusted trusted, uint64_t *seed)
{
	int donor = -1;

	for (int among = OTHER_MACHINES; among <= ALL_MACHINES && donor < 0; among++)
		donor = choose_among(rs, index, among, seed);
	for (int t = WILLING; t <= (int)trusted && rs->reserves; t++)
		for (int among = OTHER_MACHINES; among <= ALL_MACHINES && donor < 0; among++)
			donor = choose_promised(rs, index, among, t);
	return donor;
}

/* Returns a donor that has capacity, but a full queue, or -1. */
static int choose_behind(const struct replicas *rs, uint32_t index)
{
	uint64_t now = now_ns();

	for (int among = OTHER_MACHINES; among <= ALL_MACHINES; among++)
		for (int i = 0; i < rs->donors->count; i++) {
			const struct donor *d = &rs->donors->donor[i];

			if (!donor_has_room(d) && is_trusted(d, WILLING, now) &&
			    (d->free >= rs->donors->env.slab || donor_promised(d)) &&
			    may_have(rs, index, among, d))
				return i;
		}
	return -1;
}

/*
 * Returns whether the pages of slabs are in the backup and stay so: a disk that failed to store any
 * page of the device may fail again.  Other replicas do not count: their donors might revoke them
 * at the same time.
 */
static bool is_backed(const struct replicas *rs)
{
	return backup_there(&rs->engine->backup) && !rs->engine->map->stale;
}

/* Sends MAP or REMAP @f for @copy of slab @index. */
static void send_request(struct replicas *rs, struct donor *d, struct wire_frame f,
			 uint32_t index, int copy)
{
	struct wire_loan_request r = { .class = WIRE_CLASS_SWAP };
	uint8_t payload[WIRE_MAP_SIZE];

	f.tag = (uint64_t)TAG_COPY << TAG_KIND | (uint64_t)copy << TAG_COPY_SHIFT | index;
	r.flags = d->version >= 4 && is_backed(rs) ? WIRE_BACKED : 0;
	slab_at(rs, index)->copy[copy].told_backed = r.flags & WIRE_BACKED;
	rs->told_backed |= r.flags & WIRE_BACKED;
	wire_build_loan_request(payload, &r);
	f.length = f.op == WIRE_MAP || d->version >= 4 ? WIRE_MAP_SIZE : 0;
	stream_push(&d->link.tx, &f, payload, 0);
}

static void send_map(struct replicas *rs, struct donor *d, uint32_t index, int copy)
{
	send_request(rs, d, (struct wire_frame){ .op = WIRE_MAP }, index, copy);
}

/* Tells the donor of @c; returns false to try again: it is not MAPPED yet, or its queue is full. */
static bool tell_unbacked(struct replicas *rs, struct copy *c, uint32_t index)
{
	struct donor *d = &rs->donors->donor[c->donor];
	struct wire_frame f = { .op = WIRE_UNBACKED, .slab = c->mapping.remote,
				.generation = c->mapping.generation,
				.tag = (uint64_t)TAG_COPY << TAG_KIND | index };

	if (c->state != COPY_MAPPED || !donor_has_room(d) || stream_push(&d->link.tx, &f, NULL, 0))
		return false;
	c->told_backed = false;
	return true;
}

void mapping_tell_unbacked(struct replicas *rs)
{
	bool left = false;

	if (!rs->told_backed || is_backed(rs))
		return;
	for (uint32_t i = 0; i < rs->engine->table.count; i++)
		for (int c = 0; c < SLAB_COPIES; c++) {
			struct copy *copy = &slab_at(rs, i)->copy[c];

			if (copy->state != COPY_NONE && copy->told_backed)
				left |= !tell_unbacked(rs, copy, i);
		}
	rs->told_backed = left;
}

/*
 * Frees an entry of the slab by giving up a copy that is AWAY and has no page that no MAPPED copy
 * has: any other that is AWAY may be lost, or be given up next.
 */
static bool drop_away(struct replicas *rs, uint32_t index)
{
	struct slab *slab = slab_at(rs, index);

	for (int c = 0; c < SLAB_COPIES; c++) {
		if (slab->copy[c].state != COPY_AWAY || slab->copy[c].since ||
		    page_map_is_only(rs->engine->map, index, c, slab_mapped(slab)))
			continue;
		/* The donor takes the loan back at RELEASE. */
		rs->donors->donor[slab->copy[c].donor].copies--;
		slab_lose(slab, c);
		page_map_replica_gone(rs->engine->map, index, c);
		return true;
	}
	return false;
}

/* A MAP or REMAP to @d is in flight since @now, besides @others. */
static void note_mapping(struct donor *d, uint32_t others, uint64_t now)
{
	if (!others || now < d->mapping_since)
		d->mapping_since = now;
}

static bool ask(struct replicas *rs, uint32_t index, int donor, uint64_t now)
{
	struct slab *slab = slab_at(rs, index);
	struct donor *d = &rs->donors->donor[donor];
	int copy = slab_ask(slab, d->index, now);

	if (copy < 0 && drop_away(rs, index))
		copy = slab_ask(slab, d->index, now);
	if (copy < 0)
		return false;
	/* Until the next PING corrects it. */
	d->free -= d->free < d->link.slab_size ? d->free : d->link.slab_size;
	d->room -= d->room < d->link.slab_size ? d->room : d->link.slab_size;
	d->used += d->memory ? d->link.slab_size : 0;
	d->copies++;
	if (donor_has_room(d)) {
		note_mapping(d, d->mapping, now);
		send_map(rs, d, index, copy);
	} else {
		slab_at(rs, index)->copy[copy].since = LATER;
		d->later++;
	}
	d->mapping++;
	return true;
}

/* Returns whether the first write of @slab may still wait for another donor. */
static bool may_wait(const struct replicas *rs, const struct slab *slab)
{
	return rs->engine->now < slab->open_until;
}

/* Gives up @copy of slab @index, which was to be requested from @d. */
static void ask_no_longer(struct replicas *rs, struct donor *d, uint32_t index, int copy)
{
	d->later--;
	d->mapping--;
	d->copies--;
	slab_refuse(slab_at(rs, index), copy);
	engine_slab_settled(rs->engine, index);
}

void mapping_ask_later(struct replicas *rs, struct donor *d, uint64_t now)
{
	for (uint32_t i = 0; i < rs->engine->table.count && d->later; i++) {
		struct slab *slab = slab_at(rs, i);
		int c = slab_copy_at(slab, d->index);

		if (c < 0 || slab->copy[c].state != COPY_MAPPING || slab->copy[c].since != LATER)
			continue;
		if (donor_has_room(d)) {
			slab->copy[c].since = now;
			d->later--;
			note_mapping(d, d->mapping, now);
			send_map(rs, d, i, c);
		} else if (slab->opening && !may_wait(rs, slab)) {
			ask_no_longer(rs, d, i, c);
		}
	}
}

/*
 * Returns whether a slab that @d has refused and promised is worth waiting for: its memory may be
 * about to be zeroed or made.
 */
static bool promise_holds(struct replicas *rs, struct donor *d, uint32_t index, uint16_t status)
{
	uint64_t now = now_ns();

	/* The copy that it refuses is one of .copies. */
	if (!rs->reserves || d->copies > d->reserved || d->version < 4 ||
	    (status != WIRE_NO_SPACE && status != WIRE_OVER_QUOTA) || mapping_possible(rs, index))
		return false;
	/* The last time of trouble is long over. */
	if (!d->short_since || now > d->short_until + 2 * PROMISE_PATIENCE)
		d->short_since = now;
	d->short_until = now + SECOND;
	return now - d->short_since < PROMISE_PATIENCE;
}

/*
 * Returns whether capacity is about to return.  At a failover a donor gets slabs back that a
 * predecessor was granted and had not recorded, and zeroes or re-creates them first.  Until then it
 * has no free capacity, and without a backup there may be no other donor.
 */
static bool room_comes_back(struct replicas *rs, uint32_t index, uint16_t status)
{
	return status == WIRE_NO_SPACE && !backup_there(&rs->engine->backup) &&
	       now_ns() < rs->room_until && !mapping_possible(rs, index);
}

bool mapping_add(struct replicas *rs, uint32_t index, int donor, uint64_t now)
{
	struct slab *slab = slab_at(rs, index);
	const struct donor *d;

	if (donor < 0)
		donor = choose(rs, index, PATIENT, &rs->seed);
	d = donor < 0 ? NULL : &rs->donors->donor[donor];
	if (!d || !donor_takes(d) || !donor_has_room(d) || slab_copy_at(slab, d->index) >= 0 ||
	    !ask(rs, index, donor, now)) {
		slab->not_before = now + SECOND;
		return false;
	}
	return true;
}

/* Requests first copies of the slab at @index; returns whether all that are wanted are coming. */
static bool open_copies(struct replicas *rs, uint32_t index, enum trusted trusted, uint64_t now)
{
	struct slab *slab = slab_at(rs, index);
	int n = slab_copies(slab, COPY_MAPPED) + slab_copies(slab, COPY_MAPPING);

	for (; n < rs->wanted; n++) {
		int donor = choose(rs, index, trusted, &rs->seed);

		/* The first one is worth no wait for a queue: there may be a backup. */
		if (donor < 0 && n)
			donor = choose_behind(rs, index);
		if (donor < 0 || !ask(rs, index, donor, now))
			return false;
		slab->opening = true;
	}
	return true;
}

bool mapping_open(struct replicas *rs, uint32_t index, uint64_t now)
{
	struct slab *slab = slab_at(rs, index);
	uint64_t deadlines = 2 * rs->donors->deadline;

	/* Without a backup a write has no other place, and donors may have free capacity by now. */
	if (backup_there(&rs->engine->backup) && now < slab->not_before)
		return false;
	slab->open_until = rs->engine->now + (deadlines > OPENING ? deadlines : OPENING);
	if (!open_copies(rs, index, PATIENT, now))
		slab->not_before = now + SECOND;
	return slab->opening;
}

/*
 * A copy of the slab at @index is refused, revoked or at a donor that disconnects.  If that happens
 * while it is @opening, requests another one: its first write is answered when as many copies as
 * are wanted have it.
 */
static void open_elsewhere(struct replicas *rs, uint32_t index, bool opening)
{
	if (opening && may_wait(rs, slab_at(rs, index)))
		open_copies(rs, index, WILLING, now_ns());
}

void mapping_retry(struct replicas *rs)
{
	for (uint32_t i = 0; i < rs->engine->table.count; i++)
		slab_at(rs, i)->not_before = 0;
}

bool mapping_possible(struct replicas *rs, uint32_t index)
{
	uint64_t seed = rs->seed;

	return choose(rs, index, WILLING, &seed) >= 0;
}

/* Returns whether one more REMAP may be sent to @d. */
static bool may_remap(const struct donor *d)
{
	return donor_has_room(d) &&
	       d->mapping < (d->link.transport->maps_here ? REMAPS_HERE : REMAPS);
}

/* Sends REMAP of the copy of the slab at @index at @d, unless it is not AWAY or in flight. */
static void remap(struct replicas *rs, struct donor *d, uint32_t index, uint64_t now)
{
	struct slab *slab = slab_at(rs, index);
	int c = slab_copy_at(slab, d->index);
	struct wire_frame f = { .op = WIRE_REMAP };

	if (c < 0 || slab->copy[c].state != COPY_AWAY || slab->copy[c].since)
		return;
	f.slab = slab->copy[c].mapping.remote;
	f.generation = slab->copy[c].mapping.generation;
	slab->copy[c].since = now;
	note_mapping(d, d->mapping++, now);
	send_request(rs, d, f, index, c);
}

/* Asks for slabs that requests wait for. */
static void remap_awaited(struct replicas *rs, struct donor *d, uint64_t now)
{
	const struct slots *slots = &rs->engine->slots;

	for (uint32_t i = 0; rs->engine->held && i < slots->active_count && may_remap(d); i++) {
		const struct slot *slot = &slots->slot[slots->active[i]];

		if (slot->held)
			remap(rs, d, (slot->first + slot->cursor) / rs->engine->table.pages, now);
	}
}

void mapping_resume(struct replicas *rs, struct donor *d)
{
	uint64_t now = now_ns();

	remap_awaited(rs, d, now);
	for (; d->resume_at < rs->engine->table.count; d->resume_at++) {
		if (!may_remap(d))
			return;
		remap(rs, d, d->resume_at, now);
	}
	/* RELEASE determines its free capacity: no older PING may be in flight. */
	if (d->release == RELEASE_UNSENT && donor_has_room(d) && !d->pinged) {
		struct wire_frame f = { .op = WIRE_RELEASE,
					.tag = (uint64_t)TAG_RELEASE << TAG_KIND };

		stream_push(&d->link.tx, &f, NULL, 0);
		donor_ping(d, now);
		d->release = RELEASE_SENT;
		d->released_at = now;
	}
}

static void tell_unmappable(struct replicas *rs, struct donor *d, int error)
{
	if (!count_get(&rs->engine->counters->map_failures) && error == -EMFILE)
		note(rs->engine->notes, LOG_LVL_ERR,
		     "donor %s: a slab cannot be taken: %s; raise LimitNOFILE=", d->address.text,
		     strerror(-error));
	else if (!count_get(&rs->engine->counters->map_failures))
		note(rs->engine->notes, LOG_LVL_ERR,
		     "donor %s: a slab cannot be mapped and locked: %s; run as root or raise LimitMEMLOCK=",
		     d->address.text, strerror(-error));
	count_add(&rs->engine->counters->map_failures, 1);
}

/* Releases the slab that @f grants, which this process cannot reach. */
static void give_back(struct replicas *rs, struct donor *d, const struct wire_frame *f, int error)
{
	struct wire_frame back = { .op = WIRE_UNMAP, .tag = f->tag, .slab = f->slab,
				   .generation = f->generation };

	stream_push(&d->link.tx, &back, NULL, 0);
	tell_unmappable(rs, d, error);
}

/*
 * Keeps a slab AWAY that this process cannot reach now: it may later, or another process may.
 * Returns false when waiting is not worthwhile.
 */
static bool ask_again(struct replicas *rs, struct donor *d, uint32_t index, int c, int error)
{
	uint64_t now = now_ns();
	bool late;

	/* Its donor may have come only just in time. */
	if (!d->unmapped_since)
		d->unmapped_since = now;
	late = now - d->unmapped_since >= rs->donors->resume_for;
	if (late && !page_map_is_only(rs->engine->map, index, c,
				      slab_mapped(slab_at(rs, index))))
		return false;
	tell_unmappable(rs, d, error);
	slab_at(rs, index)->copy[c].since = 0;
	d->resume_at = index < d->resume_at ? index : d->resume_at;
	d->retry_at = now + RESUME_RETRY;
	d->unreachable = late ? error : 0;
	return true;
}

int mapping_answered(struct replicas *rs, struct donor *d, const struct wire_frame *f)
{
	uint32_t index = (uint32_t)f->tag, c = (uint32_t)(f->tag >> TAG_COPY_SHIFT) & 0xffffff;
	struct slab *slab = index < rs->engine->table.count ? slab_at(rs, index) : NULL;
	bool opening;
	int r = 0;

	if (!slab || c >= SLAB_COPIES || slab->copy[c].state != COPY_MAPPING ||
	    slab->copy[c].donor != d->index || slab->copy[c].since == LATER)
		return -EPROTO;
	if (room_comes_back(rs, index, f->status) || promise_holds(rs, d, index, f->status)) {
		slab->copy[c].since = LATER;
		d->later++;
		return 0;
	}
	if (!f->status && d->link.transport->map)
		r = d->link.transport->map(&d->link, &slab->copy[c].mapping);
	if (r == -EPROTO)
		return r;
	d->mapping--;
	opening = slab->opening;
	if (f->status || r) {
		if (r) {
			give_back(rs, d, f, r);
			slab->not_before = now_ns() + SECOND;
		}
		/* The reported capacity was wrong or not usable; the next PING corrects it. */
		d->free = 0;
		d->short_until = now_ns() + SECOND;
		d->copies--;
		slab_refuse(slab, (int)c);
		count_add(&rs->engine->counters->map_refusals, 1);
		open_elsewhere(rs, index, opening);
	} else {
		d->short_since = 0;
		slab_grant(slab, (int)c, f->slab, f->generation,
			   page_map_live(rs->engine->map, index) > 0);
		count_add(&rs->engine->counters->maps, 1);
	}
	engine_slab_settled(rs->engine, index);
	/* RELEASE and all REMAPs may be answered. */
	return mapping_released(rs, d);
}

/*
 * Returns whether to ask again for a loan that @d does not call ended, by resuming once more: its
 * queue pair may have failed, which this process may learn after that reply.  At the end of the
 * grace period, only that loan is given up.
 */
static bool is_put_off(struct donor *d, enum wire_status status)
{
	if (status == WIRE_OK || status == WIRE_NO_SLAB || status == WIRE_STALE ||
	    now_ns() + GRACE_LEFT >= d->away_until)
		return false;
	d->put_off = true;
	snprintf(d->why, sizeof(d->why), "a slab cannot be resumed now: %s",
		 wire_status_text(status));
	return true;
}

int mapping_confirmed(struct replicas *rs, struct donor *d, const struct wire_frame *f)
{
	uint32_t index = (uint32_t)f->tag, c = (uint32_t)(f->tag >> TAG_COPY_SHIFT) & 0xffffff;
	struct slab *slab = index < rs->engine->table.count ? slab_at(rs, index) : NULL;
	int r = 0;

	if (!slab || c >= SLAB_COPIES || slab->copy[c].state != COPY_AWAY ||
	    !slab->copy[c].since || slab->copy[c].donor != d->index ||
	    slab->copy[c].mapping.remote != f->slab ||
	    slab->copy[c].mapping.generation != f->generation)
		return -EPROTO;
	if (is_put_off(d, f->status))
		return -ECONNREFUSED;
	if (!f->status && d->link.transport->map)
		r = d->link.transport->map(&d->link, &slab->copy[c].mapping);
	if (r == -EPROTO)
		return r;
	/* Those behind it have more time. */
	d->moves = true;
	d->mapping--;
	if (!f->status && !r) {
		d->confirmed = true;
		slab_back(slab, (int)c);
		if (!page_map_live(rs->engine->map, index))
			page_map_note_emptied(rs->engine->map, index);
	} else if (!r || !ask_again(rs, d, index, (int)c, r)) {
		if (r)
			give_back(rs, d, f, r);
		d->copies--;
		slab_lose(slab, (int)c);
		page_map_replica_gone(rs->engine->map, index, (int)c);
	}
	engine_slab_settled(rs->engine, index);
	/* Room in its queue for the next one. */
	if (d->release == RELEASE_UNSENT && !r)
		mapping_resume(rs, d);
	return mapping_released(rs, d);
}

int mapping_released(struct replicas *rs, struct donor *d)
{
	if (d->release != RELEASE_ANSWERED || d->mapping || !donor_is_away(d))
		return 0;
	for (uint32_t i = 0; i < rs->engine->table.count; i++) {
		const struct slab *slab = slab_at(rs, i);
		int c = slab_copy_at(slab, d->index);

		if (c >= 0 && slab->copy[c].state == COPY_AWAY)
			return 0;
	}
	return donor_confirmed(d);
}

static void send_unmap(struct donor *d, uint32_t index, const struct mapping *m)
{
	struct wire_frame f = { .op = WIRE_UNMAP, .slab = m->remote, .generation = m->generation,
				.tag = (uint64_t)TAG_COPY << TAG_KIND | index };

	stream_push(&d->link.tx, &f, NULL, 0);
}

bool mapping_unmap(struct replicas *rs, uint32_t index, int copy)
{
	struct slab *slab = slab_at(rs, index);
	struct copy *c = &slab->copy[copy];
	struct donor *d = &rs->donors->donor[c->donor];

	if (!donor_has_room(d))
		return false;
	page_map_replica_gone(rs->engine->map, index, copy);
	if (d->link.transport->unmap)
		d->link.transport->unmap(&c->mapping);
	send_unmap(d, index, &c->mapping);
	d->copies--;
	slab_drop(slab, copy);
	count_add(&rs->engine->counters->unmaps, 1);
	return true;
}

static void settle_all(struct replicas *rs)
{
	for (uint32_t i = 0; i < rs->engine->table.count; i++)
		engine_slab_settled(rs->engine, i);
}

void mapping_away(struct replicas *rs, struct donor *d)
{
	for (uint32_t i = 0; d->copies && i < rs->engine->table.count; i++) {
		struct slab *slab = slab_at(rs, i);
		int c = slab_copy_at(slab, d->index);
		bool opening = slab->opening;

		if (c < 0)
			continue;
		if (slab->copy[c].state == COPY_MAPPED) {
			unmap_later(&rs->unmappings, d->link.transport, &slab->copy[c].mapping);
			slab_part(slab, c);
		} else if (slab->copy[c].state == COPY_MAPPING) {
			/* If the donor has granted it, RELEASE ends the loan. */
			slab_refuse(slab, c);
			d->copies--;
		} else {
			slab->copy[c].since = 0;
		}
		open_elsewhere(rs, i, opening);
	}
	d->mapping = d->later = 0;
	d->resume_at = 0;
	settle_all(rs);
}

bool mapping_awaited(const struct replicas *rs, uint32_t index, uint64_t now)
{
	const struct slab *slab = slab_at(rs, index);

	for (int c = 0; c < SLAB_COPIES; c++)
		if (slab->copy[c].state == COPY_AWAY &&
		    donor_away_for(&rs->donors->donor[slab->copy[c].donor], now) < rs->repair_delay)
			return true;
	return false;
}

bool mapping_room_awaited(const struct replicas *rs, uint64_t now)
{
	for (int i = 0; i < rs->donors->count; i++) {
		const struct donor *d = &rs->donors->donor[i];

		if (donor_is_away(d) || (donor_takes(d) && !donor_has_room(d)) ||
		    (donor_up(d) && d->released_at && now - d->released_at < RETURN))
			return true;
	}
	return false;
}

void mapping_lost(struct replicas *rs, struct donor *d)
{
	for (uint32_t i = 0; d->copies && i < rs->engine->table.count; i++) {
		struct slab *slab = slab_at(rs, i);
		int c = slab_copy_at(slab, d->index);
		bool opening = slab->opening;

		if (c < 0)
			continue;
		if (slab->copy[c].state == COPY_MAPPED)
			unmap_later(&rs->unmappings, d->link.transport, &slab->copy[c].mapping);
		slab_lose(slab, c);
		d->copies--;
		page_map_replica_gone(rs->engine->map, i, c);
		open_elsewhere(rs, i, opening);
	}
	d->mapping = d->later = 0;
	/* Only now, with every bit cleared, may requests choose other replicas. */
	settle_all(rs);
}

static void tell_revoked(const struct replicas *rs, struct donor *d)
{
	uint64_t now = now_ns();

	if (d->told_revoked && now - d->told_revoked < QUIET)
		return;
	d->told_revoked = now;
	note(rs->engine->notes, LOG_LVL_WARN, "donor %s: revokes slabs; %s; its other slabs stay",
	     d->address.text,
	     backup_there(&rs->engine->backup) ? "their pages are in the backup" :
	     rs->wanted > 1 ? "reading their pages from other replicas" :
			      "their pages are lost, as there is neither a backup nor another replica");
}

void mapping_revoked(struct replicas *rs, struct donor *d, struct wire_loan loan)
{
	for (uint32_t i = 0; i < rs->engine->table.count; i++) {
		struct slab *slab = slab_at(rs, i);
		int c = slab_copy_at(slab, d->index);
		struct copy *copy = c < 0 ? NULL : &slab->copy[c];
		bool opening = slab->opening;

		if (!copy || copy->state != COPY_MAPPED || copy->mapping.remote != loan.slab ||
		    copy->mapping.generation != loan.generation)
			continue;
		if (d->link.transport->unmap)
			d->link.transport->unmap(&copy->mapping);
		/* Now its memory is free.  The queue has room: no transfer is in it. */
		if (d->link.transport->maps_here)
			send_unmap(d, i, &copy->mapping);
		slab_lose(slab, c);
		page_map_replica_gone(rs->engine->map, i, c);
		d->copies--;
		d->revoked++;
		/* It is short of memory, whatever it has promised; the next PING tells. */
		d->free = d->room = 0;
		d->short_until = now_ns() + SECOND;
		count_add(&rs->engine->counters->revocations, 1);
		tell_revoked(rs, d);
		open_elsewhere(rs, i, opening);
		engine_slab_settled(rs->engine, i);
		return;
	}
}

uint64_t mapping_oldest(const struct replicas *rs, const struct donor *d)
{
	uint64_t oldest = UINT64_MAX;

	for (uint32_t i = 0; i < rs->engine->table.count; i++) {
		const struct slab *slab = slab_at(rs, i);
		int c = slab_copy_at(slab, d->index);

		if (c >= 0 && slab->copy[c].since < oldest &&
		    (slab->copy[c].state == COPY_MAPPING ||
		     (slab->copy[c].state == COPY_AWAY && slab->copy[c].since)))
			oldest = slab->copy[c].since;
	}
	return oldest;
}
