/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A world of members with boxes, places in the memory of one donor, perhaps with twins in that of a
 * second one, and names that travel between
 * members, may be delivered to any of them, and more than once.  Members run
 * userlib/dsm/dsm_step.c. A step is one effect that others can see: a part of a verb, or a word of
 * one that is not atomic. Members crash between any two steps; what is in flight may take effect
 * until the fence.  So it is when a live member loses the donor, which others may still reach.
 */
#ifndef EBB_MODEL_DSM_WORLD_H
#define EBB_MODEL_DSM_WORLD_H

#include <stddef.h>
#include <stdint.h>

/* How often each of these may happen. */
struct dsm_budget {
	uint8_t boxes, changes, drops, moves, loans, views, reads, takes, reclaims, releases,
		crashes, rejoins, cuts;
};

struct dsm_model {
	const char *name;
	uint8_t members, places;
	uint8_t second; /* of these, at the second donor; 0 = without twins */
	struct dsm_budget budget;
	uint32_t states; /* fewer are a fault of the search */
};

/* Faults of the protocol or of a member, which the search must find. */
enum dsm_mutant {
	DSM_MUTANT_NONE,
	DSM_COLOUR_RESET,   /* numbers begin again when a place is used again: DRust's colours */
	DSM_ASYNC_OWNER,    /* a return ends before the owner's word has changed: DRust's code */
	DSM_CACHE_SURVIVES, /* a mutable borrow keeps the stamp, by which copies are cached */
	DSM_NO_ZERO,        /* new memory is not zeroed */
	DSM_ONE_CHECK,      /* the header is not read again */
	DSM_NO_MARK,        /* the stamp is not 0 during a change */
	DSM_EARLY_FREE,     /* a place is freed when the object is taken, not when it is copied */
	DSM_LATE_CLAIM,     /* the claim is written after the swap */
	DSM_NO_FENCE,       /* a dead member's parts take effect after its recovery */
	DSM_PLAIN_WRITE,    /* hold words are written, not compared and swapped */
	DSM_NO_REREAD,      /* the hold of a dead member is ended without another look at it */
	DSM_EARLY_CLAIM,    /* the claim of a return is used again before the owner has taken it */
	DSM_TWIN_LATE,      /* the twin is written when the value can be named already */
	DSM_TWIN_STALE,     /* a twin's value is returned, whatever its stamp */
	DSM_TWO_PRIMARIES,  /* the giver names its twin the object that a receiver may have */
	DSM_OLD_PRIMARY,    /* what the place has counts, though its owner has lost it */
	DSM_HEAD_AFTER,     /* the header before the content is not looked at */
	DSM_MAPPED_FIRST,   /* a member that has lost the donor reads its mapped memory */
	DSM_TWIN_STAYS,     /* the twin of a place that is freed keeps its header */
	DSM_MUTANTS
};

struct dsm_world_step {
	uint8_t kind, member, what, other;
};

enum { DSM_WORLD_STEPS = 96 };

/* Of the last run: what was violated first, or "". */
extern char dsm_wrong[160];
/* Not NULL: other violations than this one are ignored. */
extern const char *dsm_only;
extern enum dsm_mutant dsm_mutant;
/* Results of operations that runs have reached, as bits: by enum of world.c. */
extern uint64_t dsm_reached[];
const char *dsm_unreached(void);

void dsm_world_begin(const struct dsm_model *model);
int dsm_world_possible(struct dsm_world_step out[static DSM_WORLD_STEPS]);
uint32_t dsm_world_take(const struct dsm_world_step *step, uint32_t choice);
/* Operations in flight end, the donor recovers the dead, the living settle: nothing may be lost. */
void dsm_world_end(void);
const char *dsm_world_name(const struct dsm_world_step *step);
extern void *const dsm_world;
size_t dsm_world_size(void);
uint64_t dsm_world_fingerprint(void);
uint64_t dsm_world_end_fingerprint(void);

#endif
