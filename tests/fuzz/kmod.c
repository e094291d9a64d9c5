// SPDX-License-Identifier: GPL-2.0-only
/*
 * One thread plays the donor, the network device and the work queues: whenever the module waits, it
 * takes the next steps from the input.  Closing and releasing, which wait for calls, run only while
 * no call is in progress; the kernel may schedule them so.
 */
#include "kmod.h"
#include "kmod_kernel.h"
#include "lib/base/draw.h"

#include "kmod-swap/call.c"
#include "kmod-swap/connection.c"
#include "kmod-swap/evict.c"
#include "kmod-swap/hmac.c"
#include "kmod-swap/keepalive.c"
#include "kmod-swap/lifecycle.c"
#include "kmod-swap/loan.c"
#include "kmod-swap/message.c"
#include "kmod-swap/proof.c"
#include "kmod-swap/recall.c"
static int checked_confirm(struct ebb_session *s, struct ebb_confirm *c, u32 count);
#define ebb_session_confirm checked_confirm
#include "kmod-swap/resume.c"
#undef ebb_session_confirm
#include "kmod-swap/session.c"
#include "kmod-swap/state.c"

#define SLABS 4u
#define SLAB_PAGES 256u
#define QUEUES 2u
#define GRANTS 4096u
#define STEPS 64 /* most while the module waits */

struct net {
	int unused;
};
struct net init_net;
unsigned long jiffies;

static struct {
	struct fuzz_protocol_result *r;
	const u8 *in;
	size_t left;
	u64 random;
	u32 objects, fail_in;        /* allocations there are; until one fails, 0 = never */
	u32 spinning, depth;         /* spinlocks held; commands and works in progress */
	bool listens, refuses_sends;
	u32 grace;                   /* ms */
	struct list_head works;
	struct work_struct *running;
	struct ib_device ib;
	struct rdma_cm_id *id[QUEUES];
	u32 ids;
	bool wrong_proof;            /* of the donor's */
	struct {
		struct ib_cqe *cqe;
		u8 *data;
	} posted[2 * EBB_RECEIVES];
	u32 posts;
	struct ib_cqe *sent[16 + EBB_REQUESTS];
	u32 sends;
	/* The donor's state. */
	struct wire_hmac secret;
	u64 told, heard;             /* frames sent to the module and received from it */
	struct wire_frame call[EBB_REQUESTS]; /* the module's, without an answer */
	u32 calls;
	struct wire_frame answer;    /* the last that the module took, */
	struct wire_rdma_grant grant; /* with this grant, */
	bool grants;                 /* if it is valid */
	struct wire_frame asked[WIRE_EVICTS]; /* EVICTs without an answer */
	u32 asks;
	u32 confirmed;               /* loans, since the session was resumed last */
	bool polite;                 /* answers all calls when the module waits, */
	u32 waits;                   /* as often */
	struct wire_loan granted[GRANTS];
	u32 grant_count;
	struct ebb_session *opened;
	struct ebb_device device;
	struct ebb_slab slabs[SLABS];
} w;

static struct ebb_place *place_of(u32 slab)
{
	return &w.device.slabs[slab].hold.at[AT_DONOR];
}

static void wrong(const char *what)
{
	if (!*w.r->wrong)
		snprintf(w.r->wrong, sizeof(w.r->wrong), "%s, %zu bytes before the end", what, w.left);
}

static u8 take(void)
{
	if (!w.left)
		return 0;
	w.left--;
	return *w.in++;
}

/* Returns 0 for most bytes, else 1 to 16. */
static u32 fault(void)
{
	u8 byte = take();

	return byte < 0xf0 ? 0 : byte - 0xef;
}

void get_random_bytes(void *to, size_t n)
{
	for (u8 *p = to; n; n--)
		*p++ = (u8)draw32(&w.random);
}

u64 get_random_u64(void)
{
	return (u64)draw32(&w.random) << 32 | draw32(&w.random);
}

void *kzalloc(size_t size, int flags)
{
	if (w.spinning)
		wrong("an allocation under a spinlock");
	if (w.fail_in && !--w.fail_in)
		return NULL;
	w.objects++;
	return calloc(1, size);
}

void kfree(void *p)
{
	w.objects -= p != NULL;
	free(p);
}

void world_lock(bool *held, bool spin)
{
	if (*held)
		wrong("a deadlock");
	if (!spin && w.spinning)
		wrong("it sleeps under a spinlock");
	*held = true;
	w.spinning += spin;
}

void world_unlock(bool *held, bool spin)
{
	if (!*held)
		wrong("a lock that is not held");
	*held = false;
	w.spinning -= spin;
}

/* --- deferred work --- */

void world_queue(struct work_struct *work)
{
	if (work->pending)
		return;
	work->pending = true;
	list_add_tail(&work->node, &w.works);
}

void cancel_work_sync(struct work_struct *work)
{
	if (work->pending)
		list_del(&work->node);
	work->pending = false;
}

static void work_run(struct work_struct *work)
{
	struct work_struct *outer = w.running;

	cancel_work_sync(work);
	w.running = work;
	w.depth++;
	work->run(work);
	w.depth--;
	w.running = outer;
}

void flush_work(struct work_struct *work)
{
	if (work->pending)
		work_run(work);
}

/* Returns whether @work may run now; see above. */
static bool may_run(const struct work_struct *work)
{
	if (w.running)
		return false;
	return !w.depth || (work->run != close_work && work->run != ebb_loans_release_work);
}

static bool work_step(void)
{
	struct work_struct *work;

	list_for_each_entry(work, &w.works, node) {
		if (!may_run(work))
			continue;
		work_run(work);
		return true;
	}
	return false;
}

/* --- the network device --- */

static struct ebb_session *session(void)
{
	struct ebb_queue *q = w.ids ? w.id[0]->context : NULL;

	return w.opened ? w.opened : q ? q->session : NULL;
}

static void completed(struct ib_cqe *cqe, enum ib_wc_status status, u32 length)
{
	struct ib_wc wc = { .wr_cqe = cqe, .status = status, .byte_len = length };

	cqe->done(w.id[0]->qp->cq, &wc);
}

static void send_completed(enum ib_wc_status status)
{
	struct ib_cqe *cqe = w.sent[0];

	memmove(w.sent, w.sent + 1, --w.sends * sizeof(*w.sent));
	completed(cqe, status, 0);
}

static struct ib_cqe *receive_taken(u8 **data)
{
	struct ib_cqe *cqe = w.posted[0].cqe;

	*data = w.posted[0].data;
	memmove(w.posted, w.posted + 1, --w.posts * sizeof(*w.posted));
	return cqe;
}

int ib_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad)
{
	if (w.posts == EBB_RECEIVES) {
		wrong("more receives than the queue pair has room for");
		return -ENOMEM;
	}
	w.posted[w.posts].cqe = wr->wr_cqe;
	w.posted[w.posts++].data = (u8 *)(uintptr_t)wr->sg_list->addr;
	return 0;
}

/* Checks what the module sends to the donor. */
static void heard(const u8 *data, u32 length)
{
	struct wire_frame f;
	u8 mark[WIRE_MARK];

	length -= WIRE_MARK;
	if (length < WIRE_HEADER || length > EBB_FRAME - WIRE_MARK ||
	    wire_mark(&w.secret, WIRE_AT_DONOR, w.heard++, data, length, mark) ||
	    !wire_same(mark, data + length, WIRE_MARK))
		wrong("the module's MAC is wrong");
	else if (wire_parse(data, length, WIRE_AT_DONOR, &f) != 1)
		wrong("the module's frame is malformed");
	else if (f.direction == WIRE_REQUEST) {
		bool has = f.op != WIRE_UNMAP;

		for (u32 i = 0; i < w.grant_count; i++)
			has |= w.granted[i].slab == f.slab &&
			       w.granted[i].generation == f.generation;
		if (!has)
			wrong("an UNMAP of what was not granted");
		if (w.calls && (f.op != WIRE_REMAP || w.call[0].op != WIRE_REMAP))
			wrong("a call before the last is answered");
		if (w.calls == EBB_REQUESTS)
			wrong("more calls than the donor takes");
		else
			w.call[w.calls++] = f;
	} else {
		if (!w.asks || f.op != WIRE_EVICT || f.tag != w.asked[0].tag ||
		    f.slab != w.asked[0].slab || f.generation != w.asked[0].generation)
			wrong("an answer to another EVICT");
		else
			memmove(w.asked, w.asked + 1, --w.asks * sizeof(*w.asked));
		w.r->accesses++;
		w.r->sum += f.status == WIRE_NO_ROOM;
	}
}

int ib_post_send(struct ib_qp *qp, const struct ib_send_wr *wr, const struct ib_send_wr **bad)
{
	if (w.refuses_sends || w.sends == sizeof(w.sent) / sizeof(*w.sent)) {
		w.refuses_sends = false;
		return -ENOMEM;
	}
	if (wr->opcode == IB_WR_SEND)
		heard((const u8 *)(uintptr_t)wr->sg_list->addr, wr->sg_list->length);
	w.sent[w.sends++] = wr->wr_cqe;
	return 0;
}

void ib_drain_qp(struct ib_qp *qp)
{
	u8 *data;

	if (qp != w.id[0]->qp)
		return;
	while (w.sends)
		send_completed(IB_WC_WR_FLUSH_ERR);
	while (w.posts)
		completed(receive_taken(&data), IB_WC_WR_FLUSH_ERR, 0);
}

struct ib_pd *ib_alloc_pd(struct ib_device *ib, int flags)
{
	struct ib_pd *pd = kzalloc(sizeof(*pd), GFP_KERNEL);

	return pd ? pd : ERR_PTR(-ENOMEM);
}

void ib_dealloc_pd(struct ib_pd *pd)
{
	kfree(pd);
}

struct ib_cq *ib_alloc_cq(struct ib_device *ib, void *context, int entries, int vector, int how)
{
	struct ib_cq *cq = kzalloc(sizeof(*cq), GFP_KERNEL);

	if (!cq)
		return ERR_PTR(-ENOMEM);
	cq->cq_context = context;
	return cq;
}

void ib_free_cq(struct ib_cq *cq)
{
	kfree(cq);
}

/* --- the connection manager --- */

static void happens(struct rdma_cm_id *id, enum rdma_cm_event_type kind, const void *data,
		    u32 length)
{
	struct rdma_cm_event event = {
		.event = kind,
		.status = kind == RDMA_CM_EVENT_REJECTED ? 28 : -ETIMEDOUT,
		.param.conn = {
			.private_data = data, .private_data_len = length,
			.qp_num = 0x1000 + (u32)(id == w.id[QUEUES - 1]),
		},
	};

	id->handler(id, &event);
}

struct rdma_cm_id *rdma_create_id(struct net *net,
				  int (*handler)(struct rdma_cm_id *, struct rdma_cm_event *),
				  void *context, int ps, int type)
{
	struct rdma_cm_id *id = kzalloc(sizeof(*id), GFP_KERNEL);

	if (!id)
		return ERR_PTR(-ENOMEM);
	*id = (struct rdma_cm_id){ .context = context, .handler = handler, .device = &w.ib };
	w.id[w.ids++] = id;
	return id;
}

void rdma_destroy_id(struct rdma_cm_id *id)
{
	w.ids = 0;
	kfree(id);
}

static void breaks(struct rdma_cm_id *id, u32 how)
{
	u32 kind = RDMA_CM_EVENT_ADDR_ERROR + how % (RDMA_CM_EVENTS - RDMA_CM_EVENT_ADDR_ERROR);

	happens(id, (enum rdma_cm_event_type)kind, NULL, 0);
}

/* The next step of a connection: fails, gets no answer, or an event. */
static int proceeds(struct rdma_cm_id *id, enum rdma_cm_event_type good)
{
	u32 how = fault();

	if (!how)
		happens(id, good, NULL, 0);
	else if (how > 2)
		breaks(id, how);
	return how == 1 ? -ENODEV : 0;
}

int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to, int ms)
{
	return proceeds(id, RDMA_CM_EVENT_ADDR_RESOLVED);
}

int rdma_resolve_route(struct rdma_cm_id *id, int ms)
{
	return proceeds(id, RDMA_CM_EVENT_ROUTE_RESOLVED);
}

int rdma_create_qp(struct rdma_cm_id *id, struct ib_pd *pd, struct ib_qp_init_attr *attr)
{
	struct ib_qp *qp = kzalloc(sizeof(*qp), GFP_KERNEL);

	if (!qp)
		return -ENOMEM;
	*qp = (struct ib_qp){ .qp_num = 1 + (u32)(id == w.id[1]), .cq = attr->recv_cq };
	id->qp = qp;
	return 0;
}

void rdma_destroy_qp(struct rdma_cm_id *id)
{
	kfree(id->qp);
	id->qp = NULL;
}

/* Makes the donor's reply to the request of a connection. */
static void joined(const u8 *request, struct wire_pair pair, u8 *data)
{
	struct wire_proof_request q;
	struct wire_proof_reply a = { 0 };
	u8 secret[WIRE_PROOF];

	if (wire_parse_proof_request(request, WIRE_PROOF_REQUEST_SIZE, &q) ||
	    q.queues != w.device.queues || memcmp(q.key, w.device.key.number, sizeof(q.key)))
		wrong("the module's request is malformed");
	if (q.queue) {
		wire_prove_joined(&w.secret, request, pair, a.proof);
	} else {
		/* Of these connections. */
		w.told = w.heard = w.asks = w.calls = 0;
		get_random_bytes(a.nonce, sizeof(a.nonce));
		wire_secret(&w.device.key.hmac, request, a.nonce, pair, secret);
		memcpy(w.secret.tfm->key, secret, sizeof(secret));
		wire_prove_donor(&w.secret, a.proof);
	}
	wire_build_proof_reply(data, &a);
}

int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	struct wire_pair pair = { id->qp->qp_num, 0x1000 + (u32)(id == w.id[QUEUES - 1]) };
	u8 data[WIRE_PROOF_REPLY_SIZE] = { 0 };
	u32 how = fault(), at;

	joined(param->private_data, pair, data);
	switch (how) {
	case 0:
		happens(id, RDMA_CM_EVENT_ESTABLISHED, data, sizeof(data));
		break;
	case 1:
		wire_build_refusal(data, take() % (WIRE_REFUSALS + 1));
		happens(id, RDMA_CM_EVENT_REJECTED, data, take() % sizeof(data));
		break;
	case 2:
		at = take() % sizeof(data);
		data[at] ^= 1u << take() % 8;
		/* Only connection 0 has a nonce. */
		w.wrong_proof |= id == w.id[0] || at < 8 || at >= 8 + WIRE_PROOF;
		happens(id, RDMA_CM_EVENT_ESTABLISHED, data, sizeof(data));
		break;
	case 3:
		w.wrong_proof = true;
		happens(id, RDMA_CM_EVENT_ESTABLISHED, data, take() % sizeof(data));
		break;
	case 4:
		return -EINVAL;
	default:
		breaks(id, how);
	}
	return 0;
}

int rdma_disconnect(struct rdma_cm_id *id)
{
	return 0;
}

const void *rdma_consumer_reject_data(struct rdma_cm_id *id, struct rdma_cm_event *event,
				      u8 *length)
{
	*length = event->param.conn.private_data_len;
	return event->param.conn.private_data;
}

/* --- the donor's frames --- */

/* Returns one of the module's calls, of which there is at least one. */
static const struct wire_frame *any_call(void)
{
	return &w.call[w.calls > 1 ? take() % w.calls : 0];
}

/* Fills in the answer to one of the module's calls; returns the bytes of payload. */
static u32 good_answer(struct wire_frame *f, u8 *payload)
{
	struct wire_rdma_grant grant = { .length = SLAB_PAGES << PAGE_SHIFT };
	struct wire_donor donor = {
		.version = WIRE_VERSION, .slab_size = SLAB_PAGES << PAGE_SHIFT, .total = 1 << 30,
		.free = 1 << 29, .grace = w.grace,
	};

	if (!w.calls)
		return 0;
	*f = *any_call();
	f->direction = WIRE_REPLY;
	f->length = 0;
	if (f->op == WIRE_MAP || f->op == WIRE_REMAP) {
		if (f->op == WIRE_MAP) {
			f->slab = draw_below(&w.random, 8);
			f->generation = draw_below(&w.random, 4);
		}
		grant.address = (u64)take() << 20;
		grant.key = take();
		wire_build_rdma_grant(payload, &grant);
		return WIRE_RDMA_GRANT_SIZE;
	}
	if (f->op != WIRE_HELLO)
		return 0;
	return f->length = wire_build_donor(payload, &donor);
}

static void evict(struct wire_frame *f)
{
	const struct ebb_place *place = place_of(take() % SLABS);

	*f = (struct wire_frame){ .op = WIRE_EVICT, .tag = draw32(&w.random) };
	if (place->session) {
		f->slab = place->loan->remote;
		f->generation = place->loan->generation;
	}
}

/* Makes the next frame at @m, of at most EBB_FRAME bytes; returns its length without a MAC. */
static u32 make(u8 *m)
{
	struct wire_frame f = { .op = WIRE_PING, .direction = WIRE_REPLY, .tag = take() };
	u8 kind = take() % 32;
	u32 n = 0;

	/* Most frames are valid: an invalid one ends the session. */
	if (kind < 12 && !w.calls)
		kind = 12;
	if (kind < 10 || kind > 24)
		n = good_answer(&f, m + WIRE_HEADER);
	if (kind == 10 || kind == 11) {
		f = *any_call();
		f.direction = WIRE_REPLY;
		f.length = f.offset = 0;
		f.status = take() % WIRE_STATUSES;
	} else if (kind >= 12 && kind < 22) {
		evict(&f);
	} else if (kind == 22) {
		f = (struct wire_frame){ .op = WIRE_ACTIVITY, .length = WIRE_LOAN_SIZE };
		n = WIRE_LOAN_SIZE;
	} else if (kind == 23) {
		n = take() % (EBB_FRAME - WIRE_MARK + 1);
		for (u32 i = 0; i < n; i++)
			m[i] = take();
		return n;
	} else if (kind == 24) {
		f.op = take() % WIRE_OPS;
		f.direction = take() % 2;
	} else if (kind == 25) {
		f.tag += take() - 1u;
	}
	wire_build(m, &f);
	n += WIRE_HEADER;
	if (kind == 26 || kind == 27)
		m[take() % n] ^= take();
	if (kind == 28)
		n = take() % (EBB_FRAME - WIRE_MARK + 1);
	return n;
}

/* Returns whether the module may accept the frame of @n bytes at @m, and what the donor expects. */
static bool allowed(const u8 *m, u32 n)
{
	struct wire_frame f;
	u32 i;

	if (n < WIRE_HEADER || wire_parse(m, n, WIRE_AT_BORROWER, &f) != 1)
		return false;
	if (f.direction == WIRE_REQUEST) {
		if (f.op != WIRE_EVICT || w.asks == WIRE_EVICTS)
			return false;
		w.asked[w.asks++] = f;
		return true;
	}
	for (i = 0; i < w.calls && (f.op != w.call[i].op || f.tag != w.call[i].tag); i++)
		;
	if (i == w.calls)
		return false;
	memmove(&w.call[i], &w.call[i + 1], (--w.calls - i) * sizeof(*w.call));
	w.answer = f;
	w.grants = f.op == WIRE_MAP && !f.status && n == WIRE_HEADER + WIRE_RDMA_GRANT_SIZE &&
		   !wire_parse_rdma_grant(m + WIRE_HEADER, WIRE_RDMA_GRANT_SIZE, &w.grant) &&
		   w.grant.length >= (u64)SLAB_PAGES << PAGE_SHIFT;
	if (f.op == WIRE_MAP && !f.status && w.grant_count < GRANTS)
		w.granted[w.grant_count++] = (struct wire_loan){ f.slab, f.generation };
	return true;
}

static void frame_step(void)
{
	struct ebb_session *s = session();
	u8 m[EBB_FRAME] = { 0 }, *data;
	struct ib_cqe *cqe;
	bool live = !s->life.broken, genuine, may;
	u32 n = make(m);

	genuine = !fault();
	wire_mark(&w.secret, WIRE_AT_BORROWER, w.told++, m, n, m + n);
	m[n] ^= !genuine;
	if (fault() && n)
		n--, genuine = false;
	may = genuine && allowed(m, n);
	n += WIRE_MARK;
	cqe = receive_taken(&data);
	memcpy(data, m, n);
	completed(cqe, IB_WC_SUCCESS, n);
	if (!live)
		return;
	w.r->frames += may;
	if (may != !s->life.broken)
		wrong(may ? "a valid frame ends the session" : "an invalid frame is taken");
	else if (!may && s->cause != EBB_SWAP_CAUSE_PROTOCOL)
		wrong("an invalid frame is not blamed on the donor");
}

/* --- steps --- */

static void failed(struct ebb_session *s)
{
	for (u32 i = 0; i < w.device.slab_count; i++)
		place_of(i)->session = NULL;
}

void ebb_slab_detach(struct ebb_device *d, struct ebb_slab *slab, const struct ebb_session *s)
{
	slab->hold.at[AT_DONOR].session = NULL;
}

static void drained(struct ebb_session *s)
{
}

/* Ends the place with @loan, as the copier does if it is the source. */
static void leave(struct ebb_session *s, struct ebb_loan *loan)
{
	for (u32 i = 0; i < w.device.slab_count; i++) {
		if (place_of(i)->session && place_of(i)->loan == loan) {
			place_of(i)->session = NULL;
			ebb_session_release(s, loan);
			return;
		}
	}
}

static int checked_confirm(struct ebb_session *s, struct ebb_confirm *c, u32 count)
{
	int r = ebb_session_confirm(s, c, count);

	for (u32 i = 0; !r && i < count; i++) {
		if (c[i].result)
			continue;
		w.confirmed++;
		if (take() % 4 == 1)
			leave(s, c[i].loan);
	}
	return r;
}

static int resume(struct ebb_session *s)
{
	w.confirmed = 0;
	return ebb_resume_slabs(s);
}

static void back(struct ebb_session *s)
{
	struct ebb_loan *loan;

	w.r->sum = w.polite ? w.confirmed : w.r->sum;
	list_for_each_entry(loan, &s->loans, node)
		w.confirmed -= loan->confirmed;
	list_for_each_entry(loan, &s->releasing, node)
		w.confirmed -= loan->confirmed;
	if (w.confirmed)
		wrong("a slab stays lent that no slab of the device has");
}

static const struct ebb_session_ops ops = {
	.away = drained, .resume = resume, .back = back,
	.failed = failed, .drained = drained, .closed = drained, .recalled = ebb_evict_recalled,
};

bool ebb_event_has_listeners(void)
{
	return w.listens;
}

void ebb_event_send(const struct ebb_device *d, u32 event, u32 number, u32 slab, u32 cause,
		    const char *reason)
{
}

void ebb_copier_kick(struct ebb_device *d)
{
}

static void map(struct ebb_session *s, struct ebb_slab *slab)
{
	struct ebb_place place = { 0 };
	const char *why = NULL;
	int r = ebb_session_map(s, &place, &why);

	if (r && !why)
		wrong("a failure without a reason");
	if (r)
		return;
	w.r->loans++;
	if (!w.grants || place.address != w.grant.address || place.rkey != w.grant.key ||
	    place.loan->remote != w.answer.slab || place.loan->generation != w.answer.generation)
		wrong("a grant that the donor has not sent");
	if (ebb_session_live(s))
		slab->hold.at[AT_DONOR] = place;
}

/* A command to the module. */
static void command_step(struct ebb_session *s)
{
	struct ebb_slab *slab = &w.slabs[take() % SLABS];
	struct ebb_place place = slab->hold.at[AT_DONOR];
	const char *why = NULL;
	u8 how = take();

	w.depth++;
	if (!place.session) {
		map(s, slab);
	} else {
		slab->hold.at[AT_DONOR].session = NULL;
		if (how % 2)
			ebb_session_release(s, place.loan);
		else if (ebb_session_unmap(s, place.loan, &why) && !why)
			wrong("a failure without a reason");
	}
	w.depth--;
}

/* Something fails. */
static void trouble_step(struct ebb_session *s)
{
	u8 *data, how = take();

	switch (how % 8) {
	case 0:
		w.fail_in = 1 + take() % 4;
		break;
	case 1:
		w.refuses_sends = true;
		break;
	case 2:
		if (w.posts && s->queue[0].id && s->queue[0].id->qp)
			completed(receive_taken(&data), 1 + take() % (IB_WC_STATUSES - 1), 0);
		break;
	case 3:
		if (w.ids && s->queue[0].established)
			breaks(w.id[0], take());
		break;
	case 4:
		w.listens = how & 8;
		break;
	default:
		jiffies += how;
	}
}

static void step(void)
{
	struct ebb_session *s = session();
	u8 kind = take() % 8;

	if (!s)
		return;
	if (kind < 4 && w.posts && w.secret.tfm)
		frame_step();
	else if (kind == 4 && w.sends)
		send_completed(fault() ? IB_WC_RETRY_EXC_ERR : IB_WC_SUCCESS);
	else if (kind == 5)
		work_step();
	else if (kind == 6 && !w.depth)
		command_step(s);
	else if (kind == 7 && take() < 64)
		trouble_step(s);
}

/* The donor answers all that it has been asked. */
static void answer_all(void)
{
	w.waits++;
	while (w.sends)
		send_completed(IB_WC_SUCCESS);
	while (w.calls && w.posts && !*w.r->wrong)
		frame_step();
}

unsigned long wait_for_completion_timeout(struct completion *c, unsigned long timeout)
{
	if (w.polite && !c->done)
		answer_all();
	for (int i = 0; !c->done && w.left && i < STEPS; i++)
		step();
	if (!c->done) {
		jiffies += timeout;
		return 0;
	}
	c->done--;
	return 1;
}

void wait_for_completion(struct completion *c)
{
	while (!c->done && w.sends)
		send_completed(IB_WC_SUCCESS);
	while (!c->done && work_step())
		;
	if (!c->done)
		wrong("it waits for ever");
	else
		c->done--;
}

/* --- all --- */

static int device_init(void)
{
	static const u8 key[EBB_SWAP_KEY] = { 1 }, number[EBB_SWAP_KEY_NUMBER] = { 2 };
	const char *why;
	u8 how = take();

	w.device.queues = 1 + how % QUEUES;
	w.device.depth = 4;
	w.device.deadline = 100;
	w.device.slab_pages = SLAB_PAGES;
	w.device.slab_count = SLABS;
	w.device.slabs = w.slabs;
	w.device.backup.bdev = how & 4 ? &w : NULL;
	w.listens = how & 8;
	w.grace = how & 64 ? 1000 : 0;
	w.fail_in = how & 16 ? 1 + take() % 40u : 0;
	w.ib.attrs.max_send_sge = w.ib.attrs.max_sge_rd = how & 32 ? take() % 17 : 16;
	w.ib.attrs.max_qp_init_rd_atom = 16;
	w.ib.num_comp_vectors = 1;
	INIT_LIST_HEAD(&w.works);
	INIT_LIST_HEAD(&w.device.sessions);
	return ebb_key_set(&w.device.key, key, number, &why) ?: ebb_hmac_init(&w.secret, key);
}

static void begin(const uint8_t *data, size_t size, struct fuzz_protocol_result *r)
{
	*r = (struct fuzz_protocol_result){ 0 };
	memset(&w, 0, sizeof(w));
	w.r = r;
	w.in = data;
	w.left = size;
	w.random = 1;
}

static int session_open(void)
{
	const struct ebb_donor donor = { 0 };
	const char *why = NULL;
	int r;

	w.depth++;
	r = ebb_session_open(&w.device, &donor, 0, &ops, &w.opened, &why);
	w.depth--;
	if (r && !why)
		wrong("a failure without a reason");
	if (!r && w.wrong_proof)
		wrong("a donor without proof");
	return r;
}

static void session_end(void)
{
	w.r->end = -(int)w.opened->cause;
	w.fail_in = 0;
	ebb_session_free(w.opened, "the end");
	if (!list_empty(&w.device.sessions))
		wrong("a session is left");
}

static void end(void)
{
	if (!list_empty(&w.works))
		wrong("work is left");
	ebb_key_free(&w.device.key);
	ebb_hmac_free(&w.secret);
	if (w.objects)
		wrong("objects are left");
	if (w.spinning)
		wrong("a lock is left");
}

void fuzz_kmod(const uint8_t *data, size_t size, struct fuzz_protocol_result *r)
{
	int r_open;

	begin(data, size, r);
	r_open = device_init() ?: session_open();
	while (!r_open && w.left)
		step();
	if (!r_open)
		session_end();
	end();
}

uint32_t fuzz_kmod_resume(uint32_t slabs, struct fuzz_protocol_result *r)
{
	struct ebb_slab *all = calloc(slabs, sizeof(*all));
	const uint8_t grace = 64;
	uint32_t trips = 0;

	begin(&grace, 1, r);
	w.polite = true;
	if (all && !device_init()) {
		w.device.slabs = all;
		w.device.slab_count = slabs;
	}
	if (!w.device.slab_count || session_open()) {
		free(all);
		return 0;
	}
	for (u32 i = 0; i < slabs; i++)
		map(w.opened, &all[i]);
	breaks(w.id[0], 0);
	if (ebb_session_live(w.opened))
		wrong("a session without a connection is live");
	trips = w.waits;
	for (int i = 0; i < STEPS && !ebb_session_live(w.opened); i++)
		work_step();
	trips = ebb_session_live(w.opened) ? w.waits - trips : 0;
	session_end();
	end();
	free(all);
	return trips;
}

void fuzz_kmod_bytes(uint64_t seed, uint8_t *data, size_t size)
{
	uint32_t rare = 1 + draw_below(&seed, 40);

	for (size_t i = 0; i < size; i++) {
		data[i] = (uint8_t)draw32(&seed);
		/* Most faults end the session. */
		if (data[i] >= 0xf0 && draw_below(&seed, rare))
			data[i] &= 0x7f;
	}
	/* Most sessions begin: no faults in a connection's 3 steps, nor in the answer to HELLO. */
	if (draw_below(&seed, 8) && size > 12) {
		data[0] &= 0x4f;
		memset(data + 1, 0, data[0] % QUEUES ? 11 : 8);
	}
}
