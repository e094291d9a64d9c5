/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The parts of a device, found by its name alone, so that the remains of an incomplete
 * creation can be found and removed.
 */
#ifndef EBB_DEVICE_PARTS_H
#define EBB_DEVICE_PARTS_H

#include <stdbool.h>
#include <sys/types.h>

#include "ebbctl/process.h"
#include "lib/base/error.h"
#include "lib/control/device.h"
#include "swapoff.h"

#define DEVICE_SERVER "ebb-swapd"

/* Each returns a path in its own static buffer. */
const char *device_mount(const char *name);  /* mount point of ebb-swapd */
const char *device_log(const char *name);    /* stderr of ebb-swapd */
const char *device_intent(const char *name); /* record of a device that is not usable yet */

/*
 * Locks creation and destruction for this ebbctl; returns a descriptor to close, or
 * -errno.  Waits for another ebbctl, depending on @patience until process_interrupted().
 */
int device_lock(enum process_patience patience, struct error *e);

/* Finds the record, the intent or other parts of @name; -ENOENT without any. */
int device_find(const char *name, struct device_record *d, struct error *e);

/*
 * Calls @each with the name of every device that has a record, readable or not, or an intent, in
 * name order.  Stops at the first non-zero result and returns it.
 */
int device_each(int (*each)(const char *name, void *data), void *data);

/* Returns the pid of its ebb-swapd, responsive or not, or 0. */
pid_t device_server(const char *name);

/*
 * Returns whether @mount is mounted in the mount namespace of the process @pid (0: ours),
 * and @minor of its FUSE connection.  Sends no request to a server.
 */
bool device_mounted(pid_t pid, const char *mount, unsigned int *minor);

/*
 * Removes all parts of @d, swap first.  When swapoff fails or exceeds its timeout, nothing
 * that the server needs is removed.  Limits of cgroups that cannot be restored stay stored: see
 * scope_has_limits().  Only swapoff can be interrupted.
 */
int device_teardown(const struct device_record *d, const struct swapoff_options *o,
		    struct error *e);

/* Notifies ebbd, if it runs, of a change of devices. */
void device_announce(void);

#endif
