// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>

#include "pool_thread.h"

#define STACK (256u << 10)

static void *work(void *data)
{
	struct worker *w = data;

	for (;;) {
		while (sem_wait(&w->wanted) < 0)
			;
		while (!__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE) && pool_work(w->pool))
			;
		if (__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE))
			return NULL;
	}
}

int worker_start(struct worker *w, struct pool *p, int wake_fd)
{
	pthread_attr_t attr;
	int r;

	*w = (struct worker){ .pool = p };
	p->done_fd = wake_fd;
	sem_init(&w->wanted, 0, 0);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK);
	r = pthread_create(&w->thread, &attr, work, w);
	pthread_attr_destroy(&attr);
	w->running = !r;
	return -r;
}

void worker_wake(struct worker *w)
{
	sem_post(&w->wanted);
}

void worker_stop(struct worker *w)
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
