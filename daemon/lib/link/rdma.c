// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A donor with an RDMA device: pages are read from and written to its slabs by this
 * machine's device, between them and the payloads of slots, without the donor's
 * processor.  The control connection is TCP's, with TLS; what it grants with a slab is
 * the slab's address there and the key to it.
 */
#include <errno.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "lib/wire/session.h"
#include "rdma_connect.h"
#include "swapd/io/engine.h"
#include "swapd/swapd.h"

/* Completions that are taken from their queue at once. */
#define REAP 32
/* The only one of its session. */
#define NUMBER 0

static struct rdma_link *link_of(struct swapd *s, const struct donor *d)
{
	return rdma_link_at(s->rdma, d->index);
}

static int rdma_open_donor(struct swapd *s, struct donor *d)
{
	return s->rdma ? address_connect(&d->at) : -EOPNOTSUPP;
}

static int rdma_greeted(struct swapd *s, struct donor *d, const struct wire_donor *told)
{
	struct wire_join j = { .session = told->session, .number = NUMBER };
	struct sockaddr_storage place = d->at.sa;
	uint8_t key[SESSION_KEY];
	int r;

	/* Both families have the port in the same place. */
	_Static_assert(offsetof(struct sockaddr_in, sin_port) ==
		       offsetof(struct sockaddr_in6, sin6_port), "the port's place");
	if (!tls_used(&d->tls) || !told->session || !told->rdma)
		return -EPROTO;
	((struct sockaddr_in *)&place)->sin_port = htons(told->rdma);
	r = tls_export(&d->tls, SESSION_LABEL, key, sizeof(key)) || session_sign(key, &j) ? -EIO : 0;
	OPENSSL_cleanse(key, sizeof(key));
	if (!r)
		r = rdma_link_want(s->rdma, d->index, &place, &j);
	return r ? r : 1;
}

static int rdma_map_slab(struct swapd *s, struct donor *d, struct copy *copy)
{
	struct wire_rdma_grant g;

	if (d->rx.frame.length != WIRE_RDMA_GRANT_SIZE ||
	    wire_parse_rdma_grant(d->small, WIRE_RDMA_GRANT_SIZE, &g) ||
	    g.length < s->options.slab)
		return -EPROTO;
	copy->address = g.address;
	copy->key = g.key;
	return 0;
}

/* Gives what has gathered to the device, by one doorbell. */
static void post(struct rdma_link *l)
{
	struct ibv_send_wr *bad;

	if (l->queued && ibv_post_send(l->qp, l->work, &bad))
		l->broken = true;
	l->queued = 0;
}

static enum transport_progress rdma_submit(struct swapd *s, struct donor *d, struct slot *slot,
					   int leg, const struct copy *copy, enum wire_op op)
{
	uint32_t offset = slab_offset(&s->table, slot->first + slot->cursor);
	struct rdma_link *l = link_of(s, d);
	uint32_t n;

	donor_wait(s, d, slot, leg);
	if (l->queued == RDMA_BATCH)
		post(l);
	n = l->queued++;
	l->piece[n] = (struct ibv_sge){
		.addr = (uintptr_t)(slot->payload + slot->cursor * (size_t)PAGE),
		.length = slot->run * PAGE,
		.lkey = l->lkey,
	};
	/* The queue has room for a leg of every slot. */
	l->work[n] = (struct ibv_send_wr){
		.wr_id = (uint64_t)leg_number(&s->slots, slot, leg),
		.sg_list = &l->piece[n],
		.num_sge = 1,
		.opcode = op == WIRE_WRITE ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = copy->address + offset, .rkey = copy->key },
	};
	if (n)
		l->work[n - 1].next = &l->work[n];
	return TRANSPORT_UNDER_WAY;
}

static void rdma_flush(struct swapd *s, struct donor *d)
{
	struct rdma_link *l = link_of(s, d);

	post(l);
	if (l->broken)
		donor_lose(s, d, "RDMA: the queue pair takes no work");
}

static void lose(struct swapd *s, struct donor *d, const char *what)
{
	snprintf(d->why, sizeof(d->why), "RDMA: %s", what);
	donor_lose(s, d, d->why);
}

/* A link is of one connection: what completes in its queue is a leg that waits. */
static void took(struct swapd *s, struct donor *d, const struct ibv_wc *wc)
{
	int number = (int)wc->wr_id;

	if (wc->opcode == IBV_WC_RDMA_READ)
		donor_count_latency(s, d, now_ns() - leg_at(&s->slots, number)->since);
	donor_answered(s, d, number);
	engine_donor_reply(s, &s->slots.slot[number / SLAB_COPIES], number % SLAB_COPIES);
}

static void reap(struct swapd *s, struct donor *d, struct rdma_link *l)
{
	struct ibv_wc wc[REAP];
	struct ibv_cq *cq;
	void *context;
	int n;

	if (!ibv_get_cq_event(l->channel, &cq, &context)) {
		ibv_ack_cq_events(cq, 1);
		if (ibv_req_notify_cq(l->cq, 0)) {
			lose(s, d, "no notice of completions");
			return;
		}
	} else if (errno != EAGAIN) {
		lose(s, d, "the device is gone");
		return;
	}
	while ((n = ibv_poll_cq(l->cq, REAP, wc)) > 0)
		for (int i = 0; i < n; i++) {
			if (wc[i].status != IBV_WC_SUCCESS) {
				lose(s, d, ibv_wc_status_str(wc[i].status));
				return;
			}
			took(s, d, &wc[i]);
		}
	if (n < 0)
		lose(s, d, "no completions");
}

/* What the thread that connects has to say. */
static void notice(struct swapd *s, struct donor *d, struct rdma_link *l)
{
	const char *ended;
	int r;

	switch (__atomic_load_n(&l->state, __ATOMIC_ACQUIRE)) {
	case RDMA_READY:
		r = rdma_link_use(s->rdma, d->index);
		if (r)
			lose(s, d, strerror(-r));
		else
			donor_ready(s, d);
		break;
	case RDMA_FAILED:
		strncpy(d->why, l->why, sizeof(d->why) - 1);
		donor_lose(s, d, d->why);
		return;
	}
	ended = __atomic_load_n(&l->ended, __ATOMIC_ACQUIRE);
	if (ended && l->state == RDMA_UP)
		lose(s, d, ended);
}

/* Of whichever channel: both are looked at. */
static void rdma_complete(struct swapd *s, struct donor *d, uint32_t channel)
{
	struct rdma_link *l = link_of(s, d);

	if (__atomic_exchange_n(&l->notice, 0, __ATOMIC_ACQ_REL))
		notice(s, d, l);
	if (l->state == RDMA_UP)
		reap(s, d, l);
}

static void rdma_close(struct swapd *s, struct donor *d)
{
	if (s->rdma)
		rdma_link_close(s->rdma, d->index);
}

static int prepare(struct swapd *s, struct error *e)
{
	return s->rdma ? 0 : rdma_links_start(&s->rdma, MAX_DONORS, SLOT_COUNT, s->slots.memory,
					      s->slots.memory_size, s->epoll_fd, e);
}

static int poll_fd(struct swapd *s, const struct donor *d)
{
	return s->rdma ? link_of(s, d)->wake_fd : -1;
}

const struct transport transport_rdma = {
	.hello_flags = WIRE_RDMA,
	.prepare = prepare,
	.fd = poll_fd,
	.name = "rdma",
	.open = rdma_open_donor,
	.greeted = rdma_greeted,
	.map_slab = rdma_map_slab,
	.submit = rdma_submit,
	.complete = rdma_complete,
	.flush = rdma_flush,
	.close = rdma_close,
};
