/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A recorded program on a heap whose memory is mostly on donors, with one of three collectors: the
 * graph of its objects, the clock, what is counted.
 *
 * The mutator is one thread.  Its time passes with its accesses (heap_spend()), while it waits for
 * memory (heap_fetch()), and while the collector stops or blocks it (heap_stop()).  Servers work
 * beside it: whenever time has passed, the scheme's run() lets them.  Times are picoseconds.
 */
#ifndef EBB_SIM_HEAP_WORLD_H
#define EBB_SIM_HEAP_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "heap_file.h"
#include "heap_grow.h"

#define HEAP_SERVERS 16
#define HEAP_PS_PER_NS 1000u

/* The options of `ebb-sim heap`; ebb-sim(1) has the sources of their defaults. */
struct heap_config {
	uint32_t servers;
	uint64_t local;         /* bytes of local memory */
	uint64_t region;        /* bytes, of Mako's and Semeru's regions */
	uint32_t sparse;        /* per cent: regions with more live bytes are not evacuated */
	uint32_t ghosts;        /* references in a full ghost buffer */
	uint32_t write_through; /* pages in Mako's full write-through buffer */
	uint32_t full;          /* per cent of live bytes in use above which Semeru collects all */
	uint64_t touch, translate, test; /* ps: access, lookup of a place, test of a byte */
	uint64_t page, fetch;   /* ps of a page fault from a donor, of the READ of an object */
	uint64_t trip, poll;    /* ps of a round trip, between polls */
	uint64_t stop;          /* ps to stop and start the world */
	uint64_t bandwidth, tracing, copying; /* bytes per second */
};

enum heap_stop { HEAP_STOP_WORLD, HEAP_STOP_WAIT };

/* A stop of the world, or a wait of the mutator for the collector. */
struct heap_pause {
	uint64_t start, length; /* ps */
	enum heap_stop kind;
};

struct heap_result {
	uint64_t time, touches, loads;   /* ps; events */
	uint64_t translations;           /* loads that looked a reference's place up */
	uint64_t tests;                  /* loads that tested a state byte */
	uint64_t translate_time;         /* ps of both */
	uint64_t misses, miss_time;      /* page faults that read a server's memory */
	uint64_t table_misses;           /* of them, on pages of Mako's entries */
	uint64_t fetches, homes;         /* READs of an object, of a region */
	uint64_t rescues;                /* objects that the mutator moved */
	uint64_t bytes_in, bytes_out;    /* memory */
	uint64_t messages, control;      /* collectors' messages and their bytes */
	uint64_t polls;                  /* of the messages, polls */
	uint64_t stops, stop_time, stop_most;
	uint64_t waits, wait_time, wait_most;
	uint64_t cycles, skipped, full;  /* collections; triggers during one; of all regions */
	uint64_t traced, traced_here;    /* bytes of objects, at servers and at the borrower */
	uint64_t moved, moved_here;      /* bytes of objects, by servers and by the borrower */
	uint64_t discarded;              /* traces of a region that an eviction spoilt */
	uint64_t rounds;                 /* TRACEs, messages with ghosts, or regions traced */
	uint64_t overhead, overhead_of;  /* bytes of tables when they were most, of bytes in use */
	uint64_t used_most, local_most;  /* bytes of regions in use, and of local memory, at most */
	uint64_t floating;               /* bytes of dead objects that are not freed in the end */
	uint64_t lost;                   /* live objects that were freed: a defect */
	struct heap_pause *pause;        /* in order of time */
	uint32_t pauses, pause_room;
};

struct heap_slot {
	uint32_t target; /* object + 1, 0 = null */
	uint32_t name;   /* the scheme's */
};

struct heap_world;

/* A collector.  The world calls it; it spends the mutator's time. */
struct heap_scheme {
	const char *name, *title;
	void *(*create)(struct heap_world *w);
	void (*destroy)(void *);
	void (*born)(void *, uint32_t object);
	/* The bytes [@at, @at + @bytes) of an object. */
	void (*touch)(void *, uint32_t object, uint32_t at, uint32_t bytes, bool write);
	/* Before the slot changes. */
	void (*store)(void *, uint32_t owner, struct heap_slot *slot, uint32_t target);
	void (*load)(void *, struct heap_slot *slot);
	void (*collect)(void *); /* the roots are known */
	void (*run)(void *);     /* servers work until w->now */
};

extern const struct heap_scheme heap_mako, heap_semeru, heap_ebb;

struct heap_world {
	const struct heap_file *file;
	const struct heap_config *config;
	const struct heap_scheme *scheme;
	void *state;
	struct heap_slot **slots; /* of each object, of all its words; NULL: none was stored to */
	uint8_t *alive;           /* by the recording */
	uint8_t *freed;           /* by the scheme */
	uint32_t born;
	struct heap_list roots;
	uint64_t live;            /* bytes of objects that are alive */
	uint64_t now, ran;        /* ran: when run() was last called */
	struct heap_result r;
};

/* Replays @file.  heap_result_free() frees the results. */
void heap_run(const struct heap_file *file, const struct heap_config *config,
	      const struct heap_scheme *scheme, struct heap_result *result);
void heap_result_free(struct heap_result *r);

/* The mutator runs for @ps. */
static inline void heap_spend(struct heap_world *w, uint64_t ps)
{
	w->now += ps;
}

/* The mutator waits for @ps for memory that it accesses. */
void heap_fetch(struct heap_world *w, uint64_t ps);
/* The collector stops or blocks the mutator until @until. */
void heap_stop(struct heap_world *w, enum heap_stop kind, uint64_t until);

/* A message of the collector with @bytes besides its head. */
void heap_message(struct heap_world *w, uint64_t bytes);
/* Tables are @tables bytes for @used bytes of regions. */
void heap_overhead(struct heap_world *w, uint64_t tables, uint64_t used);
static inline void heap_local(struct heap_world *w, uint64_t bytes)
{
	w->r.local_most = bytes > w->r.local_most ? bytes : w->r.local_most;
}

/* The scheme frees @object. */
void heap_freed(struct heap_world *w, uint32_t object);

static inline uint32_t heap_words(const struct heap_world *w, uint32_t object)
{
	return w->slots[object] ? w->file->size[object] / 8 : 0;
}

/* Times of transferring, tracing and copying @bytes. */
uint64_t heap_time(uint64_t bytes, uint64_t per_second);

#endif
