// SPDX-License-Identifier: GPL-2.0-only
#include "copy.h"
#include "pages.h"
#include "seal.h"
#include "slab.h"
#include "write.h"
#include "writeback.h"

/*
 * A write that only donors which are away can take, or that cannot be sealed, is held this long
 * (jiffies), then fails.
 */
#define HELD_MOST (2 * HZ)
/*
 * A swap-out that another donor could not take either, while such a donor is live.  As long as it
 * is held, write-back throttling admits one swap-out less to any donor (create.c).  When it fails,
 * the kernel keeps the page.  It must not fail at once: reclaim that does not have to wait tries
 * all pages again within milliseconds, and if it frees none the OOM killer acts.
 */
#define HELD_BESIDE DIV_ROUND_UP(HZ, 10)
/* Jiffies between two tries of it. */
#define HELD_PAUSE DIV_ROUND_UP(HZ, 50)

/*
 * Detaches ended sessions before they are closed: the source then replaces a lost donor.
 */
static void detach_ended(struct ebb_io *io)
{
	const struct ebb_hold *hold = ebb_io_hold(io);

	for (int at = 0; at < AT_DONORS; at++) {
		if (!hold->at[at].session || !ebb_session_ended(hold->at[at].session))
			continue;
		ebb_slab_detach(io->device, io->slab, hold->at[at].session);
		/* Detaching may have changed other places: start over. */
		at = -1;
	}
}

/* Returns whether a donor was not tried: the slab moved while the write was in flight. */
static bool has_other_donor(const struct ebb_io *io)
{
	const struct ebb_hold *hold = ebb_io_hold(io);

	for (int i = 0; i < EBB_COPIES && !io->again; i++)
		if (ebb_place_live(&hold->at[i]) && hold->at[i].epoch != io->span.epoch[0] &&
		    hold->at[i].epoch != io->span.epoch[1])
			return true;
	return false;
}

/* Returns how long (jiffies) the write is held at most. */
static unsigned long held_most(struct ebb_io *io)
{
	bool swaps = blk_mq_rq_from_pdu(io)->cmd_flags & REQ_SWAP;

	return swaps && !io->unsealed && atomic_read(&io->device->live) ? HELD_BESIDE : HELD_MOST;
}

/*
 * Returns whether a write that no place has taken is held: it could not be sealed, or a donor is
 * away, or back already, or another is mapped meanwhile.  slab->lock is held.
 */
static bool is_held(struct ebb_io *io)
{
	const struct ebb_hold *hold = ebb_io_hold(io);
	bool holds = io->unsealed;

	for (int i = 0; i < EBB_COPIES; i++)
		holds |= ebb_place_away(&hold->at[i]) || ebb_place_live(&hold->at[i]);
	if (!holds)
		return false;
	if (!io->waits) {
		io->waits = true;
		io->waits_since = jiffies;
		if (!io->unsealed)
			ebb_count(io->device, AWAY_WAITS, 1);
	}
	return time_before(jiffies, io->waits_since + held_most(io));
}

/*
 * Returns the donors that certainly have the pages, BIT(enum ebb_at), whose sessions are live.  A
 * donor that the slab is leaving counts: the copier copies from it.
 */
static u32 written_at(struct ebb_io *io)
{
	const struct ebb_hold *hold = ebb_io_hold(io);
	u32 places = 0;

	for (int i = 0; i < EBB_COPIES; i++) {
		enum ebb_at at = io->on[i] ? ebb_hold_epoch(hold, io->span.epoch[i]) : AT_DONORS;

		io->on[i] = at < AT_DONORS && ebb_place_live(&hold->at[at]);
		places |= io->on[i] ? BIT(at) : 0;
	}
	return places;
}

/*
 * Returns whether a donor lacks the pages: its write failed, or it was mapped since.  One that is
 * away gets them when it is back, which starts the copier.
 */
static bool is_copier_needed(const struct ebb_hold *hold, u32 places)
{
	for (int i = 0; i < EBB_COPIES; i++)
		if (ebb_place_live(&hold->at[i]) && !(places & BIT(i)))
			return true;
	return places & BIT(AT_SOURCE);
}

/* Decides a write's result once no copy of it is in flight. */
static void write_settle(struct ebb_io *io)
{
	struct ebb_device *d = io->device;
	struct ebb_slab *slab = io->slab;
	struct ebb_writeback *writeback;
	unsigned long flags;
	bool wanting, elsewhere;
	u32 places;

	spin_lock_irqsave(&slab->lock, flags);
	places = written_at(io);
	if (io->writeback && !places) {
		/* No donor has the pages: the request must wait for the backup. */
		ebb_writeback_put(io->writeback);
		io->writeback = NULL;
	}
	places |= io->on_backup ? BIT(AT_BACKUP) : 0;
	if (!places)
		detach_ended(io);
	/* Nothing but a seal helps pages without one. */
	elsewhere = !places && !io->unsealed;
	if (elsewhere && has_other_donor(io)) {
		spin_unlock_irqrestore(&slab->lock, flags);
		io->again = true;
		ebb_io_later(io, EBB_STEP_WRITE);
		return;
	}
	if (elsewhere && !io->backup_tried && d->backup.bdev) {
		spin_unlock_irqrestore(&slab->lock, flags);
		io->backup_tried = true;
		atomic_set(&io->copies, 1);
		ebb_io_later(io, EBB_STEP_BACKUP);
		return;
	}
	if (elsewhere && io->unmapped) {
		spin_unlock_irqrestore(&slab->lock, flags);
		ebb_io_delay(io, EBB_STEP_WRITE, EBB_UNMAPPED_PAUSE);
		return;
	}
	if (!places && is_held(io)) {
		spin_unlock_irqrestore(&slab->lock, flags);
		/* Other writes may need the buffer. */
		ebb_seal_put_buffer(io);
		ebb_io_delay(io, ebb_io_sealed(io) ? EBB_STEP_SEAL : EBB_STEP_WRITE, HELD_PAUSE);
		return;
	}
	ebb_writeback_supersede(slab, &io->span);
	writeback = io->writeback;
	if (writeback) {
		places |= BIT(AT_POOL);
		ebb_writeback_begin(slab, writeback);
	}
	ebb_slab_written(d, io->span.first, io->span.count, io->span.class, places);
	if (ebb_io_sealed(io))
		ebb_seal_commit(io);
	wanting = is_copier_needed(ebb_io_hold(io), places);
	spin_unlock_irqrestore(&slab->lock, flags);
	io->sources = (io->on[0] ? EBB_SWAP_DONOR : 0) | (io->on[1] ? EBB_SWAP_SECOND : 0) |
		      (io->on_backup ? EBB_SWAP_BACKUP : 0);
	ebb_count(d, WRITE_DONOR, (io->on[0] + io->on[1]) * io->span.count);
	if (io->on_backup)
		ebb_count(d, WRITE_BACKUP, io->span.count);
	if (wanting)
		ebb_copier_kick(d);
	ebb_io_finish(io, places ? BLK_STS_OK : BLK_STS_IOERR);
	if (writeback)
		ebb_writeback_queue(writeback);
}

static void copy_put(struct ebb_io *io)
{
	if (atomic_dec_and_test(&io->copies))
		write_settle(io);
}

static void donor_done(struct ebb_transfer *t, int error)
{
	struct ebb_io *io = ebb_io_of(t);

	if (error)
		ebb_count(io->device, DONOR_ERRORS, 1);
	io->on[t->index] = !error;
	copy_put(io);
}

static void backup_done(struct bio *bio)
{
	struct ebb_io *io = bio->bi_private;

	io->on_backup = !bio->bi_status;
	if (bio->bi_status)
		ebb_count(io->device, BACKUP_ERRORS, 1);
	bio_uninit(bio);
	copy_put(io);
}

/*
 * Returns whether a write that no donor takes goes to the source: the donors are away, and there is
 * no backup.  slab->lock is held.
 */
static bool needs_source(const struct ebb_io *io)
{
	const struct ebb_hold *hold = ebb_io_hold(io);

	return (!io->device->backup.bdev || io->backup_tried) &&
	       ebb_hold_away(hold) & (BIT(AT_DONOR) | BIT(AT_SECOND));
}

void ebb_write_go(struct ebb_io *io, struct ebb_batch *batch)
{
	const struct ebb_hold *hold = ebb_io_hold(io);
	struct ebb_device *d = io->device;
	struct ebb_there there[EBB_COPIES];
	bool taken[EBB_COPIES], backup;
	unsigned long flags;
	u32 copies, donors = 0;

	spin_lock_irqsave(&io->slab->lock, flags);
	copies = hold->copies;
	for (int i = 0; i < EBB_COPIES; i++) {
		taken[i] = ebb_donor_take(io, i, &hold->at[i], &there[i]);
		donors += taken[i];
	}
	if (!donors && needs_source(io))
		donors = taken[0] = ebb_donor_take(io, 0, &hold->at[AT_SOURCE], &there[0]);
	spin_unlock_irqrestore(&io->slab->lock, flags);
	backup = d->backup.bdev && !io->backup_tried && ((copies & EBB_SWAP_BACKUP) || !donors);
	if (backup && donors && d->pool) {
		io->writeback = ebb_writeback_alloc(d, &io->span);
		io->copy_at = 0;
		backup = !io->writeback;
		if (backup)
			ebb_count(d, POOL_FULL, 1);
	}
	/* One is this function's: a copy that ends at once must not settle the write. */
	atomic_set(&io->copies, 1 + donors + backup);
	if (backup) {
		io->backup_tried = true;
		ebb_io_later(io, EBB_STEP_BACKUP);
	}
	io->unmapped = false;
	for (int i = 0; i < EBB_COPIES; i++) {
		if (!taken[i] ||
		    !ebb_donor_start(io, i, io->span.count, &there[i], batch, donor_done))
			continue;
		io->unmapped = true;
		copy_put(io);
	}
	/* Copy while the transfers are in flight; copy_put() below allows the write to settle. */
	if (io->writeback)
		ebb_each_outside(io, 0, io->span.count, ebb_writeback_piece);
	copy_put(io);
}

void ebb_write_backup(struct ebb_io *io)
{
	ebb_backup_start(io, 0, io->span.count, backup_done);
}

/* Returns whether no place can take a held write yet. */
static bool is_held_on(struct ebb_io *io)
{
	unsigned long flags;
	bool held;

	if (!io->waits)
		return false;
	spin_lock_irqsave(&io->slab->lock, flags);
	held = !ebb_hold_live(ebb_io_hold(io)) && is_held(io);
	spin_unlock_irqrestore(&io->slab->lock, flags);
	return held;
}

void ebb_write_seal(struct ebb_io *io)
{
	io->unsealed = false;
	if (is_held_on(io)) {
		ebb_seal_put_buffer(io);
		ebb_io_delay(io, EBB_STEP_SEAL, HELD_PAUSE);
		return;
	}
	if (!io->buffer && !ebb_seal_get_buffer(io, EBB_STEP_SEAL))
		return;
	io->copy_at = 0;
	ebb_each_piece(io, 0, io->span.count, ebb_buffer_piece);
	if (!ebb_seal_encrypt(io)) {
		ebb_write_go(io, NULL);
		return;
	}
	/* Try again, then fail the write and make the older content unreadable. */
	io->unsealed = true;
	write_settle(io);
}
