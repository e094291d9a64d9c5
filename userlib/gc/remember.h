/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * The remembered set of a heap with a nursery: old objects in which references to young ones were
 * stored since the last minor cycle, and fibres that threads have touched since or have entered.
 * An entry is a small object or, of a large one, the address of a page of it, or GRANULE bytes
 * behind the object for all of it; each has a bit in nursery.remembered, at its granule, so that it
 * is entered once.  A large object with a callback is visited as a whole, whatever its entry.
 */
#ifndef EBBGC_REMEMBER_H
#define EBBGC_REMEMBER_H

#include <stdbool.h>
#include <stdint.h>
#include "heap.h"
#include "object.h"

/* Will the next minor cycle trace?  Changes at safepoints only. */
static inline bool remembers(const struct ebbgc_heap *h)
{
	return h->nursery.old && !h->nursery.skip;
}

/* m's own thread: @value was stored in @slot of @object; no safepoint in between. */
void remember(struct mutator *m, ebbgc_ref_t object, const ebbgc_ref_t *slot, ebbgc_ref_t value);

/* m's own thread: any slot of @object, or if null of any, changes before the next safepoint. */
void remember_object(struct mutator *m, ebbgc_ref_t object);

/*
 * m's own thread: @value, or null, is stored in @slot before the next safepoint.  Finds the object
 * by the slot's address; a slot in no object of the heap needs no entry.
 */
void remember_slot(struct mutator *m, const void *slot, ebbgc_ref_t value);

/* A store whose object is unknown: the next minor cycle frees nothing. */
void remember_nothing(struct ebbgc_heap *h);

/* m's own thread, or world stopped: hands m's entries over to the heap. */
void remembered_flush(struct mutator *m);

/*
 * World stopped, all flushed: calls fn for each entry, an object or a page of a large one, and
 * empties the set.  Returns the number of entries.
 */
uint64_t remembered_each(struct ebbgc_heap *h, void (*fn)(void *arg, uint64_t entry), void *arg);

/* Is the entry an object as a whole, not a page of one? */
static inline bool entry_is_object(uint64_t entry)
{
	return entry % GRANULE == HEADER;
}

#endif
