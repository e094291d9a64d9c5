/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Progress of a thread, as another thread observes it: unlike the age of a time stamp, the number
 * of observations does not grow while the whole process is stopped.
 */
#ifndef EBB_LIVENESS_H
#define EBB_LIVENESS_H

#include <stdatomic.h>
#include <stdint.h>

/* Starts as zeroes. */
struct liveness {
	atomic_uint beats;      /* written by the observed thread, wraps around */
	uint32_t seen, still;   /* the observer's */
};

/* The observed thread, each time it begins or ends a piece of work. */
static inline void liveness_beat(struct liveness *l)
{
	atomic_fetch_add_explicit(&l->beats, 1, memory_order_relaxed);
}

/* The observer, at a constant rate: returns the number of successive calls without progress. */
static inline uint32_t liveness_still(struct liveness *l)
{
	uint32_t beats = atomic_load_explicit(&l->beats, memory_order_relaxed);

	l->still = beats == l->seen ? l->still + 1 : 0;
	l->seen = beats;
	return l->still;
}

#endif
