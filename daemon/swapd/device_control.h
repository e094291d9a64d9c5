/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The control thread: answers on ebb_device_socket(NAME), writes the log lines
 * of the loop, and umounts on SIGTERM.  It may block and allocate; I/O does not
 * wait for it.
 *
 * Verbs: "status" (what there is and how it is), "stats" (counters).
 */
#ifndef EBB_DEVICE_CONTROL_H
#define EBB_DEVICE_CONTROL_H

#include <pthread.h>

#include "common/error.h"

struct swapd;

struct device_control {
	struct swapd *s;
	char path[108];
	int listen_fd;
	int stop_fd;
	pthread_t thread;
};

/* -EEXIST when another server of that name answers. */
int device_control_open(struct device_control *c, struct swapd *s, struct error *e);
int device_control_start(struct device_control *c, struct error *e);
/* Ends the thread, if it was started, and removes the socket. */
void device_control_close(struct device_control *c);

#endif
