// SPDX-License-Identifier: GPL-2.0-only
#include <linux/slab.h>

#include "message.h"

/* The longest frame sent must fit a message. */
static_assert(EBB_FRAME >= WIRE_HEADER + WIRE_DONOR_SIZE + WIRE_MARK);

static void receive_post(struct ebb_session *s, struct ebb_message *m)
{
	struct ib_sge sge = {
		.addr = m->dma, .length = EBB_FRAME, .lkey = s->pd->local_dma_lkey,
	};
	struct ib_recv_wr wr = { .wr_cqe = &m->cqe, .sg_list = &sge, .num_sge = 1 };

	if (ib_post_recv(s->queue[0].id->qp, &wr, NULL))
		ebb_session_fail(s, EBB_SWAP_CAUSE_LOCAL, "the queue pair refuses receives");
}

static void received(struct ib_cq *cq, struct ib_wc *wc)
{
	struct ebb_message *m = container_of(wc->wr_cqe, struct ebb_message, cqe);
	struct ebb_queue *q = cq->cq_context;
	struct ebb_session *s = q->session;
	u32 length = wc->byte_len;
	struct wire_frame f;

	if (wc->status != IB_WC_SUCCESS) {
		ebb_session_fail_wc(s, wc->status);
		return;
	}
	ib_dma_sync_single_for_cpu(s->ib, m->dma, EBB_FRAME, DMA_FROM_DEVICE);
	if (!ebb_proof_verify(&s->proof, m->data, &length)) {
		ebb_session_fail(s, EBB_SWAP_CAUSE_PROTOCOL, "a frame is not from its donor");
		return;
	}
	if (length < WIRE_HEADER || wire_parse(m->data, length, WIRE_AT_BORROWER, &f) != 1) {
		ebb_session_fail(s, EBB_SWAP_CAUSE_PROTOCOL, "the donor sent a malformed frame");
		return;
	}
	if (!s->take(s, &f, m->data, length))
		return;
	ib_dma_sync_single_for_device(s->ib, m->dma, EBB_FRAME, DMA_FROM_DEVICE);
	receive_post(s, m);
}

static void sent(struct ib_cq *cq, struct ib_wc *wc)
{
	struct ebb_queue *q = cq->cq_context;

	if (wc->status != IB_WC_SUCCESS)
		ebb_session_fail_wc(q->session, wc->status);
}

static void answer_sent(struct ib_cq *cq, struct ib_wc *wc)
{
	struct ebb_queue *q = cq->cq_context;

	sent(cq, wc);
	complete(&q->session->answered);
}

int ebb_message_send(struct ebb_session *s, struct ebb_message *m, u32 length)
{
	struct ib_sge sge = { .addr = m->dma, .lkey = s->pd->local_dma_lkey };
	struct ib_send_wr wr = {
		.wr_cqe = &m->cqe, .sg_list = &sge, .num_sge = 1,
		.opcode = IB_WR_SEND, .send_flags = IB_SEND_SIGNALED,
	};
	int r;

	mutex_lock(&s->sending);
	r = ebb_proof_sign(&s->proof, m->data, &length);
	ib_dma_sync_single_for_device(s->ib, m->dma, EBB_FRAME, DMA_TO_DEVICE);
	sge.length = length;
	if (!r)
		r = ib_post_send(s->queue[0].id->qp, &wr, NULL);
	mutex_unlock(&s->sending);
	/* The MAC counted the unsent frame: the donor would reject the next frame. */
	if (r)
		ebb_session_fail(s, EBB_SWAP_CAUSE_LOCAL, "the queue pair refuses frames");
	return r;
}

static int message_init(struct ebb_session *s, struct ebb_message *m,
			enum dma_data_direction direction,
			void (*done)(struct ib_cq *, struct ib_wc *))
{
	m->data = kzalloc(EBB_FRAME, GFP_KERNEL);
	if (!m->data)
		return -ENOMEM;
	m->dma = ib_dma_map_single(s->ib, m->data, EBB_FRAME, direction);
	if (ib_dma_mapping_error(s->ib, m->dma)) {
		kfree(m->data);
		m->data = NULL;
		return -ENOMEM;
	}
	m->cqe.done = done;
	return 0;
}

static void message_free(struct ebb_session *s, struct ebb_message *m,
			 enum dma_data_direction direction)
{
	if (!m->data)
		return;
	ib_dma_unmap_single(s->ib, m->dma, EBB_FRAME, direction);
	kfree(m->data);
	m->data = NULL;
}

int ebb_messages_init(struct ebb_session *s, ebb_take_fn *take)
{
	int r = message_init(s, &s->answer, DMA_TO_DEVICE, answer_sent);

	s->take = take;
	for (int i = 0; !r && i < EBB_REQUESTS; i++)
		r = message_init(s, &s->send[i], DMA_TO_DEVICE, sent);
	for (int i = 0; !r && i < EBB_RECEIVES; i++)
		r = message_init(s, &s->receive[i], DMA_FROM_DEVICE, received);
	for (int i = 0; !r && i < EBB_RECEIVES; i++)
		receive_post(s, &s->receive[i]);
	return r;
}

void ebb_messages_free(struct ebb_session *s)
{
	message_free(s, &s->answer, DMA_TO_DEVICE);
	for (int i = 0; i < EBB_REQUESTS; i++)
		message_free(s, &s->send[i], DMA_TO_DEVICE);
	for (int i = 0; i < EBB_RECEIVES; i++)
		message_free(s, &s->receive[i], DMA_FROM_DEVICE);
}
