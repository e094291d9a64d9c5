// SPDX-License-Identifier: GPL-2.0-or-later
#include <sched.h>
#include <signal.h>
#include <string.h>

#include "lib/base/clock.h"
#include "thread.h"

/* Enough for TLS handshakes and name resolution. */
#define STACK (512u << 10)

int thread_start(pthread_t *thread, void *(*run)(void *), void *data, struct error *e)
{
	struct sched_param ordinary = { .sched_priority = 0 };
	pthread_attr_t attr;
	sigset_t all, before;
	int r;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK);
	pthread_attr_setinheritsched(&attr, PTHREAD_EXPLICIT_SCHED);
	pthread_attr_setschedpolicy(&attr, SCHED_OTHER);
	pthread_attr_setschedparam(&attr, &ordinary);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(thread, &attr, run, data);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return r ? fail(e, r, "thread: %s", strerror(r)) : 0;
}

bool thread_end(pthread_t thread, int ms)
{
	struct timespec t = clock_in_ms((uint32_t)ms);

	return !pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &t);
}

void thread_cond_init(pthread_cond_t *c)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(c, &attr);
	pthread_condattr_destroy(&attr);
}

void thread_wait(pthread_cond_t *c, pthread_mutex_t *lock, int ms)
{
	struct timespec t = clock_in_ms((uint32_t)ms);

	pthread_cond_timedwait(c, lock, &t);
}
