/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * An RDMA device for unit tests: verbs and connections that a test drives, without a network.
 * One test program includes it, once, after the headers of the code under test.
 *
 *	fake_arrives()  the other side sends, into the next posted receive buffer
 *	fake_sent()     the last SEND of the code under test
 */
#ifndef EBB_FAKE_VERBS_H
#define EBB_FAKE_VERBS_H

#include <errno.h>
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef ibv_reg_mr

#define FAKE_QUEUE 64

struct fake_cq {
	struct ibv_cq cq;
	struct ibv_wc done[FAKE_QUEUE];
	uint32_t put, taken;
};

struct fake_qp {
	struct ibv_qp qp;
	struct ibv_recv_wr posted[FAKE_QUEUE];
	struct ibv_sge buffers[FAKE_QUEUE];
	uint32_t put, taken;
	/* The last SEND. */
	uint8_t sent[256];
	uint32_t length, sends;
};

static struct {
	struct ibv_context context;
	uint32_t registered; /* memory regions there are */
	int dereg_error;     /* of the next ibv_dereg_mr(); 0 = none */
	uint32_t number;     /* last one given to a key or a queue pair */
} fake;

static void fake_done(struct ibv_cq *of, const struct ibv_wc *wc)
{
	struct fake_cq *cq = (struct fake_cq *)of;

	cq->done[cq->put++ % FAKE_QUEUE] = *wc;
}

/* The other side of @id sends @frame. */
static inline void fake_arrives(struct rdma_cm_id *id, const void *frame, uint32_t length)
{
	struct fake_qp *qp = (struct fake_qp *)id->qp;
	uint32_t i = qp->taken++ % FAKE_QUEUE;

	memcpy((void *)(uintptr_t)qp->buffers[i].addr, frame, length);
	fake_done(qp->qp.recv_cq, &(struct ibv_wc){ .wr_id = qp->posted[i].wr_id,
						    .opcode = IBV_WC_RECV, .byte_len = length });
}

/* The last SEND to the other side of @id, @*length bytes. */
static inline const uint8_t *fake_sent(struct rdma_cm_id *id, uint32_t *length)
{
	const struct fake_qp *qp = (const struct fake_qp *)id->qp;

	*length = qp->length;
	return qp->sent;
}

/* How many SENDs went there. */
static inline uint32_t fake_sends(const struct rdma_cm_id *id)
{
	return ((const struct fake_qp *)id->qp)->sends;
}

static int fake_post_recv(struct ibv_qp *of, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fake_qp *qp = (struct fake_qp *)of;
	uint32_t i = qp->put++ % FAKE_QUEUE;

	qp->posted[i] = *wr;
	qp->buffers[i] = *wr->sg_list;
	return 0;
}

static int fake_post_send(struct ibv_qp *of, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fake_qp *qp = (struct fake_qp *)of;

	if (wr->opcode == IBV_WR_SEND) {
		qp->length = wr->sg_list->length;
		memcpy(qp->sent, (void *)(uintptr_t)wr->sg_list->addr, qp->length);
		qp->sends++;
	}
	fake_done(of->send_cq, &(struct ibv_wc){ .wr_id = wr->wr_id, .opcode = IBV_WC_SEND });
	return 0;
}

static int fake_poll_cq(struct ibv_cq *of, int most, struct ibv_wc *wc)
{
	struct fake_cq *cq = (struct fake_cq *)of;
	int n = 0;

	while (n < most && cq->taken != cq->put)
		wc[n++] = cq->done[cq->taken++ % FAKE_QUEUE];
	return n;
}

static int fake_req_notify_cq(struct ibv_cq *cq, int solicited)
{
	return 0;
}

static inline void fake_reset(void)
{
	memset(&fake, 0, sizeof(fake));
	fake.context.ops.post_recv = fake_post_recv;
	fake.context.ops.post_send = fake_post_send;
	fake.context.ops.poll_cq = fake_poll_cq;
	fake.context.ops.req_notify_cq = fake_req_notify_cq;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof(*pd));

	pd->context = context;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct ibv_mr *mr = calloc(1, sizeof(*mr));

	*mr = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = addr, .length = length,
			       .lkey = ++fake.number, .rkey = fake.number };
	fake.registered++;
	return mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	int r = fake.dereg_error;

	fake.dereg_error = 0;
	if (r)
		return r;
	fake.registered--;
	free(mr);
	return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct ibv_comp_channel *channel = calloc(1, sizeof(*channel));

	channel->context = context;
	channel->fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	return channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	free(channel);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *data,
			     struct ibv_comp_channel *channel, int vector)
{
	struct fake_cq *cq = calloc(1, sizeof(*cq));

	cq->cq = (struct ibv_cq){ .context = context, .channel = channel };
	return &cq->cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	free(cq);
	return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **data)
{
	/* Level-triggered: the code under test polls until there is none. */
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
}

int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct fake_qp *qp = calloc(1, sizeof(*qp));

	qp->qp = (struct ibv_qp){ .context = pd->context, .pd = pd, .qp_num = ++fake.number,
				  .send_cq = attr->send_cq, .recv_cq = attr->recv_cq };
	id->qp = &qp->qp;
	return 0;
}

void rdma_destroy_qp(struct rdma_cm_id *id)
{
	free(id->qp);
	id->qp = NULL;
}

int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	return 0;
}

int rdma_disconnect(struct rdma_cm_id *id)
{
	return 0;
}

int rdma_destroy_id(struct rdma_cm_id *id)
{
	free(id);
	return 0;
}

static inline struct rdma_cm_id *fake_id(void)
{
	struct rdma_cm_id *id = calloc(1, sizeof(*id));

	id->verbs = &fake.context;
	return id;
}

#endif
