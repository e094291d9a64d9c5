// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <stdlib.h>
#include "os.h"
#include "safepoint.h"

void mutator_wait(struct ebbgc_heap *h, pthread_cond_t *cond)
{
	int state;

	/* A thread cancelled here would keep the lock for ever. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	pthread_cond_wait(cond, &h->lock);
	pthread_setcancelstate(state, NULL);
}

/* The calling thread's mutators, one of each heap that it is attached to. */
static __thread struct mutator *siblings;
/* The end of the calling thread's stack, below its saved registers, while it waits. */
static __thread char *stack_end;

void mutator_enlist(struct mutator *m)
{
	m->sibling = siblings;
	siblings = m;
}

void mutators_drop_frames(void)
{
	for (struct mutator *s = siblings; s; s = s->sibling)
		if (s->state == MUTATOR_RUNNING) {
			s->public.frames = NULL;
			s->public.fibres = NULL;
		}
}

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

void mutator_block(struct mutator *m)
{
	m->state = MUTATOR_BLOCKED;
	m->heap->running--;
	pthread_cond_signal(&m->heap->stopped);
}

static bool can_lend(const struct mutator *m, const struct mutator *sibling)
{
	return sibling != m && sibling->state == MUTATOR_RUNNING && !os_forked(sibling->heap->pid);
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

/* Resumes all lent mutators, or none if a heap's world is stopped: returns that heap. */
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

void mutator_stop_wait(struct mutator *m)
{
	while (m->heap->stop) {
		mutator_lend(m);
		if (m->heap->stop)
			mutator_wait(m->heap, &m->heap->resume);
	}
}

void mutator_unblock(struct mutator *m)
{
	struct ebbgc_heap *h = m->heap, *stopped;

	for (;;) {
		mutator_stop_wait(m);
		m->state = MUTATOR_RUNNING;
		h->running++;
		if (!has_lent())
			return;
		pthread_mutex_unlock(&h->lock);
		stopped = take_back(m);
		pthread_mutex_lock(&h->lock);
		if (!stopped)
			return;
		/*
		 * Running in one heap while waiting in another could deadlock with a thread that
		 * does the opposite.
		 */
		mutator_block(m);
		pthread_mutex_unlock(&h->lock);
		pthread_mutex_lock(&stopped->lock);
		while (stopped->stop)
			mutator_wait(stopped, &stopped->resume);
		pthread_mutex_unlock(&stopped->lock);
		pthread_mutex_lock(&h->lock);
	}
}

__attribute__((noinline)) void *with_stack(struct mutator *m, void *(*fn)(void *), void *arg)
{
	char *outer = stack_end;
	void *result;

	/* Spills all callee-saved registers to this frame (a jmp_buf would mangle some). */
	__builtin_unwind_init();
	/*
	 * The lower end of this frame.  The stack below it changes while fn runs, and another
	 * heap's collector may scan meanwhile.
	 */
	stack_end = __builtin_alloca(1 + (arg == NULL));
	/* Otherwise a collector may be scanning the stack. */
	if (m->state == MUTATOR_RUNNING)
		m->stack_top = stack_end;
	result = fn(arg);
	/* Also prevents a tail call, which would remove the frame. */
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

	if (!os_forked(m->heap->pid))
		with_stack(m, park, m);
}

int ebbgc_blocked_begin(ebbgc_mutator_t *mutator)
{
	struct mutator *m = mutator_of(mutator);

	if (m->heap->options.stacks == EBBGC_CONSERVATIVE)
		return -EINVAL;
	if (os_forked(m->heap->pid))
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

	if (!os_forked(m->heap->pid))
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
	/* The caller's frame is scanned: the result may be an object of another heap. */
	call->result = call->fn(call->arg);
	/* In a child that fn has made, the lock may be held for ever, and the world be stopped. */
	if (!os_forked(call->m->heap->pid))
		blocked_end(call->m);
	return call->result;
}

void *ebbgc_blocked_call(ebbgc_mutator_t *mutator, void *(*fn)(void *), void *arg)
{
	struct blocked_call call = { mutator_of(mutator), fn, arg, NULL };

	if (os_forked(call.m->heap->pid))
		return fn(arg);
	return with_stack(call.m, blocked_call, &call);
}
