/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* What an allocation does when no region is free. */
#ifndef EBBGC_SHORTAGE_H
#define EBBGC_SHORTAGE_H

#include <stddef.h>
#include "heap.h"

/* `tries` of an allocation that comes before those of all other threads. */
#define SHORTAGE_TURN 3u

/* Lock held, released meanwhile: waits while another thread's allocation comes first. */
void shortage_turn_wait(struct ebbgc_heap *h, struct mutator *m);
/* Lock held: m's allocation, which may have come first, has ended. */
void shortage_turn_end(struct ebbgc_heap *h, struct mutator *m);

/*
 * Lock held, released meanwhile: waits for a cycle or for memory on its way to the kernel, then
 * asks the program's handler.  Returns 0 if the allocation is to be tried again, or -ENOMEM.
 * @tries is 0 at first.  It is 2 once a full collection has freed nothing, and SHORTAGE_TURN from
 * when on m's allocation comes first.
 */
int shortage_wait(struct ebbgc_heap *h, struct mutator *m, size_t bytes, unsigned int *tries);

#endif
