/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The file DIR/swap, by the FUSE kernel protocol (linux/fuse.h) directly, because a library would
 * allocate and copy.  A frontend (frontend.h).
 */
#ifndef EBB_FUSE_FILE_H
#define EBB_FUSE_FILE_H

#define FUSE_FILE_NAME "swap"

#endif
