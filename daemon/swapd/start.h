/* SPDX-License-Identifier: GPL-2.0-or-later */
/* From options to a served file, and back to nothing. */
#ifndef EBB_START_H
#define EBB_START_H

#include "device_control.h"
#include "swapd.h"

/* Checks what can be checked by looking at the options alone. */
int swapd_options_check(const struct swapd_options *o, struct error *e);

/*
 * Forks: the parent waits for what swapd_ready() tells and exits with it; the
 * child returns.  Sets *@parent_fd.
 */
int swapd_daemonise(int *parent_fd, struct error *e);

/*
 * Sets everything up in the order that leaves the least behind when a later
 * step fails; swapd_stop() undoes it from any point.
 */
int swapd_start(struct swapd *s, struct device_control *c, char **argv, struct error *e);
void swapd_stop(struct swapd *s, struct device_control *c);

/* Removes the log of a daemon that has nothing more to tell. */
void swapd_forget_log(const struct swapd_options *o);

/* Tells whoever waits: --ready-fd, the service manager, the parent. */
void swapd_ready(const struct swapd *s, int parent_fd);

#endif
