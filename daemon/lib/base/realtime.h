/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A server of swap must run when memory is short.  A SCHED_FIFO task may allocate from
 * half of the min reserve (ALLOC_MIN_RESERVE in gfp_to_alloc_flags()); without that,
 * swap-out, the server and its backup writes can wait for each other's memory.
 * It is also scheduled at once when a page is requested.
 */
#ifndef EBB_REALTIME_H
#define EBB_REALTIME_H

/*
 * Gives the calling thread and the threads that it creates later the lowest real-time
 * priority.  Returns 0 or -errno; -EPERM without CAP_SYS_NICE.
 */
int realtime_enter(void);

#endif
