// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pages of a request as one RDMA READ or WRITE: the device reads and writes them
 * where they are, by the local DMA key, so nothing is registered or copied.
 */
#include "internal.h"

static enum dma_data_direction direction(const struct ebb_io *io)
{
	return io->write ? DMA_TO_DEVICE : DMA_FROM_DEVICE;
}

/* The donor leg is over: the pages are ours again, then whoever waits goes on. */
static void leg_over(struct ebb_io *io, int error)
{
	struct ebb_session *s = io->session;

	ib_dma_unmap_sg(s->ib, io->sg, io->mapped, direction(io));
	WRITE_ONCE(io->leg_donor, false);
	io_donor_done(io, error);
	/* Last: the session's end waits for those who may still look at its state. */
	percpu_ref_put(&s->ref);
}

static void page_completion(struct ib_cq *cq, struct ib_wc *wc)
{
	struct ebb_io *io = container_of(wc->wr_cqe, struct ebb_io, cqe);

	if (unlikely(wc->status != IB_WC_SUCCESS)) {
		session_fail(io->session, ib_wc_status_msg(wc->status));
		leg_over(io, -EIO);
		return;
	}
	leg_over(io, 0);
}

void batch_init(struct ebb_batch *batch)
{
	spin_lock_init(&batch->lock);
	batch->queue = NULL;
	batch->first = batch->last = NULL;
}

static void post(struct ebb_queue *queue, struct ib_send_wr *first)
{
	struct ebb_session *s = queue->session;
	const struct ib_send_wr *bad = NULL;

	ebb_count(s->device, DOORBELLS, 1);
	if (likely(!ib_post_send(queue->id->qp, first, &bad)))
		return;
	session_fail(s, "the queue pair takes no work");
	/* From @bad on they were not taken and nobody else will end them. */
	while (bad) {
		struct ebb_io *io = container_of(bad->wr_cqe, struct ebb_io, cqe);

		bad = bad->next;
		leg_over(io, -EIO);
	}
}

static void flush_locked(struct ebb_batch *batch)
{
	struct ib_send_wr *first = batch->first;

	if (!first)
		return;
	batch->first = batch->last = NULL;
	post(batch->queue, first);
}

void batch_flush(struct ebb_batch *batch)
{
	unsigned long flags;

	if (!READ_ONCE(batch->first))
		return;
	spin_lock_irqsave(&batch->lock, flags);
	flush_locked(batch);
	spin_unlock_irqrestore(&batch->lock, flags);
}

static void batch_add(struct ebb_batch *batch, struct ebb_queue *queue, struct ib_send_wr *wr)
{
	unsigned long flags;

	spin_lock_irqsave(&batch->lock, flags);
	if (batch->queue != queue)
		flush_locked(batch);
	batch->queue = queue;
	if (batch->first)
		batch->last->next = wr;
	else
		WRITE_ONCE(batch->first, wr);
	batch->last = wr;
	spin_unlock_irqrestore(&batch->lock, flags);
}

/* Elements for @length bytes from byte @skip of the mapped list; how many. */
static int gather(struct ebb_io *io, int mapped, u32 skip, u32 length)
{
	struct scatterlist *sg;
	int i, n = 0;

	for_each_sg(io->sg, sg, mapped, i) {
		u32 bytes = sg_dma_len(sg);
		u32 take;

		if (skip >= bytes) {
			skip -= bytes;
			continue;
		}
		take = min(bytes - skip, length);
		io->sge[n++] = (struct ib_sge){
			.addr = sg_dma_address(sg) + skip,
			.length = take,
			.lkey = io->session->pd->local_dma_lkey,
		};
		skip = 0;
		length -= take;
		if (!length)
			break;
	}
	return n;
}

int donor_io_start(struct ebb_io *io, u32 from, u32 count, u64 address, u32 rkey,
		   u32 queue, struct ebb_batch *batch)
{
	struct request *rq = blk_mq_rq_from_pdu(io);
	struct ebb_session *s = io->session;
	int mapped;

	sg_init_table(io->sg, EBB_SEGMENTS);
	io->mapped = blk_rq_map_sg(rq->q, rq, io->sg);
	mapped = ib_dma_map_sg(s->ib, io->sg, io->mapped, direction(io));
	if (unlikely(!mapped)) {
		percpu_ref_put(&s->ref);
		return -ENOMEM;
	}
	io->cqe.done = page_completion;
	io->wr = (struct ib_rdma_wr){
		.wr = {
			.wr_cqe = &io->cqe,
			.sg_list = io->sge,
			.num_sge = gather(io, mapped, from << PAGE_SHIFT, count << PAGE_SHIFT),
			.opcode = io->write ? IB_WR_RDMA_WRITE : IB_WR_RDMA_READ,
			.send_flags = IB_SEND_SIGNALED,
		},
		.remote_addr = address,
		.rkey = rkey,
	};
	WRITE_ONCE(io->leg_donor, true);
	ebb_count(io->device, MESSAGES, 1);
	if (batch)
		batch_add(batch, &s->queue[queue], &io->wr.wr);
	else
		post(&s->queue[queue], &io->wr.wr);
	return 0;
}
