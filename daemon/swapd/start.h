/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Startup, from options to a served device, and cleanup. */
#ifndef EBB_START_H
#define EBB_START_H

#include "swapd.h"
#include "swapd/control/control.h"

/* Checks the options alone. */
int swapd_options_check(const struct swapd_options *o, struct error *e);

/*
 * Supervisor: makes everything that its processes share, and nothing that belongs to one of them;
 * swapd_stop() undoes it from any point.
 */
int swapd_prepare(struct swapd *s, struct device_control *c, char **argv, struct error *e);
void swapd_stop(struct swapd *s, struct device_control *c);

/* First server: connects, mounts, makes its threads.  A failure leaves nothing mounted. */
int swapd_begin(struct swapd *s, struct device_control *c, struct error *e);
/* Serves to the end of the device, and of the process. */
enum swapd_output { OUTPUT_AS_IS, OUTPUT_DETACHED };
void swapd_serve(struct swapd *s, struct device_control *c, enum swapd_output output)
	__attribute__((noreturn));

/*
 * Standby: makes its threads and waits until no process has the other end of @alive_fd open.  Then
 * serves, unless the device has ended.
 */
void swapd_stand_by(struct swapd *s, struct device_control *c, int alive_fd)
	__attribute__((noreturn));

/* Removes the log of a daemon that ended without errors. */
void swapd_forget_log(const struct swapd_options *o);

/* Detaches the output of a daemon, then service_ready(). */
void swapd_ready(struct swapd *s);

#endif
