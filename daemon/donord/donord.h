/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * State that the loop, its status and the control thread share.  The loop's thread owns it; it
 * neither waits nor allocates while it answers borrowers.  The pool thread makes and registers
 * memory (pool/pool_thread.h), another one samples the machine (pool/machine_watch.h); the control
 * thread writes the log and serves the control socket (control.h).
 */
#ifndef EBB_DONORD_H
#define EBB_DONORD_H

#include "donord/pool/exports.h"
#include "donord/pool/pool_thread.h"
#include "donord/session/accept.h"
#include "donord/session/kernel_accept.h"

#define SECOND 1000000000ull

struct loop {
	struct pool *pool;
	struct lending_options options;
	int epoll_fd, signal_fd;
	int timer_fd; /* once a second */
	int wake_fd;  /* eventfd of the other threads */
	uint64_t now; /* ns: start of this turn */
	bool tick_due;
	struct headroom_follow follow;
	struct eviction eviction;
	struct sessions sessions;
	struct places places;
	struct far *far;      /* NULL = no far memory */
	struct jobs *jobs;    /* NULL = no jobs */
	struct kernel_accept *kernels; /* NULL = kernel modules get nothing */
	struct donor_log log;

	bool growth_failed; /* has been logged */
	bool filled;        /* the initial memory is allocated */
	bool ending;        /* the loop ends when nothing is lent, or at drain_end */
	uint64_t drain_end; /* ns */
	uint32_t still_lent; /* slabs, for the control thread */

	struct pool_thread pool_thread;
	uint32_t pool_thread_knows; /* entries put into the pool's queues when it was woken last */
	/* Called after a write to wake_fd: the control thread may have a request. */
	void (*woken)(void *data); /* may be NULL */
	void *woken_data;
};

/* Runs one turn, waiting at most @wait_ns.  Returns 0, 1 when the loop must end, or -errno. */
int loop_turn(struct loop *l, uint64_t wait_ns);

/* Once a second: has the machine sampled, grows, shrinks, evicts, checks deadlines. */
void loop_tick(struct loop *l, uint64_t now);

/*
 * Stops lending and recalls all slabs.  With LOOP_END the loop ends when nothing is lent, or
 * after the drain timeout.
 */
enum loop_drain { LOOP_STAY, LOOP_END };
void loop_drain(struct loop *l, enum loop_drain then);
/* Lends again, unless the loop is ending. */
void loop_undrain(struct loop *l);

#endif
