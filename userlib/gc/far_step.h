/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * The rules of the far generation, one decision at a time.  The library and the model checker
 * (tests/unit/test_gc_far_model.c) run this source.
 *
 * A region's state, and which may follow; left of each state, the thread that ends it:
 *
 *	any		LOCAL	-> PROBING		all that is done to regions of a heap
 *	ebb-gc-far	PROBING	-> LEAVING, LOCAL	in a pause: unpinned, pinned
 *	ebb-gc-far	LEAVING	-> AWAY			it is in the store, or nothing is left of it
 *	collector	AWAY	-> EMPTY		its last object was brought
 *	collector	EMPTY	-> LOCAL, free		its last forward was dropped, a cycle later
 *
 * The thread ebb-gc-far hands an AWAY region to the collector once its memory is returned and it is
 * counted; until then the collector changes nothing of it.
 *
 * An object of a LEAVING region is copied out by whatever touches it (rescued), one of an AWAY
 * region is read from the store (fetched); both are called bringing.  Then the entry of its old
 * place in the region's table is its new address, its forward.
 *
 * An entry goes 0 -> BUSY -> target, or back to 0 if a read fails.  The thread that makes it BUSY
 * has claimed the object: it alone brings it.  Only after its claim it reads the region's state,
 * which says from where.  What ends a state first writes the next one, then waits until no entry is
 * BUSY: so memory and extents last until every claim that relies on them has ended.  All of these
 * accesses are sequentially consistent.
 *
 * Names.  A slot may hold a name that has a forward.  A region that leaves holds names: those in
 * its slots, as they are written.  A name that some region holds is named: its object is a root.
 * What is brought holds them, too, and is not traced by a cycle that runs.  So a region ceases to
 * hold them at the end of the first cycle before which it was EMPTY: in that cycle they were
 * replaced in what was brought.
 *
 * A forward is dropped when its name is not named, and a whole cycle began after it was made: the
 * cycle has replaced the name in all slots.  A forward that is kept may lead to one that is
 * dropped, and a thread may be on its way there.  So all are shortened before the cycle's last
 * pause: they lead to where the object is.  After the pause no thread is between them.
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
	FAR_AWAY,	/* in the store, as far as objects are left; no local memory */
	FAR_EMPTY,	/* only forwards, and names that it holds; nothing in the store */
};

/* What may happen to a region. */
enum far_event {
	FAR_CHOSEN,
	FAR_PINNED,
	FAR_UNPINNED,	/* a pause found no pin */
	FAR_WRITTEN,	/* to the store */
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
	case FAR_DRAINED:
		return state == FAR_AWAY ? FAR_EMPTY : state;
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
	return state == FAR_AWAY ? FAR_FROM_STORE : FAR_FROM_NOWHERE;
}

/*
 * Is the forward droppable, after the last pause of the cycle that took the last of @snapshots?
 * Forwards were shortened before that pause.
 */
static inline bool far_may_drop(uint64_t entry, bool named, uint64_t snapshots)
{
	return entry && !(entry & FAR_BUSY) && !named &&
	       (entry & FAR_ODD) != (snapshots & 1 ? FAR_ODD : 0);
}

/*
 * At the end of a cycle, before regions become EMPTY: does the region cease to hold names?  It was
 * EMPTY before the cycle.
 */
static inline bool far_may_withdraw(enum far_state state)
{
	return state == FAR_EMPTY;
}

/*
 * At the end of a cycle, before the region becomes EMPTY: is it free?  @kept: some of its forwards
 * were not dropped.
 */
static inline bool far_may_forget(enum far_state state, bool kept)
{
	return state == FAR_EMPTY && !kept;
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
