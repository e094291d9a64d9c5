/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * The state of a heap and which thread may access it.  heap->lock guards lists, roots and the
 * state of threads.  "World stopped": written by the collector while every mutator is stopped.
 *
 * The heap's pages hold objects only: an 8-byte header (type id; in the upper half an identity
 * hash, if requested), then the payload.  All else
 * lies in side tables: per 16-byte granule an allocation bit and a mark bit, per region a kind
 * byte and a struct region.  The bits stand at the granule where an object begins.
 */
#ifndef EBBGC_HEAP_H
#define EBBGC_HEAP_H

#include <pthread.h>
#include <sys/types.h>
#include "advice.h"
#include "arrivals.h"
#include "backing.h"
#include "ebbgc.h"
#include "epoch.h"
#include "far_step.h"
#include "keys.h"
#include "oldest.h"
#include "residency.h"
#include "share.h"
#include "switches.h"
#include "vector.h"

#define GRANULE_SHIFT 4
#define GRANULE (1u << GRANULE_SHIFT)
#define REGION_SHIFT 16
#define REGION_SIZE ((size_t)1 << REGION_SHIFT)
#define REGION_WORDS (REGION_SIZE / GRANULE / 64)
#define REGION_NONE UINT32_MAX
#define HEADER 8u

#define CLASSES 32
#define SMALL_MAX 8192u		/* largest slot of a small object, header included */
#define RUN_BYTES 8192u		/* most that a thread takes at a time: stays in its L1 cache */

/*
 * Kind of a region: for small objects 2 * class + leaf, plus KIND_MOVABLE for types that allow
 * moving; or one of these.
 */
#define KIND_MOVABLE (2 * CLASSES)
#define SMALL_KINDS (4 * CLASSES)
enum {
	KIND_LARGE = SMALL_KINDS, KIND_LARGE_LEAF, KIND_TAIL,
	KIND_RELEASED = 253,		/* free, but its memory is being returned to the kernel */
	KIND_FREE = 255,
};

enum { TYPE_NONE, TYPE_WEAK_REF, TYPE_EPHEMERON, TYPE_FIRST_USER };

struct check;
struct chunk;
struct handle_chunk;
struct order;
struct ring;
struct root_call;
struct root_range;
struct tracer;
struct type;

struct region {
	uint32_t next, prev;		/* in its list */
	/* Regions of a large object; in its tail, regions back to its first.  As heap->kinds. */
	uint32_t span;
	uint32_t cursor;		/* first slot that its owner has not examined */
	uint32_t young_next;		/* in the list of regions with young objects */
	bool zero;			/* no object has lain here since the kernel zeroed it */
	bool committed;			/* free, but still backed by memory */
	bool skipped;			/* holes before the cursor are free: see supply_take() */
	bool hot_only;			/* only hot objects move out */
	bool young;			/* on the list of young regions, and on no other */
	bool recycled;			/* on a list of this name, or so before the sweep */
	uint16_t dropped; /* pages of garbage that the kernel may drop */
	/* With a far generation; lock. */
	bool swept;			/* a sweep has freed what was dead, or all was brought */
	bool pinned;			/* a root refers to an object of it */
	uint64_t arrived;		/* number of the region that was taken then */
};

struct region_list {
	uint32_t head, tail;
};

/* A thread's supply of one kind of slot: a zeroed run and its region. */
struct supply {
	char *next, *end;
	uint32_t region;
	bool all_holes;			/* take those of this region that cost a read, too */
};

#define SATB_ENTRIES 256

/* What a thread has brought: see far.h. */
struct far_counts {
	uint64_t fetched, fetched_bytes, rescued, healed;
};

enum mutator_state { MUTATOR_RUNNING, MUTATOR_BLOCKED };

struct mutator {
	struct ebbgc_mutator public;	/* first: callers hold a pointer to it */
	struct ebbgc_heap *heap;
	struct mutator *next;
	enum mutator_state state;	/* heap->lock */
	struct mutator *sibling;	/* the thread's next mutator, of another heap */
	bool lent; /* stopped while its thread waits in another heap; only for that thread */
	char *stack_base, *stack_top;	/* world stopped: bounds of a scan */
	size_t uncounted;		/* bytes taken, not yet in allocated_bytes */
	uint64_t hashes;		/* last number of ebbgc_hash() in the thread's block */
	size_t logged;
	struct ring *ring;		/* EBBGC_MEMLINER */
	struct far_counts far;		/* atomic; written by the thread */
	uint64_t log[SATB_ENTRIES];
	size_t remembered_count;
	uint64_t remembered[SATB_ENTRIES];	/* see remember.h */
	struct supply supply[SMALL_KINDS];
};

struct finalizer {
	uint64_t object;
	ebbgc_finalizer_fn fn;
	void *data;
};

struct finalizer_list {
	struct finalizer *items;
	size_t first, count, capacity;	/* items[first .. count) */
	size_t old;			/* with a nursery: items[0 .. old) are of old objects */
};

/* See mark_phase.h and work_pool.h. */
struct marker {
	const struct order *order;
	bool late;			/* order->marks_late */
	struct tracer *tracers;
	unsigned int tracer_count;
	unsigned int started;

	pthread_mutex_t lock;
	pthread_cond_t changed;		/* chunks, phase or the end of one */
	struct chunk *full, *spare;	/* lock */
	unsigned int hungry;		/* tracers waiting for chunks; written under lock */
	unsigned int active;		/* tracers in the phase */
	uint64_t phase;
	bool dry;			/* every tracer of the phase waits: the phase is over */
	bool quit;
	bool abandoned;			/* the heap is being destroyed: do no more work */
	bool overflow; /* out of memory: work was lost, some marked objects are untraced */
	uint32_t finger, finger_end;	/* of order_address: the next region (atomic), the end */
	struct keys keys;		/* unmarked keys of ephemerons; no tracer runs: written */
};

/* See park.h. */
struct park {
	uint64_t *objects, *pages;	/* bitmaps; atomic */
	uint64_t *slices;		/* bitmap of pages of objects that begin earlier; atomic */
	uint64_t count;			/* pages; atomic */
	uint64_t scan;			/* last residency scan whose pages were woken; atomic */
	pthread_mutex_t lock;		/* guards the members below */
	unsigned int idle;		/* consecutive scans that were awaited and woke no page */
	uint64_t idle_scan;		/* the last of these scans */
	size_t cursor;			/* page where the next batch begins */
	uint32_t asked[ADVICE_PAGES];	/* pages in flight */
	uint32_t traced[ADVICE_PAGES];	/* pages whose work the last step took */
	unsigned int asked_count, traced_count;
};

/* See nursery.h. */
struct nursery {
	uint64_t *old;			/* bitmap, a bit a granule; NULL: the heap has no nursery */
	uint64_t *remembered;		/* bitmap, a bit a granule; atomic */
	pthread_mutex_t lock;		/* guards log */
	struct vector log;		/* the remembered set, but for what threads have */
	bool blind;			/* the next minor cycle frees nothing; atomic */
	bool lost;			/* entries were lost, but not their bits; .lock */
	uint64_t at;			/* allocated_bytes that request a minor cycle; atomic */
	uint64_t since;			/* allocated_bytes at the last one; heap's lock */
	uint64_t latest; /* as `trigger` at most, if objects have finalizers; heap's lock */
	/*
	 * World stopped, heap's lock: minor cycles that are still to keep all, so that nothing need
	 * be remembered; and as many as were to after the last traced one.
	 */
	unsigned int skip, skips;
	/* Heap's lock. */
	uint32_t young;			/* list of regions, by young_next */
	uint32_t recycled;		/* number of regions on the lists of this name */
	bool requested;
	pthread_cond_t wanted;		/* `requested` or heap's `quit` has changed */
	pthread_t thread;
	bool started;
};

/* See move.h. */
struct moving {
	/* World stopped; NULL: no type allows moving. */
	uint8_t *states;		/* a byte a region, enum far_state; atomic */
	uint64_t **forwards;		/* by region: see forward.h */
	/*
	 * Bitmap, a bit a granule: objects that the program has touched since the last cycle ended,
	 * as notes and arrivals tell.  Atomic; NULL: neither exists.
	 */
	uint64_t *hot;
	bool active;			/* some objects are not where a slot may say */
	bool plain;			/* types with slots, edges() or EBBGC_FIBRE exist; lock */
	struct region_list regions;	/* whose objects move or have moved; the collector's */
};

/* What the store has of a region. */
struct far_stored {
	uint32_t bytes;
	uint64_t *tablet;		/* slots there (lib/rules/tablet.h); then the index */
	char *shadow;			/* checking mode: the bytes */
	struct ebbgc_far_place place;
};

/*
 * A region that is LEAVING or further.  Belongs to the thread ebb-gc-far, and from when it is on
 * far.away to the collector; what brings an object of an AWAY region reads far_stored_of().
 */
struct far_region {
	uint32_t live;			/* objects that were not brought; atomic */
	/* stored[now] never changes; the other one is made and published by far_compact.h. */
	struct far_stored stored[2];
	uint8_t now;			/* atomic */
	bool compacted;			/* there */
	/* Why nothing there is ever read again; 0: it is.  Atomic; see far_mark.h. */
	int lost;
	/* Regions in which it holds names. */
	uint32_t *holds;
	uint32_t holds_count;
	uint64_t seen;			/* naming's: number of the last region with names here */
	/* Of a far cycle: see far_mark.h. */
	bool waits;			/* objects were marked here that were not traced; atomic */
	bool queued;			/* in far.queue; atomic */
	uint32_t queue_next;
	bool traced;			/* by this cycle */
	bool asked;			/* the store is to trace it: see far_trace.h */
	bool told;			/* its marks were */
	uint32_t *holds_next;		/* as .holds, after the cycle */
	uint32_t holds_next_count;
	bool holds_for_ever;		/* without memory for .holds */
};

/* Where objects of one kind arrive. */
struct far_arrival {
	uint32_t region;
	char *next, *end;
};

/* What finds the live objects in the store: see far_trace.h. */
enum far_by {
	FAR_BY_READING,
	FAR_TO_TRACE,			/* the store will, when it is asked */
	FAR_TRACES,
	FAR_TRACED,			/* its marks are taken; what is reached later is read */
};

/* A far cycle, which is the collector's: see far_mark.h. */
struct far_marking {
	bool on;			/* this cycle is one */
	bool full;			/* heap's lock: the store is, and a far cycle would help */
	/* Bitmap, a bit a granule: objects that were read, or are to be if their region leaves. */
	uint64_t *sent;
	uint64_t *named;		/* as far.named and .holders, after the cycle */
	uint32_t *holders;
	char *buffer;			/* REGION_SIZE */
	unsigned int remarks;		/* pauses of this cycle that found more to trace */
	uint64_t reads, bytes, most;	/* of this cycle; most bytes, a read counts as some */
	uint64_t ns;			/* that this cycle has taken for them */
	uint64_t stored;		/* when it began */
	uint64_t tables;		/* bytes of what the cycle keeps, at most; heap's lock */
	uint64_t objects;		/* that were read */
	uint64_t visits;		/* of regions, to see whether they wait */
	uint64_t cpu_ns;		/* of the collector's thread */
	/* See far_trace.h. */
	enum far_by by;
	/* As .sent: passed to the store, and once a region is .told, marked there; named there. */
	uint64_t *passed, *names;
	uint32_t asked, skipped;	/* regions that the store traces; that it leaves to us */
	uint32_t told;			/* regions whose marks are here */
	uint64_t call_ns[2];		/* left for the store: beside the program, in a pause */
	uint64_t awaited_since;		/* the program waits for the cycle, ns; 0: it does not */
	struct ebbgc_far_set *sets;
	struct ebbgc_far_type *types;
	struct ebbgc_far_region *stored_regions;
	bool *to_read;			/* by these: the store leaves it to the heap */
	struct ebbgc_far_cycle cycle;
	uint64_t donor_objects;
	bool donor_failed;		/* it was to trace, and does not */
	bool wrong;			/* it has said what cannot be */
	/* Since the last one. */
	uint64_t lived;			/* bytes of the objects that it found alive */
	uint64_t left;			/* far.left_bytes when it began */
	unsigned int failures;		/* in a row: abandoned, or little was freed */
	uint64_t next_at;		/* ns: none before, unless the store has grown */
};

/* See far.h. */
struct far {
	bool on;			/* attached: never changes while a thread is */
	struct ebbgc_far_store store;
	struct ebbgc_far_options options;
	/* In regions. */
	uint64_t budget, reserve, window;
	uint64_t addresses;		/* that births leave free */
	/* By region; its state says what may access it, and naming has .seen of all. */
	struct far_region *regions;
	uint64_t *named;		/* bitmap, a bit a granule: see far_step.h */
	uint32_t *holders;		/* by region: regions that hold names in it */
	uint32_t *naming;		/* regions in which the one that leaves holds names */
	uint64_t naming_serial;
	uint64_t snapshots;		/* of cycles; world stopped */
	struct far_marking marking;
	bool reached;			/* some region .waits; atomic */
	uint32_t queue;			/* list of regions that may wait, by .queue_next; atomic */

	pthread_mutex_t arrivals_lock;
	struct far_arrival arrivals[SMALL_KINDS - KIND_MOVABLE];	/* arrivals_lock */

	/* Heap's lock. */
	uint32_t out;			/* regions without local memory */
	uint64_t clock;			/* regions taken so far */
	struct oldest oldest;		/* regions that may leave */
	/*
	 * Whose turn it is: a cycle runs, or regions begin to leave.  So no name becomes named, and
	 * no region LEAVING, from a cycle's first pause until it has dropped forwards.
	 */
	uint64_t tickets, serving;	/* see far_room.h */
	unsigned int held;		/* no region's memory returns: far_hold() */
	bool writing;			/* one is being written */
	struct region_list leaving;	/* the oldest first */
	struct region_list away;	/* written; the collector takes them from here */
	uint32_t leaving_count;		/* regions with local memory that are LEAVING or AWAY */
	uint64_t low;			/* free addresses, in regions, that request a cycle */
	uint64_t evict, evicted;	/* tickets of ebbgc_far_evict() */
	uint64_t rounds;		/* of the thread */
	bool stuck;			/* it can do nothing now */
	bool short_of;			/* births wait; atomic */
	uint32_t births;		/* threads that wait so */
	int failed;			/* of the last ebbgc_far_evict() */
	/* The thread has work; heap's `quit`; `serving`, `held`, `writing`. */
	pthread_cond_t wanted;
	pthread_cond_t made_room;	/* `rounds` has changed */
	pthread_t thread;
	bool started;
	struct region_list mine;	/* the collector's: out, and taken from `away` */

	/* Atomic. */
	uint64_t brought_bytes;		/* since the last cycle */
	uint64_t tables;		/* bytes of forwards, tablets and .holds */
	uint64_t fetched, fetched_bytes, rescued, healed;	/* by threads that have left */
	uint64_t left, left_bytes, homed, stored, failures;
	uint64_t lost;			/* of .stored */
};

#define PAUSE_BUCKETS 256		/* four to an octave of nanoseconds */

struct ebbgc_heap {
	struct ebbgc_options options;
	pid_t pid;			/* the process with the collector's threads */
	pthread_key_t key;		/* a thread's mutator, detached when the thread exits */

	/* Address space: fixed at creation. */
	char *base;
	size_t bytes;
	uint32_t region_count;
	uint64_t *marks, *allocated;	/* bitmaps, a bit a granule */
	uint8_t *kinds;			/* written atomically under lock */
	struct region *regions;
	struct type *types;
	uint32_t type_count;		/* written atomically under lock */
	size_t slot_size[SMALL_KINDS];
	uint8_t class_of[SMALL_MAX / GRANULE + 1];
	/* by leaf and movable; granules */
	struct ebbgc_slot_size slot_sizes[4][SMALL_MAX / GRANULE + 1];

	/* Taken before `lock`: belongs to the thread that stops the world, or is about to. */
	pthread_mutex_t pausing;
	pthread_mutex_t lock;
	pthread_cond_t resume;		/* the world runs again */
	pthread_cond_t stopped;		/* a thread has stopped */
	pthread_cond_t wanted;		/* there is work for the collector */
	pthread_cond_t done;		/* a cycle or a minor cycle has ended */

	/* Threads: lock. */
	struct mutator *mutators;
	uint64_t hashes;		/* numbers that threads took for ebbgc_hash() */
	unsigned int running;
	bool stop;
	struct root_range *ranges;
	struct root_call *calls;
	struct handle_chunk *handle_chunks;
	struct ebbgc_handle *handle_free;

	/* Regions: lock. */
	uint32_t top;			/* regions ever used; written atomically */
	uint32_t free_hint;		/* no region below is free */
	uint32_t used;
	uint32_t committed_free;
	uint32_t releasing;		/* free regions that cannot be taken until `released` */
	pthread_cond_t released;
	uint64_t supplied;		/* times that a thread got regions */
	uint64_t supplied_before;	/* `supplied` when the last full cycle's marking ended */
	bool unbacked;			/* the last large object failed for lack of backing */
	unsigned int unbacked_waiting;	/* threads that wait after such a failure */
	unsigned int large_waiting;	/* threads that wait for regions of a large object */
	struct mutator *first;		/* its allocation goes before all others; or NULL */
	pthread_cond_t turn;		/* `first` has changed */
	uint32_t side_locked;		/* regions whose side tables are locked */
	struct region_list partial[SMALL_KINDS], full[SMALL_KINDS], unswept[SMALL_KINDS];
	struct region_list skipped[SMALL_KINDS]; /* full but for holes on swapped-out pages */
	struct region_list recycled[SMALL_KINDS]; /* left by minor cycles, at least half free */
	struct region_list large, large_unswept;
	struct region_list large_dead;	/* freed by minor cycles during marking */
	unsigned int sweeping;		/* regions taken off an unswept list, not yet returned */
	pthread_cond_t swept;
	bool dropping;			/* EBBGC_DROP is active in this cycle */
	struct backing backing;		/* for regions that are not committed */

	struct nursery nursery;
	struct moving moving;
	struct far far;

	/* When to collect: atomic. */
	uint64_t allocated_bytes;	/* since creation */
	uint64_t trigger;		/* value of allocated_bytes that requests a cycle */
	uint64_t stall_at;		/* value at which allocation waits for that cycle */
	uint64_t room, room_end;	/* bytes above live ones; allocated_bytes at their end */
	uint64_t target;		/* size of the heap; lock */
	unsigned int waiting;		/* threads that wait for a cycle's end */
	unsigned int suspended;		/* calls of ebbgc_cycles_suspend(); lock */
	int64_t external;		/* bytes of ebbgc_external_bytes() */

	/* Cycles: lock. */
	uint64_t requested, requested_full;	/* tickets issued */
	uint64_t begun;			/* tickets that the current cycle serves */
	uint64_t ended, ended_full;	/* tickets served */
	bool quit;
	pthread_t collector;
	bool collector_started;

	/* Marking: world stopped. */
	bool marking;
	bool in_pause;			/* the collector has stopped the world */
	/*
	 * All that the program can reach is marked: weak references to unmarked objects are null
	 * and are being cleared.  Implies `marking`.
	 */
	bool settled;
	bool settled_last;		/* as `settled`, for EBBGC_CLEAR_LAST */
	bool has_last;			/* references of EBBGC_CLEAR_LAST were found; atomic */
	/*
	 * The program has found an unmarked object by EBBGC_CLEAR_LAST, or will have it finalized,
	 * and may store other references to what it leads to: nothing is cleared before the next
	 * pause, and nothing else reads as null.  Atomic; set under `clearing`, which also guards
	 * each slot's clearing while `settled` without `settled_last`.
	 */
	bool found;
	pthread_mutex_t clearing;
	uint64_t fibre_cycle;		/* counts cycles: see fibre_word.h */
	uint64_t allocated_at_snapshot;
	struct marker marker;
	uint64_t logged_references, logged_bytes;	/* atomic */

	/* ebbgc_heap_each(): lock; the collector reads it with the world stopped. */
	void (*each)(void *arg, ebbgc_ref_t object);
	void *each_arg;

	/* Lock; during marking the collector reads these lists with the world stopped. */
	struct finalizer_list finalizers, finalizers_ready;

	/* Where objects are: EBBGC_MEMLINER. */
	struct residency residency;
	struct share share;
	struct arrivals arrivals;
	uint64_t hint_calls, hinted_pages;	/* atomic */
	uint64_t allocation_faults;		/* atomic */
	uint64_t hint_nap_ns; /* ns between reads of arrivals outside of cycles; the collector's */
	struct advice advice;
	struct epoch epoch;
	uint64_t tag;			/* the epoch's shifted stamp; written under lock */
	bool stamped;			/* `tag` was ever nonzero; lock */
	pthread_mutex_t update_lock;	/* residency_scan(), epoch_churn() */
	uint64_t update_at;		/* time of the next update, ns; atomic */
	struct ring *rings;		/* list: atomic; ring->taken: lock */
	struct park park;
	unsigned int cycle_remarks;

	struct check *check;
	struct ebbgc_stats stats;	/* lock */
	struct ebbgc_stats counting;	/* the collector's, added to stats at the end of a pause */
	uint64_t pause_histogram[PAUSE_BUCKETS];
};

static inline struct mutator *mutator_of(ebbgc_mutator_t *mutator)
{
	return (struct mutator *)mutator;
}

#endif
