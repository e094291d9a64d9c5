/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * How regions of a far generation leave, and how what is left of them ends.
 *
 *	1. The oldest regions are chosen, those first that a sweep has cleaned.  They leave all
 *	   lists, so no thread takes their slots.
 *	2. A pause finds those that a root refers to: they stay, as new ones.  The others are
 *	   LEAVING: no thread has an address in them, and each load of one brings the object.
 *	3. Beside the program, old names in them are replaced, and what they refer to becomes named.
 *	4. The oldest that is LEAVING is packed and written, becomes AWAY, and its memory returns to
 *	   the kernel once no thread copies from it.  It is then the collector's.
 *	5. Before the last pause of a cycle, forwards are shortened.
 *	6. At the end of a cycle, regions that were EMPTY before it hold no names any more; the
 *	   forwards are dropped that no slot and no region needs; regions that were EMPTY and have
 *	   none are free; those without a live object in the store are EMPTY.  While more than half
 *	   of the bytes in the store are of objects that came back or are dead, regions of which
 *	   this is so are compacted by the store (far_compact.h).  If it does not, they come home:
 *	   all that is left of them is brought, in one cycle as much as an eighth of the budget.
 *	   So do compacted ones when free addresses are few.
 *
 * 1 to 4 are done by the thread `ebb-gc-far`, of which 1 to 3 in its turn: no cycle runs.  5 and 6
 * are done by the collector's, 6 with regions that were handed over to it only.
 */
#ifndef EBBGC_LEAVE_H
#define EBBGC_LEAVE_H

#include <stdbool.h>

struct ebbgc_heap;
struct mutator;

/* The thread of a far generation; returns 0 or -errno. */
int leave_start(struct ebbgc_heap *h);
void leave_stop(struct ebbgc_heap *h);

/* Frees all that is in the store. */
void leave_nothing(struct ebbgc_heap *h);

/* The collector, in its turn: its list gets the regions that were written. */
void leave_take_away(struct ebbgc_heap *h);

/* The collector, before the last pause of a cycle, or in it: step 5. */
void leave_shorten(struct ebbgc_heap *h);

/* The collector, at the end of a cycle: step 6. */
void leave_forget(struct ebbgc_heap *h);

#endif
