/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Writes go to all donors of the slab at once, and to the backup later if the pool has free pages.
 * They go to the backup alone if there is no donor or all failed, to other donors if the slab has
 * moved.
 */
#ifndef EBB_WRITE_H
#define EBB_WRITE_H

#include "request.h"

/* Writes the request's pages.  @batch is NULL in the device's work queue. */
void ebb_write_go(struct ebb_io *io, struct ebb_batch *batch);
/* Seals the pages, then writes.  Device's work queue only, like ebb_write_backup(). */
void ebb_write_seal(struct ebb_io *io);
void ebb_write_backup(struct ebb_io *io);

#endif
