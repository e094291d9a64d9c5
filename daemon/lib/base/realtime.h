/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What serves swap must run when memory is short.  A SCHED_FIFO task may take
 * pages from half of the min reserve (ALLOC_MIN_RESERVE in gfp_to_alloc_flags());
 * without that, swap-out, the server and its backup writes can wait for each
 * other's memory.  It also runs at once when a page is asked for.
 */
#ifndef EBB_REALTIME_H
#define EBB_REALTIME_H

/*
 * The calling thread and those it starts from now on get the lowest real-time
 * priority.  0 or -errno; -EPERM without CAP_SYS_NICE.
 */
int realtime_enter(void);

#endif
