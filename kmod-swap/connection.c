// SPDX-License-Identifier: GPL-2.0-only
#include <linux/moduleparam.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <net/net_namespace.h>

#include "call.h"
#include "connection.h"
#include "message.h"
#include "recall.h"

/*
 * Ends before RESUME_WAIT: to destroy an id whose address is still being resolved may wait for a
 * work queue that has no rescuer thread.
 */
#define RESOLVE_MS 1500
#define CM_WAIT (5 * HZ)
/* While a session is being resumed: the connection manager repeats a lost request too late. */
#define RESUME_WAIT (2 * HZ)
#define RNR_RETRIES 6
#define READS_AT_ONCE 16

/*
 * Lost packets are retransmitted after 4.096 us << 14 = 67 ms, six times: a donor that is
 * unresponsive for half a second is away.
 */
static unsigned int ack_timeout = 14;
module_param(ack_timeout, uint, 0644);
MODULE_PARM_DESC(ack_timeout,
		 "time until a packet is sent again, as N in 4.096 us << N, 1 to 31 [14]");
static unsigned int retries = 6;
module_param(retries, uint, 0644);
MODULE_PARM_DESC(retries,
		 "number of times that a packet is sent again before the donor is away, 1 to 6 [6]");

/* Returns the donor's reason for rejecting the connection; NULL = none given. */
static const char *refusal(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	const void *data;
	u8 length = 0;

	if (event->event != RDMA_CM_EVENT_REJECTED)
		return NULL;
	data = rdma_consumer_reject_data(id, event, &length);
	return data ? wire_refusal_text(wire_parse_refusal(data, length)) : NULL;
}

static int cm_event(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	struct ebb_queue *q = id->context;

	switch (event->event) {
	case RDMA_CM_EVENT_ESTABLISHED:
		q->established = true;
		q->join.peer = event->param.conn.qp_num;
		memcpy(q->join.reply, event->param.conn.private_data,
		       min_t(size_t, event->param.conn.private_data_len,
			     sizeof(q->join.reply)));
		fallthrough;
	case RDMA_CM_EVENT_ADDR_RESOLVED:
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		q->cm_status = 0;
		complete(&q->cm);
		break;
	case RDMA_CM_EVENT_ADDR_ERROR:
	case RDMA_CM_EVENT_ROUTE_ERROR:
	case RDMA_CM_EVENT_CONNECT_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE:
	case RDMA_CM_EVENT_REJECTED:
		if (q->established) {
			ebb_session_fail(q->session, EBB_SWAP_CAUSE_UNREACHABLE,
					 "the connection to the donor broke");
			break;
		}
		q->refused = refusal(id, event);
		/* The status of a rejection is a positive reason, not an errno. */
		q->cm_status = event->status < 0 ? event->status : -ECONNREFUSED;
		complete(&q->cm);
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		ebb_session_fail(q->session, EBB_SWAP_CAUSE_CLOSED, "the donor closed the connection");
		break;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		ebb_session_fail(q->session, EBB_SWAP_CAUSE_LOCAL, "the network device was removed");
		break;
	case RDMA_CM_EVENT_ADDR_CHANGE:
		ebb_session_fail(q->session, EBB_SWAP_CAUSE_LOCAL, "the network address changed");
		break;
	default:
		break;
	}
	return 0;
}

static int cm_wait(struct ebb_queue *q)
{
	if (!wait_for_completion_timeout(&q->cm, q->session->resuming ? RESUME_WAIT : CM_WAIT))
		return -ETIMEDOUT;
	return q->cm_status;
}

static int device_check(struct ebb_session *s, struct ib_device *ib, const char **why)
{
	if (s->ib && s->ib != ib) {
		*why = "address: its connections leave by different network devices";
		return -EINVAL;
	}
	if (rdma_protocol_iwarp(ib, 1)) {
		*why = "address: iWARP is not supported; use InfiniBand or RoCE";
		return -EOPNOTSUPP;
	}
	s->write_segments = min(ib->attrs.max_send_sge, EBB_SEGMENTS);
	s->read_segments = min3(ib->attrs.max_send_sge, ib->attrs.max_sge_rd, EBB_SEGMENTS);
	if (s->read_segments * EBB_PARTS < EBB_SEGMENTS) {
		*why = "address: the network device gathers fewer than 4 segments";
		return -EOPNOTSUPP;
	}
	s->ib = ib;
	return 0;
}

static int queue_create(struct ebb_session *s, struct ebb_queue *q, u32 index)
{
	struct ebb_device *d = s->device;
	/*
	 * The parts of each request of the device and of the copier's; a call, an answer, a probe
	 * and the drain, with some to spare.
	 */
	u32 parts = DIV_ROUND_UP(EBB_SEGMENTS, s->read_segments);
	struct ib_qp_init_attr attr = {
		.qp_type = IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.cap = {
			.max_send_wr = (d->depth + 1) * parts + EBB_REQUESTS + 6,
			.max_recv_wr = EBB_RECEIVES + 1,
			.max_send_sge = s->write_segments,
			.max_recv_sge = 1,
		},
	};

	if (!s->pd) {
		struct ib_pd *pd = ib_alloc_pd(s->ib, 0);

		if (IS_ERR(pd))
			return PTR_ERR(pd);
		s->pd = pd;
	}
	/*
	 * Polled in softirq context; the interrupt is rearmed once the queue is empty.  Sessions
	 * have different vectors as far as there are enough.
	 */
	q->cq = ib_alloc_cq(s->ib, q, attr.cap.max_send_wr + attr.cap.max_recv_wr + 2,
			    (s->index * d->queues + index) % s->ib->num_comp_vectors,
			    IB_POLL_SOFTIRQ);
	if (IS_ERR(q->cq)) {
		int r = PTR_ERR(q->cq);

		q->cq = NULL;
		return r;
	}
	attr.send_cq = attr.recv_cq = q->cq;
	return rdma_create_qp(q->id, s->pd, &attr);
}

static int queue_open(struct ebb_session *s, u32 index, const char **why)
{
	struct ebb_queue *q = &s->queue[index];
	struct rdma_conn_param param = {
		.private_data = q->join.request,
		.private_data_len = WIRE_PROOF_REQUEST_SIZE,
		/* Soft-RoCE takes 7 for "without end". */
		.retry_count = clamp_t(u32, READ_ONCE(retries), 1, 6),
		.rnr_retry_count = RNR_RETRIES,
	};
	int r;

	q->session = s;
	init_completion(&q->cm);
	*why = "session: out of memory";
	q->id = rdma_create_id(&init_net, cm_event, q, RDMA_PS_TCP, IB_QPT_RC);
	if (IS_ERR(q->id)) {
		r = PTR_ERR(q->id);
		q->id = NULL;
		return r;
	}
	*why = "address: no RDMA device has a route there";
	r = rdma_resolve_addr(q->id, NULL, (struct sockaddr *)&s->to, RESOLVE_MS) ?: cm_wait(q);
	if (!r)
		r = rdma_resolve_route(q->id, RESOLVE_MS) ?: cm_wait(q);
	if (!r)
		r = device_check(s, q->id->device, why);
	if (r)
		return r;
	*why = "session: the network device cannot create a queue pair";
	r = queue_create(s, q, index);
	if (r)
		return r;
	rdma_set_ack_timeout(q->id, clamp_t(u32, READ_ONCE(ack_timeout), 1, 31));
	q->join.own = q->id->qp->qp_num;
	r = ebb_proof_request(&s->proof, s->device->queues, &q->join, index, s->number);
	if (r)
		return r;
	param.initiator_depth = min_t(int, READS_AT_ONCE, s->ib->attrs.max_qp_init_rd_atom);
	*why = "address: no donor accepts connections there";
	r = rdma_connect(q->id, &param) ?: cm_wait(q);
	q->connected = !r;
	/* A donor that rejects the connection is reachable: report its reason. */
	if (r && q->refused) {
		*why = q->refused;
		return s->proof.key == &s->proof.own &&
		       q->refused == wire_refusal_text(WIRE_REFUSED_OTHER_KEY) ? -ENOKEY : -EACCES;
	}
	return r ?: ebb_proof_check(&s->proof, &q->join, index, why);
}

void ebb_connections_flush(struct ebb_session *s)
{
	for (u32 i = 0; i < s->device->queues; i++)
		if (s->queue[i].connected)
			rdma_disconnect(s->queue[i].id);
	for (u32 i = 0; i < s->device->queues; i++)
		if (s->queue[i].connected)
			ib_drain_qp(s->queue[i].id->qp);
	cancel_work_sync(&s->answering);
}

void ebb_connections_free(struct ebb_session *s)
{
	for (u32 i = 0; i < s->device->queues; i++) {
		struct ebb_queue *q = &s->queue[i];

		if (!q->id)
			continue;
		if (q->id->qp)
			rdma_destroy_qp(q->id);
		if (q->cq)
			ib_free_cq(q->cq);
	}
	ebb_messages_free(s);
	if (s->pd)
		ib_dealloc_pd(s->pd);
	/* Last: the ids keep the network device from being removed. */
	for (u32 i = 0; i < s->device->queues; i++)
		if (s->queue[i].id)
			rdma_destroy_id(s->queue[i].id);
	s->pd = NULL;
	s->ib = NULL;
	memset(s->queue, 0, s->device->queues * sizeof(s->queue[0]));
	ebb_proof_reset(&s->proof);
	s->recalls = 0;
	s->probing = false;
	ebb_call_forget(s);
}

/* Takes a frame; false = it has ended the session. */
static bool frame_taken(struct ebb_session *s, const struct wire_frame *f, const u8 *data,
			u32 length)
{
	if (f->direction == WIRE_REQUEST) {
		ebb_recall_take(s, f);
	} else if (!ebb_call_replied(s, f, data, length)) {
		ebb_session_fail(s, EBB_SWAP_CAUSE_PROTOCOL, "the donor sent an unexpected reply");
		return false;
	}
	return true;
}

int ebb_connections_open(struct ebb_session *s, const char **why)
{
	int r = 0;

	/* The donor takes it for a new session until HELLO. */
	s->number = get_random_u64();
	for (u32 i = 0; !r && i < s->device->queues; i++) {
		/* Each handshake may take seconds: DISCONNECT and DESTROY wait for one at most. */
		if (READ_ONCE(s->life.broken)) {
			*why = "session: it ended during the handshake";
			r = -ENOTCONN;
		} else {
			r = queue_open(s, i, why);
		}
	}
	if (!r)
		r = ebb_messages_init(s, frame_taken);
	return r ?: ebb_call_hello(s, why);
}
