/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Work of the tracers.  Each tracer has a stack, which overflows to a pool of chunks.  Idle tracers
 * take from the pool; mutators add their logs to it.
 */
#ifndef EBBGC_WORK_POOL_H
#define EBBGC_WORK_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ebbgc_heap;
struct tracer;

#define CHUNK_ENTRIES 510

struct chunk {
	struct chunk *next;
	size_t count;
	uint64_t entries[CHUNK_ENTRIES];
};

/* Adds a mutator's logged references whose targets are unmarked.  Any thread. */
void work_add_log(struct ebbgc_heap *h, const uint64_t *refs, size_t count);

/*
 * Adds work to the tracer's stack, or to the pool.  Without memory, marks the object and sets
 * marker.overflow: the phase then traces marked objects again.
 */
void work_push(struct tracer *t, uint64_t work);

/* Moves half of the tracer's stack to the pool; returns false if there is no memory. */
bool work_share(struct tracer *t);

/* Refills the stack from the pool without waiting; returns false if the pool is empty. */
bool work_take(struct tracer *t);

#endif
