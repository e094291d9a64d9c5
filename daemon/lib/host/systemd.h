/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Requests to systemd over the system bus; none waits longer than five seconds. */
#ifndef EBB_SYSTEMD_H
#define EBB_SYSTEMD_H

#include <stdint.h>
#include <sys/types.h>

/*
 * What a scope for a program under a limit gets: Delegate=yes, MemoryMax=.
 * Scopes of our own daemons get DefaultDependencies=no instead.
 */
struct transient_limit {
	uint64_t memory_max; /* bytes, 0 = none */
};

/*
 * Puts the @n processes @pids in a new scope @unit ("ebb-x.scope").  @limit
 * NULL: a daemon's.  Waits until they are there and writes their cgroup
 * ("/system.slice/ebb-x.scope") to @cgroup when not NULL.  -EOPNOTSUPP where
 * systemd does not run.  systemd removes the scope when its last process ends.
 */
int transient_scope(const char *unit, const pid_t *pids, int n, char *cgroup, size_t size,
		    const struct transient_limit *limit);

/* MemorySwapMax= of @unit until the next boot; @bytes UINT64_MAX = infinity. */
int transient_swap_max(const char *unit, uint64_t bytes);

/*
 * Returns an fd that holds sleep off as long as it, or a copy of it, is open in any process; exec
 * does not close it.  While processes are frozen no process serves swap, and a process that needs
 * a page to fall asleep waits without limit.  -EOPNOTSUPP where systemd does not run, other -errno
 * when logind did not give one.
 */
int sleep_lock_take(const char *device);

#endif
