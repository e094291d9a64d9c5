/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The states of a session, as a function without side effects: session.c calls it under the
 * session's lock, and tests/unit/test_model_session.c reaches every state.
 *
 *	CONNECTING --> LIVE --transport failed--> AWAY --resumed--> LIVE
 *	     |          |                          |
 *	     +----------+--protocol, DISCONNECT----+--not retained, grace period over--> FAILED
 *	                                                                                   |
 *	                                     user space makes another <-- CLOSED <---------+
 *
 * A session whose donor grants no grace period fails instead of being AWAY.  If it fails within
 * seconds of its resumption, its absence goes on: a session that cannot be used ends with the grace
 * period.
 */
#ifndef EBB_STATE_H
#define EBB_STATE_H

#include <ebb/swap.h>
#include <linux/types.h>

struct ebb_state {
	unsigned int now;         /* enum ebb_swap_session_state */
	bool broken;              /* its connections are of no use any more */
	bool suspended;           /* it has no connections, except while it is resumed */
	bool was_back;            /* resumed at least once, */
	bool relapsed;            /* and it failed soon after: the absence goes on */
};

/* What the step depends on beside the state. */
struct ebb_facts {
	bool retained;            /* the donor grants a grace period */
	bool soon;                /* after the last resumption */
	bool over;                /* the grace period, counted from the begin of the absence */
};

enum ebb_event {
	ON_OPENED,                /* the donor has answered HELLO */
	ON_FAILURE,               /* the transport failed, or the donor closed the connection */
	ON_END,                   /* by a command, or the donor broke the protocol */
	ON_TURN,                  /* the work item begins */
	ON_SUSPENDED,             /* after TO_SUSPEND */
	/* After TO_RESUME: */
	ON_MISSED,                /* a step failed; the connections are freed again */
	ON_REFUSED,               /* the donor has not retained the session */
	ON_RESUMED,               /* the loans are confirmed, and all others released */
	ON_CLOSED,                /* after TO_CLOSE */
	EBB_EVENTS
};

/* What the caller does next. */
enum ebb_todo {
	TO_RECORD = 1 << 0,       /* the cause of the end or absence */
	TO_DEPART = 1 << 1,       /* the begin of the absence */
	TO_TURN = 1 << 2,         /* run the work item, */
	TO_PAUSE = 1 << 3,        /* or run it after a pause */
	TO_SUSPEND = 1 << 4,      /* free the connections, then ON_SUSPENDED */
	TO_RESUME = 1 << 5,       /* try it once */
	TO_USE = 1 << 6,          /* it is LIVE */
	TO_CLOSE = 1 << 7,        /* free the connections, unless suspended, then ON_CLOSED */
	TO_DISCONNECT = 1 << 8,   /* free its new connections, which are broken, then ON_MISSED */
	TO_EXPIRE = 1 << 9,       /* report that the grace period is over */
};

/* Changes *@s by @event and returns enum ebb_todo bits. */
unsigned int ebb_state_step(struct ebb_state *s, enum ebb_event event, struct ebb_facts facts);

#endif
