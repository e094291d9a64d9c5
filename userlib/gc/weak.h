/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Weak references and ephemerons. */
#ifndef EBBGC_WEAK_H
#define EBBGC_WEAK_H

#include <stdbool.h>

struct ebbgc_heap;

/*
 * Marks the values of ephemerons whose key has been marked since they were traced; returns true if
 * there were any.  No tracer is at work, threads may be.
 */
bool ephemerons_step(struct ebbgc_heap *h);

/* World stopped: nulls references to the dead in every weak object and ephemeron found so far. */
void weak_clear(struct ebbgc_heap *h);

#endif
