/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Members of a pool, its donor and one small arena, in a world that takes one step at a time.  A
 * step is the effect of one word's READ or compare-and-swap, so every interleaving of verbs and of
 * the parts of a verb is tried.  The protocol is lib/rules/far_step.c as it is shipped, with two
 * sections of two pages; `make model-far` also builds it with other sizes.
 *
 * Members crash between any two effects.  The rest of a verb in flight may take effect later, until
 * the donor's fence; so may a WRITE of an extent's bytes.  Replies are lost; messages are lost and
 * duplicated.  Images are as old as members make them.  Hint words are not kept: a READ finds them
 * full, or empty.
 *
 * Not modelled: extents of three sections and more, far_format() by itself, errors that end an
 * operation of a live member, two operations of one member at the same time.
 */
#ifndef EBB_MODEL_FAR_WORLD_H
#define EBB_MODEL_FAR_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef EBB_FAR_SECTION_ORDER
#define EBB_FAR_SECTION_ORDER 1
#endif
#ifndef EBB_FAR_LINE_ORDER
#define EBB_FAR_LINE_ORDER 1
#endif
#ifndef EBB_FAR_WINDOW
#define EBB_FAR_WINDOW 2u
#endif
#ifndef FAR_MODEL_SECTIONS
#define FAR_MODEL_SECTIONS 2
#endif

/* How often each may happen, still. */
struct far_budget {
	uint8_t slots;	 /* allocations of slots */
	uint8_t big;	 /* allocations of slots of class 1, if there are any */
	uint8_t runs;	 /* allocations of sections */
	uint8_t pairs;	 /* allocations of two sections */
	uint8_t formats; /* allocations of slots that may format */
	uint8_t trims;
	uint8_t offers, withdrawals, duplicates;
	uint8_t crashes, rejoins;
	uint8_t cuts;	/* replies lost */
	uint8_t stale;	/* frees of what is freed already */
	uint8_t lies;	/* allocations that see empty hints */
	uint8_t writes; /* WRITEs of the bytes of an extent */
};

struct far_model {
	const char *name;
	uint8_t members;
	uint8_t opened; /* so many sections are open at first */
	bool late;	/* words start just before their last generations */
	struct far_budget budget;
	uint32_t states; /* at least as many are reached */
};

/* Faults of the protocol, the donor or a member, which the search must find. */
enum far_mutant {
	FAR_MUTANT_NONE,
	FAR_NO_FENCE,		 /* recovery without fence */
	FAR_LATE_FENCE,		 /* the fence comes after recovery */
	FAR_EARLY_REUSE,	 /* a number is reused before recovery */
	FAR_NO_GENERATION,	 /* all generations are 0 */
	FAR_FORMAT_GENERATION,	 /* a free raises no generation, a format does */
	FAR_MOVE_GENERATION,	 /* a hand-over raises no generation */
	FAR_WITHDRAW_GENERATION, /* a withdrawal raises no generation */
	FAR_RECOVER_GENERATION,	 /* recovery raises no generation */
	FAR_GIVER_MOVES,	 /* the giver does the receiver's compare-and-swap, then sends */
	FAR_GIVER_WRITES,	 /* the giver writes to an extent that it has offered */
	FAR_CARELESS_TAKE,	 /* a receiver does not check its compare-and-swap */
	FAR_PLAIN_WRITE,	 /* FineMem: a section's state changes by WRITE, not by CAS */
	FAR_LAST_FREE,		 /* FineMem's double allocation: the last free frees the section */
	FAR_CARELESS_TRIM,	 /* a trim does not check for busy slots */
	FAR_UNKNOWN_IS_LOST,	 /* an unknown outcome counts as failure */
	FAR_UNKNOWN_IS_WON, /* ... and a word as desired as success, though the member had it */
	FAR_LATE_REPEAT,    /* a verb is executed again while the first try may take effect */
	FAR_NO_UNDO,	    /* a partial allocation is not undone */
	FAR_NO_TAKE_UNDO,   /* a partial take is not undone */
	FAR_NO_ROLL,	    /* recovery ignores OPENING and CLOSING */
	FAR_SHORT_RECOVERY, /* recovery skips sections that live members open or close */
	FAR_WRAP,	    /* a word's last generation is followed by 0 */
	FAR_MUTANTS
};

struct far_world_step {
	uint8_t kind, member, what, other;
};

enum { FAR_WORLD_STEPS = 96 };

/* Of the last run: what was violated first, or "". */
extern char far_wrong[160];
/* Not NULL: other violations than this one are ignored. */
extern const char *far_only;
/*
 * What runs have reached, of all that the protocol does: phases of operations (a bit each), and by
 * kind of operation its results (far_result_bit()).
 */
extern uint64_t far_reached_phases, far_reached_results[];
extern const uint64_t far_all_phases;

/* The protocol's errors have different bits. */
static inline uint64_t far_result_bit(int result)
{
	return 1ull << (-result & 63);
}
extern enum far_mutant far_mutant;

void far_world_begin(const struct far_model *model);
/* Returns the steps that are possible. */
int far_world_possible(struct far_world_step out[static FAR_WORLD_STEPS]);
/*
 * Takes one, and checks what is always true.  @choice tells how all draws in it end: returns the
 * number of choices that there are.
 */
uint32_t far_world_take(const struct far_world_step *step, uint32_t choice);
/* No step is left but crashes: all members end, and the donor recovers them. */
void far_world_end(void);
const char *far_world_name(const struct far_world_step *step);
/* The whole world. */
extern void *const far_world;
size_t far_world_size(void);
/* Equal for states from which the same may follow; never 0. */
uint64_t far_world_fingerprint(void);
/* Equal for states in which far_world_end() does the same; never 0. */
uint64_t far_world_end_fingerprint(void);

#endif
