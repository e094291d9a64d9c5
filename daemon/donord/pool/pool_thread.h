/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The thread that makes slabs and gives them back: it may have to wait for memory. */
#ifndef EBB_POOL_THREAD_H
#define EBB_POOL_THREAD_H

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>

#include "pool.h"

struct pool_thread {
	struct pool *pool;
	pthread_t thread;
	sem_t wanted;
	bool running, stop;
};

/* @wake_fd, an eventfd, is told when something is done: see pool_settle().  0 or -errno. */
int pool_thread_start(struct pool_thread *w, struct pool *p, int wake_fd);
/* There is something to do. */
void pool_thread_wake(struct pool_thread *w);
/* Waits for what it is at. */
void pool_thread_stop(struct pool_thread *w);

#endif
