// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <string.h>

#include "lib/rules/placement.h"
#include "slab_mapping.h"
#include "swapd/io/engine.h"
#include "swapd/swapd.h"

#define SECOND 1000000000ull
/* In copy.since, MAPPING: refused for now, to be asked for again. */
#define LATER UINT64_MAX
/* Where the tag has the copy; the slab's index is below. */
#define TAG_COPY_SHIFT 32

bool placing_leaving(const struct swapd *s, uint32_t index, int copy)
{
	const struct copy *c = &s->table.slabs[index].copy[copy];

	return c->state != COPY_NONE && (c->leaving || s->donors.donor[c->donor].leaving);
}

/* Whether a copy of slab @index that is to stay is on the machine of @d. */
static bool has_neighbour(const struct swapd *s, uint32_t index, const struct donor *d)
{
	const struct slab *slab = &s->table.slabs[index];
	uint32_t machine = wire_machine(d->identity);

	for (int c = 0; c < SLAB_COPIES && machine; c++)
		if (slab->copy[c].state != COPY_NONE && !placing_leaving(s, index, c) &&
		    wire_machine(s->donors.donor[slab->copy[c].donor].identity) == machine)
			return true;
	return false;
}

enum among { OTHER_MACHINES, ALL_MACHINES };

static int choose_among(struct swapd *s, uint32_t index, enum among among, uint64_t *seed)
{
	struct place_rule rule = { s->choices, s->spread };
	const struct slab *slab = &s->table.slabs[index];
	struct place_donor candidates[MAX_DONORS];

	for (int i = 0; i < s->donors.count; i++) {
		const struct donor *d = &s->donors.donor[i];

		candidates[i] = (struct place_donor){
			.usable = donor_takes(d) && donor_has_room(d) &&
				  slab_copy_at(slab, d->index) < 0 &&
				  (among == ALL_MACHINES || !has_neighbour(s, index, d)),
			.total = d->total,
			.free = d->free,
			.slabs = d->copies,
			.memory = d->memory,
			.used = d->used,
		};
	}
	return place_choose_by(candidates, s->donors.count, s->options.slab, &rule, seed);
}

/* Copies that one machine takes with it when it goes are better than one. */
static int choose(struct swapd *s, uint32_t index, uint64_t *seed)
{
	int donor = choose_among(s, index, OTHER_MACHINES, seed);

	return donor >= 0 ? donor : choose_among(s, index, ALL_MACHINES, seed);
}

static void send_map(struct donor *d, uint32_t index, int copy)
{
	struct wire_frame f = { .op = WIRE_MAP, .length = WIRE_MAP_SIZE };
	uint8_t payload[WIRE_MAP_SIZE];

	f.tag = (uint64_t)TAG_COPY << TAG_KIND | (uint64_t)copy << TAG_COPY_SHIFT | index;
	wire_build_map(payload, WIRE_CLASS_SWAP);
	stream_push(&d->link.tx, &f, payload, 0);
}

static bool ask(struct swapd *s, uint32_t index, int donor, uint64_t now)
{
	struct slab *slab = &s->table.slabs[index];
	struct donor *d = &s->donors.donor[donor];
	int copy = slab_ask(slab, d->index, now);

	if (copy < 0)
		return false;
	/* Until the next PING corrects it. */
	d->free -= d->free < d->link.slab_size ? d->free : d->link.slab_size;
	d->room -= d->room < d->link.slab_size ? d->room : d->link.slab_size;
	d->used += d->memory ? d->link.slab_size : 0;
	d->copies++;
	d->mapping++;
	send_map(d, index, copy);
	return true;
}

void placing_ask_later(struct swapd *s, struct donor *d, uint64_t now)
{
	for (uint32_t i = 0; i < s->table.count && donor_has_room(d); i++) {
		struct slab *slab = &s->table.slabs[i];
		int c = slab_copy_at(slab, d->index);

		if (c < 0 || slab->copy[c].state != COPY_MAPPING || slab->copy[c].since != LATER)
			continue;
		slab->copy[c].since = now;
		send_map(d, i, c);
	}
}

/*
 * What a predecessor was granted and had not written down comes back when we take over, and is
 * zeroed, or made anew, before it is lent again.  Until then its donor has no room for us,
 * who had it; and without a backup there may be no other.
 */
static bool room_comes_back(struct swapd *s, uint32_t index, uint16_t status)
{
	return status == WIRE_NO_SPACE && !backup_there(&s->backup) && now_ns() < s->room_until &&
	       !placing_possible(s, index);
}

bool placing_add(struct swapd *s, uint32_t index, int donor, uint64_t now)
{
	struct slab *slab = &s->table.slabs[index];

	if (donor < 0)
		donor = choose(s, index, &s->seed);
	if (donor < 0 || !donor_takes(&s->donors.donor[donor]) || !donor_has_room(&s->donors.donor[donor]) ||
	    slab_copy_at(slab, (uint16_t)donor) >= 0 || !ask(s, index, donor, now)) {
		slab->not_before = now + SECOND;
		return false;
	}
	return true;
}

bool placing_open(struct swapd *s, uint32_t index, uint64_t now)
{
	struct slab *slab = &s->table.slabs[index];

	/* Without a backup a write has nowhere else to go: who had no room may have some now. */
	if (backup_there(&s->backup) && now < slab->not_before)
		return false;
	for (int i = 0; i < s->wanted; i++)
		slab->opening |= placing_add(s, index, -1, now);
	return slab->opening;
}

void placing_retry(struct swapd *s)
{
	for (uint32_t i = 0; i < s->table.count; i++)
		s->table.slabs[i].not_before = 0;
}

bool placing_possible(struct swapd *s, uint32_t index)
{
	uint64_t seed = s->seed;

	return choose(s, index, &seed) >= 0;
}

void placing_resume(struct swapd *s, struct donor *d)
{
	uint64_t now = now_ns();

	for (; d->resume_at < s->table.count; d->resume_at++) {
		uint32_t index = d->resume_at;
		struct slab *slab = &s->table.slabs[index];
		int c = slab_copy_at(slab, d->index);
		struct wire_frame f = { .op = WIRE_REMAP };

		if (c < 0 || slab->copy[c].state != COPY_AWAY || slab->copy[c].since)
			continue;
		if (!donor_has_room(d))
			return;
		f.slab = slab->copy[c].mapping.remote;
		f.generation = slab->copy[c].mapping.generation;
		f.tag = (uint64_t)TAG_COPY << TAG_KIND | (uint64_t)c << TAG_COPY_SHIFT | index;
		slab->copy[c].since = now;
		d->mapping++;
		stream_push(&d->link.tx, &f, NULL, 0);
	}
	/* What is free is known when that is back, so no older figures may still be on their way. */
	if (donor_has_room(d) && !d->pinged) {
		struct wire_frame f = { .op = WIRE_RELEASE,
					.tag = (uint64_t)TAG_RELEASE << TAG_KIND };

		stream_push(&d->link.tx, &f, NULL, 0);
		donor_ping(d, now);
		d->resume = RESUME_NOTHING;
	}
}

static void tell_unmappable(struct swapd *s, struct donor *d, int error)
{
	if (!count_get(&s->count->map_failures) && error == -EMFILE)
		note(&s->notes, LOG_LVL_ERR,
		     "donor %s: a slab cannot be taken: %s; raise LimitNOFILE=", d->address.text,
		     strerror(-error));
	else if (!count_get(&s->count->map_failures))
		note(&s->notes, LOG_LVL_ERR,
		     "donor %s: a slab cannot be mapped and locked: %s; run as root or raise LimitMEMLOCK=",
		     d->address.text, strerror(-error));
	count_add(&s->count->map_failures, 1);
}

/* We cannot reach the slab that @f grants: it is of no use here. */
static void give_back(struct swapd *s, struct donor *d, const struct wire_frame *f, int error)
{
	struct wire_frame back = { .op = WIRE_UNMAP, .tag = f->tag, .slab = f->slab,
				   .generation = f->generation };

	stream_push(&d->link.tx, &back, NULL, 0);
	tell_unmappable(s, d, error);
}

/*
 * What we cannot reach now we may in a moment, or another process of ours may: it stays
 * AWAY.  False when it is not worth to wait for.
 */
static bool ask_again(struct swapd *s, struct donor *d, uint32_t index, int c, int error)
{
	uint64_t now = now_ns();
	bool late;

	/* Its donor may have come only just in time. */
	if (!d->unmapped_since)
		d->unmapped_since = now;
	late = now - d->unmapped_since >= s->donors.resume_for;
	if (late && !page_map_is_only(s->map, index, c, slab_mapped(&s->table.slabs[index])))
		return false;
	tell_unmappable(s, d, error);
	s->table.slabs[index].copy[c].since = 0;
	d->resume = RESUME_WANTED;
	d->resume_at = index < d->resume_at ? index : d->resume_at;
	d->retry_at = now + RESUME_RETRY;
	d->unreachable = late ? error : 0;
	return true;
}

int placing_answered(struct swapd *s, struct donor *d, const struct wire_frame *f)
{
	uint32_t index = (uint32_t)f->tag, c = (uint32_t)(f->tag >> TAG_COPY_SHIFT) & 0xffffff;
	struct slab *slab = index < s->table.count ? &s->table.slabs[index] : NULL;
	int r = 0;

	if (!slab || c >= SLAB_COPIES || slab->copy[c].state != COPY_MAPPING ||
	    slab->copy[c].donor != d->index)
		return -EPROTO;
	if (room_comes_back(s, index, f->status)) {
		slab->copy[c].since = LATER;
		return 0;
	}
	if (!f->status && d->link.transport->map)
		r = d->link.transport->map(&d->link, &slab->copy[c].mapping);
	if (r == -EPROTO)
		return r;
	d->mapping--;
	if (f->status || r) {
		if (r) {
			give_back(s, d, f, r);
			slab->not_before = now_ns() + SECOND;
		}
		/* What it told last was wrong, or of no use to us; the next PING corrects it. */
		d->free = 0;
		d->copies--;
		slab_refuse(slab, (int)c);
		count_add(&s->count->map_refusals, 1);
	} else {
		slab_grant(slab, (int)c, f->slab, f->generation,
			   page_map_live(s->map, index) > 0);
		count_add(&s->count->maps, 1);
	}
	engine_slab_settled(s, index);
	return 0;
}

int placing_confirmed(struct swapd *s, struct donor *d, const struct wire_frame *f)
{
	uint32_t index = (uint32_t)f->tag, c = (uint32_t)(f->tag >> TAG_COPY_SHIFT) & 0xffffff;
	struct slab *slab = index < s->table.count ? &s->table.slabs[index] : NULL;
	int r = 0;

	if (!slab || c >= SLAB_COPIES || slab->copy[c].state != COPY_AWAY ||
	    !slab->copy[c].since || slab->copy[c].donor != d->index ||
	    slab->copy[c].mapping.remote != f->slab || slab->copy[c].mapping.generation != f->generation)
		return -EPROTO;
	if (!f->status && d->link.transport->map)
		r = d->link.transport->map(&d->link, &slab->copy[c].mapping);
	if (r == -EPROTO)
		return r;
	d->mapping--;
	if (!f->status && !r) {
		slab_back(slab, (int)c);
		return 0;
	}
	if (r && ask_again(s, d, index, (int)c, r))
		return 0;
	if (r)
		give_back(s, d, f, r);
	d->copies--;
	slab_lose(slab, (int)c);
	page_map_replica_gone(s->map, index, (int)c);
	return 0;
}

bool placing_unmap(struct swapd *s, uint32_t index, int copy)
{
	struct slab *slab = &s->table.slabs[index];
	struct copy *c = &slab->copy[copy];
	struct donor *d = &s->donors.donor[c->donor];
	struct wire_frame f = { .op = WIRE_UNMAP, .slab = c->mapping.remote,
				.generation = c->mapping.generation,
				.tag = (uint64_t)TAG_COPY << TAG_KIND | index };

	if (!donor_has_room(d))
		return false;
	page_map_replica_gone(s->map, index, copy);
	if (d->link.transport->unmap)
		d->link.transport->unmap(&d->link, &c->mapping);
	stream_push(&d->link.tx, &f, NULL, 0);
	d->copies--;
	slab_drop(slab, copy);
	count_add(&s->count->unmaps, 1);
	return true;
}

void placing_lost(struct swapd *s, struct donor *d)
{
	for (uint32_t i = 0; d->copies && i < s->table.count; i++) {
		struct slab *slab = &s->table.slabs[i];
		int c = slab_copy_at(slab, d->index);

		if (c < 0)
			continue;
		if (slab->copy[c].state == COPY_MAPPED && d->link.transport->unmap)
			d->link.transport->unmap(&d->link, &slab->copy[c].mapping);
		slab_lose(slab, c);
		d->copies--;
		page_map_replica_gone(s->map, i, c);
	}
	d->mapping = 0;
	/* Only now, with every bit cleared, may requests look for another way. */
	for (uint32_t i = 0; i < s->table.count; i++)
		engine_slab_settled(s, i);
}

uint64_t placing_oldest(const struct swapd *s, const struct donor *d)
{
	uint64_t oldest = UINT64_MAX;

	for (uint32_t i = 0; i < s->table.count; i++) {
		const struct slab *slab = &s->table.slabs[i];
		int c = slab_copy_at(slab, d->index);

		if (c >= 0 && slab->copy[c].since < oldest &&
		    (slab->copy[c].state == COPY_MAPPING ||
		     (slab->copy[c].state == COPY_AWAY && slab->copy[c].since)))
			oldest = slab->copy[c].since;
	}
	return oldest;
}
