/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * --scope attached: excludes cgroups without a policy from ebb's swap, best effort.
 * Sets their memory.swap.max to 0 on v2, and on v1 their memory.swappiness, which the
 * kernel overrides under pressure.  Neither is per device, so no other swap may be on.
 * Cgroups created later are not limited until it is applied again, except below a limited one.
 * Each old value is stored (ebb_device_dir()/NAME.scope) before it changes, and is restored
 * unless another one was set meanwhile.
 */
#ifndef EBB_SCOPE_H
#define EBB_SCOPE_H

#include <stdbool.h>

#include "lib/base/error.h"

/*
 * A daemon's call returns -EAGAIN where a command's waits for another caller, and does nothing for
 * a device without limits: that is being created or destroyed.
 */
enum scope_caller { SCOPE_COMMAND, SCOPE_DAEMON };

/*
 * Updates the limits to the cgroups attached now according to ebbd, and @extra (a cgroup
 * directory that is being attached, or NULL).  While ebbd is unresponsive, only the first
 * call adds limits; later ones fail with EXIT_NO_DAEMON.  Warns of cgroups whose limit cannot be
 * set, and fails if that of an attached one cannot be restored.
 */
int scope_apply(const char *device, const char *extra, enum scope_caller caller, struct error *e);

/*
 * Restores every value; succeeds when there is none.  Values that cannot be restored stay stored
 * for another call, and are an error.
 */
int scope_undo(const char *device, struct error *e);

/* Returns whether values are stored. */
bool scope_has_limits(const char *device);

#endif
