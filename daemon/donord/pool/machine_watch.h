/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Samples the machine in a thread of its own: the kernel first sums up a cgroup's statistics, which
 * may take longer than borrowers wait for a reply.  The pool thread waits for memory, which a
 * sample is to prevent, and the control thread for clients.
 */
#ifndef EBB_MACHINE_WATCH_H
#define EBB_MACHINE_WATCH_H

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>

#include "machine.h"

struct machine_watch {
	const struct machine *machine;
	int wake_fd;
	pthread_t thread;
	sem_t wanted;
	bool running;
	uint32_t state; /* enum in machine_watch.c: which thread owns the members below */
	struct headroom_sample sample;
	uint64_t began; /* ns: when it began */
	int result;     /* of machine_sample() */
	struct error error;
};

/* The thread writes to @wake_fd, an eventfd, after each sample.  Returns 0 or -errno. */
int machine_watch_start(struct machine_watch *w, const struct machine *machine, int wake_fd);
/* Abandons a sample in progress. */
void machine_watch_stop(struct machine_watch *w);

/* The loop's thread.  Requests a sample, unless one is in progress. */
void machine_watch_ask(struct machine_watch *w);
/*
 * Returns each sample once: 1 with *@sample and the time in ns at which its reading began, 0
 * without a new one, or -errno.
 */
int machine_watch_take(struct machine_watch *w, struct headroom_sample *sample, uint64_t *began,
		       struct error *e);

#endif
