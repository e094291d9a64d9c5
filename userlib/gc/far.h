/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * The far generation: regions whose objects are old leave for a store (ebbgc_far_attach()), and
 * single objects come back when they are loaded.  far_step.h has the states of regions and the
 * rules of forwards; leave.h and fetch.h have what a region and an object go through; far_mark.h
 * has how objects in the store die.
 *
 *	names		no slot changes when a region leaves.  A load of a name that leads to a
 *			region that is not LOCAL takes the slow path, which follows forwards, brings
 *			the object if it is not in local memory, and heals the slot
 *	tablet		the slots of a region in the store, packed: lib/rules/tablet.h
 *	named		a bit for each object that a region which leaves, or has left, refers to,
 *			under the name that it had then.  In each cycle these objects are roots, but
 *			in a far cycle, which finds again what is named.
 *			Each region lists the regions in which it holds names; when the last one
 *			that holds names in a region has ended, these are withdrawn
 *	marks, old bits	of regions that are out stay set: far objects count as marked and as old, so
 *			that no tracer, no weak reference and no minor cycle asks for more.  A far
 *			cycle clears the marks of what is in the store, and finds them again
 *	allocated bits	of regions that are out: objects that were not brought
 *	arrivals	objects come back to regions of their own, so that the order in which
 *			regions were taken is the order in which their objects were used
 *
 * Memory.  Local regions are those in use, less those that are out, and free ones that keep their
 * memory.  Beyond the budget, less the reserve, the thread `ebb-gc-far` writes regions to the store
 * that are leaving; before, it makes as many leave as will be needed, at most a quarter of the
 * budget.  Births wait for it, and for a cycle that it waits for, while it makes progress; arrivals
 * never do.
 *
 * Turns.  A cycle and the thread `ebb-gc-far`, which makes regions leave, take turns (far_room.h).
 * So what leaves was named before the cycle's first pause, and nothing begins to leave before the
 * cycle has dropped forwards.  Writing what is leaving needs no turn.
 *
 * Owners.  A region that is out is the thread `ebb-gc-far`'s until its memory is returned, then it
 * is on far.away, from where the collector takes it, whose it is until it is free.  What is not the
 * collector's it neither frees nor drops forwards of; it shortens those of all regions.
 */
#ifndef EBBGC_FAR_H
#define EBBGC_FAR_H

#include "heap.h"

/* The end of a heap: its threads have ended, or the process is a child of fork(). */
void far_destroy(struct ebbgc_heap *h);

#endif
