/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The copier copies pages in the background to the places of their slab that lack them.
 *
 *  - repair: the slab has a new donor, and pages are at its other donor or on the backup alone;
 *  - migration: it has a new donor, and pages are at the source;
 *  - fallback: it has no donor any more, and pages are at the source alone.
 */
#ifndef EBB_COPY_H
#define EBB_COPY_H

#include "device.h"

int ebb_copier_init(struct ebb_device *device);
void ebb_copier_stop(struct ebb_device *device); /* waits; never runs again */
void ebb_copier_free(struct ebb_device *device);
/* Wakes the copier, as there may be pages to copy; from any context. */
void ebb_copier_kick(struct ebb_device *device);

#endif
