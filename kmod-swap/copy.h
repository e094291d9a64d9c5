/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The copier: copies pages in the background to where their slab's donors lack them.
 *
 *  - repair: the slab has a new donor, and pages are at its other donor or on the backup alone;
 *  - migration: it has a new donor, and pages are at the source;
 *  - fallback: it has no donor any more, and pages are at the source alone.
 */
#ifndef EBB_COPY_H
#define EBB_COPY_H

#include "device.h"

int ebb_copier_init(struct ebb_device *device);
void ebb_copier_stop(struct ebb_device *device); /* waits for it, and it does not run again */
void ebb_copier_free(struct ebb_device *device);
/* There may be something to copy; from any context. */
void ebb_copier_kick(struct ebb_device *device);

#endif
