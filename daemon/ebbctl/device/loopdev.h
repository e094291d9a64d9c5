/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Loop devices with direct I/O, and settings of block devices. */
#ifndef EBB_LOOPDEV_H
#define EBB_LOOPDEV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/error.h"

/*
 * Attaches @file to a free loop device with direct I/O and blocks of a page, which the
 * kernel detaches after its last user.  Returns an open descriptor that keeps it attached,
 * or -errno; sets @block to its path.  Direct I/O is required: a buffered loop allocates
 * page cache while memory is reclaimed.
 */
int loop_attach(const char *file, char *block, size_t size, struct error *e);

/*
 * Sets whether the kernel leaves @block attached after its last user.  Of a block device that is
 * no loop device it has nothing to set.  Returns 0 or -errno.
 */
int loop_keep(const char *block, bool keep);

/* Discards all of @block.  Returns 0 or -errno. */
int block_discard(const char *block);

/* Detaches @block; succeeds when it is not attached. */
int loop_detach(const char *block);

/* Finds the loop device whose file is below the directory @dir, or returns -ENOENT. */
int loop_find(const char *dir, char *block, size_t size);

int block_number(const char *block, uint32_t *major, uint32_t *minor);

/* Sets an attribute of @block's queue in sysfs.  Returns 0 or -errno. */
int block_queue_set(const char *block, const char *attribute, const char *value);

/* Disables writeback throttling, which delays swap-out after slow completions. */
void block_no_throttling(const char *block);

/* Bounds the pages in flight of @block by number and size of its requests.  Returns 0 or -errno. */
int block_bound_requests(const char *block);

#endif
