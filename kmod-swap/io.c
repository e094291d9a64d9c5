// SPDX-License-Identifier: GPL-2.0-only
/*
 * The way of a request.  Reads go run by run to where the newest content is;
 * writes go to every copy of the slab at once, with room in the pool to the backup
 * later, to the backup alone when there is no donor or all failed, to other donors
 * when the slab moved.  A request ends when no copy's I/O names its pages any more,
 * however long that takes: the pages belong to someone else from then on.
 */
#include <linux/highmem.h>
#include <linux/ktime.h>

#include "internal.h"

/* Pages copied at a time with interrupts off. */
#define POOL_RUN 8
/* When this machine cannot open a seal: reads of the run before EIO, and the pause between. */
#define UNOPENED_MOST 10
#define UNOPENED_PAUSE (HZ / 10)

#define CREATE_TRACE_POINTS
#include "trace.h"

static void io_work(struct work_struct *work);
static void backup_done(struct bio *bio);
static void donor_done(struct ebb_leg *leg, int error);
static void write_go(struct ebb_io *io, struct ebb_batch *batch);
static void write_settle(struct ebb_io *io);

int io_init_request(struct blk_mq_tag_set *set, struct request *rq, unsigned int hctx,
		    unsigned int node)
{
	struct ebb_io *io = blk_mq_rq_to_pdu(rq);

	io->device = set->driver_data;
	for (int i = 0; i < EBB_COPIES; i++)
		io->leg[i].index = i;
	INIT_DELAYED_WORK(&io->work, io_work);
	INIT_LIST_HEAD(&io->span.node);
	INIT_LIST_HEAD(&io->held_node);
	return 0;
}

/* Of the pages that it writes, or reads at present. */
static struct ebb_hold *io_hold(const struct ebb_io *io)
{
	return slab_hold(io->device, io->slab, io->span.class);
}

/* Those pages are sealed outside. */
static bool io_sealed(const struct ebb_io *io)
{
	return READ_ONCE(io->device->sealed) & BIT(io->span.class);
}

void io_later(struct ebb_io *io, enum ebb_step step)
{
	io->step = step;
	queue_delayed_work(io->device->wq, &io->work, 0);
}

/* The memory of pages [@from, @from + @count) of the request, in pieces within a page. */
static void each_piece(struct ebb_io *io, u32 from, u32 count,
		       void (*call)(struct ebb_io *, const struct bio_vec *))
{
	struct request *rq = blk_mq_rq_from_pdu(io);
	u32 skip = from << PAGE_SHIFT, left = count << PAGE_SHIFT;
	struct req_iterator iter;
	struct bio_vec v;

	rq_for_each_segment(v, rq, iter) {
		u32 drop = min(skip, v.bv_len);
		/* The iterator goes on by the length of its own. */
		const struct bio_vec piece = {
			.bv_page = v.bv_page,
			.bv_offset = v.bv_offset + drop,
			.bv_len = min(v.bv_len - drop, left),
		};

		skip -= drop;
		left -= piece.bv_len;
		if (piece.bv_len)
			call(io, &piece);
	}
}

/* The same of what they are outside. */
static void each_outside(struct ebb_io *io, u32 from, u32 count,
			 void (*call)(struct ebb_io *, const struct bio_vec *))
{
	if (io_sealed(io))
		seal_each(io, from, count, call);
	else
		each_piece(io, from, count, call);
}

/* Between the request's pages and the copy in the pool. */
static void behind_piece(struct ebb_io *io, const struct bio_vec *v)
{
	for (u32 done = 0, take; done < v->bv_len; done += take) {
		struct page *page = io->behind->pages[io->behind_at >> PAGE_SHIFT];
		u32 offset = offset_in_page(io->behind_at);

		take = min_t(u32, v->bv_len - done, PAGE_SIZE - offset);
		if (io->span.write)
			memcpy_page(page, offset, v->bv_page, v->bv_offset + done, take);
		else
			memcpy_page(v->bv_page, v->bv_offset + done, page, offset, take);
		io->behind_at += take;
	}
}

static void zero_piece(struct ebb_io *io, const struct bio_vec *v)
{
	memzero_page(v->bv_page, v->bv_offset, v->bv_len);
}

static void backup_add(struct ebb_io *io, const struct bio_vec *v)
{
	/* Joins what is contiguous, so that segments are no more than there are vecs. */
	if (bio_add_page(&io->bio, v->bv_page, v->bv_len, v->bv_offset) != v->bv_len)
		io->bio.bi_status = BLK_STS_IOERR;
}

/* Only from the device's work queue: it may wait for the backup's queue. */
static void backup_start(struct ebb_io *io, u32 from, u32 count)
{
	bio_init(&io->bio, io->device->backup.bdev, io->vecs, EBB_IO_PAGES,
		 io->span.write ? REQ_OP_WRITE : REQ_OP_READ);
	io->bio.bi_iter.bi_sector = (io->span.first + from) << (PAGE_SHIFT - SECTOR_SHIFT);
	io->bio.bi_end_io = backup_done;
	io->bio.bi_private = io;
	each_outside(io, from, count, backup_add);
	if (WARN_ON_ONCE(io->bio.bi_status))
		bio_endio(&io->bio);
	else
		submit_bio(&io->bio);
}

void span_end(struct ebb_slab *slab, struct ebb_span *span, struct list_head *to)
{
	struct ebb_span *other, *next;
	unsigned long flags;
	LIST_HEAD(waiting);

	spin_lock_irqsave(&slab->lock, flags);
	if (to)
		list_move(&span->node, to);
	else
		list_del_init(&span->node);
	list_splice_init(&slab->waiting, &waiting);
	spin_unlock_irqrestore(&slab->lock, flags);
	/* Each looks again, and waits again if it must. */
	list_for_each_entry_safe(other, next, &waiting, node) {
		list_del_init(&other->node);
		io_later(container_of(other, struct ebb_io, span), EBB_STEP_START);
	}
}

/* The last step: others may have its pages, its owner gets the answer. */
static void finish(struct ebb_io *io, blk_status_t status)
{
	struct ebb_device *d = io->device;

	seal_put(io);
	ahead_end(io);
	span_end(io->slab, &io->span, NULL);
	if (status && io->span.write)
		ebb_count(d, WRITE_FAILED, 1);
	else if (status)
		ebb_count(d, READ_FAILED, 1);
	trace_ebb_swap_io(d->index, io->slab - d->slabs, io->span.first, io->span.count,
			  io->span.write, io->sources, ktime_get_ns() - io->since,
			  blk_status_to_errno(status));
	blk_mq_end_request(blk_mq_rq_from_pdu(io), status);
}

/* Where at a donor the pages from io->cursor on are. */
struct there {
	u64 address;
	u32 rkey;
};

/*
 * Takes @place for those pages and the @i-th leg; true with that leg's session
 * referenced.  slab->lock is held.
 */
static bool donor_take(struct ebb_io *io, int i, const struct ebb_place *place, struct there *to)
{
	if (!place_take(place))
		return false;
	io->leg[i].session = place->session;
	io->span.epoch[i] = place->epoch;
	to->address = place->address +
		      (((io->span.first + io->cursor) & (io->device->slab_pages - 1)) << PAGE_SHIFT);
	to->rkey = place->rkey;
	return true;
}

static int donor_start(struct ebb_io *io, int i, u32 count, const struct there *to,
		       struct ebb_batch *batch)
{
	struct request *rq = blk_mq_rq_from_pdu(io);
	struct ebb_leg *leg = &io->leg[i];

	leg->direction = io->span.write ? DMA_TO_DEVICE : DMA_FROM_DEVICE;
	leg->done = donor_done;
	if (io_sealed(io)) {
		leg->entries = seal_map(io, leg->sg);
	} else {
		sg_init_table(leg->sg, EBB_SEGMENTS);
		leg->entries = blk_rq_map_sg(rq->q, rq, leg->sg);
	}
	return leg_start(leg, io->cursor << PAGE_SHIFT, count << PAGE_SHIFT, to->address, to->rkey,
			 rq->mq_hctx->queue_num, batch ? &batch[i] : NULL);
}

/* The place that was asked does not have the present run of a READ after all. */
static void donor_forget(struct ebb_io *io)
{
	unsigned long flags;
	enum ebb_at at;

	spin_lock_irqsave(&io->slab->lock, flags);
	at = hold_epoch(io_hold(io), io->span.epoch[0]);
	if (at < AT_DONORS)
		bitmap_clear(io->device->bits[at], io->span.first + io->cursor, io->run);
	spin_unlock_irqrestore(&io->slab->lock, flags);
}

/* The present run, or some of it, from the pool; true when it has.  slab->lock is held. */
static bool read_pool(struct ebb_io *io)
{
	u64 page = io->span.first + io->cursor;

	/* Interrupts are off. */
	io->run = min_t(u32, io->run, POOL_RUN);
	io->behind = behind_find(io->slab, page, &io->run);
	if (WARN_ON_ONCE(!io->behind)) {
		bitmap_clear(io->device->bits[AT_POOL], page, io->run);
		return false;
	}
	io->behind_at = (page - io->behind->span.first) << PAGE_SHIFT;
	each_outside(io, io->cursor, io->run, behind_piece);
	ebb_count(io->device, READ_POOL, io->run);
	return true;
}

/* @batch is NULL in the work queue. */
static void read_go(struct ebb_io *io, struct ebb_batch *batch)
{
	struct ebb_device *d = io->device;
	struct ebb_slab *slab = io->slab;

	while (io->cursor < io->span.count) {
		u64 page = io->span.first + io->cursor;
		struct there there = { };
		unsigned long flags;
		enum ebb_at at;
		bool read;
		u32 may;

		io->run = io->span.count - io->cursor;
		spin_lock_irqsave(&slab->lock, flags);
		io->span.class = class_of_pages(d, page, &io->run);
		at = io->from = slab_source(d, page, &io->run);
		may = at < AT_DONORS ? ahead_may(io) : U32_MAX;
		if (!may) {
			spin_unlock_irqrestore(&slab->lock, flags);
			return;
		}
		io->run = min(io->run, may);
		if (io_sealed(io) && !io->buffer) {
			spin_unlock_irqrestore(&slab->lock, flags);
			if (!seal_take(io, EBB_STEP_READ))
				return;
			continue;
		}
		if (at < AT_DONORS && !donor_take(io, 0, &io_hold(io)->at[at], &there)) {
			/* The session is over and about to be detached. */
			bitmap_clear(d->bits[at], page, io->run);
			spin_unlock_irqrestore(&slab->lock, flags);
			continue;
		}
		read = at == AT_POOL && read_pool(io);
		spin_unlock_irqrestore(&slab->lock, flags);
		switch (at) {
		case AT_POOL:
			if (read && io_sealed(io)) {
				io_later(io, EBB_STEP_OPEN);
				return;
			}
			io->cursor += read ? io->run : 0;
			continue;
		case AT_DONOR:
		case AT_SECOND:
		case AT_SOURCE:
			/* The network device can map no more just now; try again. */
			if (donor_start(io, 0, io->run, &there, batch))
				io_later(io, EBB_STEP_READ);
			return;
		case AT_BACKUP:
			if (batch)
				io_later(io, EBB_STEP_READ);
			else
				backup_start(io, io->cursor, io->run);
			return;
		case WRITTEN:
			finish(io, BLK_STS_IOERR);
			return;
		case EBB_BITS:
			each_piece(io, io->cursor, io->run, zero_piece);
			ebb_count(d, READ_ZERO, io->run);
			io->cursor += io->run;
			continue;
		}
	}
	finish(io, BLK_STS_OK);
}

/* The present run of a READ is there. */
static void read_done(struct ebb_io *io)
{
	if (io_sealed(io)) {
		io_later(io, EBB_STEP_OPEN);
		return;
	}
	io->cursor += io->run;
	if (io->cursor == io->span.count)
		finish(io, BLK_STS_OK);
	else
		io_later(io, EBB_STEP_READ);
}

/* From the buffer to the request's own pages, or back. */
static void buffer_piece(struct ebb_io *io, const struct bio_vec *v)
{
	io->behind_at = seal_copy(io, io->behind_at, v);
}

/* What has come is not what was written there: that donor's other pages are no better. */
static void read_broken(struct ebb_io *io)
{
	const struct ebb_hold *hold = io_hold(io);
	unsigned long flags;
	enum ebb_at at;

	ebb_count(io->device, SEAL_BROKEN, 1);
	if (io->from >= AT_DONORS) {
		finish(io, BLK_STS_IOERR);
		return;
	}
	spin_lock_irqsave(&io->slab->lock, flags);
	at = hold_epoch(hold, io->span.epoch[0]);
	if (at < AT_DONORS)
		session_fail(hold->at[at].session, "what it gave is not what was written there");
	spin_unlock_irqrestore(&io->slab->lock, flags);
	donor_forget(io);
	read_go(io, NULL);
}

/*
 * This machine cannot open the present run: no donor is to blame, and another copy would fare no
 * better.  The run is read again, since the buffer's content is undefined.
 */
static void read_unopened(struct ebb_io *io, int error)
{
	pr_warn_ratelimited("ebb%u: seal: cannot open page %llu: error %d\n", io->device->index,
			    io->span.first + io->cursor, error);
	if (++io->unopened == UNOPENED_MOST) {
		finish(io, BLK_STS_IOERR);
		return;
	}
	io->step = EBB_STEP_READ;
	queue_delayed_work(io->device->wq, &io->work, UNOPENED_PAUSE);
}

/* Only from the device's work queue, as the next one. */
static void read_open(struct ebb_io *io)
{
	int r = seal_open(io, io->cursor, io->run);

	if (r == -EBADMSG) {
		read_broken(io);
		return;
	}
	if (r) {
		read_unopened(io, r);
		return;
	}
	io->behind_at = io->cursor << PAGE_SHIFT;
	each_piece(io, io->cursor, io->run, buffer_piece);
	io->cursor += io->run;
	read_go(io, NULL);
}

/* A WRITE whose pages are sealed first. */
static void write_seal(struct ebb_io *io)
{
	if (!io->buffer && !seal_take(io, EBB_STEP_SEAL))
		return;
	io->behind_at = 0;
	each_piece(io, 0, io->span.count, buffer_piece);
	if (!seal_close(io)) {
		write_go(io, NULL);
		return;
	}
	/* It is nowhere, and what was there before is not what is to be read. */
	io->again = io->backup_tried = true;
	write_settle(io);
}

/*
 * Places whose sessions are over, and about to be detached, are so now: the source, which takes
 * the place of one, can be written to.
 */
static void detach_over(struct ebb_io *io)
{
	const struct ebb_hold *hold = io_hold(io);

	for (int at = 0; at < AT_DONORS; at++) {
		if (!hold->at[at].session || place_live(&hold->at[at]))
			continue;
		slab_detach(io->device, io->slab, hold->at[at].session);
		/* Others may have moved up. */
		at = -1;
	}
}

/* A donor that was not asked yet can be: the slab moved while the write was under way. */
static bool donor_left(const struct ebb_io *io)
{
	const struct ebb_hold *hold = io_hold(io);

	for (int i = 0; i < EBB_COPIES && !io->again; i++)
		if (place_live(&hold->at[i]) && hold->at[i].epoch != io->span.epoch[0] &&
		    hold->at[i].epoch != io->span.epoch[1])
			return true;
	return false;
}

/*
 * The donors that have it for sure, BIT(enum ebb_at): not those that are gone by now.  One
 * that the slab is leaving counts: the copier takes it along.
 */
static u32 written_at(struct ebb_io *io)
{
	const struct ebb_hold *hold = io_hold(io);
	u32 places = 0;

	for (int i = 0; i < EBB_COPIES; i++) {
		enum ebb_at at = io->on[i] ? hold_epoch(hold, io->span.epoch[i]) : AT_DONORS;

		io->on[i] = at < AT_DONORS && place_live(&hold->at[at]);
		places |= io->on[i] ? BIT(at) : 0;
	}
	return places;
}

/* A donor should have it, and has not: it failed, or came meanwhile. */
static bool copier_needed(const struct ebb_hold *hold, u32 places)
{
	for (int i = 0; i < EBB_COPIES; i++)
		if (hold->at[i].session && !(places & BIT(i)))
			return true;
	return places & BIT(AT_SOURCE);
}

/* No copy is being written any more. */
static void write_settle(struct ebb_io *io)
{
	struct ebb_device *d = io->device;
	struct ebb_slab *slab = io->slab;
	struct ebb_behind *behind;
	unsigned long flags;
	bool wanting;
	u32 places;

	spin_lock_irqsave(&slab->lock, flags);
	places = written_at(io);
	if (io->behind && !places) {
		/* Nobody has it yet: the request itself has to wait for the backup. */
		behind_put(io->behind);
		io->behind = NULL;
	}
	places |= io->on_backup ? BIT(AT_BACKUP) : 0;
	if (!places)
		detach_over(io);
	if (!places && donor_left(io)) {
		spin_unlock_irqrestore(&slab->lock, flags);
		io->again = true;
		io_later(io, EBB_STEP_WRITE);
		return;
	}
	if (!places && !io->backup_tried && d->backup.bdev) {
		spin_unlock_irqrestore(&slab->lock, flags);
		io->backup_tried = true;
		atomic_set(&io->legs, 1);
		io_later(io, EBB_STEP_BACKUP);
		return;
	}
	behind_supersede(slab, &io->span);
	behind = io->behind;
	if (behind) {
		places |= BIT(AT_POOL);
		behind_begin(slab, behind);
	}
	slab_written(d, io->span.first, io->span.count, io->span.class, places);
	if (io_sealed(io))
		seal_keep(io);
	wanting = copier_needed(io_hold(io), places);
	spin_unlock_irqrestore(&slab->lock, flags);
	io->sources = (io->on[0] ? EBB_SWAP_DONOR : 0) | (io->on[1] ? EBB_SWAP_SECOND : 0) |
		      (io->on_backup ? EBB_SWAP_BACKUP : 0);
	ebb_count(d, WRITE_DONOR, (io->on[0] + io->on[1]) * io->span.count);
	if (io->on_backup)
		ebb_count(d, WRITE_BACKUP, io->span.count);
	if (wanting)
		copier_kick(d);
	finish(io, places ? BLK_STS_OK : BLK_STS_IOERR);
	if (behind)
		behind_go(behind);
}

static void write_leg_put(struct ebb_io *io)
{
	if (atomic_dec_and_test(&io->legs))
		write_settle(io);
}

static void write_go(struct ebb_io *io, struct ebb_batch *batch)
{
	const struct ebb_hold *hold = io_hold(io);
	struct ebb_device *d = io->device;
	struct there there[EBB_COPIES];
	bool taken[EBB_COPIES], backup;
	unsigned long flags;
	u32 copies, donors = 0;

	spin_lock_irqsave(&io->slab->lock, flags);
	copies = hold->copies;
	for (int i = 0; i < EBB_COPIES; i++) {
		taken[i] = donor_take(io, i, &hold->at[i], &there[i]);
		donors += taken[i];
	}
	spin_unlock_irqrestore(&io->slab->lock, flags);
	backup = d->backup.bdev && !io->backup_tried && ((copies & EBB_SWAP_BACKUP) || !donors);
	if (backup && donors && d->pool) {
		io->behind = behind_take(d, &io->span);
		io->behind_at = 0;
		backup = !io->behind;
		if (backup)
			ebb_count(d, POOL_FULL, 1);
	}
	/* One for this function, so that a fast copy does not settle it. */
	atomic_set(&io->legs, 1 + donors + backup);
	if (backup) {
		io->backup_tried = true;
		io_later(io, EBB_STEP_BACKUP);
	}
	for (int i = 0; i < EBB_COPIES; i++)
		if (taken[i] && donor_start(io, i, io->span.count, &there[i], batch))
			write_leg_put(io);
	/* Beside the donors' legs: only their end settles the write. */
	if (io->behind)
		each_outside(io, 0, io->span.count, behind_piece);
	write_leg_put(io);
}

static void donor_done(struct ebb_leg *leg, int error)
{
	struct ebb_io *io = container_of(leg - leg->index, struct ebb_io, leg[0]);
	struct ebb_device *d = io->device;

	if (error)
		ebb_count(d, DONOR_ERRORS, 1);
	if (io->span.write) {
		io->on[leg->index] = !error;
		write_leg_put(io);
	} else if (error) {
		donor_forget(io);
		io_later(io, EBB_STEP_READ);
	} else {
		ebb_count(d, READ_DONOR, io->run);
		io->sources |= io->from == AT_SECOND ? EBB_SWAP_SECOND : EBB_SWAP_DONOR;
		read_done(io);
	}
}

static void backup_done(struct bio *bio)
{
	struct ebb_io *io = bio->bi_private;
	blk_status_t status = bio->bi_status;
	struct ebb_device *d = io->device;

	bio_uninit(bio);
	if (status)
		ebb_count(d, BACKUP_ERRORS, 1);
	if (io->span.write) {
		io->on_backup = !status;
		write_leg_put(io);
	} else if (status) {
		finish(io, status);
	} else {
		ebb_count(d, READ_BACKUP, io->run);
		io->sources |= EBB_SWAP_BACKUP;
		read_done(io);
	}
}

bool span_conflicts(const struct ebb_slab *slab, const struct ebb_span *span)
{
	const struct ebb_span *other;

	list_for_each_entry(other, &slab->active, node)
		if ((span->write || other->write) && span->first < other->first + other->count &&
		    other->first < span->first + span->count)
			return true;
	return false;
}

static void io_start(struct ebb_io *io, struct ebb_batch *batch)
{
	struct ebb_slab *slab = io->slab;
	unsigned long flags;

	spin_lock_irqsave(&slab->lock, flags);
	if (span_conflicts(slab, &io->span)) {
		list_add_tail(&io->span.node, &slab->waiting);
		spin_unlock_irqrestore(&slab->lock, flags);
		ebb_count(io->device, CONFLICTS, 1);
		return;
	}
	list_add_tail(&io->span.node, &slab->active);
	if (io->span.write)
		slab->writes += io->span.count;
	else
		slab->reads += io->span.count;
	spin_unlock_irqrestore(&slab->lock, flags);
	if (!io->span.write)
		read_go(io, batch);
	else if (io_sealed(io))
		io_later(io, EBB_STEP_SEAL);
	else
		write_go(io, batch);
}

static void io_work(struct work_struct *work)
{
	struct ebb_io *io = container_of(work, struct ebb_io, work.work);

	switch (io->step) {
	case EBB_STEP_START:
		io_start(io, NULL);
		break;
	case EBB_STEP_READ:
		read_go(io, NULL);
		break;
	case EBB_STEP_WRITE:
		write_go(io, NULL);
		break;
	case EBB_STEP_BACKUP:
		backup_start(io, 0, io->span.count);
		break;
	case EBB_STEP_SEAL:
		write_seal(io);
		break;
	case EBB_STEP_OPEN:
		read_open(io);
		break;
	}
}

/* Fails for part of a page: the bits describe whole pages. */
static blk_status_t io_discard(struct ebb_device *d, const struct request *rq)
{
	u64 first = blk_rq_pos(rq) << SECTOR_SHIFT, bytes = blk_rq_bytes(rq);

	if ((first | bytes) & ~PAGE_MASK)
		return BLK_STS_IOERR;
	slab_discard(d, first >> PAGE_SHIFT, bytes >> PAGE_SHIFT);
	ebb_count(d, DISCARDED, bytes >> PAGE_SHIFT);
	return BLK_STS_OK;
}

blk_status_t io_queue_request(struct blk_mq_hw_ctx *hctx, const struct blk_mq_queue_data *bd)
{
	struct ebb_batch *batch = hctx->driver_data;
	struct request *rq = bd->rq;
	struct ebb_io *io = blk_mq_rq_to_pdu(rq);
	struct ebb_device *d = io->device;
	u64 page = blk_rq_pos(rq) >> (PAGE_SHIFT - SECTOR_SHIFT);

	switch (req_op(rq)) {
	case REQ_OP_READ:
	case REQ_OP_WRITE:
		io->slab = slab_of(d, page);
		io->span.first = page;
		io->span.count = blk_rq_bytes(rq) >> PAGE_SHIFT;
		memset(io->span.epoch, 0, sizeof(io->span.epoch));
		memset(io->on, 0, sizeof(io->on));
		io->span.write = req_op(rq) == REQ_OP_WRITE;
		io->span.class = io->span.write ? class_of_request(d, rq) : 0;
		io->cursor = io->run = 0;
		io->on_backup = io->backup_tried = io->again = false;
		io->sources = io->unopened = 0;
		io->behind = NULL;
		io->buffer = NULL;
		io->turn = TURN_NONE;
		io->since = ktime_get_ns();
		ebb_count(d, REQUESTS, 1);
		/* From here on the deadline may look at it. */
		blk_mq_start_request(rq);
		io_start(io, batch);
		break;
	case REQ_OP_DISCARD:
	case REQ_OP_WRITE_ZEROES:
		blk_mq_start_request(rq);
		blk_mq_end_request(rq, io_discard(d, rq));
		break;
	default:
		blk_mq_start_request(rq);
		blk_mq_end_request(rq, BLK_STS_NOTSUPP);
	}
	if (bd->last)
		batches_flush(batch);
	return BLK_STS_OK;
}

/*
 * The deadline.  A work request cannot be taken back, so its session is given up:
 * its queue pairs go to error and everything on them comes back.
 */
enum blk_eh_timer_return io_timeout(struct request *rq)
{
	struct ebb_io *io = blk_mq_rq_to_pdu(rq);
	const struct ebb_hold *hold;
	unsigned long flags;

	if (req_op(rq) != REQ_OP_READ && req_op(rq) != REQ_OP_WRITE)
		return BLK_EH_RESET_TIMER;
	spin_lock_irqsave(&io->slab->lock, flags);
	/* A session outlives its slabs' pointers to it, which this lock guards. */
	hold = io_hold(io);
	for (int i = 0; i < EBB_COPIES; i++) {
		enum ebb_at at = hold_epoch(hold, io->span.epoch[i]);

		if (!smp_load_acquire(&io->leg[i].under_way) || at == AT_DONORS ||
		    !place_live(&hold->at[at]))
			continue;
		/* What it waited for before, its turn or a slow backup, is no fault of the donor's. */
		if (time_before(jiffies, READ_ONCE(io->leg[i].since) + io->device->set.timeout))
			continue;
		ebb_count(io->device, DEADLINES, 1);
		session_fail(hold->at[at].session, "a page took longer than the deadline");
	}
	spin_unlock_irqrestore(&io->slab->lock, flags);
	return BLK_EH_RESET_TIMER;
}
