// SPDX-License-Identifier: GPL-2.0-or-later
#include "small_thread.h"

int small_thread_create(pthread_t *thread, size_t stack, void *(*run)(void *data), void *data)
{
	pthread_attr_t attr;
	int r;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, stack);
	r = pthread_create(thread, &attr, run, data);
	pthread_attr_destroy(&attr);
	return r;
}
