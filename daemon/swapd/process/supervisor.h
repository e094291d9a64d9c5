/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The processes of a device:
 *
 *	supervisor  makes the shared state, forks the others, then only watches.  It is the
 *		    process that was started, and ends last.
 *	server      does all the work.
 *	standby     has its own threads and its own locked memory, and waits for the server's
 *		    exit.
 *
 * All three have /dev/fuse open, so the kernel keeps the connection and the unanswered
 * requests until the last process exits; ublk keeps them itself.  The server alone has
 * the other end of a pipe that the standby reads: the kernel closes it when the server's
 * last thread has exited.  A failover (failover.h) needs neither the supervisor nor a
 * fork; it needs memory with ublk only.
 *
 * Afterwards the supervisor forks the next standby, and retries until there is memory.
 * Without a supervisor, server and standby continue without watchdog and without another
 * standby.
 *
 * The supervisor has no threads, so that its children can use malloc(3).
 */
#ifndef EBB_SUPERVISOR_H
#define EBB_SUPERVISOR_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/error.h"
#include "lib/base/log_ring.h"
#include "swapd/start.h"
#include "watchdog.h"

struct device_control;
struct swapd;

struct child {
	int pid;      /* 0 = none */
	int alive_fd; /* reports end of file when it has exited */
	uint8_t life; /* index of its shared.life[] */
};

/*
 * The device is aborted after this many crashes in this time, or in a row before a server serves.
 * A request that crashes every server would otherwise be repeated forever.
 */
#define SUPERVISOR_CRASHES 10
#define SUPERVISOR_CRASH_SPAN 60 /* s */

enum server_death {
	DEATH_NOT_COUNTED, /* killed by SIGKILL, or never forked: not a crash */
	DEATH_TAKING_OVER,
	DEATH_SERVING,
};

struct crashes {
	uint64_t at[SUPERVISOR_CRASHES]; /* ns: the latest ones, in a ring */
	uint32_t count;
	uint32_t in_a_row;           /* failovers that failed since one succeeded */
};

/* Classifies the end of a server in the state @life (enum life) with @status of waitpid(2). */
enum server_death cause_of_death(uint8_t life, int status);

/* Counts a death at @now (ns); returns true when the device is to be aborted. */
bool crashes_count(struct crashes *c, enum server_death death, uint64_t now);

struct supervisor {
	struct swapd *s;
	struct device_control *c;
	struct child server, standby;
	int signal_fd;
	int report_fd;         /* to the first server */
	uint64_t fork_at;      /* ns: earliest time of the next standby */
	uint64_t fork_wait;    /* ns: delay between two attempts */
	uint64_t forked;       /* ns: time of the last one */
	struct crashes crashes;
	bool cut;              /* I/O fails now instead of waiting */
	struct notes notes;    /* log lines that wait for a server */
	uint64_t beats;        /* the loop's beats at the last look */
	struct watchdog watchdog;
	uint64_t bark_at;      /* ns: the watchdog's next look */
	struct watchdog_tries tries;
};

/*
 * @s is as swapd_prepare() made it.  Forks the first server, which begins, and the first
 * standby.  On failure neither exists.
 */
int supervisor_start(struct supervisor *h, struct swapd *s, struct device_control *c,
		     struct error *e);

/* Lets the server serve, and watches until the device has ended; returns the exit status. */
int supervisor_run(struct supervisor *h, enum swapd_output output);

#endif
