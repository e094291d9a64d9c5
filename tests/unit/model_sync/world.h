/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Members that use one cell of another one's memory: a mutex with two words of content, a channel,
 * or counts.  They run userlib/dsm/sync_step.c and channel_step.c.  A step is one effect that
 * others can see: the swap of a word, or the READ of the state, of the entries or of the content.
 * Members crash between any two steps; the rest of a verb may take effect until the fence.  Members
 * wake when they are rung, late, and when an interval or their time has passed.
 */
#ifndef EBB_MODEL_SYNC_WORLD_H
#define EBB_MODEL_SYNC_WORLD_H

#include <stddef.h>
#include <stdint.h>

#define SYNC_USERS 3u

/* How often each of these may happen. */
struct sync_budget {
	uint8_t locks, tries, timeouts, looks, crashes, rejoins, leaves, spoils, holds, sweeps,
		sends, receives, closes, ends;
};

struct sync_model {
	const char *name;
	uint8_t members;
	uint8_t joined;  /* the first ones, which are users from the start */
	uint8_t strangers; /* other users, which live and do nothing */
	enum { MUTEX, CHANNEL, COUNTS } kind;
	struct sync_budget budget;
	uint32_t states; /* fewer are a fault of the search */
};

/* Faults of the protocol or of a member, which the search must find. */
enum sync_mutant {
	SYNC_MUTANT_NONE,
	SYNC_NO_MASK,      /* words are stored as they are */
	SYNC_NO_VERSION,   /* a join does not change the version */
	SYNC_NO_FENCE,     /* a member that has crashed counts as dead before its fence */
	SYNC_ENTRY_FIRST,  /* the entries are read before the state */
	SYNC_NO_AGAIN,     /* a join does not look at the state again */
	SYNC_BELL_LATE,    /* rings before the sleep are forgotten */
	SYNC_STORE_LATE,   /* the content is written after the unlock */
	SYNC_NO_DAMAGE,    /* a take-over does not mark the mutex */
	SYNC_PLAIN,        /* states are written, not compared and swapped */
	SYNC_COMMIT_FIRST, /* a channel's last word is written first */
	SYNC_NO_WAKE,      /* a sender wakes none */
	SYNC_MUTANTS
};

struct sync_world_step {
	uint8_t kind, member, unused[2];
};

enum { SYNC_WORLD_STEPS = 64 };

/* Of the last run: what was violated first, or "". */
extern char sync_wrong[160];
/* Not NULL: other violations than this one are ignored. */
extern const char *sync_only;
extern enum sync_mutant sync_mutant;
/* Returns a result that no run has reached, or NULL. */
const char *sync_unreached(void);

void sync_world_begin(const struct sync_model *model);
int sync_world_possible(struct sync_world_step out[static SYNC_WORLD_STEPS]);
uint32_t sync_world_take(const struct sync_world_step *step, uint32_t choice);
/* Operations in flight end, the donor fences the dead: the living go on, and nothing is left. */
void sync_world_end(void);
const char *sync_world_name(const struct sync_world_step *step);
extern void *const sync_world;
size_t sync_world_size(void);
uint64_t sync_world_fingerprint(void);
uint64_t sync_world_end_fingerprint(void);

#endif
