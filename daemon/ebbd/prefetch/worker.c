// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "lib/base/files.h"
#include "lib/base/log.h"
#include "lib/base/small_thread.h"
#include "lib/rules/liveness.h"
#include "worker.h"

#define STOP_MS 2000
#define STOP_STEP_MS 2

enum place {
	UNUSED,
	OUTSIDE,             /* of a call */
	INSIDE,              /* a call on .tgid */
	ABANDONED,           /* likewise; it ends when the call returns */
};

struct thread {
	struct worker *worker;
	pthread_t id;
	atomic_uint place;   /* the thread: OUTSIDE <-> INSIDE; the main thread: the others */
	_Atomic uint32_t tgid;
	_Atomic uint64_t owner;
	bool started;        /* and not joined */
};

struct worker {
	const struct worker_kind *kind;
	void *data;
	size_t stack;
	int wake;
	struct liveness liveness;
	atomic_uint hung;    /* abandoned threads */
	struct thread *now;
	struct thread thread[WORKER_HUNG + 1];
};

static _Thread_local struct thread *self;

/* --- the thread ------------------------------------------------------------- */

int worker_wake(const struct worker *w)
{
	return w->wake;
}

void worker_beat(struct worker *w)
{
	liveness_beat(&w->liveness);
}

bool worker_excludes(const struct worker *w, uint32_t tgid, uint64_t owner)
{
	if (!atomic_load_explicit(&w->hung, memory_order_relaxed))
		return false;
	for (const struct thread *t = w->thread; t <= w->thread + WORKER_HUNG; t++)
		if (atomic_load(&t->place) == ABANDONED &&
		    (atomic_load(&t->tgid) == tgid || (owner && atomic_load(&t->owner) == owner)))
			return true;
	return false;
}

void worker_call_begin(uint32_t tgid, uint64_t owner)
{
	if (!self)
		return;
	atomic_store_explicit(&self->tgid, tgid, memory_order_relaxed);
	atomic_store_explicit(&self->owner, owner, memory_order_relaxed);
	atomic_store_explicit(&self->place, INSIDE, memory_order_release);
}

bool worker_call_returned(void)
{
	unsigned int place = INSIDE;

	return !self || atomic_compare_exchange_strong(&self->place, &place, OUTSIDE);
}

_Noreturn void worker_quit(void)
{
	pthread_exit(NULL);
}

void worker_call_end(void)
{
	if (!worker_call_returned())
		worker_quit();
}

static void *run(void *data)
{
	struct thread *t = data;

	self = t;
	pthread_setname_np(pthread_self(), t->worker->kind->thread);
	t->worker->kind->run(t->worker, t->worker->data);
	return NULL;
}

/* --- main thread ------------------------------------------------------------ */

static struct thread *unused(struct worker *w)
{
	for (struct thread *t = w->thread; t <= w->thread + WORKER_HUNG; t++)
		if (atomic_load(&t->place) == UNUSED)
			return t;
	return NULL;
}

/* Returns 0 or an errno. */
static int start(struct worker *w, struct thread *t)
{
	int r;

	atomic_store(&t->tgid, 0);
	atomic_store(&t->owner, 0);
	atomic_store(&t->place, OUTSIDE);
	t->worker = w;
	r = small_thread_create(&t->id, w->stack, run, t);
	if (r) {
		atomic_store(&t->place, UNUSED);
		return r;
	}
	t->started = true;
	w->now = t;
	return 0;
}

/* Returns whether @t is, or was, inside of a call with which it ends. */
static bool abandon(struct thread *t)
{
	unsigned int place = INSIDE;

	return atomic_compare_exchange_strong(&t->place, &place, ABANDONED) || place == ABANDONED;
}

static const char *process_name(uint32_t tgid, char *name, size_t size)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/%u/comm", tgid);
	if (file_read(path, name, size) <= 0)
		return "exited";
	name[strcspn(name, "\n")] = '\0';
	return name;
}

static bool replace(struct worker *w)
{
	struct thread *old = w->now, *fresh = unused(w);
	bool first = atomic_load(&old->place) == INSIDE;
	char name[64];
	uint32_t tgid;
	int r;

	if (!fresh || !abandon(old))
		return false;
	tgid = atomic_load(&old->tgid);
	if (first) {
		atomic_fetch_add(&w->hung, 1);
		log_err("%s: a call on the memory of process %u (%s) has not returned for %d s, perhaps "
			"because the process waits for a file server (NFS, FUSE) with its memory locked; its "
			"attached cgroup is left out until the call returns", w->kind->work, tgid,
			process_name(tgid, name, sizeof(name)), WORKER_HUNG_TICKS / 10);
		w->kind->hung(w->data, tgid, atomic_load(&old->owner));
	}
	r = start(w, fresh);
	if (r && first)
		log_err("%s: cannot start another thread: %s; trying again", w->kind->work, strerror(r));
	if (r)
		return false;
	w->liveness.still = 0;
	return true;
}

/* Collects abandoned threads that have ended. */
static void collect(struct worker *w)
{
	for (struct thread *t = w->thread; t <= w->thread + WORKER_HUNG; t++) {
		if (t == w->now || !t->started || pthread_tryjoin_np(t->id, NULL))
			continue;
		log_info("%s: the call on the memory of process %u has returned: its attached cgroup takes "
			 "part again", w->kind->work, atomic_load(&t->tgid));
		t->started = false;
		atomic_store(&t->place, UNUSED);
		atomic_fetch_sub(&w->hung, 1);
	}
}

uint32_t worker_tick(struct worker *w)
{
	uint32_t still = liveness_still(&w->liveness);

	collect(w);
	if (still < WORKER_HUNG_TICKS || still % 10 || !replace(w))
		return still;
	return 0;
}

const char *worker_work(const struct worker *w)
{
	return w->kind->work;
}

uint32_t worker_at(const struct worker *w)
{
	return atomic_load(&w->now->tgid);
}

int worker_start(struct worker **out, const struct worker_kind *kind, void *data, size_t stack,
		 struct error *e)
{
	struct worker *w = calloc(1, sizeof(*w));
	int r;

	if (!w)
		return fail(e, ENOMEM, "%s: out of memory", kind->work);
	w->kind = kind;
	w->data = data;
	w->stack = stack;
	w->wake = eventfd(0, EFD_CLOEXEC);
	*out = w; /* the thread may read it */
	r = w->wake < 0 ? errno : start(w, &w->thread[0]);
	if (!r)
		return 0;
	*out = NULL;
	if (w->wake >= 0)
		close(w->wake);
	free(w);
	return fail(e, r, "%s: cannot start its thread: %s", kind->work, strerror(r));
}

/* Returns whether @t ends within STOP_MS. */
static bool joined(struct thread *t)
{
	for (int i = 0; i < STOP_MS / STOP_STEP_MS; i++) {
		if (!pthread_tryjoin_np(t->id, NULL))
			return true;
		usleep(STOP_STEP_MS * 1000);
	}
	return false;
}

void worker_stop(struct worker **pw)
{
	struct worker *w = *pw;
	uint64_t one = 1;

	*pw = NULL;
	if (!w)
		return;
	if (write(w->wake, &one, sizeof(one)) < 0)
		log_err("%s: cannot stop: %m", w->kind->work);
	if (joined(w->now) || (!abandon(w->now) && !pthread_join(w->now->id, NULL)))
		w->now->started = false;
	collect(w);
	for (struct thread *t = w->thread; t <= w->thread + WORKER_HUNG; t++)
		if (t->started)
			return; /* it may still read @w */
	close(w->wake);
	free(w);
}
