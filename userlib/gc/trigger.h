/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Triggers cycles, and lets threads wait for their end. */
#ifndef EBBGC_TRIGGER_H
#define EBBGC_TRIGGER_H

#include <stddef.h>
#include <stdint.h>
#include "heap.h"

/* Lock held, or before there are threads: sets the next cycle's trigger by @live bytes. */
void trigger_set(struct ebbgc_heap *h, uint64_t live);

/*
 * Lock held: @bytes that are free cannot be used before the next cycle has marked.  It begins
 * earlier where the heap cannot grow by as much instead.
 */
void trigger_lower(struct ebbgc_heap *h, uint64_t bytes);

/* World stopped, lock held: a minor cycle has freed @bytes. */
void minor_ended(struct ebbgc_heap *h, uint64_t bytes);

/* Lock held: requests a minor cycle. */
void minor_request(struct ebbgc_heap *h);

/* Lock held: counts @bytes as allocated; requests a cycle if one is due. */
void allocated_add(struct ebbgc_heap *h, size_t bytes);

/* The mutator's own thread: allocated_add() that rarely takes the lock. */
void allocated_count(struct mutator *m, size_t bytes);

/* A safepoint where a thread that outruns the collector waits; it must hold no new object. */
void allocation_pace(struct mutator *m);

/* Lock held: requests a cycle. */
void cycle_request(struct ebbgc_heap *h);

/* Lock held, released meanwhile.  Blocks m until the cycles requested so far have ended. */
void cycle_wait(struct ebbgc_heap *h, struct mutator *m);

/* Lock held, released meanwhile.  Requests a full cycle and blocks m until it has ended. */
void cycle_wait_full(struct ebbgc_heap *h, struct mutator *m);

#endif
