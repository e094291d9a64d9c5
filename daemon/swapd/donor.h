/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Connections to donors.  A donor is lost when its connection breaks, when it
 * breaks the protocol, or when a request is older than the deadline; it is
 * tried again with growing intervals.  Its connection is closed before any page
 * goes elsewhere, so that nothing of a dead generation can arrive later.
 */
#ifndef EBB_DONOR_H
#define EBB_DONOR_H

#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "slot.h"
#include "transport.h"
#include "wire/address.h"
#include "wire/stream.h"

struct swapd;

enum donor_state { DONOR_DOWN, DONOR_CONNECTING, DONOR_GREETING, DONOR_UP };

struct donor {
	struct address address;
	const struct transport *transport; /* as the address is */
	uint16_t index;
	uint8_t state;           /* enum donor_state */
	bool watched_for_write;  /* epoll interest in EPOLLOUT */
	int fd;
	struct stream_rx rx;
	struct stream_tx tx;
	uint8_t small[WIRE_SMALL];    /* payloads that are not pages */
	struct slot *arriving;        /* whose reply is arriving, or NULL */
	struct slot_list waiting;     /* slots that wait for a reply, oldest first */
	uint64_t since;          /* ns: start of the present state */
	uint64_t retry_at, backoff; /* ns */
	uint64_t pinged;         /* ns: PING under way since; 0 = none */
	uint64_t ping_at;        /* ns: next PING */
	uint64_t total, free;    /* bytes, as last told */
	uint64_t slab_size;      /* bytes, of this connection; ours are not larger */
	uint32_t connects, losses;
	char why[96];            /* it was lost */
};

/* "down", "connecting", ... */
const char *donor_state_text(uint8_t state);

/*
 * Adds the donor at @text and connects to it, waiting up to 2 s.  The error
 * names the address, the cause and what to do.
 */
int donor_add(struct swapd *s, const char *text, struct error *e);
void donors_free(struct swapd *s);

/* The rest is the loop thread's. */

/* Whether @d takes requests. */
static inline bool donor_up(const struct donor *d)
{
	return d->state == DONOR_UP;
}

/*
 * For transports: makes @slot wait for a reply of @d (LEG_DONOR), under its
 * deadline.  What answers it carries donor_slot_tag().
 */
void donor_wait(struct swapd *s, struct donor *d, struct slot *slot);
uint64_t donor_slot_tag(const struct swapd *s, const struct slot *slot);

/*
 * Chooses a donor for the slab at @index and asks for it.  False when none has
 * room; the slab is then left alone for a second.
 */
bool donor_ask_slab(struct swapd *s, uint32_t index);

/* Something happened on its socket; @events as epoll's. */
void donor_event(struct swapd *s, struct donor *d, uint32_t events);

/* Sends what is queued. */
void donors_flush(struct swapd *s);

/* Ten times a second: deadlines, pings, reconnects. */
void donors_tick(struct swapd *s, uint64_t now);

#endif
