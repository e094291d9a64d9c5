// SPDX-License-Identifier: GPL-2.0-only
#include <linux/ktime.h>
#include <linux/sched/mm.h>

#include "class.h"
#include "io.h"
#include "read.h"
#include "request.h"
#include "slab.h"
#include "write.h"

/* Begins a request whose span is active. */
static void io_go(struct ebb_io *io, struct ebb_batch *batch)
{
	if (!io->span.write)
		ebb_read_go(io, batch);
	else if (ebb_io_sealed(io))
		ebb_io_later(io, EBB_STEP_SEAL);
	else
		ebb_write_go(io, batch);
}

static void io_start(struct ebb_io *io, struct ebb_batch *batch)
{
	struct ebb_slab *slab = io->slab;
	struct ebb_device *d = io->device;
	unsigned long flags;
	bool active;

	spin_lock_irqsave(&slab->lock, flags);
	if (io->span.write)
		slab->writes += io->span.count;
	else
		slab->reads += io->span.count;
	active = ebb_span_start(slab, &io->span);
	spin_unlock_irqrestore(&slab->lock, flags);
	if (active)
		io_go(io, batch);
	else
		ebb_count(d, CONFLICTS, 1);
}

static void io_continue(struct ebb_io *io)
{
	switch (io->step) {
	case EBB_STEP_START:
		io_go(io, NULL);
		break;
	case EBB_STEP_READ:
		ebb_read_go(io, NULL);
		break;
	case EBB_STEP_WRITE:
		ebb_write_go(io, NULL);
		break;
	case EBB_STEP_BACKUP:
		if (io->span.write)
			ebb_write_backup(io);
		else
			ebb_read_backup(io);
		break;
	case EBB_STEP_SEAL:
		ebb_write_seal(io);
		break;
	case EBB_STEP_OPEN:
		ebb_read_open(io);
		break;
	}
}

static void io_work(struct work_struct *work)
{
	struct ebb_io *io = container_of(work, struct ebb_io, work.work);
	unsigned int flags;

	if (!io->span.write) {
		io_continue(io);
		return;
	}
	/* Swap-out, which frees memory, may use the reserves for it. */
	flags = memalloc_noreclaim_save();
	io_continue(io);
	memalloc_noreclaim_restore(flags);
}

static void io_begin(struct ebb_span *span)
{
	ebb_io_later(container_of(span, struct ebb_io, span), EBB_STEP_START);
}

int ebb_io_init_request(struct blk_mq_tag_set *set, struct request *rq, unsigned int hctx,
			unsigned int node)
{
	struct ebb_io *io = blk_mq_rq_to_pdu(rq);

	io->device = set->driver_data;
	for (int i = 0; i < EBB_COPIES; i++)
		io->transfer[i].index = i;
	INIT_DELAYED_WORK(&io->work, io_work);
	INIT_LIST_HEAD(&io->span.node);
	io->span.begin = io_begin;
	INIT_LIST_HEAD(&io->held_node);
	return 0;
}

/* Rejects parts of a page: the bits describe whole pages. */
static blk_status_t io_discard(struct ebb_device *d, const struct request *rq)
{
	u64 first = blk_rq_pos(rq) << SECTOR_SHIFT, bytes = blk_rq_bytes(rq);

	if ((first | bytes) & ~PAGE_MASK)
		return BLK_STS_IOERR;
	ebb_slab_discard(d, first >> PAGE_SHIFT, bytes >> PAGE_SHIFT);
	ebb_count(d, DISCARDED, bytes >> PAGE_SHIFT);
	return BLK_STS_OK;
}

/*
 * Hides a READ's age from write-back throttling, which would take it for the effect of writes: it
 * admits half as many once a read is older than 100 ms, and at last one at a time.  But a READ may
 * wait for a donor that is away, or be held while others read.
 */
static void read_hide(struct request *rq)
{
#ifdef CONFIG_BLK_WBT
	rq->wbt_flags = 0;
#endif
}

blk_status_t ebb_io_queue_request(struct blk_mq_hw_ctx *hctx, const struct blk_mq_queue_data *bd)
{
	struct ebb_batch *batch = hctx->driver_data;
	struct request *rq = bd->rq;
	struct ebb_io *io = blk_mq_rq_to_pdu(rq);
	struct ebb_device *d = io->device;
	u64 page = blk_rq_pos(rq) >> (PAGE_SHIFT - SECTOR_SHIFT);

	switch (req_op(rq)) {
	case REQ_OP_READ:
	case REQ_OP_WRITE:
		io->slab = ebb_slab_of(d, page);
		io->span.first = page;
		io->span.count = blk_rq_bytes(rq) >> PAGE_SHIFT;
		memset(io->span.epoch, 0, sizeof(io->span.epoch));
		memset(io->on, 0, sizeof(io->on));
		io->span.write = req_op(rq) == REQ_OP_WRITE;
		io->span.class = io->span.write ? ebb_class_of_request(d, rq) : 0;
		io->cursor = io->run = 0;
		io->on_backup = io->backup_tried = io->again = io->unmapped = false;
		io->unsealed = io->waits = false;
		io->sources = io->unopened = 0;
		bitmap_zero(io->failed, EBB_IO_PAGES);
		io->status = BLK_STS_OK;
		io->writeback = NULL;
		io->buffer = NULL;
		io->slow = io->span.write;
		io->turn = TURN_NONE;
		io->since = ktime_get_ns();
		ebb_count(d, REQUESTS, 1);
		if (!io->span.write)
			read_hide(rq);
		/* From here on ebb_io_timeout() may read the request. */
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
		ebb_batches_flush(batch);
	return BLK_STS_OK;
}

/*
 * Enforces the deadline.  A work request cannot be cancelled, so the session is suspended, or ended
 * if its donor grants no grace period: its queue pairs enter the error state, which completes all
 * their work requests.
 */
enum blk_eh_timer_return ebb_io_timeout(struct request *rq)
{
	struct ebb_io *io = blk_mq_rq_to_pdu(rq);
	const struct ebb_hold *hold;
	unsigned long flags;

	if (req_op(rq) != REQ_OP_READ && req_op(rq) != REQ_OP_WRITE)
		return BLK_EH_RESET_TIMER;
	spin_lock_irqsave(&io->slab->lock, flags);
	/* A session outlives the slabs' pointers to it, which this lock guards. */
	hold = ebb_io_hold(io);
	for (int i = 0; i < EBB_COPIES; i++) {
		enum ebb_at at = ebb_hold_epoch(hold, io->span.epoch[i]);

		if (!smp_load_acquire(&io->transfer[i].in_flight) || at == AT_DONORS ||
		    !ebb_place_live(&hold->at[at]))
			continue;
		/* Time before posting (held, or behind a slow backup) does not count. */
		if (time_before(jiffies,
				READ_ONCE(io->transfer[i].posted_at) + io->device->set.timeout))
			continue;
		ebb_count(io->device, DEADLINES, 1);
		ebb_session_fail(hold->at[at].session, EBB_SWAP_CAUSE_UNREACHABLE,
				 "a page took longer than the deadline");
	}
	spin_unlock_irqrestore(&io->slab->lock, flags);
	return BLK_EH_RESET_TIMER;
}
