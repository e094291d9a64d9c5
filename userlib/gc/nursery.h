/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * A nursery by sticky mark bits (Demers et al., "Combining generational and conservative garbage
 * collection: framework and implementations", POPL 1990).  Objects do not move: an object is young
 * until it survives a minor cycle, and old from then on.  A minor cycle traces young objects only,
 * frees the others in the regions that threads have got since the last one, and gives these regions
 * back to the threads.  So most garbage is reused while its pages are in memory, instead of being
 * written to swap, and no page of old objects is read to find it.
 *
 * Bits.  nursery.old has a bit per granule beside those for allocation and marks.  It is set with
 * the world stopped when a minor cycle reaches the object, and cleared when a cycle's sweep frees
 * the object.  Marks are not used: a minor cycle may run while a cycle is marking.
 *
 * A minor cycle runs in one pause, as the young part is small.  Every region is swept then.
 *
 *	1. Threads lose the rest of their runs and their regions.
 *	2. Roots: frames, handles, ranges, ready finalizers, conservative stacks, and the remembered
 *	   set.  From there, references to young objects are followed; these become old.
 *	3. Ephemerons, weak references, finalizers as in a cycle: what is not young counts as alive.
 *	4. Of the regions on the list of young ones, all slots without an old object are free.
 *	   Regions of which at least half is free go first to the threads that allocate next
 *	   (`recycled`), up to nursery_bytes; wholly free ones beyond are free for any use.
 *
 * Tracing pays only for what dies.  Once half of the young bytes have survived, or tracing has
 * taken 4 pause_budget_ns, a minor cycle gives up: all that is young becomes old.  The next ones
 * trace nothing and need no remembered set (minor.c, judge()).
 *
 * All survivors become old at once, so after a minor cycle no reference leads from an old object to
 * a young one, and the remembered set is empty.  The price: what was allocated last becomes old
 * although it may die soon; the next cycle frees it.
 *
 * The remembered set (remember.h) has the old objects in which references to young ones were stored
 * since the last minor cycle.  Unless the next one is to trace nothing, threads of a heap with a
 * nursery have EBBGC_MARKING in their flags, so that all stores take the slow path; code that was
 * compiled for heaps without a nursery needs no change.  ebbgc_log_old(), which only ebbgc_cas() of
 * 0.1.0 calls, does not tell the slot: then the next minor cycle frees nothing (nursery.blind).
 * The same goes for lack of memory.
 *
 * Types with slots or edges() need EBBGC_ALL_STORES: without it, their barrier may be left out
 * where null is overwritten.  ebbgc_overwrite() enters the whole object; without an object, it
 * makes the next minor cycle free nothing.  ebbgc_replace() enters what it finds at the slot's
 * address.  Fibres change without a barrier: touching one enters it, and each minor cycle enters
 * again those that threads are in, which may change until they are left.
 *
 * Callbacks run in minor cycles as in cycles.  A tracer may run one for the same object at the same
 * time, but not for a fibre: those in the set were traced in this cycle, or touched before, which
 * waits for the tracer.
 *
 * Weak slots and ephemerons: an old one that refers to a young object is in the remembered set.
 * Identity hashes are in headers.  Leaves become old without being read.  A large object has its
 * regions for itself and is on the list of young regions.  Of a large remembered object only the
 * pages that were written are visited.  After fork() there are no minor cycles in the child; its
 * stores remember until the thread's buffer is full, and then no more.  The checking mode verifies
 * after each minor cycle that all references from roots and old objects lead to old objects.
 *
 * Minor cycles and cycles.  Minor cycles have a thread of their own.  A pause belongs to it or to
 * the collector (heap.pausing).  A minor cycle is part of the pause in which a cycle takes its
 * snapshot, and of the one in which it ends the marking.  So
 *
 *	- all objects of the snapshot are old.  Tracers read and mark old objects only: objects that
 *	  are allocated during marking have their mark bits set, and whatever a tracer finds marked
 *	  it leaves alone, but for its mark bit.  A minor cycle during marking frees only objects
 *	  that were allocated during marking: never one that a tracer may hold.
 *	- the mark bits of slots that it frees stay set until the sweep: a tracer may have loaded a
 *	  reference to such a slot before the program overwrote it.  For the same reason a region
 *	  keeps its kind until then, even if it is empty, and large ones wait in `large_dead`.
 *	  What searches for work by mark bits (order_address, the recovery from an overflow) skips
 *	  objects that are not old, and so does what begins with an address (arrivals).
 *	- every object that a cycle's sweep finds is old, and no unswept region is on the list of
 *	  young ones.
 *
 * A thread that allocates twice nursery_bytes before a minor cycle has begun waits for it.  A
 * cycle begins when what is allocated, less what minor cycles freed, has used up its room.  While
 * objects have finalizers it begins at the latest when 16 times its room was allocated: old ones
 * would wait for ever where all that is allocated dies young.
 */
#ifndef EBBGC_NURSERY_H
#define EBBGC_NURSERY_H

struct ebbgc_heap;

/* Starts the thread of minor cycles, if the heap has a nursery.  Returns 0 or -errno. */
int nursery_start(struct ebbgc_heap *h);
/* Joins the thread. */
void nursery_stop(struct ebbgc_heap *h);

#endif
