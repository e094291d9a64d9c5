/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * The barrier's slow paths, and the functions that set flags and stamps.  The fast paths, inline
 * in ebbgc.h, test a mutator's flags and stamp.
 */
#ifndef EBBGC_BARRIER_H
#define EBBGC_BARRIER_H

#include "ebbgc.h"

struct ebbgc_heap;
struct mutator;

/* Lock held: sets m's flags and stamp by marking and epoch. */
void barrier_set(const struct ebbgc_heap *h, struct mutator *m);

/* m's own thread: logs an unmarked object that a store or weak load found, if marking is on. */
void barrier_log(struct mutator *m, ebbgc_ref_t old);

/* A mutator's thread: before the program gets an object that was dead when others became null. */
void barrier_find(struct ebbgc_heap *h);

/* Lock held: as barrier_set() for every mutator. */
void barrier_set_all(struct ebbgc_heap *h);

#endif
