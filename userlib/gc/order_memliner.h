/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * The order that follows the program: MemLiner (Wang, Ma et al., OSDI 2022; Ma's dissertation,
 * section 4.3.2.3, algorithms 6 and 7).
 *
 * Fresh work is taken last in first out; without fresh work, postponed work is taken first in first
 * out: the paper's single tracing queue with a stack's locality.  Objects are marked when they are
 * traced: a postponed object is still noted when the program touches it.
 */
#ifndef EBBGC_ORDER_MEMLINER_H
#define EBBGC_ORDER_MEMLINER_H

struct ebbgc_heap;
struct tracer;

/* World stopped, EBBGC_MEMLINER: drops notes and arrivals from before this cycle. */
void memliner_begin(struct ebbgc_heap *h);

/* Handles arrivals: marks objects, wakes work, sends hints.  During marking, any tracer. */
void memliner_arrivals(struct tracer *t);

#endif
