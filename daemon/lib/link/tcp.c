// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A donor anywhere: pages are the payload of READ and WRITE frames, on the control
 * connection or, where that is TLS, on data connections beside it.
 */
#include <errno.h>
#include <string.h>

#include "swapd/io/engine.h"
#include "swapd/swapd.h"

static int tcp_open(struct swapd *s, struct donor *d)
{
	(void)s;
	return address_connect(&d->at);
}

static struct stream_tx *queue_of(struct donor *d, uint32_t channel)
{
	return channel ? &d->link[channel - 1].tx : &d->tx;
}

static enum transport_progress tcp_submit(struct swapd *s, struct donor *d, struct slot *slot,
					  int leg, const struct copy *copy, enum wire_op op)
{
	uint32_t page = slot->first + slot->cursor;
	uint8_t *payload = slot->payload + slot->cursor * (size_t)PAGE;
	struct wire_frame *f = &slot->leg[leg].frame;
	uint32_t channel = data_channel(s, d, page);
	struct stream_tx *tx = queue_of(d, channel);

	donor_wait(s, d, slot, leg);
	*f = (struct wire_frame){
		.op = op,
		.tag = donor_leg_tag(s, slot, leg),
		.slab = copy->remote,
		.generation = copy->generation,
		.offset = slab_offset(&s->table, page),
		.length = slot->run * PAGE,
	};
	slot->leg[leg].entry = stream_tx_next(tx);
	/* Each queue has room for a leg of every slot. */
	stream_push(tx, f, payload, !channel);
	d->legs_queued += !channel;
	return TRANSPORT_UNDER_WAY;
}

/*
 * The number of the leg that @f answers exactly, or -1.  Only where it was asked: after a
 * second reply, by another connection, the first one's pages might go on arriving in a
 * slot that is another request's by then.
 */
static int leg_of(struct swapd *s, struct donor *d, uint32_t channel, const struct wire_frame *f)
{
	uint16_t number = (uint16_t)f->tag;
	struct slot *slot = number < SLOT_COUNT * SLAB_COPIES ?
			    &s->slots.slot[number / SLAB_COPIES] : NULL;
	const struct leg *leg;

	if (!slot || !(slot->pending >> number % SLAB_COPIES & 1))
		return -1;
	leg = leg_at(&s->slots, number);
	if (data_channel(s, d, slot->first + slot->cursor) != channel ||
	    leg->donor != d->index || leg->frame.tag != f->tag || leg->frame.op != f->op ||
	    leg->frame.slab != f->slab || leg->frame.generation != f->generation ||
	    leg->frame.offset != f->offset || leg->frame.length != f->length)
		return -1;
	return number;
}

static int tcp_arrived(struct swapd *s, struct donor *d, uint32_t channel,
		       const struct wire_frame *f, void **payload)
{
	int number = leg_of(s, d, channel, f);

	/*
	 * Once it is answered the slot is another request's.  What of a WRITE had not left by
	 * then would be that one's page when it does, in clear perhaps.
	 */
	if (number >= 0 &&
	    !stream_tx_has_left(queue_of(d, channel), leg_at(&s->slots, number)->entry))
		return -EPROTO;
	d->arriving[channel] = (uint16_t)(number + 1);
	if (number >= 0) {
		struct slot *slot = &s->slots.slot[number / SLAB_COPIES];

		*payload = slot->payload + slot->cursor * (size_t)PAGE;
	}
	return 0;
}

static int tcp_finished(struct swapd *s, struct donor *d, uint32_t channel,
			const struct wire_frame *f)
{
	int number = d->arriving[channel] - 1;

	d->arriving[channel] = 0;
	if (number < 0) {
		count_add(&s->count->late_replies, 1);
		return 0;
	}
	if (f->status) {
		/* We and it disagree about a slab: start afresh. */
		count_add(&s->count->donor_errors, 1);
		strncpy(d->why, wire_status_text(f->status), sizeof(d->why) - 1);
		return -ECONNREFUSED;
	}
	if (f->op == WIRE_READ)
		donor_count_latency(s, d, now_ns() - leg_at(&s->slots, number)->since);
	donor_answered(s, d, number);
	engine_donor_reply(s, &s->slots.slot[number / SLAB_COPIES], number % SLAB_COPIES);
	return 0;
}

static void tcp_close(struct swapd *s, struct donor *d)
{
	memset(d->arriving, 0, sizeof(d->arriving));
	for (uint64_t i = 0; i < s->options.connections; i++)
		data_link_close(&d->link[i]);
}

/* With TLS, and only then, pages go by connections of their own. */
static int tcp_greeted(struct swapd *s, struct donor *d, const struct wire_donor *told)
{
	int r;

	if (tls_used(&d->tls) != (told->session != 0))
		return -EPROTO;
	if (!told->session)
		return 0;
	r = data_links_open(s, d, told->session);
	return r ? r : 1;
}

const struct transport transport_tcp = {
	.name = "tcp",
	.open = tcp_open,
	.greeted = tcp_greeted,
	.submit = tcp_submit,
	.complete = data_links_event,
	.flush = data_links_flush,
	.arrived = tcp_arrived,
	.finished = tcp_finished,
	.close = tcp_close,
};
