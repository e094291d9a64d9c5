/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Waiting and retries of an allocation when no region is free. */
#ifndef EBBGC_SHORTAGE_H
#define EBBGC_SHORTAGE_H

#include <stddef.h>
#include "heap.h"

/* `tries` of an allocation that goes before those of all other threads. */
#define SHORTAGE_TURN 3u

/* Lock held, released meanwhile: waits while another thread's allocation goes first. */
void shortage_turn_wait(struct ebbgc_heap *h, struct mutator *m);
/* Lock held: ends m's turn, if any, after its allocation. */
void shortage_turn_end(struct ebbgc_heap *h, struct mutator *m);

/*
 * Lock held, released meanwhile: waits for a cycle or for memory that is being returned to the
 * kernel, then calls the program's `oom` handler.  Returns 0 to retry the allocation, -ENOMEM, or
 * -ECHILD in a child of fork() that the handler has made: then the lock is not held any more.
 * @tries is 0 at first, 2 once a full collection has freed nothing, and SHORTAGE_TURN once m's
 * allocation goes first.
 */
int shortage_wait(struct ebbgc_heap *h, struct mutator *m, size_t bytes, unsigned int *tries);

#endif
