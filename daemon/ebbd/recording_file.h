/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_RECORDING_FILE_H
#define EBB_RECORDING_FILE_H

#include "lib/base/error.h"

/*
 * Creates @file for a trace, in place of a regular file with that name.  Sets *@out to a descriptor
 * for writing, which the caller owns and which holds the lock of the file until it is closed.
 * Returns 0; -EINVAL if @file is a link, a FIFO or a device; -EBUSY with EXIT_REFUSED while another
 * recording writes it; or -errno.
 */
int recording_file(const char *file, int *out, struct error *e);

#endif
