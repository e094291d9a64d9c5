/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The control thread: answers on ebb_device_socket(NAME), writes the log lines
 * of the loop, and stops the device on SIGTERM.  It may block and allocate; I/O does not
 * wait for it.
 *
 * Verbs, with their arguments; an answer beyond "ok" where it says so:
 *
 *	status		configuration and state:
 *		name, frontend, file, mount, size, slab (bytes), open, ...
 *		pid		of the process that ends last: the supervisor, if any
 *		server, standby, supervisor	pids; 0 = there is none
 *		failovers	servers that died and had a successor; failover_ms: how long
 *				the last one took
 *		durability	"disk", "replicas=2", "replicas=3", "none"
 *		live		bytes of pages that donors have to hold
 *		mapped		bytes of slabs at donors, all copies
 *		slabs		{total, unmapped, mapping, mapped, lost}
 *		copies		{wanted (of a slab), present (complete ones), missing,
 *				 filling, leaving}
 *		reservation	{wanted (bytes to reserve at donors), missing (not promised)};
 *				absent with durability disk and --overcommit
 *		repair		{rate, limit (bytes a second), bytes (copied so far), running}
 *		backup		{path, direct, failing, errors, queue, backlog (writes that were
 *				 answered before the file has them), backlog_most (then writes
 *				 wait for the file)}; only with durability disk
 *		donors		[{address, transport,
 *				  state: down, connecting, securing, "greeting", up, quarantined,
 *				  leaving: draining (as it reports), drained (by donor.drain),
 *					removed (by donors.set), quarantined (a bad page; its
 *					pages migrate first); absent when it stays,
 *				  unlisted (it was omitted by donors.set with keep),
 *				  slabs, reserved (lent ones included), total, free, memory,
 *				  used (bytes), read_ns,
 *				  connects, losses, absences, revoked (replicas), last_loss,
 *				  "outlook", as below; only while it leaves}]
 *	stats		counters; reads_may_wait (bool): for donors that are away
 *	slab.list	from (0): slabs that have a copy or a live page
 *		slab (bytes), total, wanted,
 *		slabs	[{slab, state: unmapped, mapping, mapped, lost, live (pages),
 *			  activity (page I/O a second, smoothed),
 *			  copies: [{donor, state: mapping, filling, complete, leaving,
 *				    pages (newest content is there)}]}]
 *		next	only when there are more: the "from" to ask for
 *	slab.migrate	slab, to (an address; any donor without): the copy at one donor
 *			moves; slab.list shows how far
 *	donor.drain	donor (an address): nothing is placed there, and its slabs migrate
 *		"outlook"	{slabs, move (to other donors), to_disk, stuck (slabs that cannot
 *				 go now), why ("CAUSE; REMEDY")}
 *	donor.undrain	donor
 *	donor.trust	donor: end of its quarantine
 *	donor.forget	donor, force (false): its absence ends, its replicas are lost.  Refused
 *			without force if it has the only copy of pages
 *		pages_lost
 *	donors.set	donors [addresses], keep (false): those are used; others are drained
 *			or, with keep, get no new slabs; they are closed when empty.  When
 *			one cannot be used, nothing changes
 */
#ifndef EBB_DEVICE_CONTROL_H
#define EBB_DEVICE_CONTROL_H

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>

#include "lib/control/control_server.h"

struct swapd;

struct device_control {
	struct swapd *s;
	char path[108];
	struct control_rules rules;
	int listen_fd;
	struct control_server *server; /* of this process */
	int stop_fd;
	sem_t go;
	bool supervisor_missed; /* has been logged */
	bool stopped;       /* the device has been stopped and ends */
	pthread_t thread;
};

/* Returns -EEXIST when another server of that name answers. */
int device_control_open(struct device_control *c, struct swapd *s, struct error *e);
/* Makes the thread, which does nothing before device_control_go(). */
int device_control_start(struct device_control *c, struct error *e);
void device_control_go(struct device_control *c);
/* Ends the thread, if it was started, and removes the socket. */
void device_control_close(struct device_control *c);

#endif
