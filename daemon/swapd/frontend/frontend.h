/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Frontends: how the kernel gets a block device that a server implements.  Chosen when the
 * device is created (--frontend).
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

/* Part of a frontend that outlives its server. */
struct frontend_shared {
	uint32_t connection;     /* FUSE: /sys/fs/fuse/connections/N */
	uint32_t ublk;           /* ublk: N + 1 of /dev/ublkbN; 0 = none */
	uint16_t ublk_queues, ublk_depth; /* its queues, and the tags of each */
	uint32_t refused;        /* the kernel accepts no other server: the supervisor aborts */
	uint32_t opened;         /* handles on the file */
	uint32_t unmounted;      /* in this mount namespace; a newer one may have a copy */
	uint64_t arrivals;       /* requests, for slot.order */
};

/*
 * A frontend's interface to the server.  The frontend owns a slot from get() to start(), the engine
 * until answer().
 */
struct frontend_host {
	const char *device;      /* its name */
	const char *mount;       /* directory for mounts */
	uint32_t pages;
	struct frontend_shared *shared;
	struct counters *count;
	uint64_t *beats;         /* counts progress while the loop does not run, for the watchdog */

	void *engine;            /* argument of the functions */
	const uint32_t *free;    /* free slots */
	struct slot *(*get)(void *engine); /* returns NULL when none is free */
	void (*put)(void *engine, struct slot *slot);
	void (*start)(void *engine, struct slot *slot);
	/* Exchanges frames with donors until an event comes, for at most @ms. */
	void (*poll)(void *engine, int ms);
	/* Sets the exit reason: a write to the log may wait for swapped-out pages. */
	void (*last_words)(void *engine, const char *text);

	/* private to the frontend */
	int fd;                  /* -1 = none */
	bool initialised;        /* FUSE: INIT is done */
	struct ublk *ublk;
};

struct frontend {
	const char *name;
	/*
	 * Whether the kernel repeats unanswered requests to a successor.  If not, such requests are
	 * in slots.
	 */
	bool asks_again;

	/* Slots for requests and for repair; a device with a backup has SLOT_COUNT. */
	uint32_t slots;

	/* Supervisor: opens what its processes share. */
	int (*open)(struct frontend_host *h, struct error *e);
	/* Server and standby, before they serve: prepares what each needs for itself. */
	int (*prepare)(struct frontend_host *h, struct error *e);
	/* First server: creates the device; a failure leaves none. */
	int (*begin)(struct frontend_host *h, struct error *e);
	/*
	 * Successor: takes over the slots, in their previous state except for requests that it has
	 * restarted; @reading was being read into, or NULL.  Returns 0, or -errno if it cannot
	 * serve, after last_words().
	 */
	int (*take_over)(struct frontend_host *h, struct slot *reading);
	/* Removes the device, whatever is left of it, and undoes the functions above. */
	void (*end)(struct frontend_host *h);

	/* Returns the descriptor to poll for requests. */
	int (*fd)(const struct frontend_host *h);
	/*
	 * Starts up to @most requests while there are free slots.  Returns their number, or -ENODEV
	 * when the device has ended.
	 */
	int (*receive)(struct frontend_host *h, int most);
	/* Answers with @error, 0 or -errno; @host is a struct frontend_host. */
	enum slot_after (*answer)(void *host, struct slot *slot, int error);
	/* Before the loop sleeps: sends gathered answers; NULL: never any. */
	void (*flush)(struct frontend_host *h);

	/* Control thread: ends the device: 0, or -EBUSY while it is in use. */
	int (*stop)(struct frontend_host *h);
	/* Returns whether the end reported by receive() was requested. */
	bool (*stopped)(const struct frontend_host *h);
	/* Stores the path of the file or block device. */
	void (*where)(const struct frontend_host *h, char *text, size_t size);
};

extern const struct frontend fuse_frontend, ublk_frontend;

/* Returns NULL for an unknown name, which the option table excludes. */
const struct frontend *frontend_find(const char *name);

/*
 * For receive(): starts request @unique of @count pages from @first on; the slot has a WRITE's
 * data.
 */
void frontend_start(struct frontend_host *h, struct slot *slot, enum slot_kind kind,
		    uint64_t unique, uint64_t first, uint64_t count);

#endif
