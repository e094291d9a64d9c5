/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * The parts of a heap and who may touch them.  heap->lock guards lists, roots and the state of
 * threads; what says "world stopped" is written by the collector with every mutator parked.
 *
 * The heap's pages hold objects only: an 8-byte header (type id), then the payload.  All else
 * lies in side tables: per 16-byte granule an allocation bit and a mark bit, per region a kind
 * byte and a struct region.  The bits stand at the granule where an object begins.
 */
#ifndef EBBGC_HEAP_H
#define EBBGC_HEAP_H

#include <pthread.h>
#include <sys/types.h>
#include "arrivals.h"
#include "backing.h"
#include "ebbgc.h"
#include "epoch.h"
#include "notes.h"
#include "park.h"
#include "residency.h"
#include "share.h"
#include "work.h"

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

/* Kind of a region: 2 * class + leaf for small objects, or one of these. */
#define SMALL_KINDS (2 * CLASSES)
enum {
	KIND_LARGE = SMALL_KINDS, KIND_LARGE_LEAF, KIND_TAIL,
	KIND_RELEASED = 253,		/* free, but its memory is being given back */
	KIND_FREE = 255,
};

#define TYPES_MAX 4096u
enum { TYPE_NONE, TYPE_WEAK_REF, TYPE_EPHEMERON, TYPE_FIRST_USER };

struct type {
	char *name;
	uint32_t flags;
	uint32_t kind;			/* of fixed-size small objects, else KIND_FREE */
	size_t size, element_size;
	uint32_t length_offset, length_width;
	uint64_t bitmap;
	struct ebbgc_run *runs;
	size_t run_count;
	void (*trace)(void *object, ebbgc_visit_fn visit, void *arg);
};

struct region {
	uint32_t next;			/* in its list */
	uint32_t span;			/* regions of a large object; in its tail, how far back it begins */
	uint32_t cursor;		/* first slot its owner has not looked at */
	bool zero;			/* no object ever lay here since the kernel gave it */
	bool committed;			/* free, and still backed by memory */
	uint16_t dropped;		/* pages the kernel was told are garbage, and still are */
};

struct region_list {
	uint32_t head, tail;
};

/* A thread's supply of one kind of slot: a zeroed run, and the region it was taken from. */
struct supply {
	char *next, *end;
	uint32_t region;
};

#define SATB_ENTRIES 256

enum mutator_state { MUTATOR_RUNNING, MUTATOR_BLOCKED };

struct mutator {
	struct ebbgc_mutator public;	/* first: callers hold a pointer to it */
	struct ebbgc_heap *heap;
	struct mutator *next;
	enum mutator_state state;	/* heap->lock */
	struct mutator *sibling;	/* the next of the same thread, in another heap */
	bool lent;			/* stopped while its thread waits in another heap; its own */
	char *stack_base, *stack_top;	/* world stopped: what lies between is scanned */
	size_t uncounted;		/* bytes taken, not yet in allocated_bytes */
	size_t logged;
	struct ring *ring;		/* EBBGC_MEMLINER */
	uint64_t log[SATB_ENTRIES];
	struct supply supply[SMALL_KINDS];
};

struct ebbgc_handle {
	ebbgc_ref_t ref;		/* null while free */
	struct ebbgc_handle *next_free;
};

#define HANDLES_PER_CHUNK 127
struct handle_chunk {
	struct handle_chunk *next;
	struct ebbgc_handle handles[HANDLES_PER_CHUNK];
};

struct root_range {
	struct root_range *next;
	ebbgc_ref_t *slots;
	size_t count;
};

struct finalizer {
	uint64_t object;
	ebbgc_finalizer_fn fn;
	void *data;
};

struct finalizer_list {
	struct finalizer *items;
	size_t first, count, capacity;	/* items[first .. count) */
};

#define PAUSE_BUCKETS 256		/* four to an octave of nanoseconds */

struct ebbgc_heap {
	struct ebbgc_options options;
	pid_t pid;			/* of the process that has the collector's threads */
	pthread_key_t key;		/* a thread's mutator, so that its exit detaches it */

	/* Address space: fixed at creation. */
	char *base;
	size_t bytes;
	uint32_t region_count;
	uint64_t *marks, *allocated;	/* bitmaps, a bit a granule */
	uint8_t *kinds;			/* written under lock */
	struct region *regions;
	struct type *types;
	uint32_t type_count;		/* written atomically under lock */
	size_t slot_size[SMALL_KINDS];
	uint8_t class_of[SMALL_MAX / GRANULE + 1];

	pthread_mutex_t lock;
	pthread_cond_t resume;		/* the world runs again */
	pthread_cond_t stopped;		/* a thread has stopped */
	pthread_cond_t wanted;		/* the collector has something to do */
	pthread_cond_t done;		/* a cycle has ended */

	/* Threads: lock. */
	struct mutator *mutators;
	unsigned int running;
	bool stop;
	struct root_range *ranges;
	struct handle_chunk *handle_chunks;
	struct ebbgc_handle *handle_free;

	/* Regions: lock. */
	uint32_t top;			/* regions ever used; written atomically */
	uint32_t free_hint;		/* none is free below */
	uint32_t used;
	uint32_t committed_free;
	uint32_t releasing;		/* free ones that cannot be had until `released` */
	pthread_cond_t released;
	uint64_t supplied;		/* how often threads got regions */
	uint64_t supplied_before;	/* the same, when the last full cycle's marking ended */
	bool unbacked;			/* the last large object was refused for want of backing */
	unsigned int unbacked_waiting;	/* threads that wait for what may change that */
	struct mutator *first;		/* who is to have what is free before all others, or NULL */
	pthread_cond_t turn;		/* that has changed */
	uint32_t side_locked;		/* regions whose side tables are locked */
	struct region_list partial[SMALL_KINDS], full[SMALL_KINDS], unswept[SMALL_KINDS];
	struct region_list large, large_unswept;
	unsigned int sweeping;		/* regions taken off an unswept list and not back yet */
	pthread_cond_t swept;
	bool dropping;			/* this time EBBGC_DROP is worth it */
	struct backing backing;		/* for regions that are not committed */

	/* When to collect: atomic. */
	uint64_t allocated_bytes;	/* since creation */
	uint64_t trigger;		/* value of allocated_bytes that asks for a cycle */
	uint64_t stall_at;		/* value at which allocation waits for the cycle asked for */
	uint64_t room, room_end;	/* bytes above the live ones, and where they are used up */
	unsigned int waiting;		/* threads that wait for a cycle's end */

	/* Cycles: lock. */
	uint64_t asked, asked_full;	/* tickets drawn */
	uint64_t begun;			/* those that the cycle under way serves */
	uint64_t ended, ended_full;	/* tickets served */
	bool quit;
	pthread_t collector;
	bool collector_started;

	/* Marking: world stopped. */
	bool marking;
	uint64_t allocated_at_snapshot;
	struct marker marker;
	uint64_t logged_references, logged_bytes;	/* atomic */

	/* Dead objects to finalize: lock; during marking the collector looks at the world stopped. */
	struct finalizer_list finalizers, finalizers_ready;

	/* Where objects are: memliner, or EBBGC_DROP. */
	struct residency residency;
	struct share share;
	struct arrivals arrivals;
	struct epoch epoch;
	uint64_t tag;			/* the epoch's stamp, in place; written under lock */
	bool stamped;			/* it has not always been 0; lock */
	pthread_mutex_t look_lock;	/* residency_scan(), epoch_churn() */
	uint64_t look_at;		/* when to look again, ns; atomic */
	struct ring *rings;		/* list: atomic; what is taken: lock */
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

static inline uint64_t *header_of(uint64_t object)
{
	return (uint64_t *)(uintptr_t)(object - HEADER);
}

static inline uint32_t type_id(uint64_t object)
{
	return (uint32_t)__atomic_load_n(header_of(object), __ATOMIC_RELAXED);
}

static inline bool marking_abandoned(const struct ebbgc_heap *h)
{
	return __atomic_load_n(&h->marker.abandoned, __ATOMIC_RELAXED);
}

static inline size_t granule_of(const struct ebbgc_heap *h, uint64_t object)
{
	return (object - (uint64_t)(uintptr_t)h->base) >> GRANULE_SHIFT;
}

static inline uint32_t region_of(const struct ebbgc_heap *h, uint64_t object)
{
	return (uint32_t)((object - (uint64_t)(uintptr_t)h->base) >> REGION_SHIFT);
}

static inline char *region_start(const struct ebbgc_heap *h, uint32_t region)
{
	return h->base + ((size_t)region << REGION_SHIFT);
}

static inline bool bit_test(const uint64_t *bits, size_t i)
{
	return __atomic_load_n(&bits[i >> 6], __ATOMIC_RELAXED) >> (i & 63) & 1;
}

/* True if this call has set it. */
static inline bool bit_set(uint64_t *bits, size_t i)
{
	uint64_t bit = UINT64_C(1) << (i & 63);

	if (__atomic_load_n(&bits[i >> 6], __ATOMIC_RELAXED) & bit)
		return false;
	return !(__atomic_fetch_or(&bits[i >> 6], bit, __ATOMIC_RELAXED) & bit);
}

/* Who sees a bit that was published sees what was written before. */
static inline void bits_publish(uint64_t *word, uint64_t bits)
{
	__atomic_fetch_or(word, bits, __ATOMIC_RELEASE);
}

static inline bool bit_published(const uint64_t *bits, size_t i)
{
	return __atomic_load_n(&bits[i >> 6], __ATOMIC_ACQUIRE) >> (i & 63) & 1;
}

static inline bool kind_is_leaf(uint8_t kind)
{
	return kind & 1;
}

static inline bool is_large(uint8_t kind)
{
	return kind == KIND_LARGE || kind == KIND_LARGE_LEAF;
}

/* What it takes of the heap, being of that kind. */
static inline size_t taken_bytes(const struct ebbgc_heap *h, uint64_t object, uint8_t kind)
{
	return kind < SMALL_KINDS ? h->slot_size[kind] :
	       (size_t)h->regions[region_of(h, object)].span << REGION_SHIFT;
}

static inline uint64_t ref_load(const ebbgc_ref_t *slot)
{
	return __atomic_load_n(&slot->bits, __ATOMIC_ACQUIRE) & EBBGC_ADDRESS_MASK;
}

static inline size_t type_length(const struct type *t, const char *object)
{
	if (t->length_width == 4)
		return *(const uint32_t *)(object + t->length_offset);
	return t->length_width ? *(const uint64_t *)(object + t->length_offset) : 0;
}

/* How many references the run has in this object. */
static inline size_t run_length(const struct type *t, const struct ebbgc_run *run, const char *object)
{
	return run->count == EBBGC_COUNT_LENGTH ? type_length(t, object) : run->count;
}

/*
 * Calls fn for every reference slot, weak ones included.  Inlined into each tracer, so that fn
 * is no indirect call.
 */
static inline __attribute__((always_inline)) void
type_visit(const struct type *t, uint64_t address, ebbgc_visit_fn fn, void *arg)
{
	char *object = (char *)(uintptr_t)address;

	for (uint64_t bits = t->bitmap; bits; bits &= bits - 1)
		fn(arg, (ebbgc_ref_t *)(object + 8 * __builtin_ctzll(bits)));
	for (size_t i = 0; i < t->run_count; i++) {
		const struct ebbgc_run *run = &t->runs[i];
		size_t count = run_length(t, run, object);
		char *slot = object + run->offset;

		for (; count; count--, slot += run->stride)
			fn(arg, (ebbgc_ref_t *)slot);
	}
	if (t->trace)
		t->trace(object, fn, arg);
}

uint64_t now_ns(void);

static inline size_t page_of(const struct ebbgc_heap *h, uint64_t object)
{
	return (object - (uint64_t)(uintptr_t)h->base) >> PAGE_SHIFT;
}

/* A slot's reference with its stamp. */
static inline uint64_t work_load(const ebbgc_ref_t *slot)
{
	return __atomic_load_n(&slot->bits, __ATOMIC_ACQUIRE);
}

/* location.c */
int location_create(struct ebbgc_heap *h);
void location_destroy(struct ebbgc_heap *h);
/* Looks at epoch and residency if it is time to; any thread of the collector. */
void location_look(struct ebbgc_heap *h);
/* ns until then; 0 if nobody needs to look. */
uint64_t location_wait(const struct ebbgc_heap *h);
/* Is touching what this work refers to likely to wait for a read? */
bool location_far(struct ebbgc_heap *h, uint64_t work);
/* How often work may be put off now: MAX_DL. */
unsigned int location_delays(const struct ebbgc_heap *h);
/* Is enough of the heap out, as last looked at, for the order of marking to matter? */
bool location_scarce(const struct ebbgc_heap *h);
/* Lock held: what m's accesses do from now on, by epoch and marking. */
void barriers_set(const struct ebbgc_heap *h, struct mutator *m);

/* type.c */
int types_create(struct ebbgc_heap *h);
void types_destroy(struct ebbgc_heap *h);

/* region.c: called with the lock held unless they say otherwise. */
int regions_create(struct ebbgc_heap *h);
void regions_destroy(struct ebbgc_heap *h);
uint32_t regions_take(struct ebbgc_heap *h, uint32_t count, uint8_t kind);	/* or REGION_NONE */
void regions_free(struct ebbgc_heap *h, uint32_t first, uint32_t count);
void region_dropped(struct ebbgc_heap *h, uint32_t region, uint32_t pages);	/* a bitmap; more of it */
void region_used(struct ebbgc_heap *h, uint32_t region);	/* no page is dropped any more */
/* No lock held, the collector: free ones' memory goes to the kernel, by the resident budget. */
void regions_release(struct ebbgc_heap *h);
size_t side_bytes(const struct ebbgc_heap *h);	/* of the side tables, a region */
void list_push(struct ebbgc_heap *h, struct region_list *l, uint32_t region);
uint32_t list_pop(struct ebbgc_heap *h, struct region_list *l);
void list_append(struct ebbgc_heap *h, struct region_list *to, struct region_list *from);
void *map_pages(size_t bytes);

/* allocate.c: world stopped, or m's own thread with the lock. */
void supplies_blacken(struct ebbgc_heap *h, struct mutator *m);
void supplies_drop_regions(struct ebbgc_heap *h, struct mutator *m);
void allocated_add(struct ebbgc_heap *h, size_t bytes);	/* lock held; asks for a cycle if due */

/* sweep.c */
void sweep_decide(struct ebbgc_heap *h);	/* no lock held: whether garbage will be dropped */
void sweep_begin(struct ebbgc_heap *h);		/* world stopped: all regions are unswept */
/* Lock held, dropped meanwhile: a swept region with room, or REGION_NONE. */
uint32_t sweep_for(struct ebbgc_heap *h, uint8_t kind);
void sweep_all(struct ebbgc_heap *h);		/* no lock held; returns when all is swept */

/* roots.c: world stopped. */
void roots_each(struct ebbgc_heap *h, ebbgc_visit_fn fn, void *arg);	/* precise ones */
void stacks_each(struct ebbgc_heap *h, ebbgc_visit_fn fn, void *arg);	/* conservative ones */
void roots_destroy(struct ebbgc_heap *h);
/* The object that an arbitrary word points into, or 0. */
uint64_t object_containing(const struct ebbgc_heap *h, uint64_t word);

/* safepoint.c */
void world_stop(struct ebbgc_heap *h);
void world_resume(struct ebbgc_heap *h, uint64_t since);
void mutator_block(struct mutator *m);		/* lock held */
void mutator_unblock(struct mutator *m);	/* lock held, dropped meanwhile */
/*
 * Lock held, dropped meanwhile; before m's thread waits, below with_stack().  In the other heaps that
 * it is attached to it is as at a safepoint then, until mutator_unblock().
 */
void mutator_lend(struct mutator *m);
void mutator_free(struct mutator *m);
void lock_wait(struct ebbgc_heap *h, pthread_cond_t *cond);	/* lock held; a mutator's thread */
bool forked(const struct ebbgc_heap *h);
void mutator_key_destructor(void *mutator);
/* fn(arg) with the thread's registers and the end of its stack where a scan finds them. */
void *with_stack(struct mutator *m, void *(*fn)(void *), void *arg);

/* finalize.c: world stopped. */
size_t finalizers_collect(struct ebbgc_heap *h);
void finalizers_destroy(struct ebbgc_heap *h);

/* weak.c: the world stopped, or concurrently for ephemerons_step(). */
bool ephemerons_step(struct ebbgc_heap *h);
void weak_clear(struct ebbgc_heap *h);

/*
 * slice.c.  Traces an object page by page, parking what is out; what began on the page at `from`
 * before is work, too: of the address of the page.
 */
void slices_trace(struct tracer *t, uint64_t object);
void slice_trace(struct tracer *t, uint64_t from);

/* memliner.c.  Arrivals: marks, wakes and hints by them; during marking, any tracer. */
void memliner_arrivals(struct tracer *t);
/* World stopped. */
void memliner_begin(struct ebbgc_heap *h);
void memliner_count(struct ebbgc_heap *h);	/* into stats */

/* collect.c */
int collector_start(struct ebbgc_heap *h);
void collector_stop(struct ebbgc_heap *h);
void collector_ask(struct ebbgc_heap *h);		/* lock held */
/* Lock held.  Blocks m until what has been asked for has ended, or a full cycle yet to begin. */
void collector_wait(struct ebbgc_heap *h, struct mutator *m);
void collector_wait_full(struct ebbgc_heap *h, struct mutator *m);

/* stats.c */
void event_send(struct ebbgc_heap *h, enum ebbgc_event_kind kind, uint64_t value, const char *text);
void pause_count(struct ebbgc_heap *h, uint64_t ns);	/* lock held */
uint64_t heap_bytes(struct ebbgc_heap *h);		/* takes the lock */
/* Starts a thread of the collector: the program's signals are not for it.  0 or -errno. */
int thread_start(pthread_t *thread, void *(*fn)(void *), void *arg);
/* Names the calling thread, for ebb to know it by. */
void thread_name(const struct ebbgc_heap *h, const char *name);

/* check.c: world stopped, but for is_object(). */
int check_create(struct ebbgc_heap *h);
void check_destroy(struct ebbgc_heap *h);
bool is_object(const struct ebbgc_heap *h, uint64_t object);
void check_snapshot(struct ebbgc_heap *h);
void check_marks(struct ebbgc_heap *h, bool exact);

#endif
