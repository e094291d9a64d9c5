/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * The barrier.  ebbgc.h has its fast paths inline: they test a mutator's flags and its stamp.
 * Here are the slow paths, and what sets flags and stamps.
 */
#ifndef EBBGC_BARRIER_H
#define EBBGC_BARRIER_H

struct ebbgc_heap;
struct mutator;

/* Lock held: sets what m's accesses do from now on, by marking and epoch. */
void barrier_set(const struct ebbgc_heap *h, struct mutator *m);

/* Lock held: as barrier_set() for every mutator. */
void barrier_set_all(struct ebbgc_heap *h);

#endif
