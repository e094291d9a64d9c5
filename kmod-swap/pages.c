// SPDX-License-Identifier: GPL-2.0-only
#include <linux/highmem.h>
#include <linux/ktime.h>

#include "pages.h"
#include "read_priority.h"
#include "seal.h"
#include "writeback.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

void ebb_each_piece(struct ebb_io *io, u32 from, u32 count, ebb_piece *call)
{
	struct request *rq = blk_mq_rq_from_pdu(io);
	u32 skip = from << PAGE_SHIFT, left = count << PAGE_SHIFT;
	struct req_iterator iter;
	struct bio_vec v;

	rq_for_each_segment(v, rq, iter) {
		u32 drop = min(skip, v.bv_len);
		/* A copy: the iterator advances by v.bv_len. */
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

void ebb_each_outside(struct ebb_io *io, u32 from, u32 count, ebb_piece *call)
{
	if (ebb_io_sealed(io))
		ebb_seal_each(io, from, count, call);
	else
		ebb_each_piece(io, from, count, call);
}

void ebb_writeback_piece(struct ebb_io *io, const struct bio_vec *v)
{
	for (u32 done = 0, take; done < v->bv_len; done += take) {
		struct page *page = io->writeback->pages[io->copy_at >> PAGE_SHIFT];
		u32 offset = offset_in_page(io->copy_at);

		take = min_t(u32, v->bv_len - done, PAGE_SIZE - offset);
		if (io->span.write)
			memcpy_page(page, offset, v->bv_page, v->bv_offset + done, take);
		else
			memcpy_page(v->bv_page, v->bv_offset + done, page, offset, take);
		io->copy_at += take;
	}
}

void ebb_buffer_piece(struct ebb_io *io, const struct bio_vec *v)
{
	io->copy_at = ebb_seal_copy(io, io->copy_at, v);
}

/* Flags of a request that its bio to the backup inherits. */
#define INHERITED (REQ_SYNC | REQ_IDLE | REQ_META | REQ_PRIO | REQ_SWAP)

static void backup_piece(struct ebb_io *io, const struct bio_vec *v)
{
	/* Joins contiguous memory: a bio never has more segments than vecs. */
	if (bio_add_page(&io->bio, v->bv_page, v->bv_len, v->bv_offset) != v->bv_len)
		io->bio.bi_status = BLK_STS_IOERR;
}

void ebb_backup_start(struct ebb_io *io, u32 from, u32 count, bio_end_io_t *done)
{
	struct request *rq = blk_mq_rq_from_pdu(io);
	/* As direct I/O: the disk's write-back throttling would delay swap-out, REQ_SWAP or not. */
	blk_opf_t op = io->span.write ? REQ_OP_WRITE | REQ_SYNC | REQ_IDLE : REQ_OP_READ;

	bio_init(&io->bio, io->device->backup.bdev, io->vecs, EBB_IO_PAGES,
		 op | (rq->cmd_flags & INHERITED));
	io->bio.bi_ioprio = req_get_ioprio(rq);
	io->bio.bi_iter.bi_sector = (io->span.first + from) << (PAGE_SHIFT - SECTOR_SHIFT);
	io->bio.bi_end_io = done;
	io->bio.bi_private = io;
	ebb_each_outside(io, from, count, backup_piece);
	if (WARN_ON_ONCE(io->bio.bi_status))
		bio_endio(&io->bio);
	else
		submit_bio(&io->bio);
}

bool ebb_donor_take(struct ebb_io *io, int i, const struct ebb_place *place,
		    struct ebb_there *to)
{
	if (!ebb_place_take(place))
		return false;
	io->transfer[i].session = place->session;
	io->span.epoch[i] = place->epoch;
	to->address = place->address +
		      (((io->span.first + io->cursor) & (io->device->slab_pages - 1))
		       << PAGE_SHIFT);
	to->rkey = place->rkey;
	return true;
}

int ebb_donor_start(struct ebb_io *io, int i, u32 count, const struct ebb_there *to,
		    struct ebb_batch *batch,
		    void (*done)(struct ebb_transfer *transfer, int error))
{
	struct request *rq = blk_mq_rq_from_pdu(io);
	struct ebb_transfer *t = &io->transfer[i];

	t->direction = io->span.write ? DMA_TO_DEVICE : DMA_FROM_DEVICE;
	t->done = done;
	if (ebb_io_sealed(io)) {
		t->entries = ebb_seal_map(io, t->sg);
	} else {
		sg_init_table(t->sg, EBB_SEGMENTS);
		t->entries = blk_rq_map_sg(rq->q, rq, t->sg);
	}
	return ebb_transfer_start(t, io->cursor << PAGE_SHIFT, count << PAGE_SHIFT, to->address,
				  to->rkey, rq->mq_hctx->queue_num, batch ? &batch[i] : NULL);
}

void ebb_io_finish(struct ebb_io *io, blk_status_t status)
{
	struct ebb_device *d = io->device;

	ebb_seal_put_buffer(io);
	ebb_read_priority_end(io);
	ebb_span_end(io->slab, &io->span, NULL);
	if (status && io->span.write)
		ebb_count(d, WRITE_FAILED, 1);
	else if (status)
		ebb_count(d, READ_FAILED, 1);
	trace_ebb_swap_io(d->index, io->slab - d->slabs, io->span.first, io->span.count,
			  io->span.write, io->sources, ktime_get_ns() - io->since,
			  blk_status_to_errno(status));
	io->status = status;
	/* Ends it on the processor that rq_affinity wants. */
	blk_mq_complete_request(blk_mq_rq_from_pdu(io));
}

/* Returns the end of the run of pages from @from on that have the result of page @from. */
static u32 result_end(const struct ebb_io *io, u32 from, blk_status_t *status)
{
	if (test_bit(from, io->failed)) {
		*status = io->status;
		return find_next_zero_bit(io->failed, io->span.count, from);
	}
	*status = BLK_STS_OK;
	return find_next_bit(io->failed, io->span.count, from);
}

void ebb_io_complete(struct request *rq)
{
	const struct ebb_io *io = blk_mq_rq_to_pdu(rq);
	blk_status_t status = io->status;
	u32 from, end = 0;

	if (likely(io->span.write || !status)) {
		blk_mq_end_request(rq, status);
		return;
	}
	/* Of the bios merged into the request, only those with a failed page fail. */
	do {
		from = end;
		end = result_end(io, from, &status);
	} while (blk_update_request(rq, status, (end - from) << PAGE_SHIFT));
	__blk_mq_end_request(rq, status);
}
