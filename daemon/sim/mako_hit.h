/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Mako's heap indirection table (PLDI'22, sections 4 and 5.1, algorithms 1 and 2): a tablet per
 * region, whose entries have the places of the region's objects; the load barrier; and the
 * evacuation of one region by its server while the mutator runs.
 *
 * Where the paper is silent, a thread is "accessing" a region from before it tests the tablet until
 * it has used what it found.  tests/unit/test_model_hit.c tries every interleaving.
 *
 * Pure: no I/O, clock, allocation.
 */
#ifndef EBB_SIM_MAKO_HIT_H
#define EBB_SIM_MAKO_HIT_H

#include <stdbool.h>
#include <stdint.h>

/* Of a region: not in the evacuation set; in it; ... and its tablet is invalid. */
enum hit_state { HIT_NORMAL, HIT_WAITING, HIT_EVACUATING };

enum hit_load {
	HIT_USE,  /* the entry's place */
	HIT_MOVE, /* move the object to the to-space first, unless its entry is there already */
	HIT_WAIT, /* until the tablet is valid, then load again */
};

/* Algorithm 1, lines 3 to 19. @running: CE_RUNNING.  @moved: the entry is in the to-space. */
static inline enum hit_load hit_load(bool running, enum hit_state state, bool moved)
{
	if (!running || state == HIT_NORMAL)
		return HIT_USE;
	if (state == HIT_EVACUATING)
		return HIT_WAIT;
	return moved ? HIT_USE : HIT_MOVE;
}

/* The steps of algorithm 2 for one region, lines 13 to 27. */
enum hit_step {
	HIT_WRITE_BACK,   /* the region's pages; the mutator may still move its objects */
	HIT_INVALIDATE,   /* the tablet */
	HIT_WAIT_THREADS, /* until none is accessing the region */
	HIT_EVICT,        /* entries, and pages of the to-space */
	HIT_START,        /* the server moves the objects that are left, and updates entries */
	HIT_VALIDATE,     /* the tablet, which is the to-space's now; the region is free */
	HIT_DONE,
};

static inline enum hit_step hit_next(enum hit_step step)
{
	return step == HIT_DONE ? HIT_DONE : (enum hit_step)(step + 1);
}

#endif
