// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A donor with an RDMA device: this machine's device reads and writes the donor's slabs, from and
 * to payloads, without the donor's processor.  The control connection is TCP with TLS; its grant
 * of a slab has the slab's address at the donor and the key to it.
 */
#include <errno.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#include "link.h"
#include "rdma_connect.h"

/* Completions taken from their queue at once. */
#define REAP 32
/* A session has a single data connection. */
#define NUMBER 0
/* Channel of transfers; epoll knows the descriptors as RDMA_CHANNEL. */
#define CHANNEL 0

static struct rdma_link *link_of(const struct link *l)
{
	return rdma_link_at(l->env->rdma, l->index);
}

static int rdma_open_donor(struct link *l)
{
	return l->env->rdma ? address_connect(&l->at) : -EOPNOTSUPP;
}

static int rdma_hello(struct link *l, const struct wire_donor *told)
{
	struct wire_join j = { .session = told->session, .number = NUMBER };
	struct sockaddr_storage place = l->at.sa;
	uint8_t key[SESSION_KEY];
	int r;

	/* sin_port and sin6_port have equal offsets. */
	_Static_assert(offsetof(struct sockaddr_in, sin_port) ==
		       offsetof(struct sockaddr_in6, sin6_port), "the port's place");
	if (!tls_used(&l->tls) || !told->session || !told->rdma)
		return -EPROTO;
	((struct sockaddr_in *)&place)->sin_port = htons(told->rdma);
	r = tls_export(&l->tls, SESSION_LABEL, key, sizeof(key)) || session_sign(key, &j) ? -EIO :
											    0;
	OPENSSL_cleanse(key, sizeof(key));
	if (!r)
		r = rdma_link_want(l->env->rdma, l->index, &place, &j);
	return r ? r : 1;
}

static int rdma_map(struct link *l, struct mapping *m)
{
	struct wire_rdma_grant g;

	if (l->rx.frame.length != WIRE_RDMA_GRANT_SIZE ||
	    wire_parse_rdma_grant(l->small, WIRE_RDMA_GRANT_SIZE, &g) ||
	    g.length < l->env->slab)
		return -EPROTO;
	m->address = g.address;
	m->key = g.key;
	return 0;
}

/* Posts the gathered work requests with one doorbell. */
static void post(struct rdma_link *q)
{
	struct ibv_send_wr *bad;

	if (q->queued && ibv_post_send(q->qp, q->work, &bad))
		q->broken = true;
	q->queued = 0;
}

static void rdma_submit(struct link *l, const struct mapping *m, struct transfer *t)
{
	struct rdma_link *q = link_of(l);
	uint32_t n;

	link_wait(l, m, t, CHANNEL);
	if (q->queued == RDMA_BATCH)
		post(q);
	n = q->queued++;
	q->piece[n] = (struct ibv_sge){
		.addr = (uintptr_t)t->payload,
		.length = t->length,
		.lkey = q->lkey,
	};
	/* The queue has room for env.transfers requests. */
	q->work[n] = (struct ibv_send_wr){
		.wr_id = (uintptr_t)t,
		.sg_list = &q->piece[n],
		.num_sge = 1,
		.opcode = t->op == WIRE_WRITE ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = m->address + t->offset, .rkey = m->key },
	};
	if (n)
		q->work[n - 1].next = &q->work[n];
}

static void lose(struct link *l, const char *what)
{
	char text[128];

	snprintf(text, sizeof(text), "RDMA: %s", what);
	l->ops->lost(l->owner, LOSS_PASSING, text);
}

static void rdma_flush(struct link *l)
{
	struct rdma_link *q = link_of(l);

	post(q);
	if (q->broken)
		lose(l, "the queue pair takes no work");
}

/* Ends completed transfers; the queue has no completions of other connections. */
static void reap(struct link *l, struct rdma_link *q)
{
	struct ibv_wc wc[REAP];
	struct ibv_cq *cq;
	void *context;
	int n;

	if (!ibv_get_cq_event(q->channel, &cq, &context)) {
		ibv_ack_cq_events(cq, 1);
		if (ibv_req_notify_cq(q->cq, 0)) {
			lose(l, "no notice of completions");
			return;
		}
	} else if (errno != EAGAIN) {
		lose(l, "the device has been removed");
		return;
	}
	while ((n = ibv_poll_cq(q->cq, REAP, wc)) > 0)
		for (int i = 0; i < n; i++) {
			if (wc[i].status != IBV_WC_SUCCESS) {
				lose(l, ibv_wc_status_str(wc[i].status));
				return;
			}
			link_done(l, (struct transfer *)(uintptr_t)wc[i].wr_id, 0);
		}
	if (n < 0)
		lose(l, "no completions");
}

/* Handles a change reported by the connecting thread. */
static void notice(struct link *l, struct rdma_link *q)
{
	const char *ended;
	int r;

	switch (__atomic_load_n(&q->state, __ATOMIC_ACQUIRE)) {
	case RDMA_READY:
		r = rdma_link_use(l->env->rdma, l->index);
		if (r)
			lose(l, strerror(-r));
		else
			l->ops->ready(l->owner);
		break;
	case RDMA_FAILED:
		l->ops->lost(l->owner, LOSS_PASSING, q->why);
		return;
	}
	ended = __atomic_load_n(&q->ended, __ATOMIC_ACQUIRE);
	if (ended && q->state == RDMA_UP)
		lose(l, ended);
}

/* Checks both channels, whichever has the event. */
static void rdma_event(struct link *l, uint32_t channel)
{
	struct rdma_link *q = link_of(l);
	eventfd_t ignored;

	/*
	 * poll(2) reports the eventfd until it is read, epoll only its edges.  Later changes signal
	 * again.
	 */
	if (!channel)
		eventfd_read(q->wake_fd, &ignored);
	if (__atomic_exchange_n(&q->notice, 0, __ATOMIC_ACQ_REL))
		notice(l, q);
	if (q->state == RDMA_UP)
		reap(l, q);
}

static void rdma_close(struct link *l)
{
	if (l->env->rdma)
		rdma_link_close(l->env->rdma, l->index);
}

static int prepare(struct transport_env *env, struct error *e)
{
	return env->rdma ? 0 : rdma_links_start(&env->rdma, (int)env->links, env->transfers,
						env->memory, env->memory_size, env->epoll_fd, e);
}

static int rdma_fds(const struct link *l, struct pollfd *p, int most)
{
	if (!l->env->rdma || most < 1)
		return 0;
	*p = (struct pollfd){ .fd = link_of(l)->wake_fd, .events = POLLIN };
	return 1;
}

const struct transport transport_rdma = {
	.name = "rdma",
	.hello_flags = WIRE_RDMA,
	.prepare = prepare,
	.open = rdma_open_donor,
	.hello = rdma_hello,
	.map = rdma_map,
	.submit = rdma_submit,
	.flush = rdma_flush,
	.event = rdma_event,
	.fds = rdma_fds,
	.close = rdma_close,
};
