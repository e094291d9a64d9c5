/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * State that the loop, its status and the control thread share.  The loop's thread owns all of
 * it: it answers borrowers, and neither waits nor allocates while it does.  Three things go to
 * other threads: making and registering memory (pool/pool_thread.h), and log lines and the control
 * socket (control.h).
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
	int wake_fd;  /* eventfd: pool thread or control thread want the loop */
	uint64_t now; /* ns: when this turn began */
	bool tick_due;
	struct headroom_follow follow;
	struct eviction eviction;
	struct sessions sessions;
	struct places places;
	struct kernel_accept *kernels; /* NULL = kernel modules get nothing */
	bool kernels_last;  /* connections had the first MAPs of this turn */
	struct donor_log log;

	bool growth_failed; /* has been logged */
	bool filled;        /* the memory that is to be there at start is */
	bool ending;        /* the loop ends once all is back, or at drain_end */
	uint64_t drain_end; /* ns */
	uint32_t still_lent; /* slabs, for the control thread to tell */

	struct pool_thread pool_thread;
	uint32_t pool_thread_knows; /* work put into the pool's queues when it was last woken */
	/* Called when wake_fd was written to: the control thread may have a request. */
	void (*woken)(void *data); /* may be NULL */
	void *woken_data;
};

/* One turn of the loop, waiting at most @wait_ns; 0, 1 = it is to end, or -errno. */
int loop_turn(struct loop *l, uint64_t wait_ns);

/* Once a second: samples the machine, grows, shrinks, evicts, looks at deadlines. */
void loop_tick(struct loop *l, uint64_t now);

/*
 * Lends nothing more and recalls everything.  With LOOP_END the loop ends when
 * it is back, or after the drain timeout.
 */
enum loop_drain { LOOP_STAY, LOOP_END };
void loop_drain(struct loop *l, enum loop_drain then);
/* Lends again, unless the loop is to end. */
void loop_undrain(struct loop *l);

#endif
