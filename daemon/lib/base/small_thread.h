/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Threads with a stack of a given size: programs that lock their memory lock whole stacks. */
#ifndef EBB_SMALL_THREAD_H
#define EBB_SMALL_THREAD_H

#include <pthread.h>
#include <stddef.h>

/* Starts @run with @data on a stack of @stack bytes; else like pthread_create(3). */
int small_thread_create(pthread_t *thread, size_t stack, void *(*run)(void *data), void *data);

#endif
