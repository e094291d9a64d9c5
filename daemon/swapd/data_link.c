// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <openssl/crypto.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "data_link.h"
#include "swapd.h"

#define RECEIVE_BUDGET (4u << 20)
/* The only one of its session. */
#define NUMBER 0

int data_link_init(struct data_link *l, uint32_t queue)
{
	int r;

	*l = (struct data_link){ .fd = -1 };
	r = stream_rx_init(&l->rx, WIRE_AT_BORROWER);
	if (!r)
		r = stream_tx_init(&l->tx, queue);
	if (!r)
		r = session_guard_init(&l->in);
	if (!r)
		r = session_guard_init(&l->out);
	if (r)
		data_link_free(l);
	return r;
}

void data_link_free(struct data_link *l)
{
	data_link_close(l);
	stream_rx_free(&l->rx);
	stream_tx_free(&l->tx);
	session_guard_free(&l->in);
	session_guard_free(&l->out);
}

void data_link_close(struct data_link *l)
{
	if (l->state == LINK_NONE)
		return;
	close(l->fd);
	l->fd = -1;
	l->state = LINK_NONE;
	stream_tx_reset(&l->tx, NULL, NULL);
	stream_rx_reset(&l->rx);
	OPENSSL_cleanse(l->key, sizeof(l->key));
}

int data_link_open(struct swapd *s, struct donor *d, uint64_t session)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLOUT, .data.u64 = d->index };
	struct data_link *l = &d->link;

	l->join = (struct wire_join){ .session = session, .number = NUMBER };
	if (tls_export(&d->tls, SESSION_LABEL, l->key, sizeof(l->key)) ||
	    session_sign(l->key, &l->join))
		return -EIO;
	l->fd = address_connect(&d->at);
	if (l->fd < 0)
		return l->fd;
	l->state = LINK_CONNECTING;
	l->watched_for_write = true;
	return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, l->fd, &ev) < 0 ? -errno : 0;
}

static void watch(struct swapd *s, struct donor *d, bool write)
{
	struct epoll_event ev = {
		.events = EPOLLIN | (write ? EPOLLOUT : 0),
		.data.u64 = d->index,
	};

	if (d->link.watched_for_write != write)
		epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, d->link.fd, &ev);
	d->link.watched_for_write = write;
}

static void flush(struct swapd *s, struct donor *d)
{
	int r = stream_flush(&d->link.tx, d->link.fd, NULL, NULL);

	if (r < 0)
		donor_lose(s, d, strerror(-r));
	else
		watch(s, d, r == 1);
}

void data_link_flush(struct swapd *s, struct donor *d)
{
	/* A full socket says itself when it takes more. */
	if (d->link.state >= LINK_JOINING && d->link.tx.count && !d->link.watched_for_write)
		flush(s, d);
}

static void join(struct swapd *s, struct donor *d)
{
	struct wire_frame f = { .op = WIRE_JOIN, .length = WIRE_JOIN_SIZE };
	struct data_link *l = &d->link;
	uint8_t payload[WIRE_JOIN_SIZE];

	wire_build_join(payload, &l->join);
	stream_push(&l->tx, &f, payload, 0);
	l->state = LINK_JOINING;
	flush(s, d);
}

static int joined(struct swapd *s, struct donor *d, const struct wire_frame *f)
{
	struct data_link *l = &d->link;

	if (f->op != WIRE_JOIN || l->state != LINK_JOINING)
		return -EPROTO;
	if (f->status) {
		strncpy(d->why, wire_status_text(f->status), sizeof(d->why) - 1);
		return -ECONNREFUSED;
	}
	if (session_guard_start(&l->out, SESSION_SENDS, l->key, &l->join, WIRE_REQUEST) ||
	    session_guard_start(&l->in, SESSION_RECEIVES, l->key, &l->join, WIRE_REPLY))
		return -EIO;
	l->tx.guard = &l->out.guard;
	l->rx.guard = &l->in.guard;
	l->state = LINK_UP;
	donor_ready(s, d);
	return 0;
}

struct link_context {
	struct swapd *s;
	struct donor *d;
};

static int arrived(void *data, const struct wire_frame *f, void **payload)
{
	struct link_context *c = data;

	if (c->d->link.state == LINK_UP)
		return c->d->transport->arrived(c->s, c->d, f, payload);
	if (wire_payload(f) > sizeof(c->d->link.small))
		return -EPROTO;
	*payload = c->d->link.small;
	return 0;
}

static int finished(void *data, const struct wire_frame *f)
{
	struct link_context *c = data;

	return c->d->link.state == LINK_UP ? c->d->transport->finished(c->s, c->d, f) :
					     joined(c->s, c->d, f);
}

static const struct stream_rx_ops rx_ops = { arrived, finished };

static void receive(struct swapd *s, struct donor *d)
{
	struct link_context c = { s, d };
	int r = stream_receive(&d->link.rx, d->link.fd, RECEIVE_BUDGET, &rx_ops, &c);

	if (r < 0)
		donor_lose(s, d, r == -EPROTO ? "it broke the protocol" :
		     r == -EBADMSG ? "a frame on its data connection is not its own" :
		     r == -ECONNREFUSED ? d->why :
		     r == -ECONNRESET ? "data connection closed" : strerror(-r));
}

void data_link_event(struct swapd *s, struct donor *d)
{
	struct data_link *l = &d->link;
	struct sockaddr_storage peer;
	socklen_t len = sizeof(int);
	int error = 0;

	if (l->state == LINK_NONE)
		return;
	if (l->state == LINK_CONNECTING) {
		getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &error, &len);
		if (error) {
			donor_lose(s, d, strerror(error));
			return;
		}
		/* It may have been the other descriptor's event. */
		len = sizeof(peer);
		if (getpeername(l->fd, (struct sockaddr *)&peer, &len) < 0)
			return;
		join(s, d);
	} else if (l->tx.count) {
		flush(s, d);
	}
	if (l->state != LINK_NONE)
		receive(s, d);
}
