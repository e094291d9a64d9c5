// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>

#include "lib/base/small_thread.h"
#include "pool_thread.h"

#define STACK (256u << 10)

static void *work(void *data)
{
	struct pool_thread *w = data;

	for (;;) {
		while (sem_wait(&w->wanted) < 0)
			;
		while (!__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE) && pool_work(w->pool))
			;
		if (__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE))
			return NULL;
	}
}

int pool_thread_start(struct pool_thread *w, struct pool *p, int wake_fd)
{
	int r;

	*w = (struct pool_thread){ .pool = p };
	p->done_fd = wake_fd;
	sem_init(&w->wanted, 0, 0);
	r = small_thread_create(&w->thread, STACK, work, w);
	w->running = !r;
	return -r;
}

void pool_thread_wake(struct pool_thread *w)
{
	sem_post(&w->wanted);
}

void pool_thread_stop(struct pool_thread *w)
{
	if (!w->running)
		return;
	__atomic_store_n(&w->stop, true, __ATOMIC_RELEASE);
	sem_post(&w->wanted);
	pthread_join(w->thread, NULL);
	sem_destroy(&w->wanted);
	w->running = false;
	w->pool->done_fd = -1;
}
