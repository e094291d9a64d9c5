/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * The rules of the far generation, one decision at a time.  The library and the model checker
 * (tests/unit/test_gc_far_model.c) run this source.
 *
 * A region's state, and which may follow:
 *
 *	LOCAL -> PROBING -> LEAVING -> AWAY -> COMING -> EMPTY -> LOCAL, free
 *	            |          |        `-----------------^
 *	            v          `--------------------------^   all of it was rescued
 *	          LOCAL: pinned
 *
 * An object of a LEAVING region is copied out by whatever touches it (rescued), one of an AWAY
 * region is read from the store (fetched); both are called bringing.  Then the entry of its old
 * place in the region's table is its new address, its forward.
 *
 * An entry goes 0 -> BUSY -> target.  The thread that makes it BUSY has claimed the object: it
 * alone brings it.  Only after its claim it reads the region's state, which says from where.  What
 * ends a state first writes the next one, then waits until no entry is BUSY: so memory and extents
 * last until every claim that relies on them has ended.  All of these accesses are sequentially
 * consistent.
 *
 * Names.  A slot may hold a name that has a forward.  The name of an object is a root, called
 * named, from when an object that refers to it leaves; it is never withdrawn here.  A forward is
 * dropped when its name is not named, and a whole cycle began after it was made: the cycle has
 * replaced the name in all slots.  Chains are shortened first, since a kept forward may lead to a
 * name whose forward is dropped.
 *
 * Pure: no I/O, clock, allocation.
 */
#ifndef EBBGC_FAR_STEP_H
#define EBBGC_FAR_STEP_H

#include <stdbool.h>
#include <stdint.h>

/* As the load barrier reads them: it asks the slow path about all but the first. */
enum far_state {
	FAR_LOCAL,
	FAR_MOVED,	/* of move.h: objects have moved out, within local memory */
	FAR_PROBING,	/* as LOCAL; leaves if the next pause finds no pin */
	FAR_LEAVING,	/* read-only */
	FAR_AWAY,	/* in the store; no local memory */
	FAR_COMING,	/* as AWAY, while the collector brings all that is left of it */
	FAR_EMPTY,	/* only forwards; no local memory, nothing in the store */
};

/* What may happen to a region. */
enum far_event {
	FAR_CHOSEN,
	FAR_PINNED,
	FAR_UNPINNED,	/* a pause found no pin */
	FAR_WRITTEN,	/* to the store */
	FAR_CALLED,	/* home */
	FAR_REFUSED,	/* the store did not answer: it stays there */
	FAR_DRAINED,	/* its last object was brought */
	FAR_FORGOTTEN,	/* its last forward was dropped */
	FAR_EVENTS,
};

/* Returns the state that follows, or the same: the event cannot happen in this state. */
static inline enum far_state far_next(enum far_state state, enum far_event event)
{
	switch (event) {
	case FAR_CHOSEN:
		return state == FAR_LOCAL ? FAR_PROBING : state;
	case FAR_PINNED:
		return state == FAR_PROBING ? FAR_LOCAL : state;
	case FAR_UNPINNED:
		return state == FAR_PROBING ? FAR_LEAVING : state;
	case FAR_WRITTEN:
		return state == FAR_LEAVING ? FAR_AWAY : state;
	case FAR_CALLED:
		return state == FAR_AWAY ? FAR_COMING : state;
	case FAR_REFUSED:
		return state == FAR_COMING ? FAR_AWAY : state;
	case FAR_DRAINED:
		if (state == FAR_LEAVING || state == FAR_AWAY || state == FAR_COMING)
			return FAR_EMPTY;
		return state;
	case FAR_FORGOTTEN:
		return state == FAR_EMPTY ? FAR_LOCAL : state;
	default:
		return state;
	}
}

/* Is no object of the region to be accessed where it is? */
static inline bool far_is_out(enum far_state state)
{
	return state >= FAR_LEAVING;
}

/* Has it local memory? */
static inline bool far_has_memory(enum far_state state)
{
	return state < FAR_AWAY;
}

/* --- entries -------------------------------------------------------------------------------- */

#define FAR_BUSY UINT64_C(1)
#define FAR_AWAITED UINT64_C(2)	/* with BUSY: threads sleep until it changes */
#define FAR_ODD UINT64_C(4)	/* made after an odd number of snapshots */
#define FAR_FLAGS UINT64_C(7)	/* an object's address has none of them */

/* Returns the entry for an object that is at @target now, after @snapshots of cycles. */
static inline uint64_t far_entry(uint64_t target, uint64_t snapshots)
{
	return target | (snapshots & 1 ? FAR_ODD : 0);
}

/* Returns where the object is, 0 if the entry does not say. */
static inline uint64_t far_target(uint64_t entry)
{
	return entry & FAR_BUSY ? 0 : entry & ~FAR_FLAGS;
}

/* What to do about an object. */
enum far_answer {
	FAR_HERE,	/* it is where its name says */
	FAR_FOLLOW,	/* ask about far_target() */
	FAR_WAIT,	/* another thread brings it: ask again when the entry changes */
	FAR_CLAIM,	/* make the entry BUSY, if it is still 0, then ask far_source() */
};

/* By a region's state and then the object's entry, 0 without a table. */
static inline enum far_answer far_ask(enum far_state state, uint64_t name, uint64_t entry)
{
	if (state == FAR_LOCAL || state == FAR_PROBING)
		return FAR_HERE;
	if (entry & FAR_BUSY)
		return FAR_WAIT;
	if (entry && far_target(entry) != name)
		return FAR_FOLLOW;
	return state == FAR_MOVED ? FAR_HERE : FAR_CLAIM;
}

enum far_source {
	FAR_FROM_MEMORY,	/* copy the original */
	FAR_FROM_STORE,		/* read it */
	FAR_FROM_NOWHERE,	/* a broken rule */
};

/* By the state as it is after the claim. */
static inline enum far_source far_source(enum far_state state)
{
	if (state == FAR_LEAVING)
		return FAR_FROM_MEMORY;
	return state == FAR_AWAY || state == FAR_COMING ? FAR_FROM_STORE : FAR_FROM_NOWHERE;
}

/*
 * Is the forward droppable, at the end of the cycle that took the last of @snapshots?  Its chain
 * has been shortened.
 */
static inline bool far_may_drop(uint64_t entry, bool named, uint64_t snapshots)
{
	return entry && !(entry & FAR_BUSY) && !named &&
	       (entry & FAR_ODD) != (snapshots & 1 ? FAR_ODD : 0);
}

/*
 * May what ends the region's state go on: return its memory, free its extent?  @busy: some entry
 * was BUSY after the new state was written.
 */
static inline bool far_is_quiet(bool busy)
{
	return !busy;
}

#endif
