// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <openssl/crypto.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "swapd/swapd.h"
#include "tcp_link.h"

#define RECEIVE_BUDGET (4u << 20)

int data_link_init(struct data_link *l, uint8_t number, uint32_t queue)
{
	int r;

	*l = (struct data_link){ .number = number, .fd = -1 };
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
	OPENSSL_cleanse(l->key, sizeof(l->key));
	if (l->state == LINK_NONE)
		return;
	close(l->fd);
	l->fd = -1;
	l->state = LINK_NONE;
	stream_tx_reset(&l->tx, NULL, NULL);
	stream_rx_reset(&l->rx);
}

static uint32_t channel_of(const struct data_link *l)
{
	return l->number + 1u;
}

static int open_link(struct swapd *s, struct donor *d, struct data_link *l, uint64_t session)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLOUT,
				  .data.u64 = donor_key(d, channel_of(l)) };

	l->join = (struct wire_join){ .session = session, .number = l->number };
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

int data_links_open(struct swapd *s, struct donor *d, uint64_t session)
{
	int r = 0;

	for (uint64_t i = 0; i < s->options.connections && !r; i++)
		r = open_link(s, d, &d->link[i], session);
	return r;
}

static void watch(struct swapd *s, struct donor *d, struct data_link *l, bool write)
{
	struct epoll_event ev = {
		.events = EPOLLIN | (write ? EPOLLOUT : 0),
		.data.u64 = donor_key(d, channel_of(l)),
	};

	if (l->watched_for_write != write)
		epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, l->fd, &ev);
	l->watched_for_write = write;
}

static void flush(struct swapd *s, struct donor *d, struct data_link *l)
{
	int r = stream_flush(&l->tx, l->fd, NULL, NULL);

	if (r < 0)
		donor_lose(s, d, strerror(-r));
	else
		watch(s, d, l, r == 1);
}

void data_links_flush(struct swapd *s, struct donor *d)
{
	for (uint64_t i = 0; i < s->options.connections; i++) {
		struct data_link *l = &d->link[i];

		/* A full socket says itself when it takes more. */
		if (l->state >= LINK_JOINING && l->tx.count && !l->watched_for_write)
			flush(s, d, l);
	}
}

uint32_t data_channel(const struct swapd *s, const struct donor *d, uint32_t page)
{
	if (d->link[0].state != LINK_UP)
		return 0;
	/* Those that lie side by side go together, with one system call. */
	return 1 + page / SLOT_PAGES % (uint32_t)s->options.connections;
}

static void join(struct swapd *s, struct donor *d, struct data_link *l)
{
	struct wire_frame f = { .op = WIRE_JOIN, .length = WIRE_JOIN_SIZE };
	uint8_t payload[WIRE_JOIN_SIZE];

	wire_build_join(payload, &l->join);
	stream_push(&l->tx, &f, payload, 0);
	l->state = LINK_JOINING;
	flush(s, d, l);
}

static uint64_t up(const struct swapd *s, const struct donor *d)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < s->options.connections; i++)
		n += d->link[i].state == LINK_UP;
	return n;
}

static int refused(struct swapd *s, struct donor *d, uint16_t status)
{
	/* The others have shown that there is a session. */
	bool too_many = status == WIRE_NO_SESSION && up(s, d);

	strncpy(d->why, too_many ?
		"it lets no more data connections in; lower --connections, or raise its --key-connections" :
		wire_status_text(status), sizeof(d->why) - 1);
	if (too_many)
		donor_explain(s, d, d->why);
	return -ECONNREFUSED;
}

static int joined(struct swapd *s, struct donor *d, struct data_link *l, const struct wire_frame *f)
{
	if (f->op != WIRE_JOIN || l->state != LINK_JOINING)
		return -EPROTO;
	if (f->status)
		return refused(s, d, f->status);
	if (session_guard_start(&l->out, SESSION_SENDS, l->key, &l->join, WIRE_REQUEST) ||
	    session_guard_start(&l->in, SESSION_RECEIVES, l->key, &l->join, WIRE_REPLY))
		return -EIO;
	l->tx.guard = &l->out.guard;
	l->rx.guard = &l->in.guard;
	l->state = LINK_UP;
	if (up(s, d) == s->options.connections)
		donor_ready(s, d);
	return 0;
}

struct link_context {
	struct swapd *s;
	struct donor *d;
	struct data_link *l;
};

static int arrived(void *data, const struct wire_frame *f, void **payload)
{
	struct link_context *c = data;
	struct data_link *l = c->l;

	if (l->state == LINK_UP)
		return c->d->transport->arrived(c->s, c->d, channel_of(l), f, payload);
	if (wire_payload(f) > sizeof(l->small))
		return -EPROTO;
	*payload = l->small;
	return 0;
}

static int finished(void *data, const struct wire_frame *f)
{
	struct link_context *c = data;

	return c->l->state == LINK_UP ?
		       c->d->transport->finished(c->s, c->d, channel_of(c->l), f) :
		       joined(c->s, c->d, c->l, f);
}

static const struct stream_rx_ops rx_ops = { arrived, finished };

static void receive(struct swapd *s, struct donor *d, struct data_link *l)
{
	struct link_context c = { s, d, l };
	int r = stream_receive(&l->rx, l->fd, RECEIVE_BUDGET, &rx_ops, &c);

	if (r < 0)
		donor_lose(s, d, r == -EPROTO ? "it broke the protocol" :
		     r == -EBADMSG ? "a frame on its data connection has a wrong message authentication code" :
		     r == -ECONNREFUSED ? d->why :
		     r == -ECONNRESET ? "data connection closed" : strerror(-r));
}

static void link_event(struct swapd *s, struct donor *d, struct data_link *l)
{
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
		/* It may have been no event of its own. */
		len = sizeof(peer);
		if (getpeername(l->fd, (struct sockaddr *)&peer, &len) < 0)
			return;
		join(s, d, l);
	} else if (l->tx.count) {
		flush(s, d, l);
	}
	if (l->state != LINK_NONE)
		receive(s, d, l);
}

void data_links_event(struct swapd *s, struct donor *d, uint32_t channel)
{
	for (uint32_t i = 0; i < s->options.connections; i++)
		if (!channel || channel == channel_of(&d->link[i]))
			link_event(s, d, &d->link[i]);
}
