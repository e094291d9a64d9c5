/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * /dev/ublkbN of a device: found by the note that its first server leaves in
 * NAME.ublk, since the kernel's device stays when all its servers are dead.
 */
#ifndef EBB_UBLKDEV_H
#define EBB_UBLKDEV_H

#include <stddef.h>

#include "lib/base/error.h"

/* Whether devices of this kind can be made here. */
int ublk_check(struct error *e);

/* The block device of @name; -ENOENT. */
int ublk_find(const char *name, char *block, size_t size);

/*
 * What makes a takeover quick: the kernel finds out at once that a server is dead only
 * as long as not all tags have a request, so that fewer requests than tags are let in.
 */
void ublk_settle(const char *block);

/* Ends I/O on the device of @name, which has no server any more, by errors. */
int ublk_cut(const char *name, struct error *e);

/* Takes it away; no error when there is none. */
int ublk_remove(const char *name, struct error *e);

#endif
