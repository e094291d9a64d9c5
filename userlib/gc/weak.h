/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Weak references and ephemerons. */
#ifndef EBBGC_WEAK_H
#define EBBGC_WEAK_H

#include <stdbool.h>

struct ebbgc_heap;

/*
 * Marks the values of ephemerons whose key has been marked since they were traced; returns true if
 * there were any.  No tracer may be running; mutators may.
 */
bool ephemerons_step(struct ebbgc_heap *h);

/* World stopped: clears references to dead objects in all weak objects and ephemerons found. */
void weak_clear(struct ebbgc_heap *h);

#endif
