/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * A far cycle: a cycle that also finds which objects in the store are alive, by reading them there
 * or by having the store trace them.
 * In other cycles, all of them are, and what is named is a root.
 *
 *	1. Before the first pause, the marks of objects in the store are cleared, and no region is
 *	   written from here to the end of step 2.  Regions that are LEAVING stay as they are: all
 *	   of their objects live.
 *	2. After it, what objects of LEAVING regions refer to is marked.  Names are no roots.
 *	3. A tracer that reaches an object in the store marks it and goes on.  When tracers have
 *	   nothing else to do, the collector reads what was marked, and marks what it refers to.  So
 *	   for objects that threads log; and for those that are brought, as the copy is not traced.
 *	4. In the last pause, with nothing left to read, the names that were found replace those of
 *	   before: what the dead held is not named any more.
 *	5. After it, objects in the store without a mark are freed: their region's extent as soon as
 *	   none is left, or most are brought or dead (leave.h, step 6).
 *
 * A store may trace what it has in place of step 3: far_trace.h.
 *
 * If a read fails, or there is too much to read, the far cycle is abandoned: all objects in the
 * store get their marks back, what was named becomes a root, and the cycle goes on as an ordinary
 * one.  Nothing in the store is freed then.
 *
 * When.  In a full collection that a thread waits for; in other cycles, when half as many bytes
 * have left since the last one as it found alive, or when the store is full.  After one that was
 * abandoned or freed little, later.  In checking mode, in every second cycle.
 *
 * What is read is believed as far as it names what was named before: no other address is followed.
 */
#ifndef EBBGC_FAR_MARK_H
#define EBBGC_FAR_MARK_H

#include <stdbool.h>

struct ebbgc_heap;

/* The collector, in its turn, before a cycle's first pause; @asked: a full one for a thread. */
void far_mark_begin(struct ebbgc_heap *h, bool asked);
/* After the pause, or in the one of a full collection: step 2. */
void far_mark_leaving(struct ebbgc_heap *h);

/* Is anything waiting to be read? */
bool far_mark_waits(const struct ebbgc_heap *h);
/* Step 3, once tracers are idle: returns whether there may be work for them now. */
bool far_mark_some(struct ebbgc_heap *h);
/* A pause found something to read: is the next one to read it itself? */
bool far_mark_hurries(const struct ebbgc_heap *h);
/* After such a pause. */
void far_mark_remark(struct ebbgc_heap *h);

/* World stopped, all is marked: step 4. */
void far_mark_end(struct ebbgc_heap *h);
/* At the end of the cycle, before forwards are dropped: step 5. */
void far_mark_free(struct ebbgc_heap *h);

#endif
