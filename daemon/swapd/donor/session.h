/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Connections to donors.  A donor is lost when its connection breaks, when it
 * breaks the protocol, or when it answers nothing for the deadline; it is tried
 * again with growing intervals.  Its connection is closed before any page
 * goes elsewhere, so that nothing of a dead generation can arrive later.
 */
#ifndef EBB_DONOR_SESSION_H
#define EBB_DONOR_SESSION_H

#include "donor_table.h"

/*
 * What donors have to say to those above them; wiring.c fills it in.  A lost donor: its link is
 * closed, then lost() takes its copies off the tables, then leg_gone() comes for each leg that
 * waited.  answered(), resumed() and asked() return 0 or -errno.
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

/* Asks @d, of whom no answer to another PING is due, for its figures. */
void donor_ping(struct donor *d, uint64_t now);

/* Something happened on its control connection; @events as epoll's. */
void donor_event(struct swapd *s, struct donor *d, uint32_t events);

/* Sees to what epoll has told, if it is a donor's. */
void donors_event(struct swapd *s, const struct epoll_event *ev);

/* Handles a frame of @d's that is not READ or WRITE, with its payload; 0 or -errno. */
int donor_frame(struct swapd *s, struct donor *d, const struct wire_frame *f,
		const uint8_t *payload);

/* For transports: what greeted() waited for is there. */
void donor_ready(struct swapd *s, struct donor *d);

/* Why @d cannot be used until somebody has changed something: told once, until it can. */
void donor_explain(struct swapd *s, struct donor *d, const char *why);

/* Closes the connection: its copies are lost, what waited for it looks for another way. */
void donor_lose(struct swapd *s, struct donor *d, const char *why);

/*
 * Not used until donor_trust().  With a backup it is closed at once; without one its
 * pages move away first, since some may be nowhere else.
 */
void donor_quarantine(struct swapd *s, struct donor *d, const char *why);
void donor_trust(struct donor *d, uint64_t now);

/* Sends what is queued. */
void donors_flush(struct swapd *s);

/* Ten times a second: deadlines, pings, reconnects. */
void donors_tick(struct swapd *s, uint64_t now);

#endif
