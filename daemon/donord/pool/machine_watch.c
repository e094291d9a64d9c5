// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

#include "lib/base/clock.h"
#include "lib/base/small_thread.h"
#include "machine_watch.h"

/* Locked.  machine_sample() needs 20 KiB. */
#define STACK (128u << 10)

enum { SAMPLE_NONE, SAMPLE_WANTED /* the thread's */, SAMPLE_DONE };

static void *watch(void *data)
{
	struct machine_watch *w = data;

	prctl(PR_SET_NAME, "ebb-machine");
	for (;;) {
		while (sem_wait(&w->wanted) < 0)
			;
		w->error = (struct error){ 0 };
		w->began = now_ns();
		w->result = machine_sample(w->machine, &w->sample, &w->error);
		__atomic_store_n(&w->state, SAMPLE_DONE, __ATOMIC_RELEASE);
		eventfd_write(w->wake_fd, 1);
	}
	return NULL;
}

int machine_watch_start(struct machine_watch *w, const struct machine *machine, int wake_fd)
{
	int r;

	*w = (struct machine_watch){ .machine = machine, .wake_fd = wake_fd };
	sem_init(&w->wanted, 0, 0);
	r = small_thread_create(&w->thread, STACK, watch, w);
	w->running = !r;
	return -r;
}

void machine_watch_stop(struct machine_watch *w)
{
	if (!w->running)
		return;
	pthread_cancel(w->thread);
	pthread_join(w->thread, NULL);
	sem_destroy(&w->wanted);
	w->running = false;
}

void machine_watch_ask(struct machine_watch *w)
{
	if (!w->running || __atomic_load_n(&w->state, __ATOMIC_ACQUIRE) == SAMPLE_WANTED)
		return;
	__atomic_store_n(&w->state, SAMPLE_WANTED, __ATOMIC_RELEASE);
	sem_post(&w->wanted);
}

int machine_watch_take(struct machine_watch *w, struct headroom_sample *sample, uint64_t *began,
		       struct error *e)
{
	if (__atomic_load_n(&w->state, __ATOMIC_ACQUIRE) != SAMPLE_DONE)
		return 0;
	w->state = SAMPLE_NONE;
	if (w->result) {
		*e = w->error;
		return w->result;
	}
	*sample = w->sample;
	*began = w->began;
	return 1;
}
