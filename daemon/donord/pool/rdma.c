// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <string.h>

#include "lib/wire/wire_rdma.h"
#include "rdma.h"

#define QUEUES 256
#define QUEUE_ENTRIES (QUEUES * RDMA_BINDS)

/* Registration and window of a slab. */
struct window {
	struct ibv_mr *memory; /* NULL = no memory */
	/* While it is lent by RDMA: */
	struct ibv_mw *mw;
	struct ibv_qp *qp;     /* to which it is bound */
	uint32_t key;
	bool stays;            /* neither it nor its queue pair could be ended: still open */
	/* While it is being bound: */
	bool binding;
	uint32_t serial;       /* of the loan: tells its completion from earlier ones */
	struct wire_frame reply;
};

struct rdma_place {
	struct export x;
	struct donor_log *log;
	struct rdma_host host;
	struct rdma_event_channel *events;
	struct rdma_cm_id *listener;
	uint16_t port;
	uint8_t reads;         /* most concurrent READs of a queue pair */
	bool gone;             /* its device was removed */
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;     /* of all queue pairs: bound windows */
	struct window *windows; /* by slab */
};

static struct rdma_queue *queue_of(const struct borrower *b)
{
	return b->priv;
}

/* On failure @id may have a queue pair. */
static int make_queue(struct rdma_place *p, struct rdma_cm_id *id, uint8_t reads)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC, .send_cq = p->cq, .recv_cq = p->cq,
		.cap = { .max_send_wr = RDMA_BINDS, .max_recv_wr = 1,
			 .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_conn_param param = {
		.responder_resources = reads < p->reads ? reads : p->reads, .rnr_retry_count = 6,
	};

	/* A window and its queue pair must be of one device. */
	if (id->verbs != p->listener->verbs)
		return -EXDEV;
	return rdma_create_qp(id, p->pd, &attr) || rdma_accept(id, &param) ? -errno : 0;
}

static void requested(struct rdma_place *p, struct rdma_cm_id *id, uint8_t reads,
		      const uint8_t *data, size_t length)
{
	const char *why = "it does not belong to a session of this donor";
	struct borrower *b = NULL;
	struct wire_join j;
	int r;

	if (!wire_parse_rdma_join(data, length, &j))
		b = p->host.prove(p->host.data, &j);
	if (b) {
		r = make_queue(p, id, reads);
		if (!r) {
			*queue_of(b) = (struct rdma_queue){ .id = id };
			id->context = b;
			p->host.joined(p->host.data, b);
			return;
		}
		if (id->qp)
			rdma_destroy_qp(id);
		why = r == -EXDEV ? "it comes by another RDMA device than that of --rdma" : strerror(-r);
	}
	donor_say(p->log, LOG_LVL_WARN, "RDMA connection refused: %s", why);
	rdma_reject(id, NULL, 0);
	rdma_destroy_id(id);
}

static void device_gone(struct rdma_place *p)
{
	if (!p->gone)
		donor_say(p->log, LOG_LVL_ERR,
			  "rdma: its network device was removed: borrowers can neither connect by RDMA nor use their slabs; restart ebb-donord");
	p->gone = true;
}

/* Handles one event only: making a queue pair blocks the loop for a millisecond. */
static void take_event(struct rdma_place *p)
{
	uint8_t data[WIRE_RDMA_JOIN_SIZE] = { 0 };
	struct rdma_cm_event *event;
	enum rdma_cm_event_type kind;
	struct rdma_cm_id *id;
	size_t length;
	uint8_t reads;

	if (rdma_get_cm_event(p->events, &event))
		return;
	kind = event->event;
	id = event->id;
	/* The borrower's READs, which this side answers. */
	reads = event->param.conn.responder_resources;
	length = event->param.conn.private_data_len;
	length = length < sizeof(data) ? length : sizeof(data);
	if (kind == RDMA_CM_EVENT_CONNECT_REQUEST && event->param.conn.private_data)
		memcpy(data, event->param.conn.private_data, length);
	/* Acknowledge first: rdma_destroy_id() waits for this. */
	rdma_ack_cm_event(event);
	switch (kind) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		requested(p, id, reads, data, length);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		break;
	default:
		/* The loans of a queue end with its control connection only. */
		if (id != p->listener && id->context)
			rdma_queue_end(p, queue_of(id->context));
		else if (id == p->listener && kind == RDMA_CM_EVENT_DEVICE_REMOVAL)
			device_gone(p);
	}
}

/* Returns false when the window may still be open: then its queue pair must end. */
static bool close_window(struct window *w)
{
	bool closed = !w->mw || !ibv_dealloc_mw(w->mw);

	w->mw = NULL;
	w->qp = NULL;
	w->binding = false;
	return closed;
}

/* Returns whether the queue pair of @id takes no packet from here on. */
static bool stop(struct rdma_cm_id *id)
{
	struct ibv_qp_attr failed = { .qp_state = IBV_QPS_ERR };

	return !rdma_disconnect(id) || !ibv_modify_qp(id->qp, &failed, IBV_QP_STATE);
}

static bool end_queue(struct rdma_place *p, struct rdma_queue *q)
{
	struct rdma_cm_id *id = q->id;
	bool stopped;

	if (!id)
		return true;
	stopped = stop(id);
	/* Windows hold their queue pair. */
	for (uint32_t i = 0; i < p->x.pool->count; i++)
		if (p->windows[i].qp == id->qp && !close_window(&p->windows[i]))
			p->windows[i].stays = !stopped;
	rdma_destroy_qp(id);
	rdma_destroy_id(id);
	*q = (struct rdma_queue){ 0 };
	return stopped;
}

void rdma_queue_end(struct rdma_place *p, struct rdma_queue *q)
{
	end_queue(p, q);
}

/* Completes the binding of a window, or its failure. */
static void bound(struct rdma_place *p, const struct ibv_wc *wc)
{
	struct window *w = &p->windows[(uint32_t)wc->wr_id];
	const struct borrower *b = p->x.pool->slabs[(uint32_t)wc->wr_id].owner;
	uint8_t payload[WIRE_RDMA_GRANT_SIZE];
	struct wire_rdma_grant g;

	/* Ignores completions of earlier loans and ended queue pairs. */
	if (!w->binding || w->serial != wc->wr_id >> 32)
		return;
	w->binding = false;
	queue_of(b)->binding--;
	if (wc->status != IBV_WC_SUCCESS) {
		donor_say(p->log, LOG_LVL_WARN, "borrower %s: RDMA: %s", b->name,
			  ibv_wc_status_str(wc->status));
		close_window(w);
		/*
		 * The queue pair takes no more work.  The slab of a resumed session has pages: a
		 * refusal would lose them, but the next resumption finds the loan.
		 */
		if (w->reply.op == WIRE_REMAP)
			end_queue(p, queue_of(b));
		else
			pool_granted(p->x.pool, &w->reply, NULL);
		return;
	}
	g = (struct wire_rdma_grant){
		.address = (uintptr_t)w->memory->addr,
		.length = p->x.pool->slab_size,
		.key = w->key,
	};
	wire_build_rdma_grant(payload, &g);
	pool_granted(p->x.pool, &w->reply,
		     &(struct lend_grant){ .bytes = payload, .length = sizeof(payload), .fd = -1 });
}

static int take_completions(struct rdma_place *p)
{
	struct ibv_wc wc[16];
	struct ibv_cq *cq;
	void *context;
	int n;

	if (!ibv_get_cq_event(p->channel, &cq, &context)) {
		ibv_ack_cq_events(cq, 1);
		ibv_req_notify_cq(p->cq, 0);
	} else if (errno != EAGAIN) {
		return -errno;
	}
	while ((n = ibv_poll_cq(p->cq, 16, wc)) > 0)
		for (int i = 0; i < n; i++)
			bound(p, &wc[i]);
	return 0;
}

int rdma_place_event(struct rdma_place *p)
{
	int r;

	take_event(p);
	r = take_completions(p);
	if (r)
		device_gone(p);
	return r;
}

/* Ends the access of @b to @slab. */
static void end_window(struct rdma_place *p, struct borrower *b, uint32_t slab)
{
	struct window *w = &p->windows[slab];

	if (!w->mw)
		return;
	if (w->binding)
		queue_of(b)->binding--;
	if (!close_window(w))
		w->stays = !end_queue(p, queue_of(b));
}

static void revoke(struct export *x, struct borrower *b, uint32_t slab)
{
	struct rdma_place *p = (struct rdma_place *)x;

	end_window(p, b, slab);
	if (!p->windows[slab].stays)
		return;
	pool_withdraw(x->pool, slab);
	donor_say(p->log, LOG_LVL_ERR,
		  "slab %u is withdrawn: its RDMA window cannot be closed; restart ebb-donord to lend it again",
		  slab);
}

static enum wire_status grant(struct export *x, struct borrower *b,
			      const struct wire_frame *request)
{
	struct rdma_place *p = (struct rdma_place *)x;
	struct window *w = &p->windows[request->slab];
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct rdma_queue *q = queue_of(b);

	/* A resumed session may request it again. */
	end_window(p, b, request->slab);
	if (!q->id || w->stays)
		return WIRE_NOT_HERE;
	w->mw = ibv_alloc_mw(p->pd, IBV_MW_TYPE_2);
	if (!w->mw) {
		donor_say(p->log, LOG_LVL_WARN, "borrower %s: no memory window for a slab: %s",
			  b->name, strerror(errno));
		return WIRE_NO_SPACE;
	}
	w->qp = q->id->qp;
	w->key = ibv_inc_rkey(w->mw->rkey);
	wr.wr_id = (uint64_t)++w->serial << 32 | request->slab;
	wr.bind_mw.mw = w->mw;
	wr.bind_mw.rkey = w->key;
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
		.mr = w->memory, .addr = (uintptr_t)w->memory->addr, .length = x->pool->slab_size,
		.mw_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
	};
	if (ibv_post_send(w->qp, &wr, &bad)) {
		close_window(w);
		return WIRE_NO_SPACE;
	}
	w->reply = *request;
	w->binding = true;
	q->binding++;
	return WIRE_OK;
}

static int slab_added(struct export *x, uint32_t slab)
{
	struct rdma_place *p = (struct rdma_place *)x;

	/* Without access for borrowers: windows give it. */
	p->windows[slab].memory = ibv_reg_mr(p->pd, pool_memory(x->pool, slab), x->pool->slab_size,
					     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	return p->windows[slab].memory ? 0 : -errno;
}

static void slab_removed(struct export *x, uint32_t slab)
{
	struct rdma_place *p = (struct rdma_place *)x;

	if (p->windows[slab].memory)
		ibv_dereg_mr(p->windows[slab].memory);
	p->windows[slab].memory = NULL;
}

static const struct export_ops ops = {
	.slab_added = slab_added, .slab_removed = slab_removed, .grant = grant, .revoke = revoke,
};

static int no_blocking(int fd)
{
	return fcntl(fd, F_SETFL, O_NONBLOCK);
}

static int make_objects(struct rdma_place *p, const struct address *a, struct error *e)
{
	struct ibv_context *verbs = p->listener->verbs;
	struct ibv_device_attr attr;

	if (!verbs)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "rdma %s: not the address of a single RDMA device; give the address of one", a->text);
	if (ibv_query_device(verbs, &attr))
		return fail(e, errno, "rdma %s: %m", a->text);
	if (!(attr.device_cap_flags &
	      (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B)))
		return fail_exit(e, EXIT_UNSUPPORTED, EOPNOTSUPP,
				 "rdma %s: its device has no memory windows of type 2; use another, or tcp",
				 a->text);
	p->reads = (uint8_t)(attr.max_qp_rd_atom < UINT8_MAX ? attr.max_qp_rd_atom : UINT8_MAX);
	p->pd = ibv_alloc_pd(verbs);
	p->channel = p->pd ? ibv_create_comp_channel(verbs) : NULL;
	p->cq = p->channel ? ibv_create_cq(verbs, QUEUE_ENTRIES, NULL, p->channel, 0) : NULL;
	if (!p->cq || no_blocking(p->channel->fd) < 0 || ibv_req_notify_cq(p->cq, 0))
		return fail(e, errno, "rdma %s: %m; see ulimit -l", a->text);
	return 0;
}

int rdma_place_open(struct rdma_place **out, struct pool *pool, struct donor_log *log,
		    const struct rdma_host *host, const struct address *a, struct error *e)
{
	struct rdma_place *p = calloc(1, sizeof(*p));
	struct sockaddr_storage sa = a->sa;
	int r;

	if (!p)
		return fail(e, ENOMEM, "rdma: out of memory");
	p->x.ops = &ops;
	p->log = log;
	p->host = *host;
	p->windows = calloc(pool->count, sizeof(*p->windows));
	p->events = rdma_create_event_channel();
	if (!p->windows)
		r = fail(e, ENOMEM, "rdma: out of memory");
	else if (!p->events || no_blocking(p->events->fd) < 0 ||
		 rdma_create_id(p->events, &p->listener, NULL, RDMA_PS_TCP))
		r = fail_exit(e, EXIT_UNSUPPORTED, errno,
			      "rdma: %m; load rdma_ucm and, without a network card for it, rdma_rxe");
	else if (rdma_bind_addr(p->listener, (struct sockaddr *)&sa) ||
		 /* Requests beyond the backlog fail: all borrowers may reconnect at once. */
		 rdma_listen(p->listener, QUEUES))
		r = fail(e, errno, "rdma %s: %m; give the address of an RDMA device", a->text);
	else
		r = make_objects(p, a, e);
	if (r) {
		rdma_place_close(&p);
		return r;
	}
	p->port = ntohs(rdma_get_src_port(p->listener));
	pool_add_export(pool, &p->x);
	*out = p;
	return 0;
}

void rdma_place_close(struct rdma_place **pp)
{
	struct rdma_place *p = *pp;

	*pp = NULL;
	if (!p)
		return;
	if (p->x.pool)
		pool_remove_export(p->x.pool, &p->x);
	if (p->cq)
		ibv_destroy_cq(p->cq);
	if (p->channel)
		ibv_destroy_comp_channel(p->channel);
	if (p->pd)
		ibv_dealloc_pd(p->pd);
	if (p->listener)
		rdma_destroy_id(p->listener);
	if (p->events)
		rdma_destroy_event_channel(p->events);
	free(p->windows);
	free(p);
}

void rdma_place_fds(const struct rdma_place *p, int fds[static 2])
{
	fds[0] = p->events->fd;
	fds[1] = p->channel->fd;
}

struct export *rdma_place_export(struct rdma_place *p)
{
	return &p->x;
}

uint16_t rdma_place_port(const struct rdma_place *p)
{
	return p->port;
}
