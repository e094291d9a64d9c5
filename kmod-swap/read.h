/* SPDX-License-Identifier: GPL-2.0-only */
/* Reads: run by run, from places with the newest content. */
#ifndef EBB_READ_H
#define EBB_READ_H

#include "request.h"

/* Continues the READ at io->cursor.  @batch is NULL in the device's work queue. */
void ebb_read_go(struct ebb_io *io, struct ebb_batch *batch);
/* Reads the current run from the backup. */
void ebb_read_backup(struct ebb_io *io);
/* Decrypts the current run in the buffer.  Device's work queue only. */
void ebb_read_open(struct ebb_io *io);

#endif
