/* SPDX-License-Identifier: GPL-2.0-only */
/* Reads: run by run from where the newest content is. */
#ifndef EBB_READ_H
#define EBB_READ_H

#include "request.h"

/* Goes on with the READ from io->cursor on.  @batch is NULL in the device's work queue. */
void ebb_read_go(struct ebb_io *io, struct ebb_batch *batch);
/* Opens the present run, which is in the buffer.  Only in the device's work queue. */
void ebb_read_open(struct ebb_io *io);

#endif
