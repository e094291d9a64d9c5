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
 * Upcalls of donors; wiring.c fills them in.  A donor is lost in this order: its link is closed,
 * lost() takes its replicas off the tables, done() of struct donor_ops comes with -ECONNRESET for
 * each of its transfers.  answered(), resumed() and asked() return 0 or -errno.
 */
struct donor_events {
	void (*up)(void *owner);
	void (*lost)(void *owner, struct donor *d);
	/* Replies to MAP and REMAP; ACTIVITY and EVICT. */
	int (*answered)(void *owner, struct donor *d, const struct wire_frame *f);
	int (*resumed)(void *owner, struct donor *d, const struct wire_frame *f);
	int (*asked)(void *owner, struct donor *d, const struct wire_frame *f,
		     const uint8_t *payload);
	/* Returns the time in ns since which the oldest MAP to @d is in flight. */
	uint64_t (*oldest)(void *owner, const struct donor *d);
	/* Ten times a second, while MAPs to @d are unanswered. */
	void (*ask_later)(void *owner, struct donor *d, uint64_t now);
};

/* Enters @d, and waits up to 2 s until it is up. */
int donor_join(struct donor *d, struct error *e);
/*
 * Closes all connections: donors then lend our slabs to others.  Locally mapped slabs are unmapped
 * by the exit of this process.
 */
void donors_free(struct donors *ds);

/* Loop thread only, from here on. */

/* For struct donor_ops; @owner is a struct donor. */
void donor_ready(void *owner);
void donor_link_lost(void *owner, enum loss loss, const char *text);

/* Sends a PING to @d, which has none in flight. */
void donor_ping(struct donor *d, uint64_t now);

/* Handles @events of epoll on the control connection. */
void donor_event(struct donor *d, uint32_t events);

/* Handles an event of epoll, if it is a donor's; of received data, only the first piece. */
void donors_event(struct donors *ds, const struct epoll_event *ev);
/* Receives the next piece from each donor that has sent more; returns whether there was one. */
bool donors_more(struct donors *ds);

/* Handles a frame of @d that is not READ or WRITE, with its payload; 0 or -errno. */
int donor_frame(struct donor *d, const struct wire_frame *f, const uint8_t *payload);

/* Closes the connection: its replicas are lost, and requests that waited use others. */
void donor_lose(struct donor *d, const char *why);

/*
 * Does not use @d until donor_trust().  With a backup its connection is closed at once; without
 * one its slabs migrate first, since they may be the only replicas.
 */
void donor_quarantine(struct donor *d, const char *why);
void donor_trust(struct donor *d, uint64_t now);

/* Sends queued frames. */
void donors_flush(struct donors *ds);

/* Ten times a second: deadlines, pings, reconnections. */
void donors_tick(struct donors *ds, uint64_t now);

#endif
