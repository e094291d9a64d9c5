// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A donor reached by TCP: data is the payload of READ and WRITE frames, on the control connection
 * or, with TLS, on separate data connections.
 */
#include <errno.h>

#include "tcp_link.h"

/* Transfers that are looked at for the next ones of a channel: others may be in between. */
#define EXPECTED_LOOKS 32

static int tcp_open(struct link *l)
{
	return address_connect(&l->at);
}

static struct stream_tx *queue_of(const struct link *l, uint32_t channel)
{
	return (struct stream_tx *)(channel ? &l->data[channel - 1].tx : &l->tx);
}

static void tcp_submit(struct link *l, const struct mapping *m, struct transfer *t)
{
	uint32_t channel = data_channel(l, m, t->offset);
	struct stream_tx *tx = queue_of(l, channel);
	struct wire_frame f;

	link_wait(l, m, t, channel);
	f = (struct wire_frame){
		.op = t->op, .tag = t->tag, .slab = t->remote, .generation = t->generation,
		.offset = t->offset, .length = t->length,
	};
	t->entry = stream_tx_next(tx);
	/* Each queue has room for env.transfers frames. */
	stream_push(tx, &f, t->payload, !channel);
	l->data_queued += !channel;
}

/*
 * Returns the transfer that @f answers exactly, or NULL.  Accepts replies only on the channel of
 * the request: after a second reply, on another one, the rest of the first reply would arrive in a
 * payload that belongs to another request by then.
 */
static struct transfer *asked_for(const struct link *l, uint32_t channel,
				  const struct wire_frame *f)
{
	struct transfer *t = link_find(l, f->tag);

	return t && t->channel == channel && t->op == f->op && t->remote == f->slab &&
			       t->generation == f->generation && t->offset == f->offset &&
			       t->length == f->length ?
		       t :
		       NULL;
}

static int tcp_arrived(struct link *l, uint32_t channel, const struct wire_frame *f,
		       void **payload)
{
	struct transfer *t = asked_for(l, channel, f);

	/*
	 * After an answered WRITE, other requests use the payload.  Bytes that have not left by
	 * then would leave with other data, possibly in clear.
	 */
	if (t && !stream_tx_has_left(queue_of(l, channel), t->entry))
		return -EPROTO;
	l->arriving[channel] = t;
	if (t)
		*payload = t->payload;
	return 0;
}

/*
 * A donor answers the transfers of a channel in order, except for those that it delays.  Until its
 * reply arrives, the payload of a READ is unused.
 */
static uint32_t tcp_expected(const struct link *l, uint32_t channel,
			     struct stream_expected *frames, uint32_t most)
{
	const struct transfer *t = l->waiting.head;
	uint32_t n = 0;

	for (int i = 0; t && i < EXPECTED_LOOKS && n < most; i++, t = t->next) {
		if (t->channel != channel || t == l->arriving[channel])
			continue;
		if (!stream_tx_has_left(queue_of(l, channel), t->entry))
			break;
		frames[n++] = t->op == WIRE_READ ?
			(struct stream_expected){ t->payload, t->length } :
			(struct stream_expected){ NULL, 0 };
	}
	return n;
}

static void count(uint64_t *counter)
{
	__atomic_store_n(counter, *counter + 1, __ATOMIC_RELAXED);
}

static int tcp_finished(struct link *l, uint32_t channel, const struct wire_frame *f)
{
	struct transfer *t = l->arriving[channel];

	l->arriving[channel] = NULL;
	if (!t) {
		count(l->env->late_replies);
		return 0;
	}
	if (f->status) {
		count(l->env->refused_transfers);
		if (l->refuses_one &&
		    (f->status == WIRE_STALE || f->status == WIRE_NO_SLAB)) {
			link_done(l, t, -ESTALE);
			return 0;
		}
		/* Both sides disagree about a slab: reconnect. */
		l->refusal = wire_status_text(f->status);
		return -ECONNREFUSED;
	}
	link_done(l, t, 0);
	return 0;
}

/* With TLS, and only then, data travels on connections of its own. */
static int tcp_hello(struct link *l, const struct wire_donor *told)
{
	int r;

	if (tls_used(&l->tls) != (told->session != 0))
		return -EPROTO;
	if (!told->session)
		return 0;
	r = data_links_open(l, told);
	return r ? r : 1;
}

const struct transport transport_tcp = {
	.name = "tcp",
	.open = tcp_open,
	.hello = tcp_hello,
	.submit = tcp_submit,
	.flush = data_links_flush,
	.arrived = tcp_arrived,
	.finished = tcp_finished,
	.expected = tcp_expected,
	.event = data_links_event,
	.more = data_links_more,
	.fds = data_links_fds,
	.close = data_links_close,
};
