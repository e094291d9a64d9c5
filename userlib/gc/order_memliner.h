/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * The order that follows the program: MemLiner (Wang, Ma et al., OSDI 2022; Ma's dissertation,
 * section 4.3.2.3, algorithms 6 and 7).
 *
 * Fresh work is taken last in first out, postponed work first in first out once there is no fresh
 * work: the paper's one tracing queue with a stack's locality.  Objects are marked when they are
 * traced: a postponed one is still noted when the program touches it.
 */
#ifndef EBBGC_ORDER_MEMLINER_H
#define EBBGC_ORDER_MEMLINER_H

struct ebbgc_heap;
struct tracer;

/* World stopped, EBBGC_MEMLINER: forgets what the program touched before this cycle. */
void memliner_begin(struct ebbgc_heap *h);

/* Marks, wakes and hints by what has arrived.  During marking, any tracer. */
void memliner_arrivals(struct tracer *t);

#endif
