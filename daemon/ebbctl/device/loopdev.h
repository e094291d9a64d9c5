/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Loop devices with direct I/O, and what may be set on any block device. */
#ifndef EBB_LOOPDEV_H
#define EBB_LOOPDEV_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/error.h"

/*
 * Attaches @file to a free loop device: direct I/O, 4 KiB blocks, detached by
 * the kernel once its last user is gone.  Returns an open descriptor that keeps
 * it until then, or -errno; @block gets its path.  Direct I/O is a must: the page cache
 * of a buffered loop is memory, needed to free memory.
 */
int loop_attach(const char *file, char *block, size_t size, struct error *e);

/* Detaches; no error when it is not attached. */
int loop_detach(const char *block);

/* The loop device whose file lies below the directory @dir; -ENOENT. */
int loop_find(const char *dir, char *block, size_t size);

/* The number of @block. */
int block_number(const char *block, uint32_t *major, uint32_t *minor);

/* Turns write-back throttling off, which holds swap-out behind slow completions. */
void block_no_throttling(const char *block);

#endif
