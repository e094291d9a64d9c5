/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Demand reads overtake prefetch reads, which say so by their I/O priority: the lowest of best
 * effort, or idle.  A connection is first in, first out, so a miss waits for all that is on it.
 * Therefore only a window of prefetch reads is admitted to donors, a small one while others
 * read; the rest is held here.
 *
 * Held reads are admitted in order, whenever an admitted one ends.  While one is held, at least one
 * is admitted, and no later one takes its room, so none starves.  A read is admitted before it
 * gets a buffer (seal.h): a read with a buffer never waits for one without.
 */
#ifndef EBB_READ_PRIORITY_H
#define EBB_READ_PRIORITY_H

#include "request.h"

void ebb_read_priority_init(struct ebb_device *device);
void ebb_read_priority_stop(struct ebb_device *device); /* there is no request any more */
/*
 * Returns how many pages of the READ may go to a donor now.  0 = it is held, goes on at
 * EBB_STEP_READ once it is admitted, and is no longer the caller's.  slab->lock is held.
 */
u32 ebb_read_priority_take(struct ebb_io *io);
/* The request has ended. */
void ebb_read_priority_end(struct ebb_io *io);

#endif
