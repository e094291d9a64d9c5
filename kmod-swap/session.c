// SPDX-License-Identifier: GPL-2.0-only
#include <linux/moduleparam.h>
#include <linux/random.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/utsname.h>
#include <net/net_namespace.h>

#include "session.h"
#include "wire_rdma.h"

/* The longest frame sent must fit a message. */
static_assert(EBB_FRAME >= WIRE_HEADER + WIRE_DONOR_SIZE + WIRE_MARK);

/*
 * Ends before RESUME_WAIT: to destroy an id whose address is still being resolved may wait for a
 * work queue that has no rescuer thread.
 */
#define RESOLVE_MS 1500
#define CM_WAIT (5 * HZ)
/* While a session is being resumed: the connection manager repeats a lost request too late. */
#define RESUME_WAIT (2 * HZ)
/* Pause between two attempts to resume a session. */
#define RESUME_PAUSE DIV_ROUND_UP(HZ, 5)
/* A session that fails sooner after its resumption was not back: its absence goes on. */
#define BACK_LEAST (5 * HZ)
/* ms that calls which resume a session may take, even if the device's deadline is shorter; */
#define RESUME_CALL 5000u
/* and most that BYE may take. */
#define BYE_CALL 500u
#define RNR_RETRIES 6
#define READS_AT_ONCE 16
/* Interval of probes: an idle connection does not notice that its donor has lost power. */
#define KEEPALIVE HZ

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

/* Runs the suspension and close of sessions, recalls, releases and probes. */
static struct workqueue_struct *closing;

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

/* --- frames --- */

static void receive_post(struct ebb_session *s, struct ebb_message *m)
{
	struct ib_sge sge = {
		.addr = m->dma, .length = EBB_FRAME, .lkey = s->pd->local_dma_lkey,
	};
	struct ib_recv_wr wr = { .wr_cqe = &m->cqe, .sg_list = &sge, .num_sge = 1 };

	if (ib_post_recv(s->queue[0].id->qp, &wr, NULL))
		ebb_session_fail(s, EBB_SWAP_CAUSE_LOCAL, "the queue pair refuses receives");
}

/* Queues an EVICT; other requests are for other borrowers. */
static void recalled(struct ebb_session *s, const struct wire_frame *f)
{
	unsigned long flags;
	bool full;

	if (f->op != WIRE_EVICT) {
		ebb_session_fail(s, EBB_SWAP_CAUSE_PROTOCOL,
				 "the donor sent a request other than EVICT");
		return;
	}
	spin_lock_irqsave(&s->lock, flags);
	full = s->recalls == EBB_RECALLS;
	if (!full)
		s->recall[s->recalls++] = (struct ebb_recall){
			.tag = f->tag, .remote = f->slab, .generation = f->generation,
		};
	spin_unlock_irqrestore(&s->lock, flags);
	if (full)
		ebb_session_fail(s, EBB_SWAP_CAUSE_PROTOCOL, "the donor sent too many requests");
	else
		queue_work(closing, &s->answering);
}

/* Handles the answer to a call that has failed by the deadline; s->lock is held. */
static void answered_late(struct ebb_session *s, const struct wire_frame *f)
{
	struct ebb_loan *loan = s->loan;

	s->loan = NULL;
	if (loan && f->op == WIRE_MAP && !f->status) {
		loan->remote = f->slab;
		loan->generation = f->generation;
		list_add_tail(&loan->node, &s->releasing);
		return;
	}
	if (f->op == WIRE_UNMAP && !f->status)
		s->donor_free += s->donor_slab;
	kfree(loan);
}

/* Takes the reply to the session's call; false = @f is another reply. */
static bool replied(struct ebb_session *s, const struct wire_frame *f, const u8 *data, u32 length)
{
	bool expected, late;
	unsigned long flags;

	spin_lock_irqsave(&s->lock, flags);
	expected = s->call != CALL_NONE && f->tag == s->tag && f->op == s->op;
	late = s->call == CALL_LATE;
	if (expected) {
		s->call = CALL_NONE;
		if (late) {
			answered_late(s, f);
		} else {
			memcpy(s->reply, data, length);
			s->reply_length = length;
			complete(&s->replied);
		}
	}
	spin_unlock_irqrestore(&s->lock, flags);
	if (expected && late)
		queue_work(closing, &s->release);
	return expected;
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
	if (f.direction == WIRE_REQUEST) {
		recalled(s, &f);
	} else if (!replied(s, &f, m->data, length)) {
		ebb_session_fail(s, EBB_SWAP_CAUSE_PROTOCOL, "the donor sent an unexpected reply");
		return;
	}
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

/* Sends the frame of @length bytes in @m, plus its MAC. */
static int message_send(struct ebb_session *s, struct ebb_message *m, u32 length)
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

/* Answers a recall; returns when the answer has left or the session has ended. */
static void answer_send(struct ebb_session *s, const struct ebb_recall *recall, u16 status)
{
	struct wire_frame f = {
		.op = WIRE_EVICT, .direction = WIRE_REPLY, .status = status, .tag = recall->tag,
		.slab = recall->remote, .generation = recall->generation,
	};

	ib_dma_sync_single_for_cpu(s->ib, s->answer.dma, EBB_FRAME, DMA_TO_DEVICE);
	wire_build(s->answer.data, &f);
	reinit_completion(&s->answered);
	/* Completes even if the session has ended: the queue pair outlives this work item. */
	if (!message_send(s, &s->answer, WIRE_HEADER))
		wait_for_completion(&s->answered);
}

/* Returns whether @s has an unanswered recall, the oldest in *@recall. */
static bool first_recall(struct ebb_session *s, struct ebb_recall *recall)
{
	unsigned long flags;
	bool found;

	spin_lock_irqsave(&s->lock, flags);
	found = s->recalls;
	if (found)
		*recall = s->recall[0];
	spin_unlock_irqrestore(&s->lock, flags);
	return found;
}

static void forget_first_recall(struct ebb_session *s)
{
	unsigned long flags;

	spin_lock_irqsave(&s->lock, flags);
	memmove(s->recall, s->recall + 1, --s->recalls * sizeof(*s->recall));
	spin_unlock_irqrestore(&s->lock, flags);
}

static void answer_work(struct work_struct *work)
{
	struct ebb_session *s = container_of(work, struct ebb_session, answering);
	struct ebb_recall recall;

	while (first_recall(s, &recall) && !READ_ONCE(s->broken)) {
		u16 status = s->ops->recalled(s, &recall);

		/* First: the donor may send another one as soon as it has the answer. */
		forget_first_recall(s);
		answer_send(s, &recall, status);
	}
}

struct call {
	struct wire_frame request, reply;
	const void *payload;      /* of the request */
	struct ebb_loan *loan;    /* that it maps or unmaps */
	bool resumes;             /* of a session that is away */
};

/* Returns ms. */
static u32 call_deadline(const struct ebb_session *s, const struct call *c)
{
	u32 deadline = s->device->deadline;

	if (c->resumes)
		return max(deadline, RESUME_CALL);
	return c->request.op == WIRE_BYE ? min(deadline, BYE_CALL) : deadline;
}

/* Begins a call, unless one is without an answer. */
static bool call_begin(struct ebb_session *s, struct call *c)
{
	unsigned long flags;
	bool may;

	reinit_completion(&s->replied);
	spin_lock_irqsave(&s->lock, flags);
	may = s->call == CALL_NONE;
	if (may) {
		s->call = CALL_WAITED;
		s->op = c->request.op;
		c->request.tag = ++s->tag;
	}
	spin_unlock_irqrestore(&s->lock, flags);
	return may;
}

/* Leaves the call to its late answer, unless that has just arrived. */
static bool call_expire(struct ebb_session *s, struct call *c)
{
	unsigned long flags;
	bool late;

	spin_lock_irqsave(&s->lock, flags);
	late = s->call == CALL_WAITED;
	if (late) {
		s->call = CALL_LATE;
		s->loan = c->loan;
	}
	spin_unlock_irqrestore(&s->lock, flags);
	return late;
}

/* A session that is away takes no call but those that resume it. */
static bool may_call(const struct ebb_session *s, const struct call *c)
{
	return !READ_ONCE(s->broken) &&
	       (atomic_read(&s->state) <= EBB_SWAP_LIVE || c->resumes);
}

/*
 * Sends the request and waits for its reply, a complete frame in s->reply.  s->calls is held.
 * -EBUSY: not sent, since the donor has not answered the last call.  -ETIMEDOUT: the session keeps
 * the call's loan until the donor answers.
 */
static int session_call(struct ebb_session *s, struct call *c, const char **why)
{
	*why = "session: the donor does not answer";
	/* session_suspend() frees the messages once no call is in here. */
	if (!may_call(s, c))
		return -ENOTCONN;
	if (!call_begin(s, c))
		return -EBUSY;
	ib_dma_sync_single_for_cpu(s->ib, s->send.dma, EBB_FRAME, DMA_TO_DEVICE);
	wire_build(s->send.data, &c->request);
	memcpy(s->send.data + WIRE_HEADER, c->payload, c->request.length);
	/*
	 * Check after call_begin(): ebb_session_fail() sets `broken`, then completes.  Otherwise
	 * its completion could be lost, and the wait would last until the deadline.
	 */
	smp_mb();
	if (READ_ONCE(s->broken) ||
	    message_send(s, &s->send, WIRE_HEADER + c->request.length))
		return -ENOTCONN;
	if (!wait_for_completion_timeout(&s->replied, msecs_to_jiffies(call_deadline(s, c))) &&
	    call_expire(s, c))
		return -ETIMEDOUT;
	if (READ_ONCE(s->broken))
		return -ENOTCONN;
	/* Parsed once already, when it was received. */
	wire_parse(s->reply, s->reply_length, WIRE_AT_BORROWER, &c->reply);
	if (c->reply.status) {
		*why = wire_status_text(c->reply.status);
		return c->reply.status == WIRE_NO_SPACE || c->reply.status == WIRE_OVER_QUOTA ?
		       -ENOSPC :
		       c->resumes && (c->reply.status == WIRE_NO_SLAB ||
				      c->reply.status == WIRE_STALE ||
				      c->reply.status == WIRE_NO_SESSION) ? -ESTALE :
		       c->reply.status == WIRE_BAD_VERSION ? -EPROTONOSUPPORT : -EPROTO;
	}
	return 0;
}

static int hello_as(struct ebb_session *s, u32 version, const char **why)
{
	struct wire_hello h = {
		.version = version,
		.borrower = s->id,
		.slab_size = (u64)s->device->slab_pages << PAGE_SHIFT,
		.flags = version < 4 ? 0 : WIRE_KEEP | (s->resuming ? WIRE_RESUME : 0),
	};
	u8 payload[WIRE_HELLO_SIZE];
	struct call c = {
		.request = { .op = WIRE_HELLO, .length = WIRE_HELLO_SIZE }, .payload = payload,
		.resumes = s->resuming,
	};
	struct wire_donor donor;
	int r;

	snprintf(h.name, sizeof(h.name), "%.16s/ebb%u", init_utsname()->nodename,
		 s->device->index);
	wire_build_hello(payload, &h);
	mutex_lock(&s->calls);
	r = session_call(s, &c, why);
	mutex_unlock(&s->calls);
	if (r)
		return r;
	/* No other call can be in progress before the session is open. */
	if (s->reply_length != WIRE_HEADER + c.reply.length ||
	    wire_parse_donor(s->reply + WIRE_HEADER, c.reply.length, &donor)) {
		*why = "session: the donor's answer to HELLO is malformed";
		return -EPROTO;
	}
	s->donor_free = donor.free;
	s->donor_slab = donor.slab_size;
	/* Longer than any that makes sense, and than jiffies can tell apart. */
	s->grace = min_t(u32, donor.grace, 3600 * MSEC_PER_SEC);
	return 0;
}

static int session_hello(struct ebb_session *s, const char **why)
{
	u32 version = WIRE_VERSION;
	int r;

	/* Only version 4 has RESUME. */
	do
		r = hello_as(s, version, why);
	while (r == -EPROTONOSUPPORT && version-- > WIRE_VERSION_OLDEST && !s->resuming);
	return r;
}

/* Moves @loan to @list, from another list or none. */
static void loan_move(struct ebb_session *s, struct ebb_loan *loan, struct list_head *list)
{
	unsigned long flags;

	spin_lock_irqsave(&s->lock, flags);
	list_move_tail(&loan->node, list);
	spin_unlock_irqrestore(&s->lock, flags);
}

/* Reads the grant behind the reply to MAP or REMAP. */
static int read_grant(struct ebb_session *s, struct wire_rdma_grant *g)
{
	if (s->reply_length == WIRE_HEADER + WIRE_RDMA_GRANT_SIZE &&
	    !wire_parse_rdma_grant(s->reply + WIRE_HEADER, WIRE_RDMA_GRANT_SIZE, g) &&
	    g->length >= (u64)s->device->slab_pages << PAGE_SHIFT)
		return 0;
	ebb_session_fail(s, EBB_SWAP_CAUSE_PROTOCOL, "the donor's grant is malformed");
	return -EPROTO;
}

static int map_locked(struct ebb_session *s, struct ebb_place *place, struct ebb_loan *loan,
		      const char **why)
{
	u8 payload[WIRE_MAP_SIZE];
	struct call c = {
		.request = { .op = WIRE_MAP, .length = WIRE_MAP_SIZE }, .payload = payload,
		.loan = loan,
	};
	struct wire_rdma_grant g;
	int r;

	wire_build_map(payload, WIRE_CLASS_SWAP);
	r = session_call(s, &c, why);
	if (r)
		return r;
	r = read_grant(s, &g);
	if (r) {
		*why = "session: the donor's grant is malformed";
		return r;
	}
	loan->remote = c.reply.slab;
	loan->generation = c.reply.generation;
	*place = (struct ebb_place){
		.session = s, .address = g.address, .rkey = g.key, .loan = loan,
	};
	s->donor_free -= min(s->donor_free, s->donor_slab);
	return 0;
}

int ebb_session_map(struct ebb_session *s, struct ebb_place *place, const char **why)
{
	struct ebb_loan *loan = kzalloc(sizeof(*loan), GFP_KERNEL);
	int r;

	*why = "session: out of memory";
	if (!loan)
		return -ENOMEM;
	INIT_LIST_HEAD(&loan->node);
	mutex_lock(&s->calls);
	r = map_locked(s, place, loan, why);
	/* Before the session can be resumed, which marks loans that its slabs do not have. */
	if (!r)
		loan_move(s, loan, &s->loans);
	mutex_unlock(&s->calls);
	if (r && r != -ETIMEDOUT)
		kfree(loan);
	return r == -EBUSY ? -ETIMEDOUT : r;
}

/* Unmaps @loan, which is in no list and invalid on return. */
static int unmap(struct ebb_session *s, struct ebb_loan *loan, const char **why)
{
	struct call c = {
		.request = {
			.op = WIRE_UNMAP, .slab = loan->remote, .generation = loan->generation,
		},
		.loan = loan,
	};
	int r;

	mutex_lock(&s->calls);
	/* A loan may have been released when the session was resumed. */
	r = READ_ONCE(loan->gone) ? 0 : session_call(s, &c, why);
	if (!r && !loan->gone)
		s->donor_free += s->donor_slab;
	mutex_unlock(&s->calls);
	if (r == -EBUSY || r == -ENOTCONN) {
		loan_move(s, loan, &s->releasing);
		/* It may have been answered, or resumed, before that. */
		if (ebb_session_live(s) && READ_ONCE(s->call) == CALL_NONE)
			queue_work(closing, &s->release);
	} else if (r != -ETIMEDOUT) {
		kfree(loan);
	}
	return r == -EBUSY ? -ETIMEDOUT : r;
}

static struct ebb_loan *first_releasing(struct ebb_session *s)
{
	struct ebb_loan *loan;
	unsigned long flags;

	spin_lock_irqsave(&s->lock, flags);
	loan = list_first_entry_or_null(&s->releasing, struct ebb_loan, node);
	if (loan)
		list_del_init(&loan->node);
	spin_unlock_irqrestore(&s->lock, flags);
	return loan;
}

/* Continues once the donor has answered a late call. */
static void release_work(struct work_struct *work)
{
	struct ebb_session *s = container_of(work, struct ebb_session, release);
	struct ebb_loan *loan;
	const char *why;
	int r = 0;

	while (r != -ETIMEDOUT && r != -ENOTCONN && (loan = first_releasing(s)))
		r = unmap(s, loan, &why);
}

int ebb_session_unmap(struct ebb_session *s, struct ebb_loan *loan, const char **why)
{
	unsigned long flags;

	spin_lock_irqsave(&s->lock, flags);
	list_del_init(&loan->node);
	spin_unlock_irqrestore(&s->lock, flags);
	return unmap(s, loan, why);
}

void ebb_session_release(struct ebb_session *s, struct ebb_loan *loan)
{
	loan_move(s, loan, &s->releasing);
	queue_work(closing, &s->release);
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

static int messages_init(struct ebb_session *s)
{
	int r = message_init(s, &s->send, DMA_TO_DEVICE, sent) ?:
		message_init(s, &s->answer, DMA_TO_DEVICE, answer_sent);

	for (int i = 0; !r && i < EBB_RECEIVES; i++)
		r = message_init(s, &s->receive[i], DMA_FROM_DEVICE, received);
	for (int i = 0; !r && i < EBB_RECEIVES; i++)
		receive_post(s, &s->receive[i]);
	return r;
}

/* --- keepalive --- */

static void probed(struct ib_cq *cq, struct ib_wc *wc)
{
	struct ebb_session *s = container_of(wc->wr_cqe, struct ebb_session, probe);

	if (wc->status != IB_WC_SUCCESS)
		ebb_session_fail_wc(s, wc->status);
	WRITE_ONCE(s->probing, false);
}

static void probe(struct ebb_session *s)
{
	/* No bytes, so no address; the donor's network device acknowledges it. */
	struct ib_rdma_wr wr = {
		.wr = {
			.wr_cqe = &s->probe, .opcode = IB_WR_RDMA_WRITE,
			.send_flags = IB_SEND_SIGNALED,
		},
	};

	s->probed_at = jiffies;
	WRITE_ONCE(s->probing, true);
	if (ib_post_send(s->queue[0].id->qp, &wr.wr, NULL))
		ebb_session_fail(s, EBB_SWAP_CAUSE_LOCAL, "the queue pair refuses probes");
}

static void keepalive_work(struct work_struct *work)
{
	struct ebb_session *s = container_of(work, struct ebb_session, keepalive.work);

	if (READ_ONCE(s->broken))
		return;
	if (!READ_ONCE(s->probing)) {
		/* A queue in use detects the loss by itself; see internals.md for Soft-RoCE. */
		if (!atomic_read(&s->queue[0].transfers))
			probe(s);
	} else if (time_after(jiffies, s->probed_at + msecs_to_jiffies(s->device->deadline))) {
		ebb_session_fail(s, EBB_SWAP_CAUSE_UNREACHABLE,
				 "a probe took longer than the deadline");
	}
	queue_delayed_work(closing, &s->keepalive, KEEPALIVE);
}

/* --- connections --- */

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
	 * The parts of each request of the device and of the copier's; frames, a probe and the
	 * drain.
	 */
	u32 parts = DIV_ROUND_UP(EBB_SEGMENTS, s->read_segments);
	struct ib_qp_init_attr attr = {
		.qp_type = IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.cap = {
			.max_send_wr = (d->depth + 1) * parts + 6,
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
	/* Polled in softirq context; the interrupt is rearmed once the queue is empty. */
	q->cq = ib_alloc_cq(s->ib, q, attr.cap.max_send_wr + attr.cap.max_recv_wr + 2,
			    index % s->ib->num_comp_vectors, IB_POLL_SOFTIRQ);
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

/* Flushes all work requests; no message arrives afterwards. */
static void connections_flush(struct ebb_session *s)
{
	for (u32 i = 0; i < s->device->queues; i++)
		if (s->queue[i].connected)
			rdma_disconnect(s->queue[i].id);
	for (u32 i = 0; i < s->device->queues; i++)
		if (s->queue[i].connected)
			ib_drain_qp(s->queue[i].id->qp);
	cancel_work_sync(&s->answering);
}

/* Frees all that the session has of the network device; it can connect again. */
static void connections_free(struct ebb_session *s)
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
	message_free(s, &s->send, DMA_TO_DEVICE);
	message_free(s, &s->answer, DMA_TO_DEVICE);
	for (int i = 0; i < EBB_RECEIVES; i++)
		message_free(s, &s->receive[i], DMA_FROM_DEVICE);
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
	s->call = CALL_NONE;
	s->probing = false;
	/* Of a MAP or UNMAP without an answer: RELEASE ends it. */
	kfree(s->loan);
	s->loan = NULL;
}

/* Waits for everything in flight, then closes the connections; once before each AWAY or CLOSED. */
static void session_suspend(struct ebb_session *s)
{
	percpu_ref_kill(&s->ref);
	if (ebb_session_ended(s))
		s->ops->failed(s);
	cancel_delayed_work_sync(&s->keepalive);
	connections_flush(s);
	/* Wait for calls that saw the session live; later calls fail at once. */
	mutex_lock(&s->calls);
	mutex_unlock(&s->calls);
	wait_for_completion(&s->idle);
	cancel_work_sync(&s->release);
	connections_free(s);
}

/* Forgets the loans that RELEASE has ended; release_work() unmaps those confirmed before. */
static void loans_settle(struct ebb_session *s)
{
	struct ebb_loan *loan, *next;
	unsigned long flags;
	LIST_HEAD(released);

	spin_lock_irqsave(&s->lock, flags);
	list_for_each_entry_safe(loan, next, &s->releasing, node)
		if (!loan->confirmed)
			list_move_tail(&loan->node, &released);
	/* Others may still refer to those that were in use: they stay until the session ends. */
	list_for_each_entry(loan, &s->loans, node)
		if (!loan->confirmed)
			WRITE_ONCE(loan->gone, true);
	spin_unlock_irqrestore(&s->lock, flags);
	list_for_each_entry_safe(loan, next, &released, node)
		kfree(loan);
}

/* Before their confirmation. */
static void loans_doubt(struct ebb_session *s)
{
	struct ebb_loan *loan;
	unsigned long flags;

	spin_lock_irqsave(&s->lock, flags);
	list_for_each_entry(loan, &s->loans, node)
		loan->confirmed = false;
	list_for_each_entry(loan, &s->releasing, node)
		loan->confirmed = false;
	spin_unlock_irqrestore(&s->lock, flags);
}

int ebb_session_confirm(struct ebb_session *s, struct ebb_place *place)
{
	struct call c = {
		.request = {
			.op = WIRE_REMAP, .slab = place->loan->remote,
			.generation = place->loan->generation,
		},
		.resumes = true,
	};
	struct wire_rdma_grant g;
	unsigned long flags;
	const char *why;
	int r;

	mutex_lock(&s->calls);
	r = session_call(s, &c, &why);
	if (!r)
		r = read_grant(s, &g);
	mutex_unlock(&s->calls);
	if (r)
		return r;
	place->address = g.address;
	place->rkey = g.key;
	/* Even if the slab has lost the place meanwhile: RELEASE does not end the loan any more. */
	spin_lock_irqsave(&s->lock, flags);
	place->loan->confirmed = true;
	spin_unlock_irqrestore(&s->lock, flags);
	return 0;
}

static int loans_release(struct ebb_session *s)
{
	struct call c = { .request = { .op = WIRE_RELEASE }, .resumes = true };
	const char *why;
	int r;

	mutex_lock(&s->calls);
	r = session_call(s, &c, &why);
	mutex_unlock(&s->calls);
	return r;
}

static int connections_open(struct ebb_session *s, const char **why)
{
	int r = 0;

	/* The donor takes it for a new session until HELLO. */
	s->number = get_random_u64();
	for (u32 i = 0; !r && i < s->device->queues; i++)
		r = queue_open(s, i, why);
	if (!r)
		r = messages_init(s);
	return r ?: session_hello(s, why);
}

/*
 * Tries to resume the session.  Returns 0: live; -ESTALE: the donor has not retained it; -errno:
 * try again.
 */
static int session_resume(struct ebb_session *s)
{
	const char *why;
	unsigned long flags;
	bool refused;
	int r;

	spin_lock_irqsave(&s->lock, flags);
	s->broken = ebb_session_ended(s);
	spin_unlock_irqrestore(&s->lock, flags);
	if (READ_ONCE(s->broken))
		return -ENOTCONN;
	s->resuming = true;
	loans_doubt(s);
	r = connections_open(s, &why);
	/* Only the donor's answer to HELLO means this. */
	refused = r == -ESTALE || r == -EPROTONOSUPPORT;
	if (!r)
		r = s->ops->resume(s);
	if (!r)
		r = loans_release(s);
	s->resuming = false;
	if (r)
		goto fail;
	loans_settle(s);
	reinit_completion(&s->idle);
	percpu_ref_reinit(&s->ref);
	spin_lock_irqsave(&s->lock, flags);
	/* A failure from here on suspends the session again, or ends it. */
	s->suspended = false;
	r = s->broken ? -ENOTCONN : 0;
	if (!r) {
		s->was_back = true;
		s->back_at = jiffies;
		s->cause = EBB_SWAP_CAUSE_NONE;
		WRITE_ONCE(s->reason, "");
		atomic_set_release(&s->state, EBB_SWAP_LIVE);
		queue_delayed_work(closing, &s->keepalive, KEEPALIVE);
	}
	spin_unlock_irqrestore(&s->lock, flags);
	if (!r)
		queue_work(closing, &s->release);
	return r;
fail:
	connections_flush(s);
	connections_free(s);
	return refused ? -ESTALE : -ENOTCONN;
}

/* Ends a session that is away, for the reason of its absence. */
static void away_end(struct ebb_session *s, const char *why)
{
	unsigned long flags;

	spin_lock_irqsave(&s->lock, flags);
	if (atomic_read(&s->state) == EBB_SWAP_AWAY) {
		pr_warn("ebb%u: session %u: %s\n", s->device->index, s->index, why);
		atomic_set(&s->state, EBB_SWAP_FAILED);
	}
	spin_unlock_irqrestore(&s->lock, flags);
}

/* Suspends the session, or tries to resume it.  On return it is AWAY, LIVE or FAILED. */
static void away_turn(struct ebb_session *s)
{
	unsigned int flags;
	int r;

	if (!s->suspended) {
		pr_warn("ebb%u: session %u away: %s\n", s->device->index, s->index, s->reason);
		session_suspend(s);
		s->suspended = true;
		s->ops->drained(s);
		s->ops->away(s);
		if (s->relapsed) {
			queue_delayed_work(closing, &s->close, RESUME_PAUSE);
			return;
		}
	}
	if (time_after(jiffies, s->away_at + msecs_to_jiffies(s->grace))) {
		away_end(s, "its donor did not return within the grace period");
		return;
	}
	/* It lets swap-out go on, which frees memory: it may use the reserves for that. */
	flags = memalloc_noreclaim_save();
	r = session_resume(s);
	memalloc_noreclaim_restore(flags);
	if (!r) {
		pr_info("ebb%u: session %u resumed\n", s->device->index, s->index);
		s->ops->back(s);
	} else if (r == -ESTALE) {
		away_end(s, "its donor has not retained it");
	} else {
		queue_delayed_work(closing, &s->close, RESUME_PAUSE);
	}
}

static void session_close(struct ebb_session *s)
{
	if (s->suspended)
		s->ops->failed(s);
	else
		session_suspend(s);
	s->ops->drained(s);
	atomic_set(&s->state, EBB_SWAP_CLOSED);
}

static void close_work(struct work_struct *work)
{
	struct ebb_session *s = container_of(work, struct ebb_session, close.work);
	/* Allocations must not wait for swap-out to this session. */
	unsigned int flags = memalloc_noio_save();

	if (atomic_read(&s->state) == EBB_SWAP_AWAY)
		away_turn(s);
	if (atomic_read(&s->state) == EBB_SWAP_FAILED) {
		pr_warn("ebb%u: session %u ended: %s\n", s->device->index, s->index, s->reason);
		session_close(s);
		s->ops->closed(s);
		complete(&s->closed);
	}
	memalloc_noio_restore(flags);
}

static void ref_zero(struct percpu_ref *ref)
{
	struct ebb_session *s = container_of(ref, struct ebb_session, ref);

	complete(&s->idle);
}

void ebb_session_fail(struct ebb_session *s, enum ebb_swap_cause cause, const char *reason)
{
	bool resumes = cause != EBB_SWAP_CAUSE_COMMAND && cause != EBB_SWAP_CAUSE_PROTOCOL;
	unsigned long flags;
	int state;

	spin_lock_irqsave(&s->lock, flags);
	state = atomic_read(&s->state);
	WRITE_ONCE(s->broken, true);
	if (state == EBB_SWAP_LIVE && resumes && s->grace) {
		s->relapsed = s->was_back && time_before(jiffies, s->back_at + BACK_LEAST);
		if (!s->relapsed)
			WRITE_ONCE(s->away_at, jiffies);
		atomic_set(&s->state, EBB_SWAP_AWAY);
	} else if (state <= EBB_SWAP_LIVE || (state == EBB_SWAP_AWAY && !resumes)) {
		atomic_set(&s->state, EBB_SWAP_FAILED);
	} else {
		/* A failed attempt to resume it, or over already. */
		cause = EBB_SWAP_CAUSE_NONE;
	}
	if (cause != EBB_SWAP_CAUSE_NONE) {
		WRITE_ONCE(s->cause, cause);
		WRITE_ONCE(s->reason, reason);
	}
	/* ebb_session_open() closes a session that is still connecting. */
	if (cause != EBB_SWAP_CAUSE_NONE && state != EBB_SWAP_CONNECTING)
		mod_delayed_work(closing, &s->close, 0);
	/* Under the lock, so that a call of the next connections cannot take it for its reply. */
	complete(&s->replied);
	spin_unlock_irqrestore(&s->lock, flags);
}

void ebb_session_fail_wc(struct ebb_session *s, enum ib_wc_status status)
{
	enum ebb_swap_cause cause = EBB_SWAP_CAUSE_LOCAL;

	switch (status) {
	case IB_WC_RETRY_EXC_ERR:
	case IB_WC_RNR_RETRY_EXC_ERR:
	case IB_WC_RESP_TIMEOUT_ERR:
	/* Of a queue pair that was not disconnected: the connection broke. */
	case IB_WC_WR_FLUSH_ERR:
		cause = EBB_SWAP_CAUSE_UNREACHABLE;
		break;
	case IB_WC_REM_ACCESS_ERR:
	case IB_WC_REM_INV_REQ_ERR:
	case IB_WC_REM_OP_ERR:
	case IB_WC_REM_ABORT_ERR:
		cause = EBB_SWAP_CAUSE_CLOSED;
		break;
	default:
		break;
	}
	ebb_session_fail(s, cause, ib_wc_status_msg(status));
}

static void session_release(struct ebb_session *s)
{
	struct ebb_loan *loan, *next;

	cancel_work_sync(&s->release);
	list_splice(&s->releasing, &s->loans);
	list_for_each_entry_safe(loan, next, &s->loans, node)
		kfree(loan);
	kfree(s->loan);
	percpu_ref_exit(&s->ref);
	ebb_proof_free(&s->proof);
	kfree(s);
}

int ebb_session_open(struct ebb_device *d, const struct ebb_donor *donor, u32 class,
		     const struct ebb_session_ops *ops, struct ebb_session **out, const char **why)
{
	struct ebb_session *s = kzalloc(struct_size(s, queue, d->queues), GFP_KERNEL);
	unsigned long irqs;
	int r;

	*why = "session: out of memory";
	if (!s)
		return -ENOMEM;
	r = percpu_ref_init(&s->ref, ref_zero, PERCPU_REF_ALLOW_REINIT, GFP_KERNEL);
	if (r) {
		kfree(s);
		return r;
	}
	s->device = d;
	s->ops = ops;
	s->to = donor->to;
	s->class = class;
	s->id = get_random_u64();
	s->reason = "";
	atomic_set(&s->state, EBB_SWAP_CONNECTING);
	init_completion(&s->idle);
	init_completion(&s->replied);
	init_completion(&s->answered);
	spin_lock_init(&s->lock);
	INIT_LIST_HEAD(&s->loans);
	INIT_LIST_HEAD(&s->releasing);
	INIT_WORK(&s->release, release_work);
	INIT_DELAYED_WORK(&s->keepalive, keepalive_work);
	s->probe.done = probed;
	INIT_WORK(&s->answering, answer_work);
	init_completion(&s->closed);
	mutex_init(&s->calls);
	mutex_init(&s->sending);
	INIT_DELAYED_WORK(&s->close, close_work);
	/* Before LIVE: from then on the session's end may be reported. */
	s->index = d->next_session;
	s->proof.key = donor->key ? &s->proof.own : &d->key;
	if (donor->key)
		r = ebb_key_set(&s->proof.own, donor->key, donor->key_number, why);
	if (!r)
		r = connections_open(s, why);
	if (!r) {
		spin_lock_irqsave(&s->lock, irqs);
		if (s->broken) {
			*why = "session: it ended during the handshake";
			r = -ENOTCONN;
		} else {
			atomic_set_release(&s->state, EBB_SWAP_LIVE);
			queue_delayed_work(closing, &s->keepalive, KEEPALIVE);
		}
		spin_unlock_irqrestore(&s->lock, irqs);
	}
	if (r) {
		unsigned int noio = memalloc_noio_save();

		ebb_session_fail(s, EBB_SWAP_CAUSE_LOCAL, *why);
		session_close(s);
		memalloc_noio_restore(noio);
		session_release(s);
		return r;
	}
	d->next_session++;
	mutex_lock(&d->sessions_lock);
	list_add_tail(&s->node, &d->sessions);
	mutex_unlock(&d->sessions_lock);
	*out = s;
	return 0;
}

/* Tells the donor that no resumption follows. */
static void session_bye(struct ebb_session *s)
{
	struct call c = { .request = { .op = WIRE_BYE } };
	const char *why;

	mutex_lock(&s->calls);
	session_call(s, &c, &why);
	mutex_unlock(&s->calls);
}

void ebb_session_free(struct ebb_session *s, const char *reason)
{
	if (ebb_session_live(s) && s->grace)
		session_bye(s);
	ebb_session_fail(s, EBB_SWAP_CAUSE_COMMAND, reason);
	wait_for_completion(&s->closed);
	cancel_delayed_work_sync(&s->close);
	mutex_lock(&s->device->sessions_lock);
	list_del(&s->node);
	mutex_unlock(&s->device->sessions_lock);
	session_release(s);
}

int ebb_session_init(void)
{
	closing = alloc_workqueue("ebb_closing", WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	return closing ? 0 : -ENOMEM;
}

void ebb_session_exit(void)
{
	destroy_workqueue(closing);
}
