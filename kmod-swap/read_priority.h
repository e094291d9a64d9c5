/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Demand reads overtake prefetch reads, whose I/O priority is idle or the lowest of best effort.
 * A connection is first in, first out: a miss waits for all work requests on it.  Therefore only a
 * window of prefetch reads is admitted to donors, a small one while there are demand reads; the
 * rest is held here.
 *
 * Held reads are admitted in order, whenever an admitted one ends.  While reads are held, at least
 * one is admitted, and no later read overtakes a held one: none starves.  A read is admitted before
 * it gets a buffer (seal.h): a read with a buffer never waits for a read without.
 */
#ifndef EBB_READ_PRIORITY_H
#define EBB_READ_PRIORITY_H

#include "request.h"

void ebb_read_priority_init(struct ebb_device *device);
void ebb_read_priority_stop(struct ebb_device *device); /* no request is left */
/*
 * Returns how many pages of the READ may go to a donor now.  0 = held: the READ is no longer the
 * caller's and continues at EBB_STEP_READ once admitted.  slab->lock is held.
 */
u32 ebb_read_priority_take(struct ebb_io *io);
/* Called at the end of a request: admits held reads. */
void ebb_read_priority_end(struct ebb_io *io);

#endif
