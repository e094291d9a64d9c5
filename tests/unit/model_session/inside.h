/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The world of world.h from inside, for its parts: memory and threads (kernel.c), the module with
 * its device (module.c), its donor (donor.c), and the steps they take (steps.c).
 */
#ifndef EBB_MODEL_SESSION_INSIDE_H
#define EBB_MODEL_SESSION_INSIDE_H

#include <setjmp.h>
#include <ucontext.h>

#include "tests/fuzz/kmod_kernel.h"
#include "kmod-swap/call.h"
#include "kmod-swap/session.h"
#include "kmod-swap/slab.h"
#include "world.h"

enum { SLABS = 2, LENT = 3, CHUNK = 2560, CHUNKS = 9, STACK = 8 << 10, GRACE_MS = 60000 };
/* FREED: bytes of a freed chunk that are marked so. */
enum { PACKETS = SLABS, FREED = 64 };
enum { CLOSER, RELEASER, USER, THREADS };
enum block { IDLE, READY, ON_LOCK, ON_DONE, ON_REPLY, ON_WORK, ON_CONNECT };

struct thread {
	enum block block;
	const void *on;
	struct work_struct *work; /* that it runs */
	bool timed_out;
	u8 command, slab;
	_Alignas(8) const u8 *sp;
	jmp_buf context;
};

struct packet {
	bool is;
	u32 connection;
	struct wire_frame f;
	bool resume;
};

struct world {
	const struct session_model *model;
	struct thread thread[THREADS];
	jmp_buf driver;
	int running;
	/* From here to now: in the fingerprint. */
	_Alignas(8) struct session_budget left;
	struct work_struct *pending[4];
	int works;
	/* the borrower */
	struct ebb_device device;
	struct ebb_session *s;
	struct ebb_slab slab[SLABS];
	u32 epoch;
	bool valid[SLABS];
	u8 newest[SLABS], versions;
	bool away_told, opened, freed;
	u32 connection;           /* 0 = none */
	bool flushed;             /* nothing arrives from it any more */
	u32 connections;
	/* a page in flight; landing: it may still reach the donor */
	struct {
		bool flies, landing;
		u8 slab, remote, version;
		u32 connection, epoch;
	} write;
	/* a page of old queue pairs that may still reach the donor */
	struct {
		bool landing;
		u8 remote, version;
	} ghost;
	/* the donor and the network */
	struct packet request[PACKETS], reply[PACKETS]; /* in order */
	struct {
		bool lent, claimed;
		u32 generation, key;
		u8 version;
	} lent[LENT];
	bool knows, leaves;       /* retains the session; has had a BYE */
	u32 at_donor;             /* connection whose queue pairs it has; 0 = none */
	u32 keys;
	_Alignas(8) unsigned long now;
	u16 used[CHUNKS];         /* bytes; 0: free */
	_Alignas(16) u8 heap[CHUNKS][CHUNK];
	_Alignas(16) u8 stack[THREADS][STACK];
};

extern struct world W;

/* Notes what is violated first; see session_wrong. */
void wrong(const char *what);

static inline bool mutant(enum session_mutant which)
{
	return session_mutant == which;
}

/* --- memory and threads --- */

/* Returns whether @p, from kzalloc(), has not been freed. */
bool is_allocated(const void *p);
/* The running thread waits, as @block says for @on. */
void block_on(enum block block, const void *on);
/* Other threads may run first. */
void may_preempt(void);
/* Takes @work, which waits for a thread, out of W.pending. */
void unqueue(struct work_struct *work);
/* Returns whether a thread runs @work. */
bool is_run(const struct work_struct *work);
/* Starts or continues a thread, until it waits or ends. */
void start(int which);
void run(int which);

/* --- the module and its device --- */

/* The user's commands. */
enum { OPEN, MAP, UNMAP, RELEASE, FREE };
/* Carries out the command of the thread USER. */
void user_runs(void);
/* Ends the page in flight. */
void write_end(bool ok);
/* Returns the place of slab @i at its donor. */
static inline struct ebb_place *place_of(int i)
{
	return &W.slab[i].hold.at[AT_DONOR];
}

/* Returns whether the session has been resumed a short time ago, as state.c is told. */
bool is_back_lately(const struct ebb_session *s);

/* --- the network and the donor --- */

/* Returns how many packets @p has. */
int packets(const struct packet *p);
/* Adds @new to @p, and drops those of older connections. */
void put_packet(struct packet *p, const struct packet *new);
/* Takes the first request and sends its reply. */
void donor_takes(void);
/* Reply @i arrives: the donor may answer REMAPs in any order. */
void delivered(int i);
/* The donor restarts. */
void donor_forgets(void);

#endif
