// SPDX-License-Identifier: GPL-2.0-only
#include "donor_io.h"

/* Ends a work request, completed or never posted, and with the last one the transfer. */
static void part_end(struct ebb_transfer *t, int error)
{
	struct ebb_session *s = t->session;

	if (error)
		WRITE_ONCE(t->error, error);
	if (!atomic_dec_and_test(&t->left))
		return;
	atomic_dec(&t->queue->transfers);
	ib_dma_unmap_sg(s->ib, t->sg, t->entries, t->direction);
	WRITE_ONCE(t->in_flight, false);
	t->done(t, t->error);
	/* Last: the reference keeps the session. */
	percpu_ref_put(&s->ref);
}

static void page_completion(struct ib_cq *cq, struct ib_wc *wc)
{
	struct ebb_transfer *t = container_of(wc->wr_cqe, struct ebb_transfer, cqe);

	if (unlikely(wc->status != IB_WC_SUCCESS)) {
		ebb_session_fail_wc(t->session, wc->status);
		part_end(t, -EIO);
		return;
	}
	part_end(t, 0);
}

void ebb_batch_init(struct ebb_batch *batch)
{
	spin_lock_init(&batch->lock);
	batch->queue = NULL;
	batch->first = batch->last = NULL;
}

static void post(struct ebb_queue *queue, struct ib_send_wr *first)
{
	struct ebb_session *s = queue->session;
	const struct ib_send_wr *bad = NULL;

	/*
	 * The transfers may end before ib_post_send() returns, and with their references the queue
	 * pair would be destroyed under it.
	 */
	percpu_ref_get(&s->ref);
	ebb_count(s->device, DOORBELLS, 1);
	if (likely(!ib_post_send(queue->id->qp, first, &bad)))
		bad = NULL;
	else
		ebb_session_fail(s, EBB_SWAP_CAUSE_LOCAL, "the queue pair refuses work requests");
	/* @bad and the work requests after it are not posted and get no completion. */
	while (bad) {
		struct ebb_transfer *t = container_of(bad->wr_cqe, struct ebb_transfer, cqe);

		bad = bad->next;
		part_end(t, -EIO);
	}
	percpu_ref_put(&s->ref);
}

/*
 * Returns the work requests to post to *@queue; batch->lock is held.  The caller posts them without
 * the lock: a transfer that the queue pair rejects ends at once, and its done() may start others.
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

void ebb_batches_flush(struct ebb_batch *batches)
{
	for (int i = 0; i < EBB_COPIES; i++)
		batch_flush(&batches[i]);
}

static void batch_add(struct ebb_batch *batch, struct ebb_queue *queue, struct ib_send_wr *first,
		      struct ib_send_wr *last)
{
	struct ib_send_wr *others = NULL;
	struct ebb_queue *other;
	unsigned long flags;

	spin_lock_irqsave(&batch->lock, flags);
	if (batch->queue != queue)
		others = batch_take(batch, &other);
	batch->queue = queue;
	if (batch->first)
		batch->last->next = first;
	else
		WRITE_ONCE(batch->first, first);
	batch->last = last;
	spin_unlock_irqrestore(&batch->lock, flags);
	if (others)
		post(other, others);
}

/* Fills t->sge with @length bytes of the mapped list from byte @skip on; returns the count. */
static int gather(struct ebb_transfer *t, int mapped, u32 skip, u32 length)
{
	struct scatterlist *sg;
	int i, n = 0;

	for_each_sg(t->sg, sg, mapped, i) {
		u32 bytes = sg_dma_len(sg);
		u32 take;

		if (skip >= bytes) {
			skip -= bytes;
			continue;
		}
		take = min(bytes - skip, length);
		t->sge[n++] = (struct ib_sge){
			.addr = sg_dma_address(sg) + skip,
			.length = take,
			.lkey = t->session->pd->local_dma_lkey,
		};
		skip = 0;
		length -= take;
		if (!length)
			break;
	}
	return n;
}

/* Fills t->wr for the first @n segments; returns the last work request. */
static struct ib_send_wr *fill(struct ebb_transfer *t, int n, u64 address, u32 rkey)
{
	bool writes = t->direction == DMA_TO_DEVICE;
	int most = writes ? t->session->write_segments : t->session->read_segments;
	int parts = 0;

	for (int i = 0; i < n; i += most, parts++) {
		int its = min(most, n - i);

		t->wr[parts] = (struct ib_rdma_wr){
			.wr = {
				.next = i + its < n ? &t->wr[parts + 1].wr : NULL,
				.wr_cqe = &t->cqe,
				.sg_list = &t->sge[i],
				.num_sge = its,
				.opcode = writes ? IB_WR_RDMA_WRITE : IB_WR_RDMA_READ,
				.send_flags = IB_SEND_SIGNALED,
			},
			.remote_addr = address,
			.rkey = rkey,
		};
		for (int k = i; k < i + its; k++)
			address += t->sge[k].length;
	}
	atomic_set(&t->left, parts);
	ebb_count(t->session->device, MESSAGES, parts);
	return &t->wr[parts - 1].wr;
}

int ebb_transfer_start(struct ebb_transfer *t, u32 skip, u32 bytes, u64 address, u32 rkey,
		       u32 queue, struct ebb_batch *batch)
{
	struct ebb_session *s = t->session;
	int mapped = ib_dma_map_sg(s->ib, t->sg, t->entries, t->direction);
	struct ib_send_wr *last;

	if (unlikely(!mapped)) {
		percpu_ref_put(&s->ref);
		return -ENOMEM;
	}
	t->cqe.done = page_completion;
	t->error = 0;
	t->queue = &s->queue[queue];
	atomic_inc(&t->queue->transfers);
	last = fill(t, gather(t, mapped, skip, bytes), address, rkey);
	WRITE_ONCE(t->posted_at, jiffies);
	/* A reader that sees in_flight sees posted_at. */
	smp_store_release(&t->in_flight, true);
	if (batch)
		batch_add(batch, t->queue, &t->wr[0].wr, last);
	else
		post(t->queue, &t->wr[0].wr);
	return 0;
}
