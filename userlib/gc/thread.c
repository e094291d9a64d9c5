// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <signal.h>
#include "heap.h"
#include "thread.h"

int thread_start(pthread_t *thread, void *(*fn)(void *), void *arg)
{
	sigset_t all, old;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(thread, NULL, fn, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return -r;
}

void thread_name(const struct ebbgc_heap *h, const char *name)
{
	/* ebb recognizes collectors by the prefix. */
	if (h->options.features & EBBGC_INCOGNITO)
		name += sizeof("ebb-") - 1;
	pthread_setname_np(pthread_self(), name);
}
