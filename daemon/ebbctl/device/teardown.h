/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a device consists of besides its record, by name alone, so that what a
 * broken creation left can be found and removed.
 */
#ifndef EBB_DEVICE_PARTS_H
#define EBB_DEVICE_PARTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ebbctl/process.h"
#include "lib/base/error.h"
#include "lib/control/device.h"

#define DEVICE_SERVER "ebb-swapd"

/* In static buffers of their own. */
const char *device_mount(const char *name);  /* where ebb-swapd mounts */
const char *device_log(const char *name);    /* its stderr */
const char *device_intent(const char *name); /* a record while the device is not usable yet */

/*
 * One ebbctl at a time creates or destroys; an fd to close, or -errno.  Waits for the other
 * one, or, as @patience says, until process_interrupted().
 */
int device_lock(enum process_patience patience, struct error *e);

/* Record, intent, or what can be found of @name; -ENOENT when there is nothing. */
int device_find(const char *name, struct device_record *d, struct error *e);

/* The pid of its ebb-swapd, answering or not; 0 when there is none. */
pid_t device_server(const char *name);

/*
 * Whether @mount is mounted where the process @pid sees it, or where we do (0); @minor of its FUSE
 * connection.  Asks no server.
 */
bool device_mounted(pid_t pid, const char *mount, unsigned int *minor);

/*
 * Takes @d apart, swap first, whatever of it is there.  Stops before anything
 * that needs the server when swap cannot be taken off in @timeout_ms; only that
 * can be interrupted.
 */
int device_teardown(const struct device_record *d, int timeout_ms, enum process_patience patience,
		    struct error *e);

/* Tells ebbd, if it runs, that devices have changed. */
void device_announce(void);

#endif
