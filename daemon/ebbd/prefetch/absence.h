/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Devices whose reads may wait for a donor that is away.  Nothing is prefetched from them: the
 * reads would fill the device's queue, and block the thread that prefetches.
 *
 * A thread asks each ebb-swapd and the kernel module twice a second, and publishes the swap types
 * of these devices, but for those that are not known yet, as no page of the device has been read or
 * written.  Reads of a device of the module may wait if a donor is away whose class of pages has no
 * backup, even if it has two replicas: a slab may lack one.
 */
#ifndef EBB_ABSENCE_H
#define EBB_ABSENCE_H

#include <stdint.h>

#include "lib/base/error.h"

struct absence;

/* @devices: descriptor of maps/devices, which outlives it. */
int absence_start(struct absence **a, int devices, struct error *e);
/* NULL is fine. */
void absence_stop(struct absence **a);

/* Returns the mask of swap types from which nothing may be prefetched; any thread. */
uint32_t absence_types(const struct absence *a);

#endif
