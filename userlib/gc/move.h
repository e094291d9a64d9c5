/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Moving objects of types that allow it (EBBGC_MOVABLE), which have kinds of regions of their own.
 * At the end of a cycle, once all is swept:
 *
 *	1. Regions that are at most half full are chosen, if there are several with slots of one
 *	   size.  They leave all lists, so no thread takes their slots.
 *	   Also chosen are regions in which at most a quarter of the objects is hot: the program has
 *	   touched them in this cycle, as its notes and page faults tell (moving.hot).  Only these
 *	   move, to regions of their own, so that fewer pages hold what the program uses.
 *	2. In a pause, each object there that a root refers to is pinned.  The others are copied to
 *	   new regions, and their new addresses entered in side tables (forward.h).
 *	   What a moved object refers to is moved next, depth first.
 *	   Regions that nothing has left, as all in them is pinned, are as they were before.
 *	3. Pages that are empty now return to the kernel.
 *
 * Threads then run with EBBGC_MOVED in their flags: each load heals its slot.  The next cycle heals
 * the slots that no thread has loaded.  At the end of its marking the tables are dropped, and the
 * regions are swept like others.
 *
 * The pause changes no slot of any object and leaves the old copies as they are.  So in a child of
 * fork() that a thread in a blocked region makes meanwhile, all references name the old copies,
 * and no flag says otherwise.
 *
 * A full heap has no room for moving: it may take a quarter of the free regions, and none while a
 * thread waits for adjacent ones.  In a concurrent cycle, the pause copies at most 1 MiB, all of it
 * in memory.
 */
#ifndef EBBGC_MOVE_H
#define EBBGC_MOVE_H

#include <stdbool.h>

struct ebbgc_heap;

/*
 * The collector, after a sweep: chooses what to move.  @full: also what is swapped out, and without
 * a limit; @scarce: also hot objects, as some of the heap is swapped out.  Returns false if nothing
 * is to move.  What something far may refer to (named.h) does not move.
 */
bool move_choose(struct ebbgc_heap *h, bool full, bool scarce);

/* World stopped, no object is young: moves the objects of the chosen regions. */
void move_objects(struct ebbgc_heap *h);

/* After the pause: returns the memory of the old copies. */
void move_done(struct ebbgc_heap *h);

/* World stopped, lock held, before a sweep: all slots are healed; drops the side tables. */
void move_forget(struct ebbgc_heap *h);

#endif
