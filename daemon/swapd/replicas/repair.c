// SPDX-License-Identifier: GPL-2.0-or-later
#include <string.h>

#include "lib/base/clock.h"
#include "repair.h"
#include "replicas.h"
#include "slab_mapping.h"

#define MS 1000000ull
#define SECOND (1000 * MS)
#define TICKS 10 /* a second */
/* Time for which a slab without live pages is kept: ended programs are followed by others. */
#define EMPTY_FOR (5 * SECOND)
/* Limit of slabs checked per tick, and of emptied slabs. */
#define SCAN 4096
/* Releases, one frame each, after which donors get the queued frames. */
#define EMPTIED_BATCH 32
/*
 * Bytes of slabs per tick that are requested, or released to a donor on this machine, and of slabs
 * that such a donor has left here: mapping or unmapping takes 3 ms for 64 MiB in which no request
 * is served.  Other releases cost a frame.
 */
#define MOVED (256u << 20)
/*
 * RESYNCs in flight and their pages: enough to keep a link busy.  While there are requests, one of
 * them waits behind 64 KiB at most, half a millisecond at 1 Gbit/s.
 */
#define RUNNING 8
#define RUNNING_BUSY 1
#define PAGES_BUSY 16
/* Requests per tick above which the device is busy. */
#define BUSY 10
/*
 * Time to wait for a moment without queued writes before a migrating slab is blocked until its
 * writes are on the disk.
 */
#define PATIENCE (5 * SECOND)
/* Limit of repair's slots above which no further slab is blocked for the disk. */
#define CROWD (RUNNING + 4)

int repair_wanted(const struct replicas *rs, uint32_t index)
{
	return page_map_live(rs->engine->map, index) ? rs->wanted : 0;
}

/* Counts complete copies of the slab, except @except (-1: none). */
static int complete(const struct slab *slab, int except)
{
	int n = 0;

	for (int c = 0; c < SLAB_COPIES; c++)
		n += c != except && slab->copy[c].state == COPY_MAPPED && !slab->copy[c].partial;
	return n;
}

/* Counts copies, present or requested, that are to stay; repair no longer waits for those away. */
static int staying(const struct replicas *rs, uint32_t index)
{
	int n = 0;

	for (int c = 0; c < SLAB_COPIES; c++)
		n += slab_at(rs, index)->copy[c].state != COPY_NONE &&
		     slab_at(rs, index)->copy[c].state != COPY_AWAY &&
		     !mapping_leaving(rs, index, c);
	return n;
}

bool repair_can_leave(struct replicas *rs, uint32_t index, int copy)
{
	return backup_there(&rs->engine->backup) || !page_map_live(rs->engine->map, index) ||
	       complete(slab_at(rs, index), copy) >= rs->wanted || mapping_possible(rs, index);
}

static void job_begins(struct replicas *rs, const struct slot *slot)
{
	slab_of_page(&rs->engine->table, slot->first)->jobs++;
	rs->repair.running++;
}

static struct slot *take_slot(struct replicas *rs, enum slot_kind kind, uint32_t index)
{
	struct slots *slots = &rs->engine->slots;
	struct slot *slot = slots->free_count > rs->slots_reserved ? slot_get(slots) : NULL;

	if (!slot)
		return NULL;
	slot->kind = kind;
	slot->first = index * rs->engine->table.pages;
	slot->count = page_map_slab_pages(rs->engine->map, index);
	job_begins(rs, slot);
	return slot;
}

/* Counts repair's requests that go on: one that waits for a donor must not delay other slabs. */
static uint32_t going_on(const struct replicas *rs)
{
	return rs->repair.running - rs->engine->resyncs_held;
}

static void job_ended(struct replicas *rs, const struct slot *slot)
{
	slab_of_page(&rs->engine->table, slot->first)->jobs--;
	rs->repair.running--;
}

/* --- copying -------------------------------------------------------------------- */

/* Returns a copy that may lack pages, preferably one that stays; -1 = none. */
static int partial_copy(const struct replicas *rs, uint32_t index)
{
	const struct slab *slab = slab_at(rs, index);
	int any = -1;

	for (int c = 0; c < SLAB_COPIES; c++) {
		if (slab->copy[c].state != COPY_MAPPED || !slab->copy[c].partial)
			continue;
		if (!mapping_leaving(rs, index, c))
			return c;
		any = c;
	}
	return any;
}

/* Starts the next RESYNC of copy @c, or marks it complete; returns false without a slot. */
static bool fill(struct replicas *rs, uint32_t index, int c)
{
	struct slab *slab = slab_at(rs, index);
	struct copy *copy = &slab->copy[c];
	const struct page_map *map = rs->engine->map;
	uint32_t first = index * rs->engine->table.pages, end = page_map_slab_pages(map, index);
	uint32_t from = page_map_next_lacking(map, index, copy->repaired, c), to, most;
	struct slot *slot;

	if (from == end) {
		copy->repaired = end;
		/* RESYNCs in flight may have to be repeated. */
		if (!slab->jobs)
			copy->partial = false;
		return true;
	}
	slot = take_slot(rs, SLOT_RESYNC, index);
	if (!slot)
		return false;
	most = rs->repair.busy ? PAGES_BUSY : SLOT_PAGES;
	to = from + most < end ? from + most : end;
	copy->repaired = to;
	slot->first = first + from;
	slot->count = to - from;
	slot->copy = (uint8_t)c;
	slot->serial = copy->serial;
	rs->repair.budget -= slot->count;
	engine_start_own(rs->engine, slot);
	return true;
}

/* Writes pages that the backup failed to store again from a copy: the disk may work by now. */
static void rewrite(struct replicas *rs, uint32_t index, uint64_t now)
{
	const struct page_map *map = rs->engine->map;
	uint32_t first = index * rs->engine->table.pages;
	uint32_t end = page_map_slab_pages(map, index), from;
	struct slab *slab = slab_at(rs, index);
	struct slot *slot;

	if (!backup_there(&rs->engine->backup) || now < slab->rewrite_at ||
	    going_on(rs) >= RUNNING || !slab_copies(slab, COPY_MAPPED))
		return;
	from = page_map_next_lacking(map, index, 0, RESYNC_BACKUP);
	slot = from < end ? take_slot(rs, SLOT_RESYNC, index) : NULL;
	if (!slot)
		return;
	slab->rewrite_at = now + BACKUP_RETRY;
	slot->first = first + from;
	slot->count = from + SLOT_PAGES < end ? SLOT_PAGES : end - from;
	slot->copy = RESYNC_BACKUP;
	rs->repair.budget -= slot->count;
	engine_start_own(rs->engine, slot);
}

void repair_resynced(struct replicas *rs, struct slot *slot)
{
	job_ended(rs, slot);
}

void repair_take_over(struct replicas *rs, struct slot *slot)
{
	slot_restart(slot);
	if (!engine_has_last(rs->engine, slot)) {
		slot_put(&rs->engine->slots, slot);
		return;
	}
	job_begins(rs, slot);
	engine_start_own(rs->engine, slot);
}

bool repair_run(struct replicas *rs)
{
	struct repair *r = &rs->repair;
	uint32_t running = r->running, most = r->busy ? RUNNING_BUSY : RUNNING;

	while (r->work_count && r->budget > 0 && going_on(rs) < most) {
		uint32_t index = r->work[0];
		int c = partial_copy(rs, index);

		if (c < 0) {
			r->work[0] = r->work[--r->work_count];
			continue;
		}
		if (slab_at(rs, index)->jobs && slab_at(rs, index)->copy[c].repaired >=
						page_map_slab_pages(rs->engine->map, index))
			return false;
		if (!fill(rs, index, c))
			return false;
		/* A transport without latency would copy everything at once. */
		if (r->running == running)
			return true;
		running = r->running;
	}
	return false;
}

static void add_work(struct repair *r, uint32_t index)
{
	for (uint32_t i = 0; i < r->work_count; i++)
		if (r->work[i] == index)
			return;
	if (r->work_count < REPAIR_WORK)
		r->work[r->work_count++] = index;
}

/* --- releasing --------------------------------------------------------------------- */

static bool alone(struct replicas *rs, uint32_t index, int c, enum repair_purpose purpose)
{
	struct slot *slot = take_slot(rs, SLOT_EXCLUSIVE, index);

	if (!slot)
		return false;
	slot->purpose = (uint8_t)purpose;
	slot->copy = (uint8_t)c;
	slot->serial = slab_at(rs, index)->copy[c].serial;
	engine_start_own(rs->engine, slot);
	return true;
}

void repair_withdrawn(struct replicas *rs, struct slot *slot)
{
	job_ended(rs, slot);
}

static void end_exclusive(struct replicas *rs, struct slot *slot)
{
	job_ended(rs, slot);
	engine_end_exclusive(rs->engine, slot);
}

static bool all_backed(const struct replicas *rs, uint32_t index)
{
	return page_map_next_lacking(rs->engine->map, index, 0, RESYNC_BACKUP) ==
	       page_map_slab_pages(rs->engine->map, index);
}

/* Releases a copy of a blocked slab that has no writes queued for the backup. */
static void leave_for_disk(struct replicas *rs, uint32_t index, int copy)
{
	if (all_backed(rs, index) && mapping_unmap(rs, index, copy))
		count_add(&rs->engine->counters->to_disk, 1);
	slab_at(rs, index)->not_before = now_ns() + SECOND;
}

/* Acts on the blocked slab, after checking again why it was requested. */
void repair_exclusive(struct replicas *rs, struct slot *slot)
{
	uint32_t index = slot->first / rs->engine->table.pages;
	struct slab *slab = slab_at(rs, index);
	struct copy *copy = &slab->copy[slot->copy];
	bool there = copy->state == COPY_MAPPED && copy->serial == slot->serial;

	switch ((enum repair_purpose)slot->purpose) {
	case REPAIR_EMPTY:
		for (int c = 0; c < SLAB_COPIES && !page_map_live(rs->engine->map, index); c++)
			if (slab->copy[c].state == COPY_MAPPED)
				mapping_unmap(rs, index, c);
		break;
	case REPAIR_SURPLUS:
		if (there && complete(slab, slot->copy) >= rs->wanted)
			mapping_unmap(rs, index, slot->copy);
		break;
	case REPAIR_TO_DISK:
		if (!there || !mapping_leaving(rs, index, slot->copy))
			break;
		if (!backup_holds(&rs->engine->backup, slot->first, slot->count)) {
			leave_for_disk(rs, index, slot->copy);
			break;
		}
		/* Queued behind all its writes. */
		rs->engine->need_backup++;
		slot->wait = WAIT_BACKUP;
		backup_submit(&rs->engine->backup, slot);
		return;
	}
	end_exclusive(rs, slot);
}

void repair_exclusive_backed(struct replicas *rs, struct slot *slot)
{
	uint32_t index = slot->first / rs->engine->table.pages;
	const struct copy *copy = &slab_at(rs, index)->copy[slot->copy];

	if (copy->state == COPY_MAPPED && copy->serial == slot->serial)
		leave_for_disk(rs, index, slot->copy);
	end_exclusive(rs, slot);
}

/* --- looking ------------------------------------------------------------------------ */

/* Returns a copy to release while enough others are complete, or -1. */
static int surplus(const struct replicas *rs, uint32_t index)
{
	const struct slab *slab = slab_at(rs, index);
	int any = -1;

	for (int c = 0; c < SLAB_COPIES; c++) {
		if (slab->copy[c].state != COPY_MAPPED || complete(slab, c) < rs->wanted)
			continue;
		if (mapping_leaving(rs, index, c))
			return c;
		any = c;
	}
	return any;
}

static int leaver(const struct replicas *rs, uint32_t index)
{
	for (int c = 0; c < SLAB_COPIES; c++)
		if (slab_at(rs, index)->copy[c].state == COPY_MAPPED &&
		    mapping_leaving(rs, index, c))
			return c;
	return -1;
}

/* No donor has free capacity: releases a migrating copy once its pages are on the disk. */
static bool to_disk(struct replicas *rs, uint32_t index, uint64_t now)
{
	const struct slab *slab = slab_at(rs, index);
	const struct copy *copy;
	int c = leaver(rs, index);
	uint64_t since;

	if (c < 0 || !backup_there(&rs->engine->backup) || slab_copies(slab, COPY_MAPPING) ||
	    rs->repair.running >= CROWD || !all_backed(rs, index))
		return false;
	copy = &slab->copy[c];
	since = copy->leaving ? copy->since : rs->donors->donor[copy->donor].stayed;
	if (backup_holds(&rs->engine->backup, index * rs->engine->table.pages,
			 page_map_slab_pages(rs->engine->map, index)) &&
	    now - since < PATIENCE)
		return false;
	return alone(rs, index, c, REPAIR_TO_DISK);
}

/* Returns whether releasing the slab takes time. */
static bool in_reach(const struct replicas *rs, const struct slab *slab)
{
	for (int c = 0; c < SLAB_COPIES; c++)
		if (slab->copy[c].state == COPY_MAPPED &&
		    rs->donors->donor[slab->copy[c].donor].link.transport->maps_here)
			return true;
	return false;
}

/* Returns whether there is a source for a new copy: not only donors that are away. */
static bool can_fill(const struct replicas *rs, const struct slab *slab)
{
	return backup_there(&rs->engine->backup) || slab_copies(slab, COPY_MAPPED) ||
	       !slab_copies(slab, COPY_AWAY);
}

/* Starts the next step for the slab at @index; returns true when that counts against MOVED. */
static bool look_at(struct replicas *rs, uint32_t index, uint64_t now)
{
	struct slab *slab = slab_at(rs, index);
	int copies = slab_copies(slab, COPY_MAPPED) + slab_copies(slab, COPY_MAPPING), c;

	if (slab->jobs || slab->opening)
		return false;
	if (!page_map_live(rs->engine->map, index)) {
		if (!slab_copies(slab, COPY_MAPPED)) {
			slab->idle_since = 0;
		} else if (!slab->idle_since) {
			slab->idle_since = now;
		} else if (now - slab->idle_since >= EMPTY_FOR || leaver(rs, index) >= 0) {
			bool takes_time = in_reach(rs, slab);

			return alone(rs, index, 0, REPAIR_EMPTY) && takes_time;
		}
		return false;
	}
	slab->idle_since = 0;
	if (staying(rs, index) < repair_wanted(rs, index) && copies <= rs->wanted &&
	    now >= slab->not_before && can_fill(rs, slab) && !mapping_awaited(rs, index, now)) {
		int target = slab->target - 1;

		slab->target = 0;
		/*
		 * A write that began in the slab before may be about to open it, and waits only for
		 * copies that are requested together.
		 */
		if (copies ? mapping_add(rs, index, target, now) :
			     mapping_open(rs, index, now))
			return true;
		if (to_disk(rs, index, now))
			return true;
	}
	rewrite(rs, index, now);
	c = surplus(rs, index);
	if (c >= 0 && (mapping_leaving(rs, index, c) || partial_copy(rs, index) < 0))
		return alone(rs, index, c, REPAIR_SURPLUS);
	if (partial_copy(rs, index) >= 0)
		add_work(&rs->repair, index);
	return false;
}

/*
 * Handles slabs without a live page by their list: where there are many, the scan would find them
 * too late to release them in time.
 */
static uint32_t look_at_emptied(struct replicas *rs, uint64_t now, uint32_t most)
{
	uint32_t n = rs->engine->table.count, at = rs->repair.emptied, left = SCAN, moved = 0;

	for (uint32_t passed = 0; passed < n && left && moved < most;) {
		uint32_t next = page_map_next_emptied(rs->engine->map, at);

		passed += next - at + 1;
		at = next < n ? next + 1 : 0;
		if (next == n)
			continue;
		moved += look_at(rs, next, now);
		if (page_map_live(rs->engine->map, next) ||
		    slab_copies(slab_at(rs, next), COPY_NONE) == SLAB_COPIES)
			page_map_forget_emptied(rs->engine->map, next);
		if (--left % EMPTIED_BATCH == 0)
			donors_flush(rs->donors);
	}
	rs->repair.emptied = at < n ? at : 0;
	return moved;
}

static uint32_t scan(struct replicas *rs, uint64_t now, uint32_t most)
{
	uint32_t n = rs->engine->table.count < SCAN ? rs->engine->table.count : SCAN, moved = 0;
	struct repair *r = &rs->repair;

	for (uint32_t i = 0; i < n && moved < most; i++) {
		r->scan = r->scan + 1 < rs->engine->table.count ? r->scan + 1 : 0;
		moved += look_at(rs, r->scan, now);
	}
	return moved;
}

static void take_rate(struct replicas *rs, uint64_t now)
{
	struct repair *r = &rs->repair;
	uint64_t pages = rs->engine->counters->repaired;

	if (now - r->reported_at < SECOND)
		return;
	r->rate = (pages - r->reported) * EBB_PAGE * SECOND / (now - r->reported_at);
	r->reported = pages;
	r->reported_at = now;
}

void repair_tick(struct replicas *rs, uint64_t now)
{
	struct repair *r = &rs->repair;
	uint32_t most = rs->donors->env.slab < MOVED ? (uint32_t)(MOVED / rs->donors->env.slab) : 1;
	int64_t share = (int64_t)(rs->repair_rate / EBB_PAGE / TICKS);

	/* A RESYNC's excess over its share is owed. */
	r->budget = r->budget + share < share ? r->budget + share : share;
	take_rate(rs, now);
	mapping_tell_unbacked(rs);
	unmappings_run(&rs->unmappings, most);
	r->busy = rs->engine->counters->received - r->received > BUSY;
	r->received = rs->engine->counters->received;
	/* In turn, as the first may leave nothing to the second. */
	r->scan_first = !r->scan_first;
	if (r->scan_first)
		look_at_emptied(rs, now, most - scan(rs, now, most));
	else
		scan(rs, now, most - look_at_emptied(rs, now, most));
}
