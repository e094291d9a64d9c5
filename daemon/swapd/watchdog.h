/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A locked process beside the server.  When requests are waiting and none has
 * been answered for options.watchdog, it aborts the FUSE connection: programs
 * with pages on the device then get I/O errors (SIGBUS) instead of sleeping for
 * ever.  It holds no fuse descriptor, so the connection also ends by itself when
 * the server disappears.
 */
#ifndef EBB_WATCHDOG_H
#define EBB_WATCHDOG_H

#include <stdint.h>

#include "common/error.h"

struct swapd;

/*
 * Forks it.  To be called before anything is opened that must not outlive the
 * server, and before there are threads.  Sets watchdog_pid and watchdog_fd.
 */
int watchdog_fork(struct swapd *s, struct error *e);

/*
 * Tells it the connection to watch and waits until it holds what it needs:
 * sets watchdog_works, and logs why when it does not.
 */
void watchdog_arm(struct swapd *s);

/* Ends it. */
void watchdog_stop(struct swapd *s);

/*
 * The rule, by itself; call it every @tick_ns.  Two things may stand still: the
 * answers while requests are under way, or the loop, which otherwise moves ten
 * times a second.  Counts ticks, not time, so that a machine that was suspended
 * has not hung.
 */
struct watchdog_sight {
	uint64_t received, completed; /* requests */
	uint64_t beats;               /* of the loop */
};

struct watchdog_state {
	struct watchdog_sight last;
	uint64_t answers_ns, loop_ns; /* for how long they have not moved */
};

enum watchdog_verdict {
	WATCHDOG_MOVES,
	WATCHDOG_STUCK,   /* requests are under way and none is answered */
	WATCHDOG_STOPPED, /* the loop stands; there may be requests it has not seen */
};

enum watchdog_verdict watchdog_judge(struct watchdog_state *w, const struct watchdog_sight *now,
				     uint64_t tick_ns, uint64_t limit_ns);

#endif
