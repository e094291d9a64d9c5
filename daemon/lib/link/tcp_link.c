// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <openssl/crypto.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "tcp_link.h"

/* Transfers within so many bytes share a data connection, and so a system call. */
#define NEIGHBOURHOOD (256u << 10)

static void close_one(struct data_link *d)
{
	OPENSSL_cleanse(d->key, sizeof(d->key));
	if (d->state == LINK_NONE)
		return;
	close(d->fd);
	d->fd = -1;
	d->more = false;
	d->state = LINK_NONE;
	stream_tx_reset(&d->tx, NULL, NULL);
	stream_rx_reset(&d->rx);
}

void data_links_close(struct link *l)
{
	for (uint32_t i = 0; i < l->env->connections; i++)
		close_one(&l->data[i]);
}

static uint32_t channel_of(const struct data_link *d)
{
	return d->number + 1u;
}

static int open_one(struct link *l, struct data_link *d, const struct wire_donor *told)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLOUT,
				  .data.u64 = link_key(l, channel_of(d)) };

	d->join = (struct wire_join){ .session = told->session, .number = d->number };
	d->version = told->version;
	if (tls_export(&l->tls, SESSION_LABEL, d->key, sizeof(d->key)) ||
	    session_sign(d->key, &d->join))
		return -EIO;
	d->fd = address_connect(&l->at);
	if (d->fd < 0)
		return d->fd;
	d->state = LINK_CONNECTING;
	d->watched_for_write = true;
	return epoll_ctl(l->env->epoll_fd, EPOLL_CTL_ADD, d->fd, &ev) < 0 ? -errno : 0;
}

int data_links_open(struct link *l, const struct wire_donor *told)
{
	int r = 0;

	for (uint32_t i = 0; i < l->env->connections && !r; i++)
		r = open_one(l, &l->data[i], told);
	return r;
}

int data_links_fds(const struct link *l, struct pollfd *p, int most)
{
	int n = 0;

	for (uint32_t i = 0; i < l->env->connections && n < most; i++) {
		const struct data_link *d = &l->data[i];

		if (d->state != LINK_NONE)
			p[n++] = (struct pollfd){
				.fd = d->fd,
				.events = (short)(POLLIN | (d->watched_for_write ? POLLOUT : 0)),
			};
	}
	return n;
}

static void watch(struct link *l, struct data_link *d, bool write)
{
	struct epoll_event ev = {
		.events = EPOLLIN | (write ? EPOLLOUT : 0),
		.data.u64 = link_key(l, channel_of(d)),
	};

	if (d->watched_for_write != write)
		epoll_ctl(l->env->epoll_fd, EPOLL_CTL_MOD, d->fd, &ev);
	d->watched_for_write = write;
}

static void lose(struct link *l, const char *text)
{
	l->ops->lost(l->owner, LOSS_PASSING, text);
}

static void receive(struct link *l, struct data_link *d);

static void flush(struct link *l, struct data_link *d)
{
	int r = stream_flush(&d->tx, d->fd, NULL, NULL);

	if (r >= 0) {
		watch(l, d, r == 1);
		return;
	}
	/* The donor may have said why it ends the connection. */
	do
		receive(l, d);
	while (d->state != LINK_NONE && d->more);
	if (d->state != LINK_NONE)
		lose(l, strerror(-r));
}

void data_links_flush(struct link *l)
{
	for (uint32_t i = 0; i < l->env->connections; i++) {
		struct data_link *d = &l->data[i];

		/* epoll reports when a full socket is writable again. */
		if (d->state >= LINK_JOINING && d->tx.count && !d->watched_for_write)
			flush(l, d);
	}
}

uint32_t data_channel(const struct link *l, const struct mapping *m, uint32_t offset)
{
	if (l->data[0].state != LINK_UP)
		return 0;
	return 1 + (m->remote + offset / NEIGHBOURHOOD) % l->env->connections;
}

static void join(struct link *l, struct data_link *d)
{
	struct wire_frame f = { .op = WIRE_JOIN, .length = WIRE_JOIN_SIZE };
	uint8_t payload[WIRE_JOIN_SIZE];

	wire_build_join(payload, &d->join);
	stream_push(&d->tx, &f, payload, 0);
	d->state = LINK_JOINING;
	flush(l, d);
}

static uint32_t up(const struct link *l)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < l->env->connections; i++)
		n += l->data[i].state == LINK_UP;
	return n;
}

static int joined(struct link *l, struct data_link *d, const struct wire_frame *f)
{
	/* The donor's final frame on this connection. */
	if (f->op == WIRE_JOIN && f->status == WIRE_ALTERED && d->state == LINK_UP &&
	    d->version >= 4)
		return -EBADE;
	if (f->op != WIRE_JOIN || d->state != LINK_JOINING)
		return -EPROTO;
	if (f->status) {
		l->refusal = wire_status_text(f->status);
		/* Other connections have joined, so the session exists. */
		return f->status == WIRE_NO_SESSION && up(l) ? -EUSERS : -ECONNREFUSED;
	}
	if (session_guard_start(&d->out, SESSION_SENDS, d->key, &d->join, WIRE_REQUEST,
				d->version) ||
	    session_guard_start(&d->in, SESSION_RECEIVES, d->key, &d->join, WIRE_REPLY, d->version))
		return -EIO;
	d->tx.guard = &d->out.guard;
	d->rx.guard = &d->in.guard;
	d->state = LINK_UP;
	if (up(l) == l->env->connections)
		l->ops->ready(l->owner);
	return 0;
}

struct data_context {
	struct link *l;
	struct data_link *d;
};

/* Returns whether @f is the transport's. */
static bool moves_data(const struct data_context *c, const struct wire_frame *f)
{
	return c->d->state == LINK_UP && f->op != WIRE_JOIN;
}

static int arrived(void *data, const struct wire_frame *f, void **payload)
{
	struct data_context *c = data;

	if (moves_data(c, f))
		return c->l->transport->arrived(c->l, channel_of(c->d), f, payload);
	if (wire_payload(f) > sizeof(c->d->small))
		return -EPROTO;
	*payload = c->d->small;
	return 0;
}

static int finished(void *data, const struct wire_frame *f)
{
	struct data_context *c = data;

	return moves_data(c, f) ? c->l->transport->finished(c->l, channel_of(c->d), f) :
				  joined(c->l, c->d, f);
}

static uint32_t expected(void *data, struct stream_expected *frames, uint32_t most)
{
	const struct data_context *c = data;

	return c->l->transport->expected(c->l, channel_of(c->d), frames, most);
}

static const struct stream_rx_ops rx_ops = { arrived, finished, expected };

static void lose_altered(struct link *l, const struct data_link *d, const char *text)
{
	l->ops->lost(l->owner, d->version >= 4 ? LOSS_ALTERED : LOSS_PASSING, text);
}

static void receive(struct link *l, struct data_link *d)
{
	struct data_context c = { l, d };
	int r = stream_receive(&d->rx, d->fd, LINK_PIECE, &rx_ops, &c);

	d->more = r == 1;
	if (r == -EUSERS)
		l->ops->lost(l->owner, LOSS_LASTING,
			     "it lets no more data connections in; lower --connections, or raise its --key-connections");
	else if (r == -EBADE)
		lose_altered(l, d, "data that it received was altered between borrower and donor");
	else if (r == -EBADMSG)
		lose_altered(l, d, d->rx.busy ?
			     "a payload from it was altered between borrower and donor" :
			     "a frame from it was altered between borrower and donor");
	else if (r < 0)
		lose(l, r == -EPROTO ? "it broke the protocol" :
		     r == -ECONNREFUSED ? l->refusal :
		     r == -ECONNRESET ? "data connection closed" : strerror(-r));
}

static void link_event(struct link *l, struct data_link *d)
{
	struct sockaddr_storage peer;
	socklen_t len = sizeof(int);
	int error = 0;

	if (d->state == LINK_NONE)
		return;
	if (d->state == LINK_CONNECTING) {
		getsockopt(d->fd, SOL_SOCKET, SO_ERROR, &error, &len);
		if (error) {
			lose(l, strerror(error));
			return;
		}
		/* The event may have been for another data connection. */
		len = sizeof(peer);
		if (getpeername(d->fd, (struct sockaddr *)&peer, &len) < 0)
			return;
		join(l, d);
	} else if (d->tx.count) {
		flush(l, d);
	}
	if (d->state != LINK_NONE)
		receive(l, d);
}

bool data_links_more(struct link *l)
{
	bool more = false;

	for (uint32_t i = 0; i < l->env->connections; i++) {
		if (!l->data[i].more)
			continue;
		more = true;
		receive(l, &l->data[i]);
	}
	return more;
}

void data_links_event(struct link *l, uint32_t channel)
{
	for (uint32_t i = 0; i < l->env->connections; i++)
		if (!channel || channel == channel_of(&l->data[i]))
			link_event(l, &l->data[i]);
}
