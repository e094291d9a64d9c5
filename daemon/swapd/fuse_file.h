/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The file DIR/swap, by the FUSE kernel protocol (linux/fuse.h) itself: a
 * library would allocate and copy on the way.
 */
#ifndef EBB_FUSE_FILE_H
#define EBB_FUSE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"

struct swapd;
struct slot;

#define FUSE_FILE_NAME "swap"

/* Opens what the connection lives by: as long as a process has it open. */
int fuse_open(struct swapd *s, struct error *e);

/*
 * Mounts at options.mount and answers the kernel's INIT; sets fuse_fd and
 * shared->connection.  Nothing stays mounted after a failure.
 */
int fuse_mount(struct swapd *s, struct error *e);

/* Cuts the connection and takes the mount away; for the end, whatever it was. */
void fuse_unmount(struct swapd *s);

/* Whether the mount is still there: an aborted one is, an umounted one is not. */
bool fuse_is_mounted(const struct swapd *s);

/*
 * Reads and starts up to @most requests, as long as there are free slots.
 * Returns how many, or -ENODEV when the connection has ended.
 */
int fuse_receive(struct swapd *s, int most);

/*
 * For a successor: does what was being read into @slot when its predecessor died, if
 * it came; the slot is free or a request's then.
 */
void fuse_receive_again(struct swapd *s, struct slot *slot);

/* Answers; the connection being gone is noticed by fuse_receive(). */
void fuse_answer_error(struct swapd *s, uint64_t unique, int error); /* 0 or -errno */
void fuse_answer_read(struct swapd *s, struct slot *slot);
void fuse_answer_write(struct swapd *s, struct slot *slot);

#endif
