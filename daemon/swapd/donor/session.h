/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Connections to donors.  A donor is lost when its connection breaks, when it breaks the
 * protocol, or when it does not reply within the deadline.  It is retried with growing,
 * random intervals.  Its connection is closed before any page goes elsewhere, so that nothing
 * of a dead generation can arrive later.
 */
#ifndef EBB_DONOR_SESSION_H
#define EBB_DONOR_SESSION_H

#include "donor_table.h"

/*
 * Upcalls of donors; wiring.c fills them in.  A donor is lost in this order: its link is
 * closed, lost() takes its replicas off the tables, leg_gone() comes for each leg that waited.
 * answered(), resumed() and asked() return 0 or -errno.
 */
struct donor_events {
	void (*up)(void *owner);
	void (*lost)(void *owner, struct donor *d);
	void (*leg_gone)(void *owner, int number);
	/* Replies to MAP and REMAP; ACTIVITY and EVICT. */
	int (*answered)(void *owner, struct donor *d, const struct wire_frame *f);
	int (*resumed)(void *owner, struct donor *d, const struct wire_frame *f);
	int (*asked)(void *owner, struct donor *d, const struct wire_frame *f,
		     const uint8_t *payload);
	/* ns: since when @d, which has a MAP to answer, has had it. */
	uint64_t (*oldest)(void *owner, const struct donor *d);
	/* Ten times a second, while @d has MAPs to answer. */
	void (*ask_later)(void *owner, struct donor *d, uint64_t now);
};

/* Enters it, and waits up to 2 s for it to be up. */
int donor_join(struct swapd *s, struct donor *d, struct error *e);
/*
 * Closes connections; donors give what is ours to others.  What is mapped of theirs, and
 * where, the server alone knows: that goes with its process.
 */
void donors_free(struct swapd *s);

/* The rest is the loop thread's. */

/* Asks @d, which has no other PING to answer, for its figures. */
void donor_ping(struct donor *d, uint64_t now);

/* Something happened on its control connection; @events as epoll's. */
void donor_event(struct swapd *s, struct donor *d, uint32_t events);

/* Sees to what epoll has told, if it is a donor's. */
void donors_event(struct swapd *s, const struct epoll_event *ev);

/* Handles a frame of @d's that is not READ or WRITE, with its payload; 0 or -errno. */
int donor_frame(struct swapd *s, struct donor *d, const struct wire_frame *f,
		const uint8_t *payload);

/* For transports: greeted() returned 1, and pages can go now. */
void donor_ready(struct swapd *s, struct donor *d);

/* Logs why @d cannot be used without an operator's change; once, until it can. */
void donor_explain(struct swapd *s, struct donor *d, const char *why);

/* Closes the connection: its replicas are lost, and requests that waited look for others. */
void donor_lose(struct swapd *s, struct donor *d, const char *why);

/*
 * Does not use @d until donor_trust().  With a backup its connection is closed at once; without
 * one its slabs migrate first, since they may be the only replicas.
 */
void donor_quarantine(struct swapd *s, struct donor *d, const char *why);
void donor_trust(struct donor *d, uint64_t now);

/* Sends what is queued. */
void donors_flush(struct swapd *s);

/* Ten times a second: deadlines, pings, reconnects. */
void donors_tick(struct swapd *s, uint64_t now);

#endif
