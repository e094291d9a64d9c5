/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * --scope attached: keeps cgroups without a policy off our swap, best effort.
 * On v2 their memory.swap.max becomes 0; on v1, which has no such thing, their
 * memory.swappiness, which the kernel overrides under pressure.  Neither knows
 * devices, so no other swap may be on.  Cgroups created later are not limited.
 * Each old value is on disk (ebb_device_dir()/NAME.scope) before it changes.
 */
#ifndef EBB_SCOPE_H
#define EBB_SCOPE_H

#include "lib/base/error.h"

/*
 * Brings the limits in line with what is attached now, according to ebbd, and
 * with @extra (a cgroup directory about to be attached, or NULL).  While ebbd is
 * silent no more of them are made, but the first time.
 */
int scope_apply(const char *device, const char *extra, struct error *e);

/* The same for every device of that scope. */
void scope_apply_all(const char *extra);

/* Restores every value; no error when there are none. */
int scope_undo(const char *device, struct error *e);

#endif
