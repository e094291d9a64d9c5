/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The event loop of the I/O path. */
#ifndef EBB_SERVE_H
#define EBB_SERVE_H

#include "lib/base/error.h"

struct swapd;

/* Blocks SIGTERM, SIGINT and SIGCHLD, also in later children; ignores others. */
void serve_signals(void);

/*
 * Makes this process's epoll set, timer and signal descriptor; donors and the frontend are added to
 * the set later.
 */
int serve_init(struct swapd *s, struct error *e);
void serve_free(struct swapd *s);

/*
 * For a caller that waits on the epoll set before serve_run(): reads the timer and the signals, or
 * the set would always be ready.  A signal still takes effect later.
 */
void serve_tend(struct swapd *s);

/* Counts pending SIGTERMs as requests to stop. */
void serve_take_signals(struct swapd *s);

/* Serves until the device is stopped or aborted.  Returns 0 or -errno. */
int serve_run(struct swapd *s);

#endif
