/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The world of world.h from inside: words, checks and verbs (world.c), and steps (steps.c). */
#ifndef EBB_MODEL_FAR_INSIDE_H
#define EBB_MODEL_FAR_INSIDE_H

/* The sizes of world.h first. */
#include "world.h"
#include "daemon/lib/rules/far_step.h"

enum { MEMBERS = 3, PAGES = EBB_FAR_SLOTS, HOLDS = 2, OFFERS = 2 };
enum { SECTIONS = FAR_MODEL_SECTIONS };
enum life { VACANT, LIVE, CRASHED, FENCED };

/* An extent that a member has, or has offered. */
struct hold {
	uint8_t n;	 /* words; 0: none */
	uint8_t offered; /* the receiver */
	struct ebb_far_name name[2];
};

/* An operation in flight; done: effects of its verb so far. */
struct flight {
	struct far_op op;
	uint8_t busy, done, hold, stale, lies;
};

struct member {
	uint8_t life, joined;
	struct flight f;
	struct ebb_far_name fresh[2]; /* what an allocation or a take will give */
	struct far_view view;
	struct hold hold[HOLDS];
	struct hold freed;    /* the last one, to be freed once more */
	struct hold wrote;    /* a WRITE of its bytes is in flight */
	struct far_swap late; /* an old connection's, which may still take effect */
};

/* A message; to: 0 = none. */
struct offer {
	uint8_t from, to;
	struct hold hold;
};

struct world {
	uint64_t section[SECTIONS], slot[SECTIONS][PAGES];
	/* generations that have named an allocation, a bit each */
	uint16_t section_names[SECTIONS], slot_names[SECTIONS][PAGES];
	struct far_budget left;
	uint8_t members, late, recovering, unused;
	struct flight donor;
	struct offer offer[OFFERS];
	struct member m[MEMBERS];
	/* Hashes of .donor and of each member, as far as they are known (bits). */
	uint64_t print[MEMBERS + 1];
	uint64_t printed;
};

/* The bit of .donor in .printed; that of member i is 1 << i. */
enum { PRINT_DONOR = 1 << MEMBERS };

extern struct world W;

/* The draws of a step: which results they have, and how many there are. */
extern struct far_drawn {
	uint32_t choice, choices;
} drawn;

static inline bool mutant(enum far_mutant which)
{
	return far_mutant == which;
}

static inline uint32_t number_of(const struct member *m)
{
	return (uint32_t)(m - W.m) + 1;
}

/* Notes what is violated first. */
void wrong(const char *what, uint32_t a, uint64_t b);

/* --- words and names --- */

/* Returns NULL for a hint word, which is not kept. */
uint64_t *word_at(uint64_t at);
/* Returns the member that has the extent of word @word at @at, or 0. */
uint32_t owner_in(uint64_t at, uint64_t word);
uint64_t name_at(const struct ebb_far_name *n);
/* Returns the word of @n while @owner has it. */
uint64_t name_word(const struct ebb_far_name *n, uint32_t owner);
/* The word at @at became owned by another, or under another name. */
void check_name(uint64_t at, uint64_t word);
void check_sections(void);
void check(void);

/* Returns whether member @m has the name @n, as the protocol asks. */
bool holds(const void *m, const struct ebb_far_name *n);

/* --- verbs --- */

/* Returns how many effects the verb in flight has. */
uint32_t effects(const struct far_op *op);
/* Takes the next effect of @f, of member @by, and those that nothing can tell apart from it. */
void effect(struct flight *f, uint32_t by);
/* The WRITE that @m has in flight changes its bytes. */
void write_bytes(const struct member *m);
/* The late compare-and-swap of @m takes effect. */
void swap_late(struct member *m);
/* Goes on to the next verb that has an effect.  Returns false when the operation has ended. */
bool go_on(struct flight *f, int status);
/* Begins to make section @s free as FineMem does, with one swap.  False if slots seem in use. */
bool begin_last_free(struct member *m, uint32_t s);

#endif
