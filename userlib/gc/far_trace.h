/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * A far cycle (far_mark.h) in which the store traces what it has (struct ebbgc_far_jobs), so that
 * step 3 reads nothing, or little:
 *
 *	a. When tracers are idle for the first time, the store learns which regions it has, and
 *	   which of their objects had come back, or were dead, when the marks were cleared.
 *	b. Objects of these regions that are marked are passed to it.  It marks what they lead to
 *	   there; what it finds elsewhere is marked here, or passed on.  So until nothing is left to
 *	   trace on either side.
 *	c. Then its marks, and what is named there, are taken at once, or not at all.  An object
 *	   with a mark that came back between a cycle's beginning and its first pause is marked
 *	   here.
 *	d. What is reached after that, by logs, by ephemerons, for finalizers, is read as in other
 *	   far cycles.  Weak references and finalizers ask marks after c only.
 *
 * If the store refuses, fails, or says what cannot be, before c, its marks are not used: what was
 * passed to it is read, in the same cycle.
 *
 * The store says which objects are named, not by which regions.  What a region refers to does not
 * change there: it holds what it held before, as far as that is named still.
 *
 * Some of the regions the store may leave to the heap, such as those of a donor that was slow in
 * the last cycles: they are read as in other far cycles, between calls of b.
 *
 * What is believed.  A name is followed only if it was named before; a mark is one only of an
 * object that the store had when the marks were cleared; what is named there is marked; all that
 * was passed is marked; each region is told of once.  A store that leaves out marks or names beyond
 * that loses live objects.
 *
 * Time.  Calls of the store have a time in each cycle, by the bytes that are stored, and a smaller
 * one in its pauses, and from when a thread waits for the cycle, such as for local memory: a list
 * that alternates between here and there takes a call for each object.  Once it is used up, the
 * rest is read.
 */
#ifndef EBBGC_FAR_TRACE_H
#define EBBGC_FAR_TRACE_H

#include <stdbool.h>
#include <stdint.h>

struct ebbgc_heap;

#define FAR_SETS 4096u	/* passed to the store at a time */

/* At the end of step 1: decides whether the store traces. */
void far_trace_begin(struct ebbgc_heap *h);

/* Tracers are idle: a to c.  Returns false if it is done, and what is marked now is to be read. */
bool far_trace_some(struct ebbgc_heap *h);

/* In step 5, if the store has traced, before far_trace_holds(): once. */
void far_trace_names(struct ebbgc_heap *h);
/* Then for each region that was traced: it holds what is left of what it held. */
void far_trace_holds(struct ebbgc_heap *h, uint32_t region);

/* Then once: no name stays in a region in which no region holds any. */
void far_trace_unheld(struct ebbgc_heap *h);

/* The cycle, or the heap, ends. */
void far_trace_end(struct ebbgc_heap *h);

#endif
