/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
#ifndef EBBGC_THREAD_H
#define EBBGC_THREAD_H

#include <pthread.h>

struct ebbgc_heap;

/* Starts a thread with all signals blocked.  Returns 0 or -errno. */
int thread_start(pthread_t *thread, void *(*fn)(void *), void *arg);

/* Names the calling thread `ebb-...`, for ebb to recognize it, unless EBBGC_INCOGNITO is on. */
void thread_name(const struct ebbgc_heap *h, const char *name);

#endif
