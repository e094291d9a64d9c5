// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "barrier.h"
#include "fetch.h"
#include "finalize.h"
#include "forward.h"
#include "object.h"
#include "os.h"

static bool list_reserve(struct finalizer_list *l, size_t count)
{
	size_t capacity = l->capacity ? l->capacity : 64;
	struct finalizer *items;

	if (count <= l->capacity)
		return true;
	while (capacity < count)
		capacity *= 2;
	items = realloc(l->items, capacity * sizeof(*items));
	if (!items)
		return false;
	l->items = items;
	l->capacity = capacity;
	return true;
}

int ebbgc_finalizer_add(ebbgc_mutator_t *mutator, ebbgc_ref_t object, ebbgc_finalizer_fn fn,
			void *data)
{
	struct ebbgc_heap *h = mutator_of(mutator)->heap;
	struct finalizer f = { object.bits & EBBGC_ADDRESS_MASK, fn, data };
	struct finalizer_list *l = &h->finalizers, *ready = &h->finalizers_ready;
	bool added;

	if (!f.object || !fn)
		return -EINVAL;
	if (os_forked(h->pid))
		return -ECHILD;
	pthread_mutex_lock(&h->lock);
	/* Space for all objects to die at once: the collector must not allocate. */
	added = list_reserve(l, l->count + 1) && list_reserve(ready, ready->count + l->count + 1);
	if (added)
		l->items[l->count++] = f;
	pthread_mutex_unlock(&h->lock);
	return added ? 0 : -ENOMEM;
}

/* Lock held, or world stopped: reverses what became ready, from an index on, if it is to be. */
static void order(struct ebbgc_heap *h, size_t from)
{
	struct finalizer_list *ready = &h->finalizers_ready;

	if (!(h->options.features & EBBGC_NEWEST_FIRST))
		return;
	for (size_t to = ready->count; from + 1 < to; from++) {
		struct finalizer f = ready->items[from];

		ready->items[from] = ready->items[--to];
		ready->items[to] = f;
	}
}

void ebbgc_finalizers_all(ebbgc_mutator_t *mutator)
{
	struct ebbgc_heap *h = mutator_of(mutator)->heap;
	struct finalizer_list *l = &h->finalizers, *ready = &h->finalizers_ready;
	size_t from;

	if (os_forked(h->pid))
		return;
	/* Some may be dead: they live again, with all that they lead to. */
	if (h->settled)
		barrier_find(h);
	pthread_mutex_lock(&h->lock);
	from = ready->count;
	/* Reserved when they were added.  The objects are alive, or in the snapshot of a cycle. */
	for (size_t i = 0; i < l->count; i++) {
		ready->items[ready->count++] = l->items[i];
		barrier_log(mutator_of(mutator), (ebbgc_ref_t){ l->items[i].object });
	}
	l->count = l->old = 0;
	order(h, from);
	pthread_mutex_unlock(&h->lock);
}

size_t finalizers_collect(struct ebbgc_heap *h, size_t first,
			  bool (*lives)(const struct ebbgc_heap *h, uint64_t object),
			  void (*revive)(void *arg, uint64_t object), void *arg)
{
	struct finalizer_list *l = &h->finalizers, *ready = &h->finalizers_ready;
	size_t kept = first, from = ready->count, old = l->old;

	for (size_t i = first; i < l->count; i++) {
		if (lives(h, l->items[i].object)) {
			l->items[kept++] = l->items[i];
			continue;
		}
		ready->items[ready->count++] = l->items[i];
		old -= i < l->old;
	}
	l->count = kept;
	l->old = old;
	order(h, from);
	for (size_t i = from; i < ready->count; i++)
		revive(arg, ready->items[i].object);
	return ready->count - from;
}

/* Drops the oldest ready finalizer.  At most half of the list are such entries. */
static void ready_drop(struct finalizer_list *ready)
{
	ready->first++;
	if (2 * ready->first < ready->count)
		return;
	ready->count -= ready->first;
	memmove(ready->items, ready->items + ready->first, ready->count * sizeof(*ready->items));
	ready->first = 0;
}

/* Is the object in a place of the store that is never read again? */
static bool is_lost(const struct ebbgc_heap *h, uint64_t object)
{
	uint64_t now = forward(h, object);

	return h->far.on && in_heap(h, now) && region_lost(h, region_of(h, now)) &&
	       region_state(h, region_of(h, now)) == FAR_AWAY;
}

/* Lock held: finds the oldest ready finalizer, and drops those whose objects are lost. */
static bool ready_find(struct ebbgc_heap *h, struct finalizer *f)
{
	struct finalizer_list *ready = &h->finalizers_ready;

	while (ready->first != ready->count && is_lost(h, ready->items[ready->first].object)) {
		ready_drop(ready);
		__atomic_fetch_add(&h->far.failures, 1, __ATOMIC_RELAXED);
	}
	if (ready->first == ready->count)
		return false;
	*f = ready->items[ready->first];
	return true;
}

/* Takes the oldest ready finalizer; its object is in memory until the next safepoint. */
static bool ready_take(struct mutator *m, struct finalizer *f)
{
	struct ebbgc_heap *h = m->heap;
	uint64_t brought = 0, object = 0;
	bool any;

	pthread_mutex_lock(&h->lock);
	while ((any = ready_find(h, f)) && h->far.on && f->object != brought) {
		pthread_mutex_unlock(&h->lock);
		/* While it is listed: failed() may leave by longjmp(). */
		object = far_bring(m, f->object);
		brought = f->object;
		pthread_mutex_lock(&h->lock);
	}
	if (any) {
		ready_drop(&h->finalizers_ready);
		f->object = h->far.on ? object : f->object;
	}
	pthread_mutex_unlock(&h->lock);
	return any;
}

size_t ebbgc_finalizers_run(ebbgc_mutator_t *mutator, size_t limit)
{
	struct mutator *m = mutator_of(mutator);
	size_t ran;

	/* A finalizer may fork, too. */
	for (ran = 0; ran < limit && !os_forked(m->heap->pid); ran++) {
		struct ebbgc_frame frame;
		struct finalizer f;
		ebbgc_ref_t object;

		if (!ready_take(m, &f))
			break;
		/* The list was a root, and there was no safepoint since the object left it. */
		object = (ebbgc_ref_t){ f.object };
		barrier_log(m, object);
		ebbgc_frame_push(mutator, &frame, &object, 1);
		f.fn(mutator, object, f.data);
		ebbgc_frame_pop(mutator, &frame);
	}
	return ran;
}

void finalizers_moved(struct ebbgc_heap *h)
{
	struct finalizer_list *l = &h->finalizers;

	for (size_t i = 0; i < l->count; i++)
		l->items[i].object = forward(h, l->items[i].object);
	/* Of a far generation, as all may become ready while their objects are far. */
	l = &h->finalizers_ready;
	for (size_t i = l->first; i < l->count; i++)
		l->items[i].object = forward(h, l->items[i].object);
}

void finalizers_destroy(struct ebbgc_heap *h)
{
	/* A thread of the parent may have been moving the items. */
	if (os_forked(h->pid))
		return;
	free(h->finalizers.items);
	free(h->finalizers_ready.items);
}
