/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The event loop of the I/O path. */
#ifndef EBB_SERVE_H
#define EBB_SERVE_H

#include "common/error.h"

struct swapd;

/*
 * Makes the epoll set, the timer and the signal descriptor; donors and the file
 * are added to it later.  Blocks SIGTERM, SIGINT and SIGCHLD.
 */
int serve_init(struct swapd *s, struct error *e);
void serve_free(struct swapd *s);

/* Serves until the file system is umounted or aborted: 0, or -errno. */
int serve_run(struct swapd *s);

#endif
