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
#include "swapd/page/counters.h"
#include "swapd/request/request.h"

/* What of a frontend outlives its server. */
struct frontend_shared {
	uint32_t connection;     /* FUSE: /sys/fs/fuse/connections/N */
	uint32_t ublk;           /* ublk: N + 1 of /dev/ublkbN; 0 = there is none */
	uint16_t ublk_queues, ublk_depth; /* its queues, and the tags of each */
	uint32_t refused;        /* the kernel takes no other server: the supervisor aborts */
	uint32_t opened;         /* handles on the file */
	uint32_t unmounted;      /* here; a mount namespace made meanwhile may have a copy */
	uint64_t arrivals;       /* requests, for slot.order */
};

/*
 * What a frontend has of the server.  A slot is the frontend's from get() to start(), and the
 * engine's until answer().
 */
struct frontend_host {
	const char *device;      /* its name */
	const char *mount;       /* where it may mount something */
	uint32_t pages;
	struct frontend_shared *shared;
	struct counters *count;
	uint64_t *beats;         /* counts progress while the loop does not run, for the watchdog */

	void *engine;            /* for the functions */
	const uint32_t *free;    /* slots */
	struct slot *(*get)(void *engine); /* NULL: none is free */
	void (*put)(void *engine, struct slot *slot);
	void (*start)(void *engine, struct slot *slot);
	/* Sends to donors and takes what they answer, until something comes or for @ms. */
	void (*poll)(void *engine, int ms);
	/* Sets the exit reason: a write to the log may wait for swapped-out pages. */
	void (*last_words)(void *engine, const char *text);

	/* the frontend's own */
	int fd;                  /* -1 = none */
	bool initialised;        /* FUSE: INIT is done */
	struct ublk *ublk;
};

struct frontend {
	const char *name;
	/*
	 * Whether the kernel asks a successor again for what a server has not answered.
	 * If it does not, such requests are to be found in slots.
	 */
	bool asks_again;

	/* Most answered writes that may wait for the backup, in slots; 0 = SLOT_BACKLOG. */
	uint32_t backlog;

	/* The supervisor: what all its processes are to have. */
	int (*open)(struct frontend_host *h, struct error *e);
	/* Server and standby, before they serve: what each needs for itself. */
	int (*prepare)(struct frontend_host *h, struct error *e);
	/* The first server: makes the device.  There is none after a failure. */
	int (*begin)(struct frontend_host *h, struct error *e);
	/*
	 * A successor, whose slots are as it found them but for requests that it has begun
	 * again; @reading was being read into, or NULL.  0, or -errno: it cannot serve, and
	 * has told the host why (last_words()).
	 */
	int (*take_over)(struct frontend_host *h, struct slot *reading);
	/* Takes the device away, whatever is left of it, and lets go of what the above made. */
	void (*end)(struct frontend_host *h);

	/* Readable when there are requests. */
	int (*fd)(const struct frontend_host *h);
	/*
	 * Starts up to @most requests, as long as there are free slots.  Returns how many,
	 * or -ENODEV when the device has ended.
	 */
	int (*receive)(struct frontend_host *h, int most);
	/* Answers with @error, 0 or -errno; @host is a struct frontend_host. */
	enum slot_after (*answer)(void *host, struct slot *slot, int error);
	/* Before the loop sleeps: sends answers that were gathered; NULL: none are. */
	void (*flush)(struct frontend_host *h);

	/* The control thread: has the kernel end the device: 0, or -EBUSY while it is in use. */
	int (*stop)(struct frontend_host *h);
	/* Whether the end that receive() has told of was asked for. */
	bool (*stopped)(const struct frontend_host *h);
	/* Where it is to be found: a file or a block device. */
	void (*where)(const struct frontend_host *h, char *text, size_t size);
};

extern const struct frontend fuse_frontend, ublk_frontend;

/* NULL when there is none of this name; the option's table lets none through. */
const struct frontend *frontend_find(const char *name);

/*
 * For receive(): starts the request @unique of @count pages from @first on, whose slot
 * has what a WRITE brings.
 */
void frontend_start(struct frontend_host *h, struct slot *slot, enum slot_kind kind,
		    uint64_t unique, uint64_t first, uint64_t count);

#endif
