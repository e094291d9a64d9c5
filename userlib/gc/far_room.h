/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* A heap with a far generation: whose turn it is; local memory, in regions.  See far.h. */
#ifndef EBBGC_FAR_ROOM_H
#define EBBGC_FAR_ROOM_H

#include "heap.h"

/* Lock held: returns the regions with local memory, and tables as regions. */
static inline uint64_t far_local(const struct ebbgc_heap *h)
{
	uint64_t tables = __atomic_load_n(&h->far.tables, __ATOMIC_RELAXED) >> REGION_SHIFT;

	return (uint64_t)h->used - h->far.out + h->committed_free + tables;
}

/* Returns the regions that may be local before births wait. */
static inline uint64_t far_limit(const struct ebbgc_heap *h)
{
	return h->far.budget - h->far.reserve;
}

/* Lock held: do births wait for a cycle, before whose end nothing more can leave? */
static inline bool far_waits_for_cycle(const struct ebbgc_heap *h)
{
	return h->far.births && !h->far.writing && h->far.leaving.head == REGION_NONE;
}

/* Lock held: returns how many free regions keep their memory. */
static inline uint64_t far_spare(const struct ebbgc_heap *h)
{
	uint64_t used = far_local(h) - h->committed_free, limit = far_limit(h);

	return limit > used ? (limit - used) / 2 : 0;
}

/* Lock held: returns how many regions should be leaving. */
static inline uint64_t far_leaving(const struct ebbgc_heap *h)
{
	uint64_t local = far_local(h), limit = far_limit(h), wanted;

	wanted = local + h->far.window > limit ? local + h->far.window - limit : 0;
	return wanted < h->far.window ? wanted : h->far.window;
}

/* Lock held: has the thread something to do? */
static inline bool far_is_due(const struct ebbgc_heap *h)
{
	return far_local(h) > far_limit(h) || h->far.leaving_count < far_leaving(h) ||
	       h->far.evict != h->far.evicted;
}

/* The collector, without the lock: until far_release(), no region's memory returns.  Nests. */
static inline void far_hold(struct ebbgc_heap *h)
{
	pthread_mutex_lock(&h->lock);
	h->far.held++;
	while (h->far.writing)
		pthread_cond_wait(&h->far.wanted, &h->lock);
	pthread_mutex_unlock(&h->lock);
}

static inline void far_release(struct ebbgc_heap *h)
{
	pthread_mutex_lock(&h->lock);
	h->far.held--;
	pthread_cond_broadcast(&h->far.wanted);
	pthread_mutex_unlock(&h->lock);
}

/* Lock held: the store is full at @now (ns).  Returns whether a far cycle is due. */
static inline bool far_full(struct ebbgc_heap *h, uint64_t now)
{
	h->far.marking.full = true;
	return h->far.stored > h->far.lost && now >= h->far.marking.next_at;
}

/* Lock held: a region was taken. */
static inline void far_grown(struct ebbgc_heap *h)
{
	if (!far_is_due(h))
		return;
	__atomic_store_n(&h->far.short_of, far_local(h) > far_limit(h), __ATOMIC_RELAXED);
	pthread_cond_broadcast(&h->far.wanted);
}

/* Lock held: asks for the turn; a cycle and regions that begin to leave take turns in order. */
static inline uint64_t far_turn_ask(struct ebbgc_heap *h)
{
	return h->far.tickets++;
}

/* Lock held: has the turn come?  It changes with far.wanted. */
static inline bool far_turn_is(const struct ebbgc_heap *h, uint64_t ticket)
{
	return h->far.serving == ticket;
}

/* Lock held, released meanwhile. */
static inline void far_turn_take(struct ebbgc_heap *h)
{
	uint64_t ticket = far_turn_ask(h);

	while (!far_turn_is(h, ticket))
		pthread_cond_wait(&h->far.wanted, &h->lock);
}

/* Lock held. */
static inline void far_turn_end(struct ebbgc_heap *h)
{
	h->far.serving++;
	pthread_cond_broadcast(&h->far.wanted);
}

#endif
