/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * While processes are frozen, nothing serves swap, and code that needs a page during suspend waits
 * for ever.  So this lock makes systemd-logind refuse to suspend.
 */
#ifndef EBB_SLEEP_LOCK_H
#define EBB_SLEEP_LOCK_H

/*
 * An fd that holds sleep off as long as it, or a copy of it, is open in any process; exec does not
 * close it.  -EOPNOTSUPP where systemd does not run, other -errno when logind did not give one.
 */
int sleep_lock_take(const char *device);

#endif
