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
	pthread_mutex_lock(&h->lock);
	while (h->stop)
		lock_wait(h, &h->resume);
	barriers_set(h, m);
	if (h->options.mode == EBBGC_MEMLINER)
		m->ring = ring_take(h);
	m->next = h->mutators;
	h->mutators = m;
	h->running++;
	pthread_mutex_unlock(&h->lock);
	*mutator = &m->public;
	return 0;
}

static void detach(struct mutator *m)
{
	struct ebbgc_heap *h = m->heap;
	struct mutator **link;

	if (forked(h))
		return;		/* the lock may be held by a thread that does not exist here */
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
	free(m);
}

void ebbgc_detach(ebbgc_mutator_t *mutator)
{
	struct mutator *m = mutator_of(mutator);

	pthread_setspecific(m->heap->key, NULL);
	detach(m);
}

void mutator_key_destructor(void *mutator)
{
	detach(mutator);
}

void mutator_block(struct mutator *m)
{
	m->state = MUTATOR_BLOCKED;
	m->heap->running--;
	pthread_cond_signal(&m->heap->stopped);
}

void mutator_unblock(struct mutator *m)
{
	struct ebbgc_heap *h = m->heap;

	while (h->stop)
		lock_wait(h, &h->resume);
	m->state = MUTATOR_RUNNING;
	h->running++;
}

/* What this function's frame may take below the address it takes of itself. */
#define FRAME_BYTES 512

__attribute__((noinline)) void *with_stack(struct mutator *m, void *(*fn)(void *), void *arg)
{
	void *result;

	/* Spills every callee-saved register to this frame (a jmp_buf would mangle some). */
	__builtin_unwind_init();
	m->stack_top = (char *)__builtin_frame_address(0) - FRAME_BYTES;
	result = fn(arg);
	/* Keeps the call from being the frame's last act. */
	__asm__ volatile("" ::: "memory");
	return result;
}

static void *park(void *arg)
{
	struct mutator *m = arg;

	pthread_mutex_lock(&m->heap->lock);
	if (m->heap->stop) {
		mutator_block(m);
		m->state = MUTATOR_PARKED;
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

void ebbgc_blocked_end(ebbgc_mutator_t *mutator)
{
	struct mutator *m = mutator_of(mutator);

	if (forked(m->heap))
		return;
	pthread_mutex_lock(&m->heap->lock);
	mutator_unblock(m);
	pthread_mutex_unlock(&m->heap->lock);
}

struct blocked_call {
	struct mutator *m;
	void *(*fn)(void *);
	void *arg;
};

static void *blocked_call(void *arg)
{
	struct blocked_call *call = arg;
	void *result;

	pthread_mutex_lock(&call->m->heap->lock);
	mutator_block(call->m);
	pthread_mutex_unlock(&call->m->heap->lock);
	result = call->fn(call->arg);
	ebbgc_blocked_end(&call->m->public);
	return result;
}

void *ebbgc_blocked_call(ebbgc_mutator_t *mutator, void *(*fn)(void *), void *arg)
{
	struct blocked_call call = { mutator_of(mutator), fn, arg };

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
