/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * An RDMA device for unit tests: verbs and connections that a test drives, without a network.
 * One test program includes it, once, after the headers of the code under test.
 *
 *	fake_requests() the other side requests a connection
 *	fake_arrives()  the other side sends, into the next posted receive buffer
 *	fake_sent()     the last SEND of the code under test
 */
#ifndef EBB_FAKE_VERBS_H
#define EBB_FAKE_VERBS_H

#include <errno.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
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
	uint32_t objects;    /* there are, of all kinds */
	int reg_error;       /* of the next ibv_reg_mr(); 0 = none */
	int dereg_error;     /* of the next ibv_dereg_mr(); 0 = none */
	struct ibv_mr *stays; /* that one's */
	int queue_error;     /* of the next rdma_create_qp(); 0 = none */
	int window_error;    /* of each ibv_dealloc_mw(); 0 = none */
	enum ibv_wc_status send_status; /* of each work request that is posted to send */
	int channel_error;   /* of each ibv_get_cq_event(); 0 = none */
	int stop_error;      /* of each rdma_disconnect() and ibv_modify_qp(); 0 = none */
	pthread_t makes, destroys; /* threads that did so with a queue pair last */
	uint32_t number;     /* last one given to a key or a queue pair */
	int backlog;         /* of the last rdma_listen() */
	uint32_t rejected;   /* connections */
	struct rdma_cm_id *listener; /* or what the code under test made last */
	/* The one event channel. */
	struct rdma_event_channel channel;
	struct fake_event {
		struct rdma_cm_event event;
		uint8_t data[64];
	} events[FAKE_QUEUE];
	uint32_t put, taken;
} fake;

/* Threads of the code under test make and destroy objects at once. */
static inline void *fake_new(size_t size)
{
	__atomic_add_fetch(&fake.objects, 1, __ATOMIC_RELAXED);
	return calloc(1, size);
}

static inline void fake_free(void *object)
{
	__atomic_sub_fetch(&fake.objects, 1, __ATOMIC_RELAXED);
	free(object);
}

static inline uint32_t fake_number(void)
{
	return __atomic_add_fetch(&fake.number, 1, __ATOMIC_RELAXED);
}

static void fake_done(struct ibv_cq *of, const struct ibv_wc *wc)
{
	struct fake_cq *cq = (struct fake_cq *)of;

	cq->done[cq->put++ % FAKE_QUEUE] = *wc;
	eventfd_write(cq->cq.channel->fd, 1);
}

static inline struct rdma_cm_id *fake_id(void)
{
	struct rdma_cm_id *id = fake_new(sizeof(*id));

	id->verbs = &fake.context;
	return id;
}

/* An event of @id, with @length bytes of private data. */
static inline void fake_happens(struct rdma_cm_id *id, enum rdma_cm_event_type kind,
				const void *data, uint8_t length)
{
	struct fake_event *e = &fake.events[fake.put++ % FAKE_QUEUE];

	*e = (struct fake_event){ .event = { .id = id, .event = kind } };
	if (length)
		memcpy(e->data, data, length);
	e->event.param.conn.private_data = e->data;
	e->event.param.conn.private_data_len = length;
	eventfd_write(fake.channel.fd, 1);
}

/* A connection request; its connection is the code's under test. */
static inline struct rdma_cm_id *fake_requests(const void *data, uint8_t length)
{
	struct rdma_cm_id *id = fake_id();

	fake_happens(id, RDMA_CM_EVENT_CONNECT_REQUEST, data, length);
	return id;
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
	fake_done(of->send_cq, &(struct ibv_wc){ .wr_id = wr->wr_id, .opcode = IBV_WC_SEND,
						 .status = fake.send_status });
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

static struct ibv_mw *fake_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct ibv_mw *mw = fake_new(sizeof(*mw));

	*mw = (struct ibv_mw){ .context = pd->context, .pd = pd, .rkey = fake_number() << 8,
			       .type = type };
	return mw;
}

static int fake_dealloc_mw(struct ibv_mw *mw)
{
	if (!fake.window_error)
		fake_free(mw);
	return fake.window_error;
}

static inline void fake_reset(void)
{
	memset(&fake, 0, sizeof(fake));
	fake.context.ops.post_recv = fake_post_recv;
	fake.context.ops.post_send = fake_post_send;
	fake.context.ops.poll_cq = fake_poll_cq;
	fake.context.ops.req_notify_cq = fake_req_notify_cq;
	fake.context.ops.alloc_mw = fake_alloc_mw;
	fake.context.ops.dealloc_mw = fake_dealloc_mw;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = fake_new(sizeof(*pd));

	pd->context = context;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	fake_free(pd);
	return 0;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	uint32_t number = fake_number();
	struct ibv_mr *mr;

	if (fake.reg_error) {
		errno = fake.reg_error;
		fake.reg_error = 0;
		return NULL;
	}
	mr = fake_new(sizeof(*mr));
	*mr = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = addr, .length = length,
			       .lkey = number, .rkey = number };
	__atomic_add_fetch(&fake.registered, 1, __ATOMIC_RELAXED);
	return mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	int r = fake.dereg_error;

	fake.dereg_error = 0;
	if (r) {
		fake.stays = mr;
		return r;
	}
	__atomic_sub_fetch(&fake.registered, 1, __ATOMIC_RELAXED);
	fake_free(mr);
	return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct ibv_comp_channel *channel = fake_new(sizeof(*channel));

	channel->context = context;
	channel->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	fake_free(channel);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *data,
			     struct ibv_comp_channel *channel, int vector)
{
	struct fake_cq *cq = fake_new(sizeof(*cq));

	cq->cq = (struct ibv_cq){ .context = context, .channel = channel };
	return &cq->cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	fake_free(cq);
	return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **data)
{
	eventfd_t ignored;

	errno = fake.channel_error;
	return fake.channel_error ? -1 : eventfd_read(channel->fd, &ignored);
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
}

int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct fake_qp *qp;

	fake.makes = pthread_self();
	if (fake.queue_error) {
		errno = fake.queue_error;
		fake.queue_error = 0;
		return -1;
	}
	qp = fake_new(sizeof(*qp));
	qp->qp = (struct ibv_qp){ .context = pd->context, .pd = pd, .qp_num = fake_number(),
				  .send_cq = attr->send_cq, .recv_cq = attr->recv_cq };
	id->qp = &qp->qp;
	return 0;
}

void rdma_destroy_qp(struct rdma_cm_id *id)
{
	fake.destroys = pthread_self();
	fake_free(id->qp);
	id->qp = NULL;
}

int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	return 0;
}

int rdma_disconnect(struct rdma_cm_id *id)
{
	return fake.stop_error ? -1 : 0;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	return fake.stop_error;
}

__be16 rdma_get_src_port(struct rdma_cm_id *id)
{
	return 0;
}

int rdma_destroy_id(struct rdma_cm_id *id)
{
	fake_free(id);
	return 0;
}

struct rdma_event_channel *rdma_create_event_channel(void)
{
	fake.channel.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
	return &fake.channel;
}

void rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
	close(channel->fd);
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
		   enum rdma_port_space space)
{
	*id = fake.listener = fake_id();
	return 0;
}

int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *address)
{
	return 0;
}

int rdma_listen(struct rdma_cm_id *id, int backlog)
{
	fake.backlog = backlog;
	return 0;
}

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	eventfd_t ignored;

	if (eventfd_read(channel->fd, &ignored))
		return -1;
	*event = &fake.events[fake.taken++ % FAKE_QUEUE].event;
	return 0;
}

int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	return 0;
}

int rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t length)
{
	fake.rejected++;
	return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	*attr = (struct ibv_device_attr){ .max_qp_rd_atom = 16,
					  .device_cap_flags = IBV_DEVICE_MEM_WINDOW_TYPE_2B };
	return 0;
}

#endif
