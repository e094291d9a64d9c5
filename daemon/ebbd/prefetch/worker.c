// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/files.h"
#include "lib/base/log.h"
#include "lib/base/small_thread.h"
#include "lib/rules/liveness.h"
#include "worker.h"

#define EXCLUSIONS (2 * WORKER_HUNG)
#define HANGS (~0ULL)
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
	struct exclusion *exclusion;
	bool started;        /* and not joined */
};

/* A cgroup in which a call has hung; written by the main thread. */
struct exclusion {
	_Atomic uint32_t tgid;
	_Atomic uint64_t owner;
	_Atomic uint64_t until_ns; /* HANGS: until a call returns */
	uint32_t times;
};

struct worker {
	const struct worker_kind *kind;
	void *data;
	size_t stack;
	int wake;
	struct liveness liveness;
	struct thread *now;
	struct thread thread[WORKER_HUNG + 1];
	atomic_uint exclusions;
	struct exclusion exclusion[EXCLUSIONS];
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
	uint32_t n = atomic_load(&w->exclusions);

	for (const struct exclusion *e = w->exclusion; e < w->exclusion + n; e++)
		if ((atomic_load(&e->tgid) == tgid || (owner && atomic_load(&e->owner) == owner)) &&
		    atomic_load(&e->until_ns) > now_ns())
			return true;
	return false;
}

void worker_call_begin(uint32_t tgid, uint64_t owner)
{
	if (!self)
		return;
	worker_beat(self->worker);
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
	t->exclusion = NULL;
	r = small_thread_create(&t->id, w->stack, run, t);
	if (r) {
		atomic_store(&t->place, UNUSED);
		return r;
	}
	t->started = true;
	w->now = t;
	return 0;
}

/* Returns whether @t is inside of a call with which it ends now; *@first: it was not to before. */
static bool abandon(struct thread *t, bool *first)
{
	unsigned int place = INSIDE;

	*first = atomic_compare_exchange_strong(&t->place, &place, ABANDONED);
	return *first || place == ABANDONED;
}

/* Returns the entry of @t's cgroup, or another one: there are more than threads that hang. */
static struct exclusion *exclusion_of(struct worker *w, const struct thread *t)
{
	uint32_t n = atomic_load(&w->exclusions);
	struct exclusion *found = NULL;

	for (struct exclusion *e = w->exclusion; e < w->exclusion + n; e++) {
		if (t->owner ? e->owner == t->owner : e->tgid == t->tgid)
			return e;
		if (!found || atomic_load(&e->until_ns) < atomic_load(&found->until_ns))
			found = e;
	}
	if (n < EXCLUSIONS) {
		found = &w->exclusion[n];
		atomic_store(&w->exclusions, n + 1);
	}
	found->times = 0;
	return found;
}

static void exclude(struct worker *w, struct thread *t)
{
	struct exclusion *e = exclusion_of(w, t);
	uint64_t until = atomic_load(&e->until_ns);

	if (until != HANGS && until + WORKER_REST_MOST_NS < now_ns())
		e->times = 0;
	e->times++;
	atomic_store(&e->tgid, t->tgid);
	atomic_store(&e->owner, t->owner);
	atomic_store(&e->until_ns, HANGS);
	t->exclusion = e;
}

/* Its call has returned.  Returns for how long its cgroup is still left alone. */
static uint64_t rest(struct worker *w, struct thread *t)
{
	uint32_t times = t->exclusion->times - 1;
	uint64_t ns = times < 16 ? w->kind->rest_ns << times : WORKER_REST_MOST_NS;

	ns = ns < WORKER_REST_MOST_NS ? ns : WORKER_REST_MOST_NS;
	/* Unless another thread hangs there, too. */
	for (const struct thread *o = w->thread; o <= w->thread + WORKER_HUNG; o++)
		if (o != t && o->started && o != w->now && o->exclusion == t->exclusion)
			return ns;
	atomic_store(&t->exclusion->until_ns, now_ns() + ns);
	return ns;
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
	bool first;
	char name[64];
	uint32_t tgid;
	int r;

	if (!fresh || !abandon(old, &first))
		return false;
	tgid = atomic_load(&old->tgid);
	if (first) {
		exclude(w, old);
		log_err("%s: a call on the memory of process %u (%s) has not returned for %d s, perhaps "
			"because the process waits for a file server (NFS, FUSE) with its memory locked; its "
			"attached cgroup is left out until a while after the call returns", w->kind->work, tgid,
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
		log_info("%s: the call on the memory of process %u has returned; its attached cgroup is left "
			 "out for another %llu s", w->kind->work, atomic_load(&t->tgid),
			 (unsigned long long)(rest(w, t) / 1000000000));
		t->started = false;
		atomic_store(&t->place, UNUSED);
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
	bool first;

	*pw = NULL;
	if (!w)
		return;
	if (write(w->wake, &one, sizeof(one)) < 0)
		log_err("%s: cannot stop: %m", w->kind->work);
	if (joined(w->now) || (!abandon(w->now, &first) && !pthread_join(w->now->id, NULL)))
		w->now->started = false;
	collect(w);
	for (struct thread *t = w->thread; t <= w->thread + WORKER_HUNG; t++)
		if (t->started)
			return; /* it may still read @w */
	close(w->wake);
	free(w);
}
