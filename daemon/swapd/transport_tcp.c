// SPDX-License-Identifier: GPL-2.0-or-later
/* A donor anywhere: pages are the payload of READ and WRITE frames. */
#include <errno.h>
#include <string.h>

#include "page_io.h"
#include "swapd.h"

static int tcp_open(struct swapd *s, struct donor *d)
{
	(void)s;
	return address_connect(&d->address);
}

static enum transport_progress tcp_submit(struct swapd *s, struct donor *d, struct slot *slot,
					  enum wire_op op, uint32_t pages)
{
	uint32_t page = slot->first + slot->cursor;
	const struct slab *slab = slab_of_page(&s->table, page);

	slot->run = pages;
	donor_wait(s, d, slot);
	slot->frame = (struct wire_frame){
		.op = op,
		.tag = donor_slot_tag(s, slot),
		.slab = slab->remote,
		.generation = slab->generation,
		.offset = slab_offset(&s->table, page),
		.length = pages * PAGE,
	};
	/* The queue has room for a leg of every slot. */
	stream_push(&d->tx, &slot->frame, slot->payload + slot->cursor * (size_t)PAGE, 0);
	return TRANSPORT_UNDER_WAY;
}

/* The slot whose leg @f answers exactly, or NULL. */
static struct slot *leg_of(struct swapd *s, struct donor *d, const struct wire_frame *f)
{
	uint16_t index = (uint16_t)f->tag;
	struct slot *slot = index < SLOT_COUNT ? &s->slots.slot[index] : NULL;

	if (!slot || slot->leg != LEG_DONOR || slot->donor != d->index ||
	    slot->frame.tag != f->tag || slot->frame.op != f->op ||
	    slot->frame.slab != f->slab || slot->frame.generation != f->generation ||
	    slot->frame.offset != f->offset || slot->frame.length != f->length)
		return NULL;
	return slot;
}

static int tcp_arrived(struct swapd *s, struct donor *d, const struct wire_frame *f,
		       void **payload)
{
	d->arriving = leg_of(s, d, f);
	if (d->arriving)
		*payload = d->arriving->payload + d->arriving->cursor * (size_t)PAGE;
	return 0;
}

static void count_latency(struct swapd *s, uint64_t ns)
{
	int bucket = ns ? 63 - __builtin_clzll(ns) : 0;

	count_add(&s->count->latency[bucket < LATENCY_BUCKETS ? bucket : LATENCY_BUCKETS - 1], 1);
}

static int tcp_finished(struct swapd *s, struct donor *d, const struct wire_frame *f)
{
	struct slot *slot = d->arriving;

	d->arriving = NULL;
	if (!slot) {
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
		count_latency(s, now_ns() - slot->since);
	slot_remove(&s->slots, &d->waiting, slot);
	page_io_donor_reply(s, slot);
	return 0;
}

static void tcp_close(struct swapd *s, struct donor *d)
{
	(void)s;
	d->arriving = NULL;
}

const struct transport transport_tcp = {
	.name = "tcp",
	.open = tcp_open,
	.submit = tcp_submit,
	.arrived = tcp_arrived,
	.finished = tcp_finished,
	.close = tcp_close,
};
