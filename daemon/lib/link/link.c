// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "link.h"

/* Tag space of transfers; the owner's frames have other values there. */
#define TAG_TRANSFER (1ull << 56)

/* --- transfers ------------------------------------------------------------------- */

void link_wait(struct link *l, const struct mapping *m, struct transfer *t, uint32_t channel)
{
	struct transfer_list *list = &l->waiting;
	struct transfer **bucket;

	t->remote = m->remote;
	t->generation = m->generation;
	t->tag = TAG_TRANSFER | ++l->sequence;
	t->since = now_ns();
	t->channel = (uint8_t)channel;
	t->next = NULL;
	t->previous = list->tail;
	if (list->tail)
		list->tail->next = t;
	else
		list->head = t;
	list->tail = t;
	bucket = &l->by_tag[t->tag % LINK_BUCKETS];
	t->chain = *bucket;
	*bucket = t;
}

struct transfer *link_find(const struct link *l, uint64_t tag)
{
	struct transfer *t = l->by_tag[tag % LINK_BUCKETS];

	while (t && t->tag != tag)
		t = t->chain;
	return t;
}

void link_done(struct link *l, struct transfer *t, int result)
{
	struct transfer_list *list = &l->waiting;
	struct transfer **p = &l->by_tag[t->tag % LINK_BUCKETS];

	while (*p != t)
		p = &(*p)->chain;
	*p = t->chain;
	if (t->previous)
		t->previous->next = t->next;
	else
		list->head = t->next;
	if (t->next)
		t->next->previous = t->previous;
	else
		list->tail = t->previous;
	t->result = result;
	l->ops->done(l->owner, t);
}

void link_cancel(struct link *l)
{
	while (l->waiting.head)
		link_done(l, l->waiting.head, -ECONNRESET);
}

/* Of all connections, which one thread serves. */
static uint8_t spill[STREAM_SPILL];

/* --- the control connection ------------------------------------------------------- */

static int init_data(struct data_link *d, uint8_t number, uint32_t queue)
{
	int r;

	*d = (struct data_link){ .number = number, .fd = -1 };
	r = stream_rx_init(&d->rx, WIRE_AT_BORROWER);
	d->rx.spill = spill;
	if (!r)
		r = stream_tx_init(&d->tx, queue);
	if (!r)
		r = session_guard_init(&d->in);
	return r ? r : session_guard_init(&d->out);
}

int link_init(struct link *l, struct transport_env *env, uint16_t index, uint32_t queue)
{
	int r;

	*l = (struct link){ .env = env, .index = index, .fd = -1 };
	r = stream_rx_init(&l->rx, WIRE_AT_BORROWER);
	l->rx.spill = spill;
	if (!r)
		r = stream_tx_init(&l->tx, queue);
	for (uint32_t i = 0; env->tls && i < env->connections && !r; i++)
		r = init_data(&l->data[i], (uint8_t)i, env->transfers);
	if (r)
		link_free(l);
	return r;
}

void link_free(struct link *l)
{
	if (l->transport)
		link_close(l);
	for (uint32_t i = 0; i < DATA_LINKS; i++) {
		struct data_link *d = &l->data[i];

		stream_rx_free(&d->rx);
		stream_tx_free(&d->tx);
		session_guard_free(&d->in);
		session_guard_free(&d->out);
	}
	stream_rx_free(&l->rx);
	stream_tx_free(&l->tx);
}

void link_reset(struct link *l, const struct transport *transport, const struct address *at)
{
	struct link fresh = { .transport = transport, .env = l->env, .ops = l->ops,
			      .owner = l->owner, .index = l->index, .at = *at, .fd = -1,
			      .rx = l->rx, .tx = l->tx, .sequence = l->sequence };

	memcpy(fresh.data, l->data, sizeof(l->data));
	fresh.rx.takes_fds = false;
	*l = fresh;
}

/*
 * Sets whether closing sends what is queued.  Until HELLO is answered, it must not: TCP would
 * repeat a lost HELLO, even after the process has exited, and the donor, which receives it after
 * that of the next connection, would end the loans of that connection.
 */
static void set_lingers(struct link *l, bool lingers)
{
	const struct linger at_once = { .l_onoff = !lingers, .l_linger = 0 };

	setsockopt(l->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

void link_greeted(struct link *l)
{
	set_lingers(l, true);
}

int link_open(struct link *l)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLOUT, .data.u64 = link_key(l, 0) };
	int fd = l->transport->open(l);

	if (fd < 0)
		return fd;
	if (epoll_ctl(l->env->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0) {
		int r = -errno;

		close(fd);
		return r;
	}
	l->fd = fd;
	set_lingers(l, false);
	l->refusal = NULL;
	l->refuses_one = false;
	l->watched_for_write = true;
	return 0;
}

void link_watch(struct link *l, bool write)
{
	struct epoll_event ev = {
		.events = EPOLLIN | (write ? EPOLLOUT : 0),
		.data.u64 = link_key(l, 0),
	};

	if (l->watched_for_write != write)
		epoll_ctl(l->env->epoll_fd, EPOLL_CTL_MOD, l->fd, &ev);
	l->watched_for_write = write;
}

/* Reports that a frame has left the queue; frames of transfers have a cookie. */
static void sent(void *data, uint32_t cookie)
{
	struct link *l = data;

	l->data_queued -= cookie;
}

int link_flush(struct link *l)
{
	int r = stream_flush(&l->tx, l->fd, sent, l);

	if (r >= 0)
		link_watch(l, r == 1);
	return r < 0 ? r : 0;
}

void link_close(struct link *l)
{
	if (l->fd >= 0)
		close(l->fd);
	l->fd = -1;
	l->more = false;
	if (l->transport->close)
		l->transport->close(l);
	memset(l->arriving, 0, sizeof(l->arriving));
	stream_tx_reset(&l->tx, sent, l);
	stream_rx_reset(&l->rx);
	tls_stop(&l->tls);
}
