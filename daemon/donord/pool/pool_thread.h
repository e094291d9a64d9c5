/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The thread that makes and drops slabs and runs tasks: it may wait for memory and devices. */
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

/* The thread writes to @wake_fd, an eventfd, when pool_settle() has work.  Returns 0 or -errno. */
int pool_thread_start(struct pool_thread *w, struct pool *p, int wake_fd);
/* Call after work was queued. */
void pool_thread_wake(struct pool_thread *w);
/* Ends the thread after its current piece of work. */
void pool_thread_stop(struct pool_thread *w);

#endif
