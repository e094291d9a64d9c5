// SPDX-License-Identifier: GPL-2.0-only
#include <linux/highmem.h>
#include <linux/moduleparam.h>

#include "bad_page.h"
#include "class.h"
#include "pages.h"
#include "read.h"
#include "read_priority.h"
#include "seal.h"
#include "slab.h"
#include "writeback.h"

/* Most pages copied from the pool at a time: interrupts are off. */
#define POOL_RUN 8
/* Jiffies between two looks whether a donor that is away is back. */
#define AWAY_PAUSE DIV_ROUND_UP(HZ, 50)
/* If decryption fails locally: tries of a request before EIO, and jiffies between them. */
#define UNOPENED_MOST 10
#define UNOPENED_PAUSE (HZ / 10)

static unsigned int away_timeout = 25000;
module_param(away_timeout, uint, 0644);
MODULE_PARM_DESC(away_timeout,
		 "ms that a read waits for a donor that is away, at most the donor's session grace period [25000]");

static void zero_piece(struct ebb_io *io, const struct bio_vec *v)
{
	memzero_page(v->bv_page, v->bv_offset, v->bv_len);
}

/*
 * Fails the next @count pages alone.  The request's other pages may belong to other programs, which
 * would get SIGBUS for them.
 */
static void pages_fail(struct ebb_io *io, u32 count, blk_status_t status)
{
	bitmap_set(io->failed, io->cursor, count);
	io->status = status;
	io->cursor += count;
}

/* Called after a run: the next one may wait for away_timeout again, unless a page has failed. */
static void wait_end(struct ebb_io *io)
{
	io->waits &= io->status != BLK_STS_OK;
}

static void run_next(struct ebb_io *io)
{
	if (io->cursor == io->span.count)
		ebb_io_finish(io, io->status);
	else
		ebb_io_later(io, EBB_STEP_READ);
}

/*
 * Waits for a donor that is away, without buffer and admission, which other reads may need.
 * Returns false if the request has waited long enough: the current run has failed.
 */
static bool read_wait(struct ebb_io *io)
{
	if (!io->waits) {
		io->waits = true;
		io->waits_since = jiffies;
		ebb_count(io->device, AWAY_WAITS, 1);
	}
	if (time_after(jiffies, io->waits_since + msecs_to_jiffies(READ_ONCE(away_timeout)))) {
		pages_fail(io, io->run, BLK_STS_IOERR);
		return false;
	}
	ebb_seal_put_buffer(io);
	ebb_read_priority_end(io);
	ebb_io_delay(io, EBB_STEP_READ, AWAY_PAUSE);
	return true;
}

/*
 * Copies the current run, or its beginning, from the pool; false = not there.  slab->lock is held.
 */
static bool read_pool(struct ebb_io *io)
{
	u64 page = io->span.first + io->cursor;

	io->run = min_t(u32, io->run, POOL_RUN);
	io->writeback = ebb_writeback_find(io->slab, page, &io->run);
	if (WARN_ON_ONCE(!io->writeback)) {
		bitmap_clear(io->device->bits[AT_POOL], page, io->run);
		return false;
	}
	io->copy_at = (page - io->writeback->span.first) << PAGE_SHIFT;
	ebb_each_outside(io, io->cursor, io->run, ebb_writeback_piece);
	ebb_count(io->device, READ_POOL, io->run);
	return true;
}

static void run_done(struct ebb_io *io)
{
	if (ebb_io_sealed(io)) {
		ebb_io_later(io, EBB_STEP_OPEN);
		return;
	}
	io->cursor += io->run;
	wait_end(io);
	run_next(io);
}

static void donor_done(struct ebb_transfer *t, int error)
{
	struct ebb_io *io = ebb_io_of(t);

	if (error) {
		/* The session is not live any more: the next try decides. */
		ebb_count(io->device, DONOR_ERRORS, 1);
		ebb_io_later(io, EBB_STEP_READ);
		return;
	}
	ebb_count(io->device, READ_DONOR, io->run);
	io->sources |= io->from == AT_SECOND ? EBB_SWAP_SECOND : EBB_SWAP_DONOR;
	run_done(io);
}

static void backup_done(struct bio *bio)
{
	struct ebb_io *io = bio->bi_private;
	bool failed = bio->bi_status;

	bio_uninit(bio);
	if (failed) {
		ebb_count(io->device, BACKUP_ERRORS, 1);
		/* Once: the disk may take its driver's time-out.  A donor may have the pages. */
		io->backup_tried = true;
		run_next(io);
		return;
	}
	ebb_count(io->device, READ_BACKUP, io->run);
	io->sources |= EBB_SWAP_BACKUP;
	run_done(io);
}

void ebb_read_go(struct ebb_io *io, struct ebb_batch *batch)
{
	struct ebb_device *d = io->device;
	struct ebb_slab *slab = io->slab;

	while (io->cursor < io->span.count) {
		u64 page = io->span.first + io->cursor;
		struct ebb_there there = {};
		unsigned long flags;
		enum ebb_at at;
		bool read;
		u32 may, away, unasked;

		io->run = io->span.count - io->cursor;
		spin_lock_irqsave(&slab->lock, flags);
		io->span.class = ebb_class_of_pages(d, page, &io->run);
		away = ebb_hold_away(ebb_io_hold(io));
		unasked = away | (io->backup_tried ? BIT(AT_BACKUP) : 0);
		at = io->from = ebb_slab_source(d, page, &io->run, unasked);
		if (at == WRITTEN && ebb_slab_is_at(d, page, away)) {
			spin_unlock_irqrestore(&slab->lock, flags);
			if (read_wait(io))
				return;
			continue;
		}
		may = at < AT_DONORS ? ebb_read_priority_take(io) : U32_MAX;
		if (!may) {
			spin_unlock_irqrestore(&slab->lock, flags);
			return;
		}
		io->run = min(io->run, may);
		if (ebb_io_sealed(io) && (!io->buffer || (at == AT_BACKUP && !io->slow))) {
			spin_unlock_irqrestore(&slab->lock, flags);
			ebb_seal_put_buffer(io);
			io->slow = at == AT_BACKUP;
			if (!ebb_seal_get_buffer(io, EBB_STEP_READ))
				return;
			continue;
		}
		if (at < AT_DONORS && !ebb_donor_take(io, 0, &ebb_io_hold(io)->at[at], &there)) {
			/* Ended: it is about to be detached.  Else it has just gone away. */
			if (ebb_session_ended(ebb_io_hold(io)->at[at].session))
				bitmap_clear(d->bits[at], page, io->run);
			spin_unlock_irqrestore(&slab->lock, flags);
			continue;
		}
		read = at == AT_POOL && read_pool(io);
		spin_unlock_irqrestore(&slab->lock, flags);
		switch (at) {
		case AT_POOL:
			if (read && ebb_io_sealed(io)) {
				ebb_io_later(io, EBB_STEP_OPEN);
				return;
			}
			io->cursor += read ? io->run : 0;
			continue;
		case AT_DONOR:
		case AT_SECOND:
		case AT_SOURCE:
			if (ebb_donor_start(io, 0, io->run, &there, batch, donor_done))
				ebb_io_delay(io, EBB_STEP_READ, EBB_UNMAPPED_PAUSE);
			return;
		case AT_BACKUP:
			ebb_io_later(io, EBB_STEP_BACKUP);
			return;
		case WRITTEN:
			/* The rest of the run may be at a donor that is away. */
			pages_fail(io, 1, BLK_STS_IOERR);
			continue;
		case EBB_BITS:
			ebb_each_piece(io, io->cursor, io->run, zero_piece);
			ebb_count(d, READ_ZERO, io->run);
			io->cursor += io->run;
			continue;
		}
	}
	ebb_io_finish(io, io->status);
}

void ebb_read_backup(struct ebb_io *io)
{
	ebb_backup_start(io, io->cursor, io->run, backup_done);
}

/* Handles the next page, whose content is not the one written: reads it from another place. */
static void page_broken(struct ebb_io *io)
{
	u64 page = io->span.first + io->cursor;

	if (io->from == AT_POOL) {
		ebb_count(io->device, SEAL_BROKEN, 1);
		pages_fail(io, 1, BLK_STS_IOERR);
	} else {
		ebb_bad_page(io->device, page, io->span.class, io->from, io->span.epoch[0]);
	}
	ebb_read_go(io, NULL);
}

/*
 * Handles a local decryption failure: no donor is to blame, and another copy would not help.
 * Reads the run again, since the buffer's content is undefined.
 */
static void run_unopened(struct ebb_io *io, int error)
{
	pr_warn_ratelimited("ebb%u: seal: cannot open page %llu: error %d\n", io->device->index,
			    io->span.first + io->cursor, error);
	if (io->unopened + 1 < UNOPENED_MOST) {
		io->unopened++;
		ebb_io_delay(io, EBB_STEP_READ, UNOPENED_PAUSE);
	} else {
		/* The request has waited long enough: the next such run fails at once. */
		pages_fail(io, io->run, BLK_STS_IOERR);
		ebb_read_go(io, NULL);
	}
}

void ebb_read_open(struct ebb_io *io)
{
	u32 opened = io->run;
	int r = ebb_seal_decrypt(io, io->cursor, &opened);

	if (r && r != -EBADMSG) {
		run_unopened(io, r);
		return;
	}
	io->copy_at = io->cursor << PAGE_SHIFT;
	ebb_each_piece(io, io->cursor, opened, ebb_buffer_piece);
	io->cursor += opened;
	wait_end(io);
	if (r)
		page_broken(io);
	else
		ebb_read_go(io, NULL);
}
