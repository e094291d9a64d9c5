/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where requests come from and answers go: how the kernel has a block device of what a
 * server does.  One is chosen when the device is made (--frontend).
 *
 *	fuse   a file in a FUSE mount, for a loop device (fuse.c)
 *	ublk   /dev/ublkbN (ublk.c)
 */
#ifndef EBB_FRONTEND_H
#define EBB_FRONTEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/error.h"
#include "request.h"

struct swapd;

/* What becomes of the slot of an answered request. */
enum slot_after {
	SLOT_DONE, /* nobody needs it but the backup, perhaps */
	SLOT_KEPT, /* the frontend does, for the next request */
};

struct frontend {
	const char *name;
	/*
	 * Whether the kernel asks a successor again for what a server has not answered.
	 * If it does not, such requests are to be found in slots.
	 */
	bool asks_again;

	/* The holder: what all its processes are to have. */
	int (*open)(struct swapd *s, struct error *e);
	/* Server and standby, before they serve: what each needs for itself. */
	int (*prepare)(struct swapd *s, struct error *e);
	/* The first server: makes the device.  There is none after a failure. */
	int (*begin)(struct swapd *s, struct error *e);
	/*
	 * A successor, whose slots are as it found them but for requests that it has begun
	 * again; @reading was being read into, or NULL.  0, or -errno: it cannot serve, and
	 * has said why (takeover_last_words()).
	 */
	int (*take_over)(struct swapd *s, struct slot *reading);
	/* Takes the device away, whatever is left of it, and lets go of what the above made. */
	void (*end)(struct swapd *s);

	/* Readable when there are requests. */
	int (*fd)(const struct swapd *s);
	/*
	 * Starts up to @most requests, as long as there are free slots.  Returns how many,
	 * or -ENODEV when the device has ended.
	 */
	int (*receive)(struct swapd *s, int most);
	/* Answers with @error, 0 or -errno. */
	enum slot_after (*answer)(struct swapd *s, struct slot *slot, int error);
	/* Before the loop sleeps: sends answers that were gathered; NULL: none are. */
	void (*flush)(struct swapd *s);

	/* The control thread: has the kernel end the device: 0, or -EBUSY while it is in use. */
	int (*stop)(struct swapd *s);
	/* Whether the end that receive() has told of was asked for. */
	bool (*stopped)(const struct swapd *s);
	/* Where it is to be found: a file or a block device. */
	void (*where)(const struct swapd *s, char *text, size_t size);
};

extern const struct frontend fuse_frontend, ublk_frontend;

/* NULL when there is none of this name; the option's table lets none through. */
const struct frontend *frontend_find(const char *name);

/*
 * For receive(): starts the request @unique of @count pages from @first on, whose slot
 * has what a WRITE brings.
 */
void frontend_start(struct swapd *s, struct slot *slot, enum slot_kind kind, uint64_t unique,
		    uint64_t first, uint64_t count);

#endif
