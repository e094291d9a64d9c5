/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The thread that makes slabs and gives them back: it may have to wait for memory. */
#ifndef EBB_WORKER_H
#define EBB_WORKER_H

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>

#include "pool.h"

struct worker {
	struct pool *pool;
	pthread_t thread;
	sem_t wanted;
	bool running, stop;
};

/* @wake_fd, an eventfd, is told when something is done: see pool_settle().  0 or -errno. */
int worker_start(struct worker *w, struct pool *p, int wake_fd);
/* There is something to do. */
void worker_wake(struct worker *w);
/* Waits for what it is at. */
void worker_stop(struct worker *w);

#endif
