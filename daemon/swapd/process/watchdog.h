/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * When requests wait and none is answered for half of options.watchdog, the supervisor
 * (supervisor.h) kills the server, so that the standby serves.  If that does not help in
 * the other half, it aborts the device: programs with pages there get SIGBUS instead of
 * sleeping for ever.  Without a standby it waits for one until the second half ends.
 */
#ifndef EBB_WATCHDOG_H
#define EBB_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/error.h"

struct shared;

/*
 * The rule; call it every @tick_ns.  Two things may stall: answers while requests are in
 * flight, or the loop, which otherwise runs ten times a second.  The rule counts ticks, not
 * time, so that suspending the machine does not count.
 */
struct watchdog_sight {
	uint64_t received, completed; /* requests */
	uint64_t held;                /* requests that wait for donors that are away: not stalled */
	uint64_t beats;               /* rounds of the loop */
};

struct watchdog_state {
	struct watchdog_sight last;
	uint64_t answers_ns, loop_ns; /* how long each has stalled */
};

enum watchdog_verdict {
	WATCHDOG_MOVES,
	WATCHDOG_STUCK,   /* requests are in flight and none is answered */
	WATCHDOG_STOPPED, /* the loop has stalled; it may not have seen requests */
};

enum watchdog_verdict watchdog_judge(struct watchdog_state *w, const struct watchdog_sight *now,
				     uint64_t tick_ns, uint64_t limit_ns);

/* What the supervisor has tried since the last answer. */
struct watchdog_tries {
	uint64_t completed; /* requests at that answer */
	bool replaced;      /* a server was killed in favour of a standby */
	bool waited;        /* half of the time passed without a standby */
};

enum watchdog_remedy { WATCHDOG_WAIT, WATCHDOG_REPLACE, WATCHDOG_ABORT };

/*
 * The remedy when the watchdog barks; @standby: a server can be replaced.  No device is aborted as
 * long as a standby that could serve it has not been tried.
 */
enum watchdog_remedy watchdog_remedy(struct watchdog_tries *t, uint64_t completed, bool standby);

struct watchdog {
	uint32_t connection;     /* FUSE's; 0 = none */
	int waiting_fd, abort_fd; /* abort_fd for FUSE only */
	uint64_t tick_ns, limit_ns;
	struct watchdog_state state;
};

/*
 * Opens the files that show waiting requests and, for FUSE, abort the connection.  Returns 0 or
 * -errno.
 */
int watchdog_arm(struct watchdog *w, const struct shared *shared, uint64_t limit_ns);

/*
 * Applies the rule once every tick_ns: returns whether to act; @life is the server's.  Allocates
 * nothing.
 */
bool watchdog_barks(struct watchdog *w, const struct shared *shared, uint8_t life);
/*
 * Aborts a FUSE connection: 0 or -errno.  A ublk device has none, and is removed when it has no
 * server.
 */
int watchdog_abort(struct watchdog *w, struct shared *shared);
void watchdog_close(struct watchdog *w);

#endif
