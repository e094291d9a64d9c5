/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The processes of a device:
 *
 *	holder   makes what all share and forks the others; then it only watches.  It is
 *		 the one that was started, and ends last.
 *	server   does all the work.
 *	standby  has everything that the server needs: its own threads, its own memory,
 *		 locked and touched; and waits for the server's death.
 *
 * All three have /dev/fuse open, so the kernel keeps the connection, and the requests
 * that were not answered, until the last of them is gone; those of ublk it keeps by
 * itself.  The server is the only one with the other end of a pipe that the standby
 * reads: the kernel closes it when no thread of the server runs any more.  So a takeover
 * (failover.h) needs neither the holder nor a fork, nor memory, but for what ublk needs.
 *
 * The holder makes the next standby afterwards; that needs memory, and is tried
 * until there is some.  Without a holder server and standby go on, but nobody follows
 * them, and nobody watches (watchdog.h).
 *
 * It has no threads: a process forked from one that has could not use malloc(3).
 */
#ifndef EBB_HOLDER_H
#define EBB_HOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/error.h"
#include "lib/base/log_ring.h"
#include "start.h"
#include "watchdog.h"

struct device_control;
struct swapd;

struct child {
	int pid;      /* 0 = there is none */
	int alive_fd; /* end of file: it is gone */
	uint8_t life; /* index of its shared.life[] */
};

/*
 * So many servers may die of their own doing in such a time, or one after the other before
 * they serve, however long each takes: then the device is aborted.  A request that is the
 * death of each of them would otherwise be served for ever, while everybody waits.
 */
#define HOLDER_CRASHES 10
#define HOLDER_CRASH_SPAN 60 /* s */

enum server_death {
	DEATH_NOT_COUNTED, /* SIGKILL is another's doing; who could not be made never began */
	DEATH_TAKING_OVER,
	DEATH_SERVING,
};

struct crashes {
	uint64_t at[HOLDER_CRASHES]; /* ns: the last ones, in a ring */
	uint32_t count;
	uint32_t in_a_row;           /* takeovers that failed since one succeeded */
};

/* True when it is one too many. */
bool crashes_count(struct crashes *c, enum server_death death, uint64_t now);

struct holder {
	struct swapd *s;
	struct device_control *c;
	struct child server, standby;
	int signal_fd;
	int report_fd;         /* to the first server */
	uint64_t fork_at;      /* ns: the next standby is not made before */
	uint64_t fork_wait;    /* ns: between two tries */
	uint64_t forked;       /* ns: the last one was made */
	struct crashes crashes;
	bool cut;              /* there are errors now, instead of waiting */
	struct notes notes;    /* the holder's: log lines that wait for somebody who serves */
	uint64_t beats;        /* of the loop, at the last look */
	struct watchdog watchdog;
	uint64_t bark_at;      /* ns: the watchdog's next look */
	bool replaced;         /* nothing moved, so the server was killed if another could follow ... */
	uint64_t completed;    /* ... with so many requests done */
};

/*
 * @s is as swapd_prepare() made it.  Forks the first server, which begins, and the first
 * standby.  On failure there is neither.
 */
int holder_start(struct holder *h, struct swapd *s, struct device_control *c, struct error *e);

/* Lets the server go on, and watches until the device has ended; returns the exit status. */
int holder_run(struct holder *h, enum swapd_output output);

#endif
