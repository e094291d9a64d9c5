// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A donor anywhere: pages are the payload of READ and WRITE frames, on the control
 * connection or, where that is TLS, on a data connection beside it.
 */
#include <errno.h>
#include <string.h>

#include "page_io.h"
#include "swapd.h"

/* Of a donor's recent latency, the newest read is one part in so many. */
#define LATENCY_SHARE 8

static int tcp_open(struct swapd *s, struct donor *d)
{
	(void)s;
	return address_connect(&d->at);
}

static enum transport_progress tcp_submit(struct swapd *s, struct donor *d, struct slot *slot,
					  int leg, const struct copy *copy, enum wire_op op)
{
	uint32_t page = slot->first + slot->cursor;
	uint8_t *payload = slot->payload + slot->cursor * (size_t)PAGE;
	struct wire_frame *f = &slot->leg[leg].frame;

	donor_wait(s, d, slot, leg);
	*f = (struct wire_frame){
		.op = op,
		.tag = donor_leg_tag(s, slot, leg),
		.slab = copy->remote,
		.generation = copy->generation,
		.offset = slab_offset(&s->table, page),
		.length = slot->run * PAGE,
	};
	/* Either queue has room for a leg of every slot. */
	if (d->link.state == LINK_UP) {
		stream_push(&d->link.tx, f, payload, 0);
	} else {
		stream_push(&d->tx, f, payload, 1);
		d->legs_queued++;
	}
	return TRANSPORT_UNDER_WAY;
}

/* The number of the leg that @f answers exactly, or -1. */
static int leg_of(struct swapd *s, struct donor *d, const struct wire_frame *f)
{
	uint16_t number = (uint16_t)f->tag;
	struct slot *slot = number < SLOT_COUNT * SLAB_COPIES ?
			    &s->slots.slot[number / SLAB_COPIES] : NULL;
	const struct leg *leg;

	if (!slot || !(slot->pending >> number % SLAB_COPIES & 1))
		return -1;
	leg = leg_at(&s->slots, number);
	if (leg->donor != d->index || leg->frame.tag != f->tag || leg->frame.op != f->op ||
	    leg->frame.slab != f->slab || leg->frame.generation != f->generation ||
	    leg->frame.offset != f->offset || leg->frame.length != f->length)
		return -1;
	return number;
}

static int tcp_arrived(struct swapd *s, struct donor *d, const struct wire_frame *f,
		       void **payload)
{
	struct slot *slot;

	d->arriving = leg_of(s, d, f);
	if (d->arriving >= 0) {
		slot = &s->slots.slot[d->arriving / SLAB_COPIES];
		*payload = slot->payload + slot->cursor * (size_t)PAGE;
	}
	return 0;
}

static void count_latency(struct swapd *s, struct donor *d, uint64_t ns)
{
	int bucket = ns ? 63 - __builtin_clzll(ns) : 0;

	d->latency += ((int64_t)ns - (int64_t)d->latency) / LATENCY_SHARE;
	count_add(&s->count->latency[bucket < LATENCY_BUCKETS ? bucket : LATENCY_BUCKETS - 1], 1);
}

static int tcp_finished(struct swapd *s, struct donor *d, const struct wire_frame *f)
{
	int number = d->arriving;

	d->arriving = -1;
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
		count_latency(s, d, now_ns() - leg_at(&s->slots, number)->since);
	donor_answered(s, d, number);
	page_io_donor_reply(s, &s->slots.slot[number / SLAB_COPIES], number % SLAB_COPIES);
	return 0;
}

static void tcp_close(struct swapd *s, struct donor *d)
{
	(void)s;
	d->arriving = -1;
	data_link_close(&d->link);
}

/* With TLS, and only then, pages go by a connection of their own. */
static int tcp_greeted(struct swapd *s, struct donor *d, uint64_t session)
{
	int r;

	if (tls_used(&d->tls) != (session != 0))
		return -EPROTO;
	if (!session)
		return 0;
	r = data_link_open(s, d, session);
	return r ? r : 1;
}

const struct transport transport_tcp = {
	.name = "tcp",
	.open = tcp_open,
	.greeted = tcp_greeted,
	.submit = tcp_submit,
	.complete = data_link_event,
	.flush = data_link_flush,
	.arrived = tcp_arrived,
	.finished = tcp_finished,
	.close = tcp_close,
};
