/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The event loop of the I/O path. */
#ifndef EBB_SERVE_H
#define EBB_SERVE_H

#include "lib/base/error.h"

struct swapd;

/* Blocks SIGTERM, SIGINT and SIGCHLD, in the processes to come as well; ignores others. */
void serve_signals(void);

/*
 * Makes the epoll set, the timer and the signal descriptor, which are this process's
 * own; donors and the frontend are added to it later.
 */
int serve_init(struct swapd *s, struct error *e);
void serve_free(struct swapd *s);

/*
 * For a caller that waits on the epoll set before that: takes what the timer and signals have left
 * there, or the set is never quiet.  A signal is still obeyed, later.
 */
void serve_tend(struct swapd *s);

/* SIGTERMs that have come are wanted stops. */
void serve_take_signals(struct swapd *s);

/* Serves until the device is stopped, or aborted: 0, or -errno. */
int serve_run(struct swapd *s);

#endif
