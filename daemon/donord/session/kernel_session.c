// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "kernel_session.h"
#include "lib/base/clock.h"

/* Most completions of one session in a turn of the loop. */
#define TURN 32
#define PROBE (1u << KERNEL_ASKED)

static struct kernel_session *session_of(struct borrower *b)
{
	return (struct kernel_session *)((char *)b - offsetof(struct kernel_session, borrower));
}

static uint8_t *message(struct kernel_session *s, uint64_t i)
{
	return s->messages + i * WIRE_RDMA_MESSAGE;
}

static int receive_post(struct kernel_session *s, uint64_t i)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)message(s, i), .length = WIRE_RDMA_MESSAGE,
		.lkey = s->messages_key->lkey,
	};
	struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;

	return -ibv_post_recv(s->queue[0].id->qp, &wr, &bad);
}

/*
 * Sends message @i.  A reply reuses the message of its request, which receives again when it was
 * sent.  Frames must leave in the order in which they get their MAC.
 */
static int message_post(struct kernel_session *s, uint64_t i, uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)message(s, i), .lkey = s->messages_key->lkey };
	struct ibv_send_wr wr = {
		.wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad;
	int r = wire_mark(&s->secret, WIRE_AT_BORROWER, s->sent++, message(s, i), length,
			  message(s, i) + length);

	sge.length = length + WIRE_MARK;
	return r ? r : -ibv_post_send(s->queue[0].id->qp, &wr, &bad);
}

/*
 * Returns whether a message of *@length bytes is the next frame of the session's borrower;
 * subtracts its MAC.
 */
static bool genuine(struct kernel_session *s, const uint8_t *m, uint32_t *length)
{
	uint8_t mark[WIRE_MARK];

	if (*length < WIRE_HEADER + WIRE_MARK)
		return false;
	*length -= WIRE_MARK;
	if (wire_mark(&s->secret, WIRE_AT_DONOR, s->received, m, *length, mark) ||
	    !wire_same(mark, m + *length, WIRE_MARK))
		return false;
	s->received++;
	s->proven = true;
	return true;
}

/* Pool thread: makes the objects that all queue pairs of @s share. */
static int make_objects(struct kernel_session *s)
{
	s->domain.pd = ibv_alloc_pd(s->verbs);
	s->channel = s->domain.pd ? ibv_create_comp_channel(s->verbs) : NULL;
	if (!s->channel || fcntl(s->channel->fd, F_SETFL, O_NONBLOCK) < 0)
		return -errno;
	s->cq = ibv_create_cq(s->verbs, 4 * (KERNEL_MESSAGES + KERNEL_ASKED), NULL, s->channel, 0);
	s->messages = calloc(KERNEL_MESSAGES + KERNEL_ASKED, WIRE_RDMA_MESSAGE);
	if (!s->cq || !s->messages)
		return -ENOMEM;
	s->messages_key = ibv_reg_mr(s->domain.pd, s->messages,
				     (KERNEL_MESSAGES + KERNEL_ASKED) * WIRE_RDMA_MESSAGE,
				     IBV_ACCESS_LOCAL_WRITE);
	return s->messages_key ? -ibv_req_notify_cq(s->cq, 0) : -errno;
}

/* Pool thread. */
static void make_queue(struct pool_task *t)
{
	struct kernel_queue *q = (struct kernel_queue *)t;
	struct kernel_session *s = q->session;
	bool first = q == s->queue;
	struct ibv_device_attr device;
	int r = first ? make_objects(s) : 0;

	if (!r)
		r = -ibv_query_device(s->verbs, &device);
	if (!r) {
		struct ibv_qp_init_attr attr = {
			.send_cq = s->cq, .recv_cq = s->cq, .qp_type = IBV_QPT_RC,
			.cap = {
				.max_send_wr = KERNEL_MESSAGES + KERNEL_ASKED + 1,
				.max_recv_wr = KERNEL_MESSAGES,
				.max_send_sge = 1, .max_recv_sge = 1,
			},
		};

		if (q->request.reads > device.max_qp_rd_atom)
			q->request.reads = (uint8_t)device.max_qp_rd_atom;
		r = rdma_create_qp(q->id, s->domain.pd, &attr) ? -errno : 0;
	}
	/* The borrower sends as soon as it is accepted. */
	for (uint64_t i = 0; !r && first && i < KERNEL_MESSAGES; i++)
		r = receive_post(s, i);
	q->result = r;
}

static void queue_made(struct pool_task *t)
{
	struct kernel_queue *q = (struct kernel_queue *)t;

	q->session->made |= 1u << (q - q->session->queue);
}

static const struct borrower_ops ops;

int kernel_session_new(struct kernel_session **out, const struct kernel_env *env,
		       const struct rdma_cm_id *id, const struct kernel_request *request)
{
	struct kernel_session *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->env = env;
	s->borrower = (struct borrower){
		.quota = env->quota, .recallable = true, .export = &env->export->x,
		.priv = &s->domain, .ops = &ops,
	};
	s->number = request->open.session;
	s->queues = request->open.queues;
	s->since = now_ns();
	s->claims = request->claims;
	memcpy(s->borrower.key, request->key->name, sizeof(s->borrower.key));
	memcpy(s->fingerprint, request->key->fingerprint, sizeof(s->fingerprint));
	memcpy(s->secret.key, request->key->bytes, sizeof(s->secret.key));
	s->verbs = id->verbs;
	*out = s;
	return 0;
}

bool kernel_session_lacks(const struct kernel_session *s, const struct rdma_cm_id *id,
			const struct kernel_request *request)
{
	const struct wire_rdma_open *open = &request->open;
	uint8_t proof[WIRE_PROOF];

	if (s->queue[open->queue].id || s->queues != open->queues || s->verbs != id->verbs)
		return false;
	/* Connection 0 makes the secret that proves the others. */
	return !open->queue ||
	       (s->accepted & 1 &&
		!wire_prove_join(&s->secret, request->bytes, request->borrower, proof) &&
		wire_same(proof, request->proof, WIRE_PROOF));
}

void kernel_session_join(struct kernel_session *s, struct rdma_cm_id *id,
			 const struct kernel_request *request)
{
	struct kernel_queue *q = &s->queue[request->open.queue];

	*q = (struct kernel_queue){ .task = { .run = make_queue, .done = queue_made },
				    .session = s, .id = id, .request = *request };
	pool_task(s->env->pool, &q->task);
}

/* Makes the donor's proof, the private data of the acceptance. */
static int prove(struct kernel_session *s, const struct kernel_queue *q,
		 uint8_t data[static WIRE_PROOF_REPLY_SIZE])
{
	const struct kernel_request *request = &q->request;
	const struct wire_pair pair = { request->borrower, q->id->qp->qp_num };
	struct wire_hmac key = s->secret;
	struct wire_proof_reply reply = { 0 };
	int r;

	if (request->open.queue) {
		r = wire_prove_joined(&s->secret, request->bytes, pair, reply.proof);
	} else if (getrandom(reply.nonce, sizeof(reply.nonce), 0) != sizeof(reply.nonce)) {
		r = -EIO;
	} else {
		r = wire_secret(&key, request->bytes, reply.nonce, pair, s->secret.key);
		if (!r)
			r = wire_prove_donor(&s->secret, reply.proof);
	}
	wire_hmac_forget(&key);
	wire_build_proof_reply(data, &reply);
	return r;
}

int kernel_session_accept(struct kernel_session *s, struct rdma_cm_id **id)
{
	const struct kernel_queue *q = &s->queue[__builtin_ctz(s->made)];
	uint32_t bit = 1u << (q - s->queue);
	uint8_t data[WIRE_PROOF_REPLY_SIZE];
	struct rdma_conn_param param = {
		.responder_resources = q->request.reads, .rnr_retry_count = 6,
		.private_data = data, .private_data_len = sizeof(data),
	};
	int r = q->result ?: prove(s, q, data);

	*id = q->id;
	s->made &= ~bit;
	if (!r && rdma_accept(q->id, &param))
		r = -errno;
	s->accepted |= r ? 0 : bit;
	return r;
}

static void greet(struct kernel_session *s)
{
	pool_add(s->env->pool, &s->borrower);
	s->greeted = true;
	donor_say(s->env->log, LOG_LVL_INFO,
		  "borrower %s: connected by RDMA over %u connections, key %s (%s)",
		  s->borrower.name, s->queues, s->borrower.key, s->fingerprint);
}

/* WIRE_OK with s->resumes: the reply follows when the session's queue pairs are destroyed. */
static enum wire_status serve_hello(struct kernel_session *s, const uint8_t *payload,
				    uint32_t length)
{
	struct kernel_session *old;
	struct wire_hello h;

	if (s->greeted || s->resumes || wire_parse_hello(payload, length, &h))
		return WIRE_NOT_GREETED;
	if (!wire_speaks(h.version))
		return WIRE_BAD_VERSION;
	if (h.slab_size > s->env->pool->slab_size)
		return WIRE_BAD_SLAB_SIZE;
	/*
	 * A stranger that replays a connection's request before the borrower sends it prevents the
	 * borrower from completing the session; neither gets a loan.
	 */
	if (s->accepted != (1u << s->queues) - 1)
		return WIRE_NOT_GREETED;
	s->version = h.version;
	s->id = h.borrower;
	s->keeps = h.flags & WIRE_KEEP && h.version >= 4 && s->env->keep;
	memcpy(s->borrower.name, h.name, sizeof(s->borrower.name) - 1);
	old = s->env->find(s, h.borrower);
	if (h.flags & WIRE_RESUME) {
		s->resumes = old;
		return old ? WIRE_OK : WIRE_NO_SESSION;
	}
	if (old) {
		kernel_session_end(old);
		s->env->found(old);
	}
	greet(s);
	return WIRE_OK;
}

/* Returns the index of the message that holds the unanswered MAP or REMAP with @tag. */
static uint64_t waiting(struct kernel_session *s, uint64_t tag)
{
	for (uint64_t i = 0; i < KERNEL_MESSAGES; i++) {
		struct wire_frame f;

		if (s->granting & 1u << i &&
		    wire_parse(message(s, i), WIRE_HEADER, WIRE_AT_DONOR, &f) == 1 && f.tag == tag)
			return i;
	}
	return KERNEL_MESSAGES;
}

static int reply(struct kernel_session *s, uint64_t i, const struct wire_frame *f,
		 enum wire_status st, const void *payload, uint32_t length)
{
	struct wire_frame r = *f;

	r.direction = WIRE_REPLY;
	r.status = st;
	/* The module expects a grant behind a frame of length 0. */
	r.length = f->op == WIRE_MAP || f->op == WIRE_REMAP ? 0 : length;
	r.offset = 0;
	wire_build(message(s, i), &r);
	if (length)
		memcpy(message(s, i) + WIRE_HEADER, payload, length);
	return message_post(s, i, WIRE_HEADER + length);
}

/* Ends or parts the session in its next turn; the first reason is logged. */
static void give_up(struct borrower *b, const char *why)
{
	struct kernel_session *s = session_of(b);

	s->failed = s->failed ? s->failed : why;
}

/* Ends it for good. */
static void fail_session(struct borrower *b, const char *why)
{
	session_of(b)->keeps = false;
	give_up(b, why);
}

static void granted(struct borrower *b, const struct wire_frame *request,
		    const struct lend_grant *g)
{
	struct kernel_session *s = session_of(b);
	uint64_t i = waiting(s, request->tag);

	/* It was parted meanwhile; the loan stays, unless its borrower does not claim it. */
	if (i == KERNEL_MESSAGES)
		return;
	s->granting &= ~(1u << i);
	if (reply(s, i, request, g ? WIRE_OK : WIRE_NO_SPACE, g ? g->bytes : NULL,
		  g ? g->length : 0))
		give_up(b, "the queue pair takes no frame");
}

static bool ask(struct borrower *b, const struct wire_frame *f, const void *payload)
{
	struct kernel_session *s = session_of(b);
	uint32_t i = 0;

	while (i < KERNEL_ASKED && s->leaving & 1u << i)
		i++;
	if (i == KERNEL_ASKED || b->evicts >= KERNEL_ASKED || f->op != WIRE_EVICT || s->failed ||
	    s->state != KERNEL_OPEN)
		return false;
	s->leaving |= 1u << i;
	wire_build(message(s, KERNEL_MESSAGES + i), f);
	if (message_post(s, KERNEL_MESSAGES + i, WIRE_HEADER))
		give_up(b, "the queue pair takes no frame");
	return true;
}

static const struct borrower_ops ops = { granted, ask, fail_session, NULL };

int kernel_session_probe(struct kernel_session *s)
{
	/* No bytes, so no address; the borrower's network device acknowledges it. */
	struct ibv_send_wr wr = {
		.wr_id = KERNEL_MESSAGES + KERNEL_ASKED, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad;

	if (s->leaving & PROBE)
		return 0;
	s->leaving |= PROBE;
	return -ibv_post_send(s->queue[0].id->qp, &wr, &bad);
}

static int serve_map(struct kernel_session *s, uint64_t i, struct wire_frame *f)
{
	enum wire_status st = WIRE_BAD_CLASS;
	uint32_t class;

	if (!wire_parse_map(message(s, i) + WIRE_HEADER, f->length, &class) &&
	    class == WIRE_CLASS_SWAP) {
		s->granting |= 1u << i;
		st = pool_lend(s->env->pool, &s->borrower, f);
	}
	if (st == WIRE_OK)
		return 0;
	s->granting &= ~(1u << i);
	return reply(s, i, f, st, NULL, 0);
}

/* Grants a slab of the resumed session again, at the address and with the key of this one. */
static int serve_remap(struct kernel_session *s, uint64_t i, struct wire_frame *f)
{
	enum wire_status st;

	s->granting |= 1u << i;
	st = pool_lend_again(s->env->pool, &s->borrower, f);
	if (st == WIRE_OK)
		return 0;
	s->granting &= ~(1u << i);
	return reply(s, i, f, st, NULL, 0);
}

/* Ends the loans that the borrower has not claimed by REMAP. */
static enum wire_status serve_release(struct kernel_session *s)
{
	uint32_t n = pool_return_rest(s->env->pool, &s->borrower);

	if (n)
		donor_say(s->env->log, LOG_LVL_INFO, "borrower %s: released %u slabs that it did not claim",
			  s->borrower.name, n);
	return WIRE_OK;
}

static enum wire_status serve_bye(struct kernel_session *s)
{
	s->keeps = false;
	return WIRE_OK;
}

static int serve_held(struct kernel_session *s)
{
	struct wire_frame f = s->held;

	s->held.op = 0;
	return serve_map(s, s->held_at, &f);
}

static int serve_donor(struct kernel_session *s, uint64_t i, struct wire_frame *f)
{
	uint8_t payload[WIRE_DONOR_SIZE];
	struct wire_donor d;

	f->slab = headroom_follow_tell(s->env->follow, &s->borrower, &d);
	d.version = s->version;
	d.grace = s->keeps ? (uint32_t)(s->env->keep / 1000000) : 0;
	return reply(s, i, f, WIRE_OK, payload, wire_build_donor(payload, &d));
}

/* Answers the HELLO that resumes a session whose queue pairs are destroyed. */
static int resume(struct kernel_session *s)
{
	struct kernel_session *old = s->resumes;
	uint32_t slabs = pool_take_over(s->env->pool, &old->borrower, &s->borrower);

	s->resumes = NULL;
	kernel_session_end(old);
	s->env->found(old);
	if (!slabs)
		return reply(s, s->hello_at, &s->hello, WIRE_NO_SESSION, NULL, 0);
	greet(s);
	donor_say(s->env->log, LOG_LVL_INFO, "borrower %s: reconnected with %u slabs",
		  s->borrower.name, slabs);
	return serve_donor(s, s->hello_at, &s->hello);
}

/* Serves the frame of @bytes bytes in message @i. */
static int serve(struct kernel_session *s, uint64_t i, uint32_t bytes)
{
	uint8_t *m = message(s, i);
	enum wire_status st = WIRE_NOT_HERE;
	struct wire_frame f;

	if (!genuine(s, m, &bytes))
		return -EBADMSG;
	if (bytes < WIRE_HEADER || wire_parse(m, bytes, WIRE_AT_DONOR, &f) != 1 ||
	    bytes != WIRE_HEADER + wire_payload(&f))
		return -EPROTO;
	if (f.direction == WIRE_REPLY)
		return (f.op == WIRE_EVICT ? eviction_answer(s->env->eviction, &s->borrower, &f) :
			-EPROTO) ?: receive_post(s, i);
	if (f.op == WIRE_HELLO)
		st = serve_hello(s, m + WIRE_HEADER, f.length);
	else if (!s->greeted)
		st = WIRE_NOT_GREETED;
	else if (f.op == WIRE_PING)
		st = WIRE_OK;
	else if (f.op == WIRE_UNMAP)
		st = eviction_return(s->env->eviction, &s->borrower,
				     (struct wire_loan){ f.slab, f.generation });
	else if (f.op == WIRE_REMAP)
		return serve_remap(s, i, &f);
	else if (f.op == WIRE_RELEASE)
		st = serve_release(s);
	else if (f.op == WIRE_BYE)
		st = serve_bye(s);
	if (f.op == WIRE_HELLO && !st && s->resumes) {
		s->hello = f;
		s->hello_at = i;
		return 0;
	}
	if (!st && (f.op == WIRE_HELLO || f.op == WIRE_PING))
		return serve_donor(s, i, &f);
	if (f.op != WIRE_MAP || !s->greeted)
		return reply(s, i, &f, st, NULL, 0);
	if (pool_may_lend(s->env->pool, &s->borrower))
		return serve_map(s, i, &f);
	s->held = f;
	s->held_at = i;
	return 0;
}

static int complete_one(struct kernel_session *s, const struct ibv_wc *wc)
{
	if (wc->status != IBV_WC_SUCCESS)
		return wc->status == IBV_WC_RETRY_EXC_ERR ? -ETIMEDOUT : -EIO;
	if (wc->opcode & IBV_WC_RECV)
		return serve(s, wc->wr_id, wc->byte_len);
	if (wc->wr_id < KERNEL_MESSAGES)
		return receive_post(s, wc->wr_id);
	s->leaving &= ~(1u << (wc->wr_id - KERNEL_MESSAGES));
	return 0;
}

int kernel_session_turn(struct kernel_session *s)
{
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *context;
	int n = 0, r = 0;

	if (!ibv_get_cq_event(s->channel, &cq, &context)) {
		ibv_ack_cq_events(cq, 1);
		if (ibv_req_notify_cq(s->cq, 0))
			return -EIO;
		s->more = true;
	} else if (errno != EAGAIN) {
		return -errno;
	}
	if (kernel_session_resumable(s))
		r = resume(s);
	if (!r && s->held.op && pool_may_lend(s->env->pool, &s->borrower))
		r = serve_held(s);
	/* Frames behind a held MAP wait, to keep their order. */
	for (int i = 0; !r && s->more && !s->held.op && i < TURN; i++) {
		n = ibv_poll_cq(s->cq, 1, &wc);
		s->more = n != 0;
		if (n)
			r = n < 0 ? -EIO : complete_one(s, &wc);
	}
	return r;
}

static struct kernel_session *of_task(struct pool_task *t)
{
	return (struct kernel_session *)((char *)t - offsetof(struct kernel_session, task));
}

/* Pool thread. */
static void destroy_queues(struct pool_task *t)
{
	struct kernel_session *s = of_task(t);

	for (uint32_t i = 0; i < WIRE_RDMA_QUEUES; i++) {
		if (!s->queue[i].id || !s->queue[i].id->qp)
			continue;
		rdma_disconnect(s->queue[i].id);
		rdma_destroy_qp(s->queue[i].id);
	}
	for (uint32_t i = 0; i < WIRE_RDMA_QUEUES; i++)
		if (s->queue[i].id)
			rdma_destroy_id(s->queue[i].id);
}

/* Pool thread. */
static void destroy_objects(struct pool_task *t)
{
	struct kernel_session *s = of_task(t);

	if (s->messages_key)
		ibv_dereg_mr(s->messages_key);
	if (s->cq)
		ibv_destroy_cq(s->cq);
	if (s->channel)
		ibv_destroy_comp_channel(s->channel);
	if (s->domain.pd)
		ibv_dealloc_pd(s->domain.pd);
}

static void next_state(struct pool_task *t)
{
	of_task(t)->state++;
}

static void start(struct kernel_session *s, enum kernel_state state,
		  void (*run)(struct pool_task *))
{
	s->state = state;
	s->task = (struct pool_task){ .run = run, .done = next_state };
	pool_task(s->env->pool, &s->task);
}

uint32_t kernel_session_part(struct kernel_session *s)
{
	/* After the tasks that make queue pairs and keys, before those that invalidate keys. */
	start(s, KERNEL_ENDING, destroy_queues);
	eviction_forget(s->env->eviction, &s->borrower);
	s->granting = 0;
	s->held.op = 0;
	return pool_owned(s->env->pool, &s->borrower);
}

uint32_t kernel_session_end(struct kernel_session *s)
{
	uint32_t n;

	if (s->state == KERNEL_OPEN)
		kernel_session_part(s);
	n = pool_remove(s->env->pool, &s->borrower);
	eviction_forget(s->env->eviction, &s->borrower);
	return n;
}

bool kernel_session_close(struct kernel_session *s)
{
	if (s->state == KERNEL_ENDED && !s->domain.keys)
		start(s, KERNEL_CLOSING, destroy_objects);
	return s->state == KERNEL_CLOSED;
}

void kernel_session_free(struct kernel_session *s)
{
	if (s->state != KERNEL_CLOSED)
		destroy_objects(&s->task);
	free(s->messages);
	wire_hmac_forget(&s->secret);
	free(s);
}
