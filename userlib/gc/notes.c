// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <sys/mman.h>
#include "notes.h"
#include "object.h"
#include "os.h"

struct ring *ring_take(struct ebbgc_heap *h)
{
	struct ring *r = h->rings;

	while (r && r->taken)
		r = r->next;
	if (!r) {
		r = os_map(sizeof(*r));
		if (!r)
			return NULL;
		if (h->options.lock_side)
			(void)mlock(r, sizeof(*r));
		r->next = h->rings;
		/* Tracers traverse the list without the lock. */
		__atomic_store_n(&h->rings, r, __ATOMIC_RELEASE);
	}
	r->taken = true;
	r->left = NOTES_BURST;
	return r;
}

void ring_leave(struct ring *r)
{
	r->taken = false;
}

static void ring_put(const struct ebbgc_heap *h, struct ring *r, uint64_t object)
{
	uint64_t head = __atomic_load_n(&r->head, __ATOMIC_RELAXED);

	if (object_marked(h, object))
		return;
	__atomic_store_n(&r->entries[head % RING_ENTRIES], object, __ATOMIC_RELAXED);
	__atomic_store_n(&r->head, head + 1, __ATOMIC_RELEASE);
}

void notes_add(struct mutator *m, uint64_t object)
{
	struct ring *r = m->ring;

	if (!r)
		return;
	if (!--r->left) {
		r->left = NOTES_BURST;
		__atomic_fetch_and(&m->public.flags, ~EBBGC_NOTING, __ATOMIC_RELAXED);
	}
	if (object == r->last)
		return;
	r->last = object;
	ring_put(m->heap, r, object);
}

void notes_add_target(struct mutator *m, uint64_t target)
{
	const struct ebbgc_heap *h = m->heap;
	struct ring *r = m->ring;

	if (!r || target == r->last_leaf || !in_heap(h, target) ||
	    !kind_is_leaf(__atomic_load_n(&h->kinds[region_of(h, target)], __ATOMIC_RELAXED)))
		return;
	r->last_leaf = target;
	ring_put(h, r, target);
}

static uint64_t ring_next(struct ring *r)
{
	uint64_t tail = __atomic_load_n(&r->tail, __ATOMIC_RELAXED), head, from, object;

	do {
		head = __atomic_load_n(&r->head, __ATOMIC_ACQUIRE);
		if (head == tail)
			return 0;
		/* An entry overwritten before this is lost; one overwritten now is still valid. */
		from = head - tail > RING_ENTRIES ? head - RING_ENTRIES : tail;
		object = __atomic_load_n(&r->entries[from % RING_ENTRIES], __ATOMIC_RELAXED);
	} while (!__atomic_compare_exchange_n(&r->tail, &tail, from + 1, false, __ATOMIC_ACQ_REL,
					      __ATOMIC_RELAXED));
	if (from != tail)
		__atomic_fetch_add(&r->lost, from - tail, __ATOMIC_RELAXED);
	return object;
}

uint64_t notes_next(struct ebbgc_heap *h)
{
	struct ring *r = __atomic_load_n(&h->rings, __ATOMIC_ACQUIRE);

	for (; r; r = r->next) {
		uint64_t object = ring_next(r);

		if (object)
			return object;
	}
	return 0;
}

void notes_request(struct ebbgc_heap *h)
{
	/* A thread that holds the lock sets the flags anyway, or stops all threads. */
	if (pthread_mutex_trylock(&h->lock))
		return;
	for (struct mutator *m = h->mutators; m; m = m->next)
		if (!(__atomic_load_n(&m->public.flags, __ATOMIC_RELAXED) & EBBGC_NOTING))
			__atomic_fetch_or(&m->public.flags, EBBGC_NOTING, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&h->lock);
}

void notes_clear(struct ebbgc_heap *h)
{
	for (struct ring *r = h->rings; r; r = r->next) {
		uint64_t head = __atomic_load_n(&r->head, __ATOMIC_RELAXED);

		__atomic_fetch_add(&r->lost, head - r->tail, __ATOMIC_RELAXED);
		__atomic_store_n(&r->tail, head, __ATOMIC_RELAXED);
		r->last = r->last_leaf = 0;
	}
}

void notes_destroy(struct ebbgc_heap *h)
{
	while (h->rings) {
		struct ring *r = h->rings;

		h->rings = r->next;
		munmap(r, sizeof(*r));
	}
}

void notes_count(struct ebbgc_heap *h, uint64_t *noted, uint64_t *lost)
{
	*noted = *lost = 0;
	for (struct ring *r = h->rings; r; r = r->next) {
		*noted += __atomic_load_n(&r->head, __ATOMIC_RELAXED);
		*lost += __atomic_load_n(&r->lost, __ATOMIC_RELAXED);
	}
}
