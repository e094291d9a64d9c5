// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/*
 * Attached threads, and how they are stopped: cooperatively.  No signal is sent, for a thread
 * that waits for a page would delay it by as much as the page takes.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "heap.h"

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

bool forked(const struct ebbgc_heap *h)
{
	return getpid() != h->pid;
}

void lock_wait(struct ebbgc_heap *h, pthread_cond_t *cond)
{
	int state;

	/* Who was cancelled here would take the lock along. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	pthread_cond_wait(cond, &h->lock);
	pthread_setcancelstate(state, NULL);
}

/* The calling thread's, one of each heap that it is attached to. */
static __thread struct mutator *siblings;
/* The end of its stack, and of its registers, while it waits. */
static __thread char *stack_end;

/* Takes one out of its thread's list, which is the calling one's or gone. */
void mutator_free(struct mutator *m)
{
	for (struct mutator **link = &siblings; *link; link = &(*link)->sibling) {
		if (*link == m) {
			*link = m->sibling;
			break;
		}
	}
	free(m);
}

static bool can_lend(const struct mutator *m, const struct mutator *sibling)
{
	return sibling != m && sibling->state == MUTATOR_RUNNING && !forked(sibling->heap);
}

static void lend(const struct mutator *m)
{
	for (struct mutator *s = siblings; s; s = s->sibling) {
		if (!can_lend(m, s))
			continue;
		pthread_mutex_lock(&s->heap->lock);
		s->stack_top = stack_end;
		s->lent = true;
		mutator_block(s);
		pthread_mutex_unlock(&s->heap->lock);
	}
}

void mutator_lend(struct mutator *m)
{
	for (const struct mutator *s = siblings; s; s = s->sibling) {
		if (!can_lend(m, s))
			continue;
		pthread_mutex_unlock(&m->heap->lock);
		lend(m);
		pthread_mutex_lock(&m->heap->lock);
		return;
	}
}

/* What was lent runs again, or none of it, and the heap is returned whose world is stopped. */
static struct ebbgc_heap *take_back(const struct mutator *m)
{
	for (struct mutator *s = siblings; s; s = s->sibling) {
		bool stop;

		if (!s->lent)
			continue;
		pthread_mutex_lock(&s->heap->lock);
		stop = s->heap->stop;
		if (!stop) {
			s->lent = false;
			s->state = MUTATOR_RUNNING;
			s->heap->running++;
		}
		pthread_mutex_unlock(&s->heap->lock);
		if (stop) {
			lend(m);
			return s->heap;
		}
	}
	return NULL;
}

static bool has_lent(void)
{
	for (const struct mutator *s = siblings; s; s = s->sibling)
		if (s->lent)
			return true;
	return false;
}

/* Lock held, dropped meanwhile; m does not run. */
static void stop_wait(struct mutator *m)
{
	while (m->heap->stop) {
		mutator_lend(m);
		if (m->heap->stop)
			lock_wait(m->heap, &m->heap->resume);
	}
}

static int stack_base(char **base)
{
	pthread_attr_t attr;
	void *low;
	size_t size;

	if (pthread_getattr_np(pthread_self(), &attr))
		return -ENOMEM;
	pthread_attr_getstack(&attr, &low, &size);
	pthread_attr_destroy(&attr);
	*base = (char *)low + size;
	return 0;
}

static void *attach(void *arg)
{
	struct mutator *m = arg;
	struct ebbgc_heap *h = m->heap;

	pthread_mutex_lock(&h->lock);
	stop_wait(m);
	barriers_set(h, m);
	if (h->options.mode == EBBGC_MEMLINER)
		m->ring = ring_take(h);
	m->next = h->mutators;
	h->mutators = m;
	m->sibling = siblings;
	siblings = m;
	m->state = MUTATOR_BLOCKED;
	mutator_unblock(m);
	pthread_mutex_unlock(&h->lock);
	return NULL;
}

int ebbgc_attach(ebbgc_heap_t *h, ebbgc_mutator_t **mutator)
{
	struct mutator *m;
	int r;

	if (forked(h))
		return -ECHILD;
	if (pthread_getspecific(h->key))
		return -EALREADY;
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->heap = h;
	for (unsigned int k = 0; k < SMALL_KINDS; k++)
		m->supply[k].region = REGION_NONE;
	r = h->options.stacks == EBBGC_CONSERVATIVE ? stack_base(&m->stack_base) : 0;
	if (!r)
		r = -pthread_setspecific(h->key, m);
	if (r) {
		free(m);
		return r;
	}
	with_stack(m, attach, m);
	*mutator = &m->public;
	return 0;
}

static void *detach(void *arg)
{
	struct mutator *m = arg;
	struct ebbgc_heap *h = m->heap;
	struct mutator **link;

	pthread_mutex_lock(&h->lock);
	/* Exit or cancellation in a blocked region. */
	if (m->state == MUTATOR_BLOCKED)
		mutator_unblock(m);
	m->public.frames = NULL;
	m->stack_top = m->stack_base;
	/* Parks first if a pause is due, so that the list does not change in one. */
	while (h->stop) {
		mutator_block(m);
		mutator_unblock(m);
	}
	for (link = &h->mutators; *link != m; link = &(*link)->next)
		;
	*link = m->next;
	if (m->logged)
		work_give(h, m->log, m->logged);
	supplies_drop_regions(h, m);
	allocated_add(h, m->uncounted);
	if (m->ring)
		ring_leave(m->ring);
	h->running--;
	pthread_cond_signal(&h->stopped);
	pthread_mutex_unlock(&h->lock);
	mutator_free(m);
	return NULL;
}

void ebbgc_detach(ebbgc_mutator_t *mutator)
{
	struct mutator *m = mutator_of(mutator);

	pthread_setspecific(m->heap->key, NULL);
	/* In a child of fork() the lock may be held by a thread that does not exist here. */
	if (!forked(m->heap))
		with_stack(m, detach, m);
}

void mutator_key_destructor(void *mutator)
{
	/* The thread's functions have returned, and their frames in other heaps are gone, too. */
	for (struct mutator *s = siblings; s; s = s->sibling)
		if (s->state == MUTATOR_RUNNING)
			s->public.frames = NULL;
	ebbgc_detach(mutator);
}

void mutator_block(struct mutator *m)
{
	m->state = MUTATOR_BLOCKED;
	m->heap->running--;
	pthread_cond_signal(&m->heap->stopped);
}

void mutator_unblock(struct mutator *m)
{
	struct ebbgc_heap *h = m->heap, *stopped;

	for (;;) {
		stop_wait(m);
		m->state = MUTATOR_RUNNING;
		h->running++;
		if (!has_lent())
			return;
		pthread_mutex_unlock(&h->lock);
		stopped = take_back(m);
		pthread_mutex_lock(&h->lock);
		if (!stopped)
			return;
		/* Who runs here and waits there could meet a thread that does the opposite. */
		mutator_block(m);
		pthread_mutex_unlock(&h->lock);
		pthread_mutex_lock(&stopped->lock);
		while (stopped->stop)
			lock_wait(stopped, &stopped->resume);
		pthread_mutex_unlock(&stopped->lock);
		pthread_mutex_lock(&h->lock);
	}
}

__attribute__((noinline)) void *with_stack(struct mutator *m, void *(*fn)(void *), void *arg)
{
	char *outer = stack_end;
	void *result;

	/* Spills every callee-saved register to this frame (a jmp_buf would mangle some). */
	__builtin_unwind_init();
	/*
	 * The frame's lower end, as the size is not known: what lies below changes while fn runs,
	 * and in another heap the world may be stopped meanwhile.
	 */
	stack_end = __builtin_alloca(1 + (arg == NULL));
	/* Else somebody may be scanning it. */
	if (m->state == MUTATOR_RUNNING)
		m->stack_top = stack_end;
	result = fn(arg);
	/* Also keeps the call from being the frame's last act. */
	stack_end = outer;
	__asm__ volatile("" ::: "memory");
	return result;
}

static void *park(void *arg)
{
	struct mutator *m = arg;

	pthread_mutex_lock(&m->heap->lock);
	if (m->heap->stop) {
		mutator_block(m);
		mutator_unblock(m);
	}
	pthread_mutex_unlock(&m->heap->lock);
	return NULL;
}

void ebbgc_poll_slow(ebbgc_mutator_t *mutator)
{
	struct mutator *m = mutator_of(mutator);

	if (!forked(m->heap))
		with_stack(m, park, m);
}

int ebbgc_blocked_begin(ebbgc_mutator_t *mutator)
{
	struct mutator *m = mutator_of(mutator);

	if (m->heap->options.stacks == EBBGC_CONSERVATIVE)
		return -EINVAL;
	if (forked(m->heap))
		return 0;
	pthread_mutex_lock(&m->heap->lock);
	mutator_block(m);
	pthread_mutex_unlock(&m->heap->lock);
	return 0;
}

static void *blocked_end(void *arg)
{
	struct mutator *m = arg;

	pthread_mutex_lock(&m->heap->lock);
	mutator_unblock(m);
	pthread_mutex_unlock(&m->heap->lock);
	return NULL;
}

void ebbgc_blocked_end(ebbgc_mutator_t *mutator)
{
	struct mutator *m = mutator_of(mutator);

	if (!forked(m->heap))
		with_stack(m, blocked_end, m);
}

struct blocked_call {
	struct mutator *m;
	void *(*fn)(void *);
	void *arg;
	void *result;
};

static void *blocked_call(void *arg)
{
	struct blocked_call *call = arg;

	pthread_mutex_lock(&call->m->heap->lock);
	mutator_block(call->m);
	pthread_mutex_unlock(&call->m->heap->lock);
	/* Into the caller's frame, which is scanned: it may be an object of another heap. */
	call->result = call->fn(call->arg);
	blocked_end(call->m);
	return call->result;
}

void *ebbgc_blocked_call(ebbgc_mutator_t *mutator, void *(*fn)(void *), void *arg)
{
	struct blocked_call call = { mutator_of(mutator), fn, arg, NULL };

	if (forked(call.m->heap))
		return fn(arg);
	return with_stack(call.m, blocked_call, &call);
}

void world_stop(struct ebbgc_heap *h)
{
	uint64_t since = now_ns();

	pthread_mutex_lock(&h->lock);
	h->stop = true;
	for (struct mutator *m = h->mutators; m; m = m->next)
		__atomic_store_n(&m->public.poll, 1, __ATOMIC_RELAXED);
	while (h->running)
		pthread_cond_wait(&h->stopped, &h->lock);
	since = now_ns() - since;
	if (since > h->stats.stop_max_ns)
		h->stats.stop_max_ns = since;
	pthread_mutex_unlock(&h->lock);
	event_send(h, EBBGC_EVENT_PAUSE_BEGIN, since, NULL);
}

void world_resume(struct ebbgc_heap *h, uint64_t since)
{
	uint64_t ns;

	pthread_mutex_lock(&h->lock);
	h->stop = false;
	for (struct mutator *m = h->mutators; m; m = m->next) {
		__atomic_store_n(&m->public.poll, 0, __ATOMIC_RELAXED);
		barriers_set(h, m);
	}
	pthread_cond_broadcast(&h->resume);
	ns = now_ns() - since;
	pause_count(h, ns);
	pthread_mutex_unlock(&h->lock);
	event_send(h, EBBGC_EVENT_PAUSE_END, ns, NULL);
}
