/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Mutexes that are held until the end of a block. */
#ifndef EBB_LOCK_H
#define EBB_LOCK_H

#include <pthread.h>

#include "cleanup.h"

static inline pthread_mutex_t *lock_mutex(pthread_mutex_t *m)
{
	pthread_mutex_lock(m);
	return m;
}

static inline void unlock_mutexp(pthread_mutex_t **m) { pthread_mutex_unlock(*m); }

/* A declaration: takes @mutex, and releases it when the block ends. */
#define HOLD(mutex) _cleanup_(unlock_mutexp) pthread_mutex_t *held = lock_mutex(mutex)

#endif
