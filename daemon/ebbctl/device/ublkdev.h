/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * /dev/ublkbN of a device, found by the number that its first server stores in NAME.ublk: the
 * kernel's device outlives its servers.
 */
#ifndef EBB_UBLKDEV_H
#define EBB_UBLKDEV_H

#include <stddef.h>

#include "lib/base/error.h"

int ublk_check(struct error *e);

/* Finds the block device of @name, or returns -ENOENT. */
int ublk_find(const char *name, char *block, size_t size);

/*
 * Makes failover fast: the kernel notices the death of a server at once only while a tag is free.
 * A scheduler would use all of the 128; without one, block_bound_requests() leaves half of them.
 */
void ublk_settle(const char *block);

/* Fails all I/O of the device of @name, whose server has exited. */
int ublk_cut(const char *name, struct error *e);

/* Removes the device; succeeds when it does not exist. */
int ublk_remove(const char *name, struct error *e);

#endif
