// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pages as one RDMA READ or WRITE: the device reads and writes them where they
 * are, by the local DMA key, so nothing is registered or copied.
 */
#include "internal.h"

/* The pages are ours again, then whoever waits goes on. */
static void leg_over(struct ebb_leg *leg, int error)
{
	struct ebb_session *s = leg->session;

	ib_dma_unmap_sg(s->ib, leg->sg, leg->entries, leg->direction);
	WRITE_ONCE(leg->under_way, false);
	leg->done(leg, error);
	/* Last: the session's end waits for those who may still look at its state. */
	percpu_ref_put(&s->ref);
}

static void page_completion(struct ib_cq *cq, struct ib_wc *wc)
{
	struct ebb_leg *leg = container_of(wc->wr_cqe, struct ebb_leg, cqe);

	if (unlikely(wc->status != IB_WC_SUCCESS)) {
		session_fail(leg->session, ib_wc_status_msg(wc->status));
		leg_over(leg, -EIO);
		return;
	}
	leg_over(leg, 0);
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
		struct ebb_leg *leg = container_of(bad->wr_cqe, struct ebb_leg, cqe);

		bad = bad->next;
		leg_over(leg, -EIO);
	}
}

/*
 * What is to be posted, and to *@queue; batch->lock is held.  It is posted without: what
 * the queue pair does not take ends at once, and who is told of that may ask for more.
 */
static struct ib_send_wr *batch_take(struct ebb_batch *batch, struct ebb_queue **queue)
{
	struct ib_send_wr *first = batch->first;

	*queue = batch->queue;
	batch->first = batch->last = NULL;
	return first;
}

static void batch_flush(struct ebb_batch *batch)
{
	struct ib_send_wr *first;
	struct ebb_queue *queue;
	unsigned long flags;

	if (!READ_ONCE(batch->first))
		return;
	spin_lock_irqsave(&batch->lock, flags);
	first = batch_take(batch, &queue);
	spin_unlock_irqrestore(&batch->lock, flags);
	if (first)
		post(queue, first);
}

void batches_flush(struct ebb_batch *batches)
{
	for (int i = 0; i < EBB_COPIES; i++)
		batch_flush(&batches[i]);
}

static void batch_add(struct ebb_batch *batch, struct ebb_queue *queue, struct ib_send_wr *wr)
{
	struct ib_send_wr *others = NULL;
	struct ebb_queue *other;
	unsigned long flags;

	spin_lock_irqsave(&batch->lock, flags);
	if (batch->queue != queue)
		others = batch_take(batch, &other);
	batch->queue = queue;
	if (batch->first)
		batch->last->next = wr;
	else
		WRITE_ONCE(batch->first, wr);
	batch->last = wr;
	spin_unlock_irqrestore(&batch->lock, flags);
	if (others)
		post(other, others);
}

/* Elements for @length bytes from byte @skip of the mapped list; how many. */
static int gather(struct ebb_leg *leg, int mapped, u32 skip, u32 length)
{
	struct scatterlist *sg;
	int i, n = 0;

	for_each_sg(leg->sg, sg, mapped, i) {
		u32 bytes = sg_dma_len(sg);
		u32 take;

		if (skip >= bytes) {
			skip -= bytes;
			continue;
		}
		take = min(bytes - skip, length);
		leg->sge[n++] = (struct ib_sge){
			.addr = sg_dma_address(sg) + skip,
			.length = take,
			.lkey = leg->session->pd->local_dma_lkey,
		};
		skip = 0;
		length -= take;
		if (!length)
			break;
	}
	return n;
}

int leg_start(struct ebb_leg *leg, u32 skip, u32 bytes, u64 address, u32 rkey, u32 queue,
	      struct ebb_batch *batch)
{
	struct ebb_session *s = leg->session;
	int mapped = ib_dma_map_sg(s->ib, leg->sg, leg->entries, leg->direction);

	if (unlikely(!mapped)) {
		percpu_ref_put(&s->ref);
		return -ENOMEM;
	}
	leg->cqe.done = page_completion;
	leg->wr = (struct ib_rdma_wr){
		.wr = {
			.wr_cqe = &leg->cqe,
			.sg_list = leg->sge,
			.num_sge = gather(leg, mapped, skip, bytes),
			.opcode = leg->direction == DMA_TO_DEVICE ? IB_WR_RDMA_WRITE :
								    IB_WR_RDMA_READ,
			.send_flags = IB_SEND_SIGNALED,
		},
		.remote_addr = address,
		.rkey = rkey,
	};
	WRITE_ONCE(leg->since, jiffies);
	/* Whoever sees that sees since when. */
	smp_store_release(&leg->under_way, true);
	ebb_count(s->device, MESSAGES, 1);
	if (batch)
		batch_add(batch, &s->queue[queue], &leg->wr.wr);
	else
		post(&s->queue[queue], &leg->wr.wr);
	return 0;
}
