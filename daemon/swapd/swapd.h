/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The one context of ebb-swapd, and which thread may touch what:
 *
 *   loop thread    everything unless noted; allocates nothing, logs nothing
 *   backup thread  the backup file, and the slots handed to it (backup.h)
 *   resolver       what names of donors mean (resolver.h)
 *   control thread reads counters and states, formats, logs (control.h)
 *
 * The supervisor (supervisor.h) makes it and forks server and standby, each of which then has
 * its own.  What is to outlive a server is in memory that they share (shared.h): struct
 * shared, the tables of pages and slabs, the slots, the seals.  All else a successor
 * makes from that (failover.h).
 */
#ifndef EBB_SWAPD_H
#define EBB_SWAPD_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <time.h>

#include <ebb/page.h>
#include "lib/base/clock.h"
#include "lib/base/error.h"
#include "lib/base/log_ring.h"
#include "lib/base/options.h"
#include "lib/base/service.h"
#include "lib/control/device.h"
#include "swapd/control/commands.h"
#include "swapd/frontend/frontend.h"
#include "swapd/replicas/replicas.h"

#define PAGE EBB_PAGE

struct swapd_options {
	const char *name, *backup, *mount, *key;
	const char *frontend;    /* "fuse", "ublk" */
	const char *durability;  /* "disk", "replicas=N", "none" */
	const char *seal;        /* "auto", "on", "off" */
	uint64_t size, slab;     /* bytes */
	uint64_t deadline, watchdog, away_timeout, repair_delay; /* ns */
	uint64_t spin;           /* us */
	uint64_t connections;    /* data connections to each donor, with a key */
	uint64_t choices;        /* donors sampled for a slab: d */
	uint64_t spread;         /* donors a device is to be on; placement.h */
	uint64_t repair_rate;    /* bytes a second */
	struct service service;
	struct option_list donors;
	bool overcommit;         /* reserve nothing at donors */
	bool foreground;
};

enum life { LIFE_WAITS, LIFE_TAKES_OVER, LIFE_SERVES };

struct shared {
	struct counters counters;
	uint64_t beats;          /* rounds of the loop */
	uint32_t aborted;        /* the watchdog cut the connection */
	uint32_t ended;          /* the server ends by itself: no other is to follow */
	struct frontend_shared frontend;
	/* pids; 0 = none */
	uint32_t supervisor, server, standby;
	uint32_t failovers;
	uint8_t life[2];         /* enum life of server and standby; each writes its own */
	/* SIGTERMs received by any of the processes; the control thread sets the first */
	uint32_t stops_tried, stops;
	uint64_t failover_ns;    /* duration of the last one */
	char last_words[160];    /* exit reason of a server, for the supervisor's log */
	bool watchdog_works;
	bool no_claim;           /* the backup's locks tell nothing (backup_claim()) */
	struct donor_record donors[MAX_DONORS];
	struct sealed_page sealed;
};

struct swapd {
	struct swapd_options options;
	/* absolute; options point here */
	char mount[PATH_MAX], backup_path[PATH_MAX], key_path[PATH_MAX];
	struct shared *shared;
	uint8_t *life;           /* this process's entry in shared->life */
	struct counters *count;  /* &shared->counters */
	struct notes notes;

	/* connection to the kernel */
	const struct frontend *frontend;
	struct frontend_host host;

	struct engine engine;
	struct donors donors;
	struct replicas replicas;
	uint32_t ticks;          /* ten a second */
	struct commands commands;

	/*
	 * eventfd, common to all processes: wakes the server's control thread for log lines of the
	 * loop and for requests to stop.  No other thread reads it.
	 */
	int wake_fd;
	uint32_t noted;          /* notes.put when the loop last woke it */

	/* loop */
	int timer_fd, signal_fd; /* the epoll set is donors.env's, too */
	bool watched;            /* epoll reports the frontend's requests */
	bool burst;              /* requests arrive several at a time */
	uint32_t rounds;         /* in which requests were read */

	/* what the machine allows */
	bool io_flusher, locked, oom_protected, nice, realtime;
};

/* Requests the end of the device: its server, or the next one, tries that. */
static inline void want_stop(struct swapd *s)
{
	__atomic_add_fetch(&s->shared->stops, 1, __ATOMIC_RELEASE);
	eventfd_write(s->wake_fd, 1);
}

/*
 * wiring_events() needs options and counters, and sets the upcalls of donors and engine;
 * wiring_frontend() also needs the tables, and sets what the frontend calls.
 */
void wiring_events(struct swapd *s);
void wiring_frontend(struct swapd *s);

#endif
