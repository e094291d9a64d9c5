// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* Attaching threads to a heap, and detaching them. */
#include <errno.h>
#include <stdlib.h>
#include "attach.h"
#include "barrier.h"
#include "notes.h"
#include "os.h"
#include "remember.h"
#include "safepoint.h"
#include "stats.h"
#include "supply.h"
#include "trigger.h"
#include "work_pool.h"

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
	mutator_stop_wait(m);
	barrier_set(h, m);
	if (h->options.mode == EBBGC_MEMLINER)
		m->ring = ring_take(h);
	m->next = h->mutators;
	h->mutators = m;
	mutator_enlist(m);
	m->state = MUTATOR_BLOCKED;
	mutator_unblock(m);
	pthread_mutex_unlock(&h->lock);
	return NULL;
}

int ebbgc_attach(ebbgc_heap_t *h, ebbgc_mutator_t **mutator)
{
	struct mutator *m;
	int r;

	if (os_forked(h->pid))
		return -ECHILD;
	if (pthread_getspecific(h->key))
		return -EALREADY;
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->heap = h;
	m->public.supplies = (struct ebbgc_supply *)m->supply;
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
	/* The thread exited or was cancelled in a blocked region. */
	if (m->state == MUTATOR_BLOCKED)
		mutator_unblock(m);
	m->public.frames = NULL;
	m->public.fibres = NULL;
	m->stack_top = m->stack_base;
	/* The list of mutators must not change during a pause. */
	while (h->stop) {
		mutator_block(m);
		mutator_unblock(m);
	}
	for (link = &h->mutators; *link != m; link = &(*link)->next)
		;
	*link = m->next;
	if (m->logged)
		work_add_log(h, m->log, m->logged);
	stats_add_thread(h, m);
	remembered_flush(m);
	if (h->nursery.old)
		supplies_drop(h, m);
	else
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
	/* After fork() the lock may be held by a thread of the parent. */
	if (!os_forked(m->heap->pid))
		with_stack(m, detach, m);
}

void mutator_key_destructor(void *mutator)
{
	/* The thread's functions have returned: their frames in other heaps are invalid, too. */
	mutators_drop_frames();
	ebbgc_detach(mutator);
}
