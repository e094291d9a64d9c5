// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "kernel_session.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"

static uint8_t *message(struct rdma_session *s, uint64_t i)
{
	return s->messages + i * WIRE_RDMA_MESSAGE;
}

static int receive_post(struct rdma_session *s, uint64_t i)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)message(s, i), .length = WIRE_RDMA_MESSAGE,
		.lkey = s->messages_key->lkey,
	};
	struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;

	return -ibv_post_recv(s->id[0]->qp, &wr, &bad);
}

/*
 * An answer is in the message that asked, which listens again when it is sent.  What is
 * marked leaves in that order.
 */
static int message_post(struct rdma_session *s, uint64_t i, uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)message(s, i), .lkey = s->messages_key->lkey };
	struct ibv_send_wr wr = {
		.wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad;
	int r = wire_mark(&s->secret, WIRE_AT_BORROWER, s->sent++, message(s, i), length,
			  message(s, i) + length);

	sge.length = length + WIRE_MARK;
	return r ? r : -ibv_post_send(s->id[0]->qp, &wr, &bad);
}

/*
 * Whether what came, of *@length bytes, is the next frame of the session's borrower; its mark
 * is taken off.
 */
static bool genuine(struct rdma_session *s, const uint8_t *m, uint32_t *length)
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

static int session_init(struct rdma_session *s)
{
	s->pd = ibv_alloc_pd(s->verbs);
	s->channel = s->pd ? ibv_create_comp_channel(s->verbs) : NULL;
	if (!s->channel || fcntl(s->channel->fd, F_SETFL, O_NONBLOCK) < 0)
		return -errno;
	s->cq = ibv_create_cq(s->verbs, 4 * (RDMA_MESSAGES + RDMA_ASKED), NULL, s->channel, 0);
	s->messages = calloc(RDMA_MESSAGES + RDMA_ASKED, WIRE_RDMA_MESSAGE);
	if (!s->cq || !s->messages)
		return -ENOMEM;
	s->messages_key = ibv_reg_mr(s->pd, s->messages,
				     (RDMA_MESSAGES + RDMA_ASKED) * WIRE_RDMA_MESSAGE,
				     IBV_ACCESS_LOCAL_WRITE);
	return s->messages_key ? -ibv_req_notify_cq(s->cq, 0) : -errno;
}

int rdma_session_new(struct rdma_session **out, struct rdma_pool *pool, struct rdma_cm_id *id,
		     const struct rdma_request *request)
{
	struct rdma_session *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return -ENOMEM;
	s->pool = pool;
	s->number = request->open.session;
	s->queues = request->open.queues;
	s->since = now_ns();
	memcpy(s->key, request->key->name, sizeof(s->key));
	memcpy(s->fingerprint, request->key->fingerprint, sizeof(s->fingerprint));
	s->verbs = id->verbs;
	r = session_init(s);
	if (r) {
		rdma_session_free(s);
		return r;
	}
	*out = s;
	return 0;
}

bool rdma_session_lacks(const struct rdma_session *s, const struct rdma_cm_id *id,
			const struct rdma_request *request)
{
	const struct wire_rdma_open *open = &request->open;
	uint8_t proof[WIRE_PROOF];

	if (s->id[open->queue] || s->queues != open->queues || s->verbs != id->verbs)
		return false;
	/* Connection 0 has nothing to prove by yet. */
	return !open->queue ||
	       (!wire_prove_join(&s->secret, request->bytes, request->borrower, proof) &&
		wire_same(proof, request->proof, WIRE_PROOF));
}

/* What proves to the borrower who accepts it, for the private data of the acceptance. */
static int prove(struct rdma_session *s, const struct rdma_request *request, uint32_t donor,
		 uint8_t data[static WIRE_PROOF_REPLY_SIZE])
{
	const struct wire_pair pair = { request->borrower, donor };
	struct wire_proof_reply reply = { 0 };
	struct wire_hmac key;
	int r;

	if (request->open.queue) {
		r = wire_prove_joined(&s->secret, request->bytes, pair, reply.proof);
	} else if (getrandom(reply.nonce, sizeof(reply.nonce), 0) != sizeof(reply.nonce)) {
		r = -EIO;
	} else {
		memcpy(key.key, request->key->bytes, sizeof(key.key));
		r = wire_secret(&key, request->bytes, reply.nonce, pair, s->secret.key);
		wire_hmac_forget(&key);
		if (!r)
			r = wire_prove_donor(&s->secret, reply.proof);
	}
	wire_build_proof_reply(data, &reply);
	return r;
}

int rdma_session_join(struct rdma_session *s, struct rdma_cm_id *id,
		      const struct rdma_request *request)
{
	const struct wire_rdma_open *open = &request->open;
	uint8_t data[WIRE_PROOF_REPLY_SIZE];
	struct ibv_qp_init_attr attr = {
		.send_cq = s->cq, .recv_cq = s->cq, .qp_type = IBV_QPT_RC,
		.cap = {
			.max_send_wr = RDMA_MESSAGES + RDMA_ASKED + 1, .max_recv_wr = RDMA_MESSAGES,
			.max_send_sge = 1, .max_recv_sge = 1,
		},
	};
	struct rdma_conn_param param = {
		.responder_resources = request->reads, .rnr_retry_count = 6,
		.private_data = data, .private_data_len = sizeof(data),
	};
	int r = 0;

	if (rdma_create_qp(id, s->pd, &attr))
		return -errno;
	s->id[open->queue] = id;
	/* Before the borrower may speak. */
	for (uint64_t i = 0; !r && open->queue == 0 && i < RDMA_MESSAGES; i++)
		r = receive_post(s, i);
	if (!r)
		r = prove(s, request, id->qp->qp_num, data);
	if (!r && rdma_accept(id, &param))
		r = -errno;
	if (r) {
		s->id[open->queue] = NULL;
		rdma_destroy_qp(id);
	}
	return r;
}

static int take_back(struct rdma_session *s, struct rdma_slab *slab)
{
	s->lent--;
	return rdma_pool_take_back(s->pool, slab);
}

static bool complete(const struct rdma_session *s)
{
	for (uint32_t i = 0; i < s->queues; i++)
		if (!s->id[i])
			return false;
	return true;
}

static enum wire_status serve_hello(struct rdma_session *s, const uint8_t *payload, uint32_t length)
{
	struct wire_hello h;

	if (s->greeted || wire_parse_hello(payload, length, &h))
		return WIRE_NOT_GREETED;
	if (h.version != WIRE_VERSION)
		return WIRE_BAD_VERSION;
	if (h.slab_size > s->pool->slab_size)
		return WIRE_BAD_SLAB_SIZE;
	/*
	 * Who saw a connection's request, and was there with it before its borrower, has
	 * kept him from greeting: nothing is lent to the two together.
	 */
	if (!complete(s))
		return WIRE_NOT_GREETED;
	memcpy(s->name, h.name, sizeof(s->name) - 1);
	s->greeted = true;
	log_info("rdma: %s borrows over %u connections, key %s (%s)", s->name, s->queues, s->key,
		 s->fingerprint);
	return WIRE_OK;
}

/* Whether both are one borrower: keys of one name. */
static bool same_borrower(const struct rdma_session *a, const struct rdma_session *b)
{
	return !strcmp(a->key, b->key);
}

uint64_t rdma_session_connections(const struct rdma_session *list, const struct rdma_session *s)
{
	uint64_t n = 0;

	for (; list; list = list->next)
		for (uint32_t i = 0; list->proven && same_borrower(list, s) && i < list->queues; i++)
			n += list->id[i] != NULL;
	return n;
}

/* Slabs that the borrower's quota allows it besides those that it has. */
static uint32_t quota_left(const struct rdma_session *s)
{
	const struct rdma_pool *p = s->pool;
	uint64_t most = p->quota / p->slab_size;
	uint32_t has = 0;

	if (!p->quota)
		return UINT32_MAX;
	for (uint32_t i = 0; i < p->count; i++)
		has += p->slabs[i].owner && same_borrower(p->slabs[i].owner, s);
	return has < most ? (uint32_t)most - has : 0;
}

static enum wire_status serve_map(struct rdma_session *s, const uint8_t *payload, uint32_t length,
				  struct wire_frame *reply, struct wire_rdma_grant *g)
{
	struct rdma_pool *p = s->pool;
	struct rdma_slab *slab;
	uint32_t class;

	if (wire_parse_map(payload, length, &class) || class != WIRE_CLASS_SWAP)
		return WIRE_BAD_CLASS;
	if (!quota_left(s))
		return WIRE_OVER_QUOTA;
	slab = rdma_pool_lend(p, s, s->pd);
	if (!slab) {
		if (errno != ENOSPC)
			log_warn("rdma: %s: a slab cannot be registered: %m; see ulimit -l", s->name);
		return WIRE_NO_SPACE;
	}
	s->lent++;
	reply->slab = (uint32_t)(slab - p->slabs);
	reply->generation = slab->generation;
	*g = (struct wire_rdma_grant){
		.address = (uintptr_t)rdma_pool_memory(p, slab), .length = p->slab_size,
		.key = slab->key->rkey,
	};
	return WIRE_OK;
}

/* -errno: the session is to be ended. */
static int serve_unmap(struct rdma_session *s, const struct wire_frame *f, uint16_t *status)
{
	struct rdma_pool *p = s->pool;

	if (f->slab >= p->count || p->slabs[f->slab].owner != s)
		*status = WIRE_NO_SLAB;
	else if (p->slabs[f->slab].generation != f->generation)
		*status = WIRE_STALE;
	return *status ? 0 : take_back(s, &p->slabs[f->slab]);
}

/* Returns how many slabs of the total the borrower cannot have. */
static uint32_t build_donor(const struct rdma_session *s, uint8_t *to)
{
	const struct rdma_pool *p = s->pool;
	uint32_t total = rdma_pool_room(p), lent = rdma_pool_lent(p), idle = rdma_pool_idle(p);
	uint32_t left = quota_left(s), room = total > lent ? total - lent : 0;
	struct wire_donor donor = {
		.version = WIRE_VERSION,
		.flags = rdma_pool_draining(p) ? WIRE_DRAINING : 0,
		.slab_size = p->slab_size,
		.total = total * p->slab_size,
		.free = (idle < left ? idle : left) * p->slab_size,
	};

	wire_build_donor(to, &donor);
	return total - (room < left ? room : left);
}

int rdma_session_ask(struct rdma_session *s)
{
	struct rdma_pool *p = s->pool;

	for (uint32_t i = 0, slab = 0; i < RDMA_ASKED; i++) {
		struct wire_frame f = { .op = WIRE_EVICT, .tag = i };
		int r;

		if ((s->asking | s->leaving) & 1u << i)
			continue;
		while (slab < p->count && (p->slabs[slab].owner != s || !p->slabs[slab].wanted ||
					    p->slabs[slab].asked))
			slab++;
		if (slab == p->count)
			return 0;
		p->slabs[slab].asked = true;
		f.slab = slab;
		f.generation = p->slabs[slab].generation;
		s->asking |= 1u << i;
		s->leaving |= 1u << i;
		wire_build(message(s, RDMA_MESSAGES + i), &f);
		r = message_post(s, RDMA_MESSAGES + i, WIRE_HEADER);
		if (r)
			return r;
	}
	return 0;
}

void rdma_session_ask_again(struct rdma_session *s)
{
	struct rdma_pool *p = s->pool;

	if (s->asking)
		return;
	for (uint32_t i = 0; i < p->count; i++)
		if (p->slabs[i].owner == s)
			p->slabs[i].asked = false;
}

int rdma_session_probe(struct rdma_session *s)
{
	/* Of no bytes, so it needs no address; the network device there acknowledges it. */
	struct ibv_send_wr wr = {
		.wr_id = RDMA_MESSAGES + RDMA_ASKED, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad;

	if (s->leaving & 1u << RDMA_ASKED)
		return 0;
	s->leaving |= 1u << RDMA_ASKED;
	return -ibv_post_send(s->id[0]->qp, &wr, &bad);
}

/* The borrower's answer to an EVICT. */
static int answered(struct rdma_session *s, const struct wire_frame *f)
{
	if (f->op != WIRE_EVICT || f->tag >= RDMA_ASKED || !(s->asking & 1u << f->tag))
		return -EPROTO;
	s->asking &= ~(1u << f->tag);
	if (f->status && f->slab < s->pool->count && s->pool->slabs[f->slab].owner == s &&
	    s->pool->slabs[f->slab].generation == f->generation)
		rdma_pool_refused(s->pool, f->slab);
	return rdma_session_ask(s);
}

/* The frame in message @i, of @bytes bytes. */
static int serve(struct rdma_session *s, uint64_t i, uint32_t bytes)
{
	uint8_t *m = message(s, i), *payload = m + WIRE_HEADER;
	struct wire_frame f, reply;
	struct wire_rdma_grant g = { 0 };
	uint32_t length = WIRE_HEADER;
	int r = 0;

	if (!genuine(s, m, &bytes))
		return -EBADMSG;
	if (bytes < WIRE_HEADER || wire_parse(m, bytes, WIRE_AT_DONOR, &f) != 1 ||
	    bytes != WIRE_HEADER + wire_payload(&f))
		return -EPROTO;
	if (f.direction == WIRE_REPLY)
		return answered(s, &f) ?: receive_post(s, i);
	reply = (struct wire_frame){
		.op = f.op, .direction = WIRE_REPLY, .tag = f.tag, .slab = f.slab,
		.generation = f.generation,
	};
	if (f.op == WIRE_HELLO)
		reply.status = serve_hello(s, payload, f.length);
	else if (!s->greeted)
		reply.status = WIRE_NOT_GREETED;
	else if (f.op == WIRE_MAP)
		reply.status = serve_map(s, payload, f.length, &reply, &g);
	else if (f.op == WIRE_UNMAP)
		r = serve_unmap(s, &f, &reply.status);
	else if (f.op != WIRE_PING)
		reply.status = WIRE_NOT_HERE;
	if (r)
		return r;
	if (!reply.status && (f.op == WIRE_HELLO || f.op == WIRE_PING)) {
		reply.slab = build_donor(s, payload);
		reply.length = WIRE_DONOR_SIZE;
		length += WIRE_DONOR_SIZE;
	} else if (!reply.status && f.op == WIRE_MAP) {
		wire_build_rdma_grant(payload, &g);
		length += WIRE_RDMA_GRANT_SIZE;
	}
	wire_build(m, &reply);
	return message_post(s, i, length);
}

int rdma_session_turn(struct rdma_session *s)
{
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *context;
	int n, r = 0;

	if (ibv_get_cq_event(s->channel, &cq, &context))
		return errno == EAGAIN ? 0 : -errno;
	ibv_ack_cq_events(cq, 1);
	if (ibv_req_notify_cq(s->cq, 0))
		return -EIO;
	while (!r && (n = ibv_poll_cq(s->cq, 1, &wc)) != 0) {
		if (n < 0 || wc.status != IBV_WC_SUCCESS)
			r = n > 0 && wc.status == IBV_WC_RETRY_EXC_ERR ? -ETIMEDOUT : -EIO;
		else if (wc.opcode & IBV_WC_RECV)
			r = serve(s, wc.wr_id, wc.byte_len);
		else if (wc.wr_id >= RDMA_MESSAGES)
			s->leaving &= ~(1u << (wc.wr_id - RDMA_MESSAGES));
		else
			r = receive_post(s, wc.wr_id);
	}
	return r;
}

void rdma_session_free(struct rdma_session *s)
{
	for (uint32_t i = 0; i < WIRE_RDMA_QUEUES; i++) {
		if (!s->id[i])
			continue;
		rdma_disconnect(s->id[i]);
		rdma_destroy_qp(s->id[i]);
	}
	for (uint32_t i = 0; s->lent && i < s->pool->count; i++)
		if (s->pool->slabs[i].owner == s)
			take_back(s, &s->pool->slabs[i]);
	for (uint32_t i = 0; i < WIRE_RDMA_QUEUES; i++)
		if (s->id[i])
			rdma_destroy_id(s->id[i]);
	if (s->messages_key)
		ibv_dereg_mr(s->messages_key);
	if (s->cq)
		ibv_destroy_cq(s->cq);
	if (s->channel)
		ibv_destroy_comp_channel(s->channel);
	if (s->pd)
		ibv_dealloc_pd(s->pd);
	free(s->messages);
	wire_hmac_forget(&s->secret);
	free(s);
}
