// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <string.h>

#include "engine.h"
#include "swapd/page/shared.h"

#define PAGE EBB_PAGE

/* Ready requests per round: transports without latency must not delay other work. */
#define ROUND 64

/*
 * Reads of more pages are large.  A miss reads one page, and at most as many with the kernel's
 * readahead (page-cluster 3); a prefetch of a sequence reads up to SLOT_PAGES.
 */
#define SMALL_PAGES (DONOR_SMALL / PAGE)
/*
 * Pages of large reads in flight at a donor while small reads are expected.  At least two requests
 * of a loop device, so that the donor reads one while the reply to the other is received.  More for
 * a distant donor: what the network carries in a round trip.
 */
#define LARGE_WINDOW 64
#define LARGE_WINDOW_MOST 256
/* ns: a page at 24 Gbit/s.  On a slower network the window holds more than a round trip. */
#define LARGE_PAGE 1365
/* Pages of large reads that begin in a round of the loop, before it receives other requests. */
#define LARGE_ROUND 64
/* Large reads that end after a small one until another is no longer expected. */
#define EXPECTED 16

/*
 * How long a write, or a RESYNC of pages that only a donor has that is away, waits without another
 * place for its pages.
 */
#define WRITE_PATIENCE 2000000000ull

static void read_on(struct engine *e, struct slot *slot);
static void write_on(struct engine *e, struct slot *slot);
static void resync_on(struct engine *e, struct slot *slot);

/* --- where a page is read from ---------------------------------------------------- */

/* Returns the copy of those in @copies that answers fastest. */
static int fastest(const struct engine *e, const struct slab *slab, uint8_t copies)
{
	uint64_t best = UINT64_MAX;
	int chosen = -1;

	for (int c = 0; c < SLAB_COPIES; c++) {
		const struct donor *d = &e->donors->donor[slab->copy[c].donor];
		uint64_t latency;

		if (!(copies >> c & 1))
			continue;
		/* A donor to be quarantined is the last choice. */
		latency = d->latency + (d->leaving & DONOR_SUSPECT ? UINT64_MAX / 2 : 0);
		if (latency < best) {
			best = latency;
			chosen = c;
		}
	}
	return chosen;
}

/* Finds up to @most pages from @page on; for PAGE_REPLICA sets *@copy. */
static struct page_run find(const struct engine *e, uint32_t page, uint32_t most, int *copy)
{
	const struct slab *slab = slab_of_page(&e->table, page);
	struct page_run run = page_map_find(e->map, page, most, slab_mapped(slab),
					    slab_away(slab));

	*copy = run.home == PAGE_REPLICA ? fastest(e, slab, run.replicas) : -1;
	if (run.home == PAGE_REPLICA && run.replicas & (run.replicas - 1))
		run = page_map_find(e->map, page, most, (uint8_t)(1u << *copy), 0);
	if (run.home == PAGE_BACKUP_STALE && !backup_pending(&e->backup))
		run.home = PAGE_NOWHERE;
	return run;
}

/* --- large reads ------------------------------------------------------------------ */

static bool is_large(const struct slot *slot)
{
	return slot->kind == SLOT_READ && slot->count > SMALL_PAGES;
}

/* Returns how many pages of large reads may be in flight at @d. */
static uint32_t window(const struct donor *d)
{
	uint64_t pages = d->fastest / LARGE_PAGE;

	return pages < LARGE_WINDOW ? LARGE_WINDOW :
	       pages < LARGE_WINDOW_MOST ? (uint32_t)pages : LARGE_WINDOW_MOST;
}
_Static_assert(SLOT_PAGES <= LARGE_WINDOW, "a large read alone may begin");

/* Returns the donor that @slot probably reads from, or NULL: none of its first slab is there. */
static const struct donor *donor_of(const struct engine *e, const struct slot *slot)
{
	const struct slab *slab = slab_of_page(&e->table, slot->first);
	int copy = fastest(e, slab, slab_mapped(slab));

	return copy < 0 ? NULL : &e->donors->donor[slab->copy[copy].donor];
}

/*
 * Returns the first waiting large read that may begin, or NULL.  Reads of one donor keep their
 * order, so that large ones are not passed for ever; they do not delay reads of other donors.
 */
static struct slot *next_large(const struct engine *e)
{
	uint64_t full = 0; /* bit per donor that a read waits for */

	for (int i = e->slots.large.head; i >= 0; i = e->slots.slot[i].next) {
		struct slot *slot = &e->slots.slot[i];
		const struct donor *d = e->small_expected ? donor_of(e, slot) : NULL;

		if (!d || (!(full >> d->index & 1) && d->large_pages + slot->count <= window(d)))
			return slot;
		full |= 1ull << d->index;
	}
	return NULL;
}
_Static_assert(MAX_DONORS <= 64, "a bit per donor");

/*
 * Returns whether @slot waits for its turn among large reads, which engine_begin_large() gives it.
 * Of a small read, notes that others are to be expected.
 */
static bool waits_for_small(struct engine *e, struct slot *slot)
{
	if (slot->kind == SLOT_READ && !is_large(slot)) {
		e->small_expected = EXPECTED;
		count_add(&e->counters->overtakes, e->slots.large.head >= 0);
	}
	if (!is_large(slot) || !e->small_expected)
		return false;
	slot->wait = WAIT_BEGIN;
	slot_append(&e->slots, &e->slots.large, slot);
	count_add(&e->counters->large_held, 1);
	return true;
}

/* A transfer of the present run of @slot begins or ends. */
static void enter_window(struct slot *slot, struct donor *d)
{
	slot->in_window = (uint8_t)(d->index + 1);
	d->large_pages += slot->run;
}

static void leave_window(struct engine *e, struct slot *slot)
{
	if (slot->in_window)
		e->donors->donor[slot->in_window - 1].large_pages -= slot->run;
	slot->in_window = 0;
}

/* --- beginning and end ---------------------------------------------------------- */

static void make_ready(struct engine *e, struct slot *slot, enum slot_wait wait)
{
	slot->wait = (uint8_t)wait;
	slot_append(&e->slots, &e->slots.ready, slot);
}

/* Makes blocked requests ready that conflict with no other one now: engine_run() begins them. */
static void unblock(struct engine *e)
{
	for (int i = e->slots.blocked.head, next; i >= 0; i = next) {
		struct slot *b = &e->slots.slot[i];

		next = b->next;
		if (slot_conflicts(&e->slots, b))
			continue;
		slot_remove(&e->slots, &e->slots.blocked, b);
		b->blocked = false;
		/* From now on, overlapping requests wait for it. */
		slot_activate(&e->slots, b);
		if (!waits_for_small(e, b))
			make_ready(e, b, WAIT_BEGIN);
	}
}

/* Ends @slot and unblocks those that waited for it. */
static void finish(struct engine *e, struct slot *slot, enum slot_after after)
{
	e->small_expected -= e->small_expected && is_large(slot);
	slot_retire(&e->slots, slot);
	slot->answered = true;
	if (after == SLOT_KEPT)
		slot_renew(slot);
	else if (!slot->backing)
		slot_put(&e->slots, slot);
	unblock(e);
}

/* Answers @slot with @error (0 or -errno) and unblocks those that waited for it. */
static void answer(struct engine *e, struct slot *slot, int error)
{
	enum slot_after after = e->answer(e->host, slot, error);

	count_add(&e->counters->completed, 1);
	finish(e, slot, after);
}

static void answer_read(struct engine *e, struct slot *slot, int error)
{
	count_add(&e->counters->read_requests, 1);
	if (error)
		count_add(&e->counters->read_failed, slot->count);
	answer(e, slot, error);
}

static void end_resync(struct engine *e, struct slot *slot)
{
	uint32_t index = slot->first / e->table.pages;

	e->events->resynced(e->owner, slot);
	finish(e, slot, SLOT_DONE);
	/* Reads may wait for a donor that is away, whose pages the RESYNC has copied. */
	engine_slab_settled(e, index);
}

void engine_end_exclusive(struct engine *e, struct slot *slot)
{
	finish(e, slot, SLOT_DONE);
}

static void count_activity(struct engine *e, const struct slot *slot)
{
	for (uint32_t n, at = 0; at < slot->count; at += n) {
		struct slab *slab = slab_of_page(&e->table, slot->first + at);

		n = slab_run(&e->table, slot->first + at, slot->count - at);
		if (slot->kind == SLOT_READ)
			activity_read(&slab->activity, n);
		else
			activity_write(&slab->activity, n);
	}
}

/* Returns false when it is answered already. */
static bool begin_write(struct engine *e, struct slot *slot)
{
	uint64_t all = slot->count < 64 ? (1ull << slot->count) - 1 : ~0ull;

	if (!slot->known) {
		slot->same_filled = page_map_same_filled(slot->payload, slot->count);
		page_map_write(e->map, &(struct page_write){ slot->first, slot->count,
							     slot->same_filled, slot->payload });
		count_add(&e->counters->same_filled,
			  (uint64_t)__builtin_popcountll(slot->same_filled));
		shared_order();
		slot->known = true;
	}
	if (slot->same_filled == all)
		return true;
	if (!sealing_leaves(&e->sealing, slot)) {
		page_map_lose(e->map, slot->first, slot->count);
		count_add(&e->counters->write_failed, slot->count);
		answer(e, slot, -EIO);
		return false;
	}
	if (backup_there(&e->backup))
		backup_submit(&e->backup, slot);
	return true;
}

/*
 * Keeps the content of the backup file: it is never read, and after punching holes the next writes
 * would have to allocate blocks again.
 */
static void discard(struct engine *e, struct slot *slot)
{
	page_map_discard(e->map, slot->first, slot->count);
	sealing_forget(&e->sealing, slot->first, slot->count);
	count_add(&e->counters->discarded, slot->count);
	answer(e, slot, 0);
}

static void go_on(struct engine *e, struct slot *slot)
{
	if (slot->kind == SLOT_READ)
		read_on(e, slot);
	else if (slot->kind == SLOT_RESYNC)
		resync_on(e, slot);
	else
		write_on(e, slot);
}

static void begin(struct engine *e, struct slot *slot)
{
	switch (slot->kind) {
	case SLOT_EXCLUSIVE:
		e->events->exclusive(e->owner, slot);
		return;
	case SLOT_DISCARD:
		discard(e, slot);
		return;
	case SLOT_WRITE:
		if (!begin_write(e, slot))
			return;
		/* fall through */
	case SLOT_READ:
		count_activity(e, slot);
	}
	go_on(e, slot);
}

void engine_start_own(struct engine *e, struct slot *slot)
{
	if (slot_conflicts(&e->slots, slot)) {
		count_add(&e->counters->conflicts, 1);
		slot->blocked = true;
		slot_append(&e->slots, &e->slots.blocked, slot);
		return;
	}
	slot_activate(&e->slots, slot);
	if (!waits_for_small(e, slot))
		begin(e, slot);
}

void engine_start(struct engine *e, struct slot *slot)
{
	count_add(&e->counters->received, 1);
	engine_start_own(e, slot);
}

/* --- content that comes -------------------------------------------------------------- */

/*
 * Checks the present run of @slot, which came from replica @copy or, if that is -1, from the
 * backup.  Returns whether slot->run, as it is then, is what was written.  If not, the donor it
 * came from is quarantined later.
 */
static bool came(struct engine *e, struct slot *slot, int copy)
{
	uint32_t page = slot->first + slot->cursor;
	const struct slab *slab = slab_of_page(&e->table, page);

	if (sealing_came(&e->sealing, slot))
		return true;
	if (copy >= 0) {
		count_add(&e->counters->bad_donor, 1);
		donor_blame(&e->donors->donor[slab->copy[copy].donor], page);
		return false;
	}
	count_add(&e->counters->bad_backup, 1);
	if (e->counters->bad_backup == 1)
		note_event(e->notes, EVENT_BACKUP_BAD, LOG_LVL_ERR,
			   "backup %s: returned a page that was not written there; check the disk, watch `stats`",
			   e->backup.path);
	return false;
}

/* --- transfers ----------------------------------------------------------------------- */

/* Bit of slot.pending: transfers are still being submitted. */
#define SUBMITTING (1u << 7)
_Static_assert(SLAB_COPIES <= 7, "a bit for each, and this one");

/* Completes the present run of @slot, whose transfers have all succeeded. */
static void run_done(struct slot *slot)
{
	slot->wait = WAIT_NONE;
	slot->cursor += slot->run;
}

/* The present run of a RESYNC is in its payload, for a successor, too. */
static void run_fetched(struct slot *slot)
{
	shared_order();
	slot->fetched = true;
}

/* The present run of a RESYNC has reached its target. */
static void run_saved(struct slot *slot)
{
	slot->fetched = false;
	shared_order();
	run_done(slot);
}

/* Records that the present run reached no replica: only the backup has it. */
static void degrade(struct engine *e, struct slot *slot)
{
	if (backup_there(&e->backup))
		count_add(&e->counters->written_backup_only, slot->run);
	if (!slot->degraded)
		e->need_backup += backup_there(&e->backup);
	slot->degraded = true;
	run_done(slot);
}

/* Ends the present run of a WRITE after all its transfers. */
static void run_written(struct engine *e, struct slot *slot)
{
	uint32_t page = slot->first + slot->cursor;

	slot->wait = WAIT_NONE;
	/* A replica that stored it may have been lost since: check its bits. */
	if (page_map_find(e->map, page, 1, slab_mapped(slab_of_page(&e->table, page)), 0).home ==
	    PAGE_REPLICA) {
		count_add(&e->counters->written_donor, slot->run);
		run_done(slot);
	} else if (backup_there(&e->backup)) {
		degrade(e, slot);
	}
	/* Else it is repeated: there may be another donor. */
}

/* Handles a successful transfer with replica @copy that is not one of a WRITE. */
static void run_moved(struct engine *e, struct slot *slot, int copy)
{
	uint32_t page = slot->first + slot->cursor;
	struct slab *slab = slab_of_page(&e->table, page);

	if (slot->fetched) {
		page_map_stored(e->map, copy, page, slot->run);
		count_add(&e->counters->repaired, slot->run);
		run_saved(slot);
	} else if (!came(e, slot, copy)) {
		page_map_bad(e->map, copy, page, slot->run);
		slab->copy[copy].partial = true;
		slab->copy[copy].repaired = 0;
	} else if (slot->kind == SLOT_RESYNC) {
		run_fetched(slot);
	} else {
		count_add(&e->counters->read_donor, slot->run);
		run_done(slot);
	}
}

/* Returns whether @copy of the slab of @slot's present run is still the one that @t was for. */
static bool is_for_copy(const struct engine *e, const struct slot *slot, int copy,
			const struct transfer *t)
{
	const struct copy *c =
		&slab_of_page(&e->table, slot->first + slot->cursor)->copy[copy];

	return c->serial == t->serial && (c->state == COPY_MAPPED || c->state == COPY_AWAY);
}

void engine_done(struct engine *e, struct transfer *t)
{
	struct slot *slot = slot_of_transfer(&e->slots, t->number);
	int copy = transfer_copy(t->number);
	/* A revoked copy ends before its transfers; another one may have its entry by now. */
	bool there = is_for_copy(e, slot, copy, t);

	slot->pending &= (uint8_t)~(1u << copy);
	if (slot->kind == SLOT_WRITE) {
		/* Without an acknowledgement the donor may have old and new content. */
		if (there && t->result)
			page_map_bad(e->map, copy, slot->first + slot->cursor, slot->run);
		else if (there)
			page_map_stored(e->map, copy, slot->first + slot->cursor, slot->run);
		if (!slot->pending)
			run_written(e, slot);
	} else {
		/* The run is repeated if the copy was lost, with its bits cleared. */
		leave_window(e, slot);
		slot->wait = WAIT_NONE;
		slot->source = t->in_place;
		if (there && !t->result)
			run_moved(e, slot, copy);
	}
	if (!slot->pending)
		make_ready(e, slot, WAIT_READY);
}

/*
 * Moves the present run to or from the replicas in @copies.  Returns true when all transfers have
 * ended already; else the last engine_done() makes the request ready.
 */
static bool move(struct engine *e, struct slot *slot, uint8_t copies, enum wire_op op)
{
	uint32_t page = slot->first + slot->cursor;
	const struct slab *slab = slab_of_page(&e->table, page);
	/* Open sealed pages in the payload: a donor could change its memory meanwhile. */
	bool by_reference = slot->kind == SLOT_READ && slot->run == slot->count && !e->sealing.on;

	slot->wait = WAIT_DONOR;
	slot->pending = copies | SUBMITTING;
	for (int c = 0; copies; c++, copies >>= 1) {
		struct donor *d = &e->donors->donor[slab->copy[c].donor];
		struct link *l = &d->link;

		if (!(copies & 1))
			continue;
		if (is_large(slot))
			enter_window(slot, d);
		slot->transfer[c] = (struct transfer){
			.op = (uint8_t)op,
			.by_reference = by_reference,
			.number = transfer_number(&e->slots, slot, c),
			.serial = slab->copy[c].serial,
			.offset = slab_offset(&e->table, page),
			.length = slot->run * PAGE,
			.payload = slot->payload + slot->cursor * (size_t)PAGE,
		};
		l->transport->submit(l, &slab->copy[c].mapping, &slot->transfer[c]);
	}
	slot->pending &= (uint8_t)~SUBMITTING;
	if (slot->pending)
		return false;
	if (slot->kind == SLOT_WRITE)
		run_written(e, slot);
	return true;
}

/* The present run has come from the backup; false when it is not what was written. */
static bool take_backed(struct engine *e, struct slot *slot)
{
	if (!came(e, slot, -1))
		return false;
	if (slot->kind == SLOT_RESYNC) {
		run_fetched(slot);
	} else {
		count_add(&e->counters->read_backup, slot->run);
		run_done(slot);
	}
	return true;
}

/* Reads the present run from the backup file, or writes a RESYNC's fetched run to it. */
static void by_backup(struct engine *e, struct slot *slot)
{
	slot->wait = WAIT_BACKUP;
	e->need_backup++;
	backup_submit(&e->backup, slot);
}

static void wait_for_slab(struct engine *e, struct slab *slab, struct slot *slot)
{
	struct slot_list list = { slab->waiting_head, slab->waiting_tail };

	slot->wait = WAIT_SLAB;
	slot_append(&e->slots, &list, slot);
	slab->waiting_head = list.head;
	slab->waiting_tail = list.tail;
}

/*
 * Ends each EXCLUSIVE that waits for @slot, which waits for a donor itself: all later requests of
 * the slab would wait behind it.  Repair starts another one.
 */
static void withdraw_exclusives(struct engine *e, const struct slot *slot)
{
	uint32_t end = slot->first + slot->count;
	bool any = false;

	for (int i = e->slots.blocked.head, next; i >= 0; i = next) {
		struct slot *b = &e->slots.slot[i];

		next = b->next;
		if (b->kind != SLOT_EXCLUSIVE || b->first >= end ||
		    slot->first >= b->first + b->count)
			continue;
		slot_remove(&e->slots, &e->slots.blocked, b);
		e->events->withdrawn(e->owner, b);
		slot_put(&e->slots, b);
		any = true;
	}
	if (any)
		unblock(e);
}

/* Waits for a place of its page; returns false when @slot has done so for @patience. */
static bool hold(struct engine *e, struct slot *slot, uint64_t patience)
{
	if (slot->gave_up)
		return false;
	if (!slot->until)
		slot->until = e->now + patience;
	slot->held = true;
	e->held++;
	e->resyncs_held += slot->kind == SLOT_RESYNC;
	wait_for_slab(e, slab_of_page(&e->table, slot->first + slot->cursor), slot);
	withdraw_exclusives(e, slot);
	return true;
}

void engine_tick(struct engine *e, uint64_t now)
{
	uint32_t waiting = e->held - e->resyncs_held;

	e->now = now;
	if (!e->held && !e->counters->held)
		return;
	for (int i = e->slots.blocked.head; e->held && i >= 0; i = e->slots.slot[i].next)
		waiting += e->slots.slot[i].kind != SLOT_RESYNC &&
			   e->slots.slot[i].kind != SLOT_EXCLUSIVE;
	count_add(&e->counters->held, waiting - e->counters->held);
	for (uint32_t i = 0; i < e->slots.active_count; i++) {
		struct slot *slot = &e->slots.slot[e->slots.active[i]];

		slot->gave_up = slot->held && now >= slot->until;
	}
	/* Meanwhile another donor may take a write, or the backup have a page. */
	for (uint32_t i = 0; i < e->slots.active_count; i++) {
		struct slot *slot = &e->slots.slot[e->slots.active[i]];

		if (slot->held)
			engine_slab_settled(e, (slot->first + slot->cursor) / e->table.pages);
	}
}

/*
 * Copies the pages at the cursor of the READ @slot, up to slot->run, from a RESYNC that has them on
 * their way: it may have the last content.  Returns false when none has them.
 */
static bool take_fetched(struct engine *e, struct slot *slot)
{
	uint32_t page = slot->first + slot->cursor;

	for (uint32_t i = 0; i < e->slots.active_count; i++) {
		const struct slot *fill = &e->slots.slot[e->slots.active[i]];
		uint32_t from = fill->first + fill->cursor, end = from + fill->run;

		if (fill->kind != SLOT_RESYNC || !fill->fetched || page < from || page >= end)
			continue;
		slot->run = slot->run < end - page ? slot->run : end - page;
		memcpy(slot->payload + slot->cursor * (size_t)PAGE,
		       fill->payload + (page - fill->first) * (size_t)PAGE,
		       slot->run * (size_t)PAGE);
		if (!sealing_came(&e->sealing, slot))
			return false;
		count_add(&e->counters->read_donor, slot->run);
		run_done(slot);
		return true;
	}
	return false;
}

/* --- READ --------------------------------------------------------------------------- */

static void read_on(struct engine *e, struct slot *slot)
{
	while (slot->cursor < slot->count) {
		uint32_t page = slot->first + slot->cursor, left = slot->count - slot->cursor;
		uint8_t *to = slot->payload + slot->cursor * (size_t)PAGE;
		int copy;
		struct page_run run = find(e, page, left, &copy);

		slot->run = run.count;
		switch (run.home) {
		case PAGE_REPLICA:
			if (!move(e, slot, (uint8_t)(1u << copy), WIRE_READ))
				return;
			break;
		case PAGE_BACKUP:
		case PAGE_BACKUP_STALE:
			if (!backup_take_queued(&e->backup, slot)) {
				by_backup(e, slot);
				return;
			}
			if (!take_backed(e, slot)) {
				answer_read(e, slot, -EIO);
				return;
			}
			break;
		case PAGE_AWAY:
		case PAGE_NOWHERE:
			if (take_fetched(e, slot))
				break;
			if (run.home == PAGE_NOWHERE || !hold(e, slot, e->away_timeout))
				answer_read(e, slot, -EIO);
			return;
		case PAGE_SAME_FILLED:
			page_map_fill(e->map, page, slot->run, to);
			count_add(&e->counters->read_same_filled, slot->run);
			run_done(slot);
			break;
		case PAGE_ZERO:
			memset(to, 0, slot->run * (size_t)PAGE);
			count_add(&e->counters->read_zero, slot->run);
			run_done(slot);
			break;
		}
	}
	answer_read(e, slot, 0);
}

/* Counts a failure of the backup; the first of its kind, of which @told tells, is logged. */
static void backup_failed(struct engine *e, bool *told, int error, const char *effect)
{
	count_add(&e->counters->backup_errors, 1);
	if (!*told)
		note_event(e->notes, EVENT_BACKUP_FAILED, LOG_LVL_ERR,
			   "backup %s: %s; %s, watch `status`", e->backup.path, strerror(-error),
			   effect);
	*told = true;
}

static void read_backed(struct engine *e, struct slot *slot)
{
	uint32_t page = slot->first + slot->cursor;
	int copy;
	enum page_home home;
	/* The file has older contents of pages that it failed to store. */
	bool stale = page_map_is_stale(e->map, page, slot->run);

	e->need_backup--;
	slot->wait = WAIT_NONE;
	if (slot->backup_result) {
		backup_failed(e, &e->told_read, slot->backup_result,
			      "pages that no donor has cannot be read");
		stale = true;
	}
	if (!stale && take_backed(e, slot)) {
		go_on(e, slot);
	} else if (slot->kind == SLOT_RESYNC) {
		run_done(slot);
		resync_on(e, slot);
	} else {
		home = find(e, page, 1, &copy).home;
		/* A RESYNC in flight has it or has saved it, or a donor has come back or may. */
		if (home == PAGE_REPLICA || home == PAGE_AWAY || take_fetched(e, slot))
			read_on(e, slot);
		else if (!page_map_is_stored(e->map, page,
					     slab_away(slab_of_page(&e->table, page))) ||
			 !hold(e, slot, e->away_timeout))
			answer_read(e, slot, -EIO);
	}
}

/* --- RESYNC --------------------------------------------------------------------------- */

/* What is queued for the backup may fail, as before. */
#define LOST (1u << PAGE_NOWHERE | 1u << PAGE_BACKUP_STALE)

/* Returns whether the fetched run of the RESYNC @slot has a page whose home is one of @homes. */
static bool has_home(const struct engine *e, const struct slot *slot, uint32_t homes)
{
	uint32_t page = slot->first + slot->cursor;
	int copy;

	for (uint32_t i = 0; slot->fetched && i < slot->run; i++)
		if (homes >> find(e, page + i, 1, &copy).home & 1)
			return true;
	return false;
}

bool engine_has_last(const struct engine *e, const struct slot *slot)
{
	/* Donors that are away may be lost. */
	return has_home(e, slot, LOST | 1u << PAGE_AWAY);
}

/* From now on, find_target() chooses the target of the RESYNC @slot: no copy has serial 0. */
static void forget_target(struct slot *slot)
{
	slot->copy = 0;
	slot->serial = 0;
}

/*
 * Finds another place for the last content of a page; returns true when @slot has one or waits for
 * one.  A replica comes first, even one that is yet to be granted.  The backup has failed to store
 * the page before: it is tried every BACKUP_RETRY.
 */
static bool find_target(struct engine *e, struct slot *slot)
{
	uint32_t index = slot->first / e->table.pages;
	struct slab *slab = &e->table.slabs[index];

	for (int c = 0; c < SLAB_COPIES; c++) {
		if (slab->copy[c].state != COPY_MAPPED)
			continue;
		slot->copy = (uint8_t)c;
		slot->serial = slab->copy[c].serial;
		return true;
	}
	forget_target(slot);
	if (slab->opening || slab_copies(slab, COPY_MAPPING) ||
	    e->events->wanted(e->owner, index)) {
		wait_for_slab(e, slab, slot);
		return true;
	}
	if (backup_there(&e->backup) && e->now >= slab->rewrite_at) {
		slab->rewrite_at = e->now + BACKUP_RETRY;
		slot->copy = RESYNC_BACKUP;
		return true;
	}
	/* Writes of its pages wait meanwhile. */
	return (backup_there(&e->backup) || slab_away(slab) ||
		e->events->room_awaited(e->owner)) &&
	       hold(e, slot, has_home(e, slot, LOST) ? e->away_timeout : WRITE_PATIENCE);
}

static void resync_on(struct engine *e, struct slot *slot)
{
	const struct slab *slab = slab_of_page(&e->table, slot->first);

	while (slot->cursor < slot->count) {
		uint32_t page = slot->first + slot->cursor;
		bool rewrite = slot->copy == RESYNC_BACKUP;
		uint32_t lack = page_map_lacking(e->map, page, slot->count - slot->cursor,
						 slot->copy);
		struct page_run run;
		int copy;

		if (!rewrite && (slab->copy[slot->copy].state != COPY_MAPPED ||
				 slab->copy[slot->copy].serial != slot->serial)) {
			if (!engine_has_last(e, slot) || !find_target(e, slot))
				break;
			if (slot->wait == WAIT_SLAB)
				return;
			continue;
		}
		if (slot->fetched && rewrite) {
			by_backup(e, slot);
			return;
		}
		if (slot->fetched) {
			if (!move(e, slot, (uint8_t)(1u << slot->copy), WIRE_WRITE))
				return;
			continue;
		}
		if (!lack) {
			slot->cursor++;
			continue;
		}
		run = find(e, page, lack, &copy);
		slot->run = run.count;
		if ((run.home == PAGE_BACKUP || run.home == PAGE_BACKUP_STALE) && !rewrite) {
			if (!backup_take_queued(&e->backup, slot)) {
				by_backup(e, slot);
				return;
			}
			if (!take_backed(e, slot))
				run_done(slot);
			continue;
		}
		if (run.home != PAGE_REPLICA)
			slot->cursor += slot->run; /* nowhere: it is lost */
		else if (!move(e, slot, (uint8_t)(1u << copy), WIRE_READ))
			return;
	}
	end_resync(e, slot);
}

/*
 * Handles the result of writing pages that the backup had failed to store.  After an error, an
 * earlier queued write may still have stored them: the bits tell, and the content is equal.
 */
static void resync_backed(struct engine *e, struct slot *slot)
{
	uint32_t page = slot->first + slot->cursor;

	e->need_backup--;
	slot->wait = WAIT_NONE;
	if (slot->backup_result) {
		count_add(&e->counters->backup_errors, 1);
		/* It ends, unless the content has been lost elsewhere. */
		forget_target(slot);
	} else {
		page_map_backed(e->map, page, slot->run, 0);
		slab_of_page(&e->table, page)->rewrite_at = 0;
		run_saved(slot);
	}
	resync_on(e, slot);
}

/* --- WRITE -------------------------------------------------------------------------- */

/* Answers a write that is done at the donors, as soon as allowed. */
static void write_settle(struct engine *e, struct slot *slot)
{
	int error = 0;

	if (slot->degraded) {
		if (slot->backing)
			return;
		error = backup_there(&e->backup) ? slot->backup_result : -EIO;
		e->need_backup -= backup_there(&e->backup);
	} else if (slot->backing) {
		if (e->backlog >= e->backlog_most) {
			slot_append(&e->slots, &e->slots.unanswered, slot);
			e->need_backup++;
			return;
		}
		e->backlog++;
	}
	count_add(&e->counters->write_requests, 1);
	if (error)
		count_add(&e->counters->write_failed, slot->count);
	answer(e, slot, error);
}

/* Returns how many pages from the cursor on are, like the first, same-filled or not. */
static uint32_t same_filled_run(const struct slot *slot)
{
	uint64_t bits = slot->same_filled >> slot->cursor;
	uint64_t change = bits & 1 ? ~bits : bits;
	uint32_t left = slot->count - slot->cursor;
	uint32_t n = change ? (uint32_t)__builtin_ctzll(change) : 64;

	return n < left ? n : left;
}

/* Replicas that are away lack the @n pages from @page on from now on, which are being written. */
static void forget_away(struct engine *e, uint32_t page, uint32_t n)
{
	uint8_t away = slab_away(slab_of_page(&e->table, page));

	for (int c = 0; away; c++, away >>= 1)
		if (away & 1)
			page_map_bad(e->map, c, page, n);
}

static void write_on(struct engine *e, struct slot *slot)
{
	while (slot->cursor < slot->count) {
		uint32_t page = slot->first + slot->cursor, index = page / e->table.pages;
		struct slab *slab = &e->table.slabs[index];
		uint8_t legs = slab_mapped(slab);

		slot->run = same_filled_run(slot);
		if (slot->same_filled >> slot->cursor & 1) {
			run_done(slot);
			continue;
		}
		slot->run = slab_run(&e->table, page, slot->run);
		forget_away(e, page, slot->run);
		if (legs && !slab->opening) {
			if (!move(e, slot, legs, WIRE_WRITE))
				return;
			continue;
		}
		if (slab->opening || slab_copies(slab, COPY_MAPPING) ||
		    e->events->wanted(e->owner, index)) {
			wait_for_slab(e, slab, slot);
			return;
		}
		if (!backup_there(&e->backup) &&
		    (slab_away(slab) || e->events->room_awaited(e->owner)) &&
		    hold(e, slot, WRITE_PATIENCE))
			return;
		degrade(e, slot);
	}
	slot->wait = WAIT_DONE;
	write_settle(e, slot);
}

void engine_slab_settled(struct engine *e, uint32_t index)
{
	struct slab *slab = &e->table.slabs[index];
	struct slot_list list = { slab->waiting_head, slab->waiting_tail };

	slab->waiting_head = slab->waiting_tail = -1;
	while (list.head >= 0) {
		struct slot *slot = &e->slots.slot[list.head];

		slot_remove(&e->slots, &list, slot);
		e->held -= slot->held;
		e->resyncs_held -= slot->held && slot->kind == SLOT_RESYNC;
		slot->held = false;
		make_ready(e, slot, WAIT_READY);
	}
}

bool engine_run(struct engine *e)
{
	struct slot_list *ready = &e->slots.ready;

	for (int n = 0; n < ROUND && ready->head >= 0; n++) {
		struct slot *slot = &e->slots.slot[ready->head];
		bool begins = slot->wait == WAIT_BEGIN;

		slot_remove(&e->slots, ready, slot);
		slot->wait = WAIT_NONE;
		if (begins)
			begin(e, slot);
		else
			go_on(e, slot);
	}
	return ready->head >= 0;
}

bool engine_begin_large(struct engine *e)
{
	struct slot *slot = next_large(e);

	/* Reads that end at once count, too: small reads that have arrived meanwhile come first. */
	for (uint32_t pages = 0; slot && pages + slot->count <= LARGE_ROUND; slot = next_large(e)) {
		slot_remove(&e->slots, &e->slots.large, slot);
		pages += slot->count;
		slot->wait = WAIT_NONE;
		begin(e, slot);
	}
	return slot;
}
_Static_assert(SLOT_PAGES <= LARGE_ROUND, "the first one begins");

bool engine_is_ready(const struct engine *e)
{
	return e->slots.ready.head >= 0 || next_large(e);
}

/* --- the backup ---------------------------------------------------------------------- */

/* Uses a place in the backlog that has become free. */
static void answer_next(struct engine *e)
{
	int i = e->slots.unanswered.head;

	if (i < 0 || e->backlog >= e->backlog_most)
		return;
	slot_remove(&e->slots, &e->slots.unanswered, &e->slots.slot[i]);
	e->need_backup--;
	write_settle(e, &e->slots.slot[i]);
}

static void write_backed(struct engine *e, struct slot *slot)
{
	page_map_backed(e->map, slot->first, slot->count, slot->backup_result);
	if (slot->backup_result)
		backup_failed(e, &e->told_write, slot->backup_result,
			      "pages are safe at the donors only");
	if (slot->answered) {
		e->backlog--;
		slot_put(&e->slots, slot);
		answer_next(e);
	} else if (slot->wait == WAIT_DONE) {
		if (!slot->degraded) {
			slot_remove(&e->slots, &e->slots.unanswered, slot);
			e->need_backup--;
		}
		write_settle(e, slot);
	}
}

void engine_backed(struct engine *e, struct slot *slot)
{
	switch (slot->kind) {
	case SLOT_READ:
		read_backed(e, slot);
		break;
	case SLOT_RESYNC:
		if (slot->fetched)
			resync_backed(e, slot);
		else
			read_backed(e, slot);
		break;
	case SLOT_WRITE:
		write_backed(e, slot);
		break;
	case SLOT_EXCLUSIVE:
		e->need_backup--;
		e->events->exclusive_backed(e->owner, slot);
		break;
	}
}
