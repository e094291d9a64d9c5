/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Every interleaving on two pages and two or three donors: the real page, slab, slot, placing
 * and repair code with a transport, donors and a backup disk that do one step when
 * they are told to.  The search takes each step that is possible in each state it
 * comes to, and comes to no state twice.
 *
 * Requests for the same page are done in the order they arrive; so at its arrival it
 * is known what a read must return: the stamp of the last write that arrived before,
 * or 0 behind a discard.  An error is right only when that stamp is nowhere.
 *
 * Random walks go further than the search can; some with real seals, and donors that
 * change, exchange and roll back what they hold.
 */
#ifndef EBB_MODEL_WORLD_H
#define EBB_MODEL_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "swapd/swapd.h"

enum { PAGES = 2, DONORS = 3, REMOTE = 2, SLOTS = 5, OPS = 20, CONTROL = 20, REQUESTS = 96,
       QUEUE = 600, DEPTH = 200, STEPS = 128, COUNTERS = 1 << 20 };

/* The stamp of what a donor made up. */
#define FORGED UINT64_MAX

/* --- the world outside the code under test ---------------------------------------- */

struct loan {
	uint32_t generation;
	bool lent;
	bool claimed;          /* since the last connection of its borrower began */
	bool revoked;          /* the donor ended it */
	bool untold;           /* ... and its REVOKED is on its way */
	uint32_t slab;         /* the borrower's number, for checks only */
	uint64_t stamp[PAGES];
};

/* A READ or WRITE on its way. */
struct op {
	uint8_t donor, op, first, count; /* pages of the slab */
	uint32_t number;                 /* of the transfer */
	uint32_t remote, generation;
	uint64_t tag;
	bool served;                     /* its reply is on its way */
	uint64_t stamp[PAGES];
};

struct expected {
	uint8_t kind, first, count;
	bool unreadable;       /* the disk failed to read it */
	uint64_t stamp[PAGES];
};

/* How often each may happen, still. */
struct budget {
	uint8_t writes, same, reads, discards, crashes, returns, evictions, ticks, migrations,
		disk_errors, drains, forgeries, kills, cuts, revocations;
};

struct world {
	struct budget left;
	struct loan loan[DONORS][REMOTE];
	struct op op[OPS];
	uint32_t ops;
	struct op late;        /* of a dead connection */
	bool have_late;
	struct { uint8_t donor; struct wire_frame frame; } control[CONTROL];
	uint32_t controls;
	uint64_t disk[PAGES];
	uint64_t newest[PAGES]; /* by arrival */
	uint64_t failed[PAGES]; /* stamps of the last writes that failed */
	uint64_t stamps;
	struct expected expected[REQUESTS];
	uint32_t requests, answered;
	uint64_t now;
	/* what the code under test has */
	struct slab slab[PAGES];
	_Alignas(8) uint8_t map[256];
	struct slot slot[SLOTS];
	uint64_t payload[SLOTS][PAGES][2]; /* while saved: all that counts of a page */
};

struct model {
	const char *name;
	int wanted;
	bool backup;
	uint32_t slab_pages; /* 1: two slabs, 2: one */
	uint32_t room;       /* slabs a donor lends */
	struct budget budget;
	uint32_t states;     /* at least so many are to be found: a search that ends early fails */
	bool sealed;         /* for walks only */
	int donors;          /* 0 = two */
};

/* Whole pages, of walks with seals. */
struct bytes {
	uint8_t page[PAGE], before[PAGE];
};

struct lane_parts {
	uint32_t submitted, completed, reaped;
	uint16_t jobs[256];
};

/* What is saved and restored beside struct world. */
struct parts {
	struct donor donor[DONORS];
	struct slot_list free, blocked, ready, unanswered;
	uint32_t free_count, active_count, active_excluding;
	uint16_t active[SLOTS];
	struct slot_range range[SLOTS];
	struct lane_parts queue, reads;
	uint32_t backlog, need_backup, held, resyncs_held;
	uint64_t now, seed;
	struct repair repair;
	bool told_backed;
};

struct saved {
	struct world w;
	struct parts p;
};

struct state {
	const struct model *model;
	struct world w;
	struct swapd s;
	struct shared shared;
	struct stream_entry entries[DONORS][QUEUE];
	uint8_t *memory;     /* of the slots */
	struct saved *saved; /* DEPTH */
	uint64_t *seen;
	uint32_t seen_size, states;
	char path[DEPTH][24];
	int depth;
	bool lazy;           /* ready requests go on in steps of their own, beside all others */
	/* with seals */
	struct bytes lent[DONORS][REMOTE][PAGES], disk[PAGES];
	uint64_t arrived[SLOTS][PAGES]; /* stamps of what READ and RESYNC got */
	uint64_t counter[PAGES];        /* as last seen */
	uint8_t *used;                  /* COUNTERS: given out */
	uint64_t bad_pages;
};

enum step_kind { STEP_WRITE, STEP_SAME, STEP_READ, STEP_DISCARD, STEP_DELIVER, STEP_CONTROL,
		 STEP_DISK, STEP_DISK_ERROR, STEP_TICK, STEP_CRASH, STEP_RETURN, STEP_EVICT,
		 STEP_LATE, STEP_MIGRATE, STEP_DRAIN, STEP_FORGE, STEP_KILL, STEP_CUT, STEP_RUN,
		 STEP_REVOKE, STEP_REVOKED, STEP_KINDS };

struct step {
	uint8_t kind, a, b;
};

/* The tables of the page map, as page_map.c has them: a word each, as there are few pages. */
#define WRITTEN (m.s.engine.map->table[0])
#define SAME_FILLED (m.s.engine.map->table[1])
#define STALE (m.s.engine.map->table[2])
#define STORED(c) (m.s.engine.map->table[3 + (c)])
#define EMPTIED (m.s.engine.map->table[3 + PAGE_MAP_REPLICAS])
#define WORD(page) (m.s.engine.map->table[4 + PAGE_MAP_REPLICAS + (page)])

/* The one world; that of a search is saved and restored, step by step. */
extern struct state m;
#define W (m.w)

/* Fails the test: says what came before. */
void violated(const char *what, uint64_t a, uint64_t b);

/* Resets the world to @model. */
void begin(const struct model *model);

/* The words of page @page of @slot. */
uint64_t *payload_of(const struct slot *slot, uint32_t page);

/* Returns whether the engine would accept a completion of @o for a transfer in flight. */
bool is_in_flight(const struct op *o);

/* What may happen outside. */
void deliver(uint32_t i);
void take_control(uint32_t i);
/* The disk does the next job of @lane. */
void disk_step(struct backup_lane *lane, bool fails);
/* The backup's queue, or its lane of reads (1). */
struct backup_lane *lane_of(int which);
void crash(int donor);
/* The connection to @donor ends; what was on its way has arrived there if @how is 1. */
void cut(int donor, int how);
void come_back(int donor);
void evict(int donor, int remote);
/*
 * A donor ends a loan, after it has served the pages on their way if @how is 1; REVOKED, which
 * tells of that, arrives.
 */
void revoke_loan(int donor, int remote, int how);
void revoked(int donor, int remote);
/* A donor changes a bit (@how 0), exchanges its two pages (1), or gives an older content (2). */
void forge(int donor, int remote, int how);
/* What donors_flush() does about donors that gave other pages than were written. */
void quarantine(void);
/*
 * The server dies and another one takes over.  What it had on its way to donors has
 * arrived if @how has bit 0, and to the disk if it has bit 1.
 */
void kill_server(int how);
void request(enum slot_kind kind, uint32_t first, uint32_t count, bool same);

/* The steps that are possible now, and one of them done. */
int possible(struct step out[static STEPS]);
void take(const struct step *t);

/* What is always true. */
void check_state(void);
/* No number is used for a second sealing, in all walks together. */
void check_counters(void);

#endif
