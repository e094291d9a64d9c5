/* SPDX-License-Identifier: GPL-2.0-or-later */
/* From options to a served file, and back to nothing. */
#ifndef EBB_START_H
#define EBB_START_H

#include "swapd.h"
#include "swapd/control/control.h"

/* Checks what can be checked by looking at the options alone. */
int swapd_options_check(const struct swapd_options *o, struct error *e);

/*
 * The supervisor: makes all that its processes share, and nothing that one of them is to
 * have for itself; swapd_stop() undoes it from any point.
 */
int swapd_prepare(struct swapd *s, struct device_control *c, char **argv, struct error *e);
void swapd_stop(struct swapd *s, struct device_control *c);

/* The first server: connects, mounts, makes its threads.  Nothing stays mounted on failure. */
int swapd_begin(struct swapd *s, struct device_control *c, struct error *e);
/* Then serves to the end of the device, and of the process. */
enum swapd_output { OUTPUT_AS_IS, OUTPUT_DETACHED };
void swapd_serve(struct swapd *s, struct device_control *c, enum swapd_output output)
	__attribute__((noreturn));

/*
 * A standby: makes its threads and waits until no process has the other end of
 * @alive_fd open.  Then serves, unless that was the end.
 */
void swapd_stand_by(struct swapd *s, struct device_control *c, int alive_fd)
	__attribute__((noreturn));

/* Removes the log of a daemon that has nothing more to tell. */
void swapd_forget_log(const struct swapd_options *o);

/* Detaches the output of a daemon, then service_ready(). */
void swapd_ready(struct swapd *s);

#endif
