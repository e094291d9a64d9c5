/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A thread that talks to the network, in a process whose other threads must not wait. */
#ifndef EBB_THREAD_H
#define EBB_THREAD_H

#include <pthread.h>

#include <stdbool.h>

#include "lib/base/error.h"

/* Time in which a thread ends after its calls have been interrupted. */
#define THREAD_END_MS 2000

/*
 * Starts @run without the caller's real-time priority, with all signals blocked and a stack that is
 * small enough to be locked.
 */
int thread_start(pthread_t *thread, void *(*run)(void *), void *data, struct error *e);

/* Waits up to @ms for the end of @thread; returns whether it has ended, and is joined. */
bool thread_end(pthread_t thread, int ms);

/* Initialises a condition for thread_wait(), on CLOCK_MONOTONIC. */
void thread_cond_init(pthread_cond_t *c);

/* Waits for @c up to @ms; @lock is held, as for pthread_cond_wait(). */
void thread_wait(pthread_cond_t *c, pthread_mutex_t *lock, int ms);

#endif
