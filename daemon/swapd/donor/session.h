/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Connections to donors.  When the connection to a donor breaks, or the donor does not reply
 * within the deadline, the donor is away: it is retried, and its replicas are valid again when it
 * resumes the session, except for pages written meanwhile.  It is lost when it has not retained
 * the session, when the grace period that it stated is over, or when it breaks the protocol.
 *
 *	UP --broken, unresponsive--> away --HELLO with RESUME, REMAP, RELEASE--> UP
 *	 |                            |
 *	 +--protocol broken--> lost <-+--session not retained, or grace period over
 *
 * Donors that state no grace period (protocol 3) are lost at once, except at a failover.  A lost
 * donor is retried with growing, random intervals.  Its connection is closed before any page goes
 * elsewhere.  What the old connection still delivers comes before the reply to RESUME.
 */
#ifndef EBB_DONOR_SESSION_H
#define EBB_DONOR_SESSION_H

#include "donor_table.h"

/*
 * Upcalls of donors; wiring.c fills them in.  A donor goes away, or is lost, in this order: its
 * link is closed, away() or lost() changes the tables, done() of struct donor_ops comes with
 * -ECONNRESET for each of its transfers.  answered(), resumed(), released() and asked() return 0
 * or -errno.
 */
struct donor_events {
	void (*up)(void *owner);
	void (*away)(void *owner, struct donor *d);
	void (*lost)(void *owner, struct donor *d);
	/* Asks @d, which is up, for the next of its replicas that are AWAY. */
	void (*resume)(void *owner, struct donor *d);
	/*
	 * RELEASE is answered; called ten times a second from then on.  donor_confirmed() follows
	 * when no replica is AWAY.
	 */
	int (*released)(void *owner, struct donor *d);
	/* Replies to MAP and REMAP; ACTIVITY, EVICT and REVOKED. */
	int (*answered)(void *owner, struct donor *d, const struct wire_frame *f);
	int (*resumed)(void *owner, struct donor *d, const struct wire_frame *f);
	int (*asked)(void *owner, struct donor *d, const struct wire_frame *f,
		     const uint8_t *payload);
	/* Returns whether a backup has every page, so that no donor is needed. */
	bool (*backed)(void *owner);
	/* Returns the time in ns since which the oldest MAP or REMAP to @d is in flight. */
	uint64_t (*oldest)(void *owner, const struct donor *d);
	/* Ten times a second, while there are MAPs to be sent to @d later. */
	void (*ask_later)(void *owner, struct donor *d, uint64_t now);
};

/* Enters @d, and waits up to 2 s until it is up. */
int donor_join(struct donor *d, struct error *e);
/*
 * donor_reserve(), and waits up to 2 s for the reply.  Returns false when @d is lost.  The second
 * function only waits, for a RESERVE that was sent at @since.
 */
bool donor_reserve_now(struct donor *d, uint32_t slabs);
bool donor_reserved(struct donor *d, uint64_t since);
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

/*
 * Asks @d, which is up and has no RESERVE in flight, to promise @slabs slabs in total; .reserved is
 * how many it has promised.  Below version 4 nothing is sent, and all are assumed to be there.
 */
void donor_reserve(struct donor *d, uint32_t slabs, uint64_t now);

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
 * All replicas of @d, which was away, are confirmed or lost.  Returns -EPROTO if it had refused a
 * page of one and confirms all the same.
 */
int donor_confirmed(struct donor *d);

/* Closes the connection; its replicas stay AWAY if the donor retains the session, else are lost. */
void donor_part(struct donor *d, const char *why);

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
