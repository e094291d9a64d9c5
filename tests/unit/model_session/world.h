/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A session of the kernel module in a world that takes one step at a time: the real state.c,
 * session.c, call.c, loan.c, resume.c and lifecycle.c, as threads that switch where the kernel may,
 * with a donor, a network, a clock and the slabs of a device.
 *
 * The world is one object: its threads' stacks, its heap and all variables are saved and restored
 * between steps, so that a search takes every step that is possible in every state.
 *
 * Replaced: queue pairs and MACs (connection.c, message.c, proof.c), probes, EVICTs.
 */
#ifndef EBB_MODEL_SESSION_WORLD_H
#define EBB_MODEL_SESSION_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How often each may happen, still. */
struct session_budget {
	uint8_t breaks;   /* the connection breaks, or none is possible */
	uint8_t crimes;   /* the donor breaks the protocol */
	uint8_t lates;    /* calls that miss the deadline */
	uint8_t restarts; /* the donor forgets the session */
	uint8_t commands; /* MAP, UNMAP, and releases by the copier */
	uint8_t writes;   /* of a page */
	uint8_t ticks;    /* the clock passes 5 s, then the grace period */
};

struct session_model {
	const char *name;
	struct session_budget budget;
	uint8_t mapped;      /* slabs that are mapped before anything may fail */
	bool preempt;        /* threads switch before each lock, not only where they wait */
	uint32_t states;     /* at least as many are reached */
};

/* Faults of the code under test or of the donor, which the search must find. */
enum session_mutant {
	MUTANT_NONE,
	MUTANT_NO_RELEASE,    /* a resumption sends no RELEASE */
	MUTANT_NO_SETTLE,     /* loans that RELEASE has ended stay */
	MUTANT_NO_FORGET,     /* a call survives its connection */
	MUTANT_NO_DRAIN,      /* a suspension does not wait for pages in flight */
	MUTANT_LOST_CONFIRM,  /* a confirmation counts only if the slab still has the place */
	MUTANT_LAST_UNCONFIRMED, /* one of several slabs is not confirmed */
	MUTANT_STALE_KEY,     /* a resumed slab has the key of its old connections */
	MUTANT_LATE_WRITE,    /* the donor answers HELLO before it destroys the old queue pairs */
	MUTANT_BROKEN_LIVE,   /* a session is LIVE though its new connections have failed */
	MUTANT_END_IGNORED,   /* a command does not end a session that is away */
	MUTANT_UNDEAD,        /* a failed session becomes LIVE */
	MUTANT_NO_TURN,       /* nothing runs the work item after a failure */
	MUTANTS
};

struct session_step {
	uint8_t kind, which;
};

enum { SESSION_STEPS = 64 };

/* Of the last run: what was violated, or "". */
extern char session_wrong[160];
extern enum session_mutant session_mutant;

void session_begin(const struct session_model *model);
/* Returns the steps that are possible. */
int session_possible(struct session_step out[static SESSION_STEPS]);
/* Takes one, and checks what is always true. */
void session_take(const struct session_step *step);
/* When no step is left: everything must have ended. */
void session_end(void);
const char *session_step_name(const struct session_step *step);
/* Saves and restores the whole world, of session_size() bytes. */
size_t session_size(void);
void session_save(void *to);
void session_restore(const void *from);
/* Equal for states from which the same may follow; never 0. */
uint64_t session_fingerprint(void);

/*
 * Checks state.c alone, or a mutant of it (1 to STATE_MUTANTS): every reachable state with every
 * event, and how each ends by itself, whatever the donor's condition; see session_wrong.  Returns
 * the number of states.
 */
uint32_t session_states(int mutant);
enum { STATE_MUTANTS = 6 };

#endif
