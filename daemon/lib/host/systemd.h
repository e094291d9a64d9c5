/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Requests to systemd over the system bus; none waits longer than five seconds. */
#ifndef EBB_SYSTEMD_H
#define EBB_SYSTEMD_H

#include <stdint.h>
#include <sys/types.h>

/*
 * Properties of a scope for a program with a limit: Delegate=yes, MemoryMax=.  Scopes of ebb's
 * daemons get DefaultDependencies=no instead.
 */
struct transient_limit {
	uint64_t memory_max; /* bytes, 0 = none */
};

/*
 * Puts the @n processes @pids into a new scope @unit ("ebb-x.scope").  @limit NULL: for a daemon.
 * Waits until they are there and stores their cgroup ("/system.slice/ebb-x.scope") in @cgroup
 * unless NULL.  -EOPNOTSUPP if systemd does not run.  systemd removes the scope when its last
 * process ends.
 */
int transient_scope(const char *unit, const pid_t *pids, int n, char *cgroup, size_t size,
		    const struct transient_limit *limit);

/*
 * Sets MemorySwapMax= of the unit with the cgroup @cgroup ("/system.slice/x.service") until the next
 * boot; @bytes UINT64_MAX = infinity.  -ENOENT if that is no unit's.
 */
int transient_swap_max(const char *cgroup, uint64_t bytes);

/*
 * Returns a descriptor that inhibits sleep while any process has it or a copy open; exec does not
 * close it.  While processes are frozen no process serves swap, and one that needs a page in order
 * to freeze would wait forever.  -EOPNOTSUPP if systemd does not run or ebb-sleep.service, which
 * disables swap before sleep, is enabled; another -errno if logind refuses.
 */
int sleep_lock_take(const char *device);

#endif
