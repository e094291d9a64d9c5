/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Weak references and ephemerons. */
#ifndef EBBGC_WEAK_H
#define EBBGC_WEAK_H

#include <stdbool.h>
#include <stdint.h>

#include "ebbgc.h"

/*
 * Marks the values of ephemerons whose key has been marked since they were traced; returns true if
 * there were any.  No tracer may be running; mutators may.  Reads no page of the heap.
 */
bool ephemerons_step(struct ebbgc_heap *h);

/*
 * Clears references to unmarked objects in the weak slots of @when, and in the ephemerons of @when
 * and of any earlier time, once all that is reachable is marked.  Returns false if that is not done
 * by the deadline (ns; 0: none) or marking was abandoned: each may be on a swapped-out page.
 * Mutators may run if h->settled is set.
 */
bool weak_clear(struct ebbgc_heap *h, enum ebbgc_clear when, uint64_t deadline);

#endif
