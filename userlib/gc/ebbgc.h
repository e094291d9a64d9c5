/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * ebbgc: a garbage-collected heap for C programs and language runtimes.
 *
 * Objects do not move.  Their layout is told as data (struct ebbgc_layout), so references are
 * found precisely; stacks are scanned precisely (frames) or conservatively, by choice of the
 * heap.  Marking runs beside the program on threads named `ebb-gc...`, on a snapshot taken at
 * its beginning (Yuasa, "Real-time garbage collection on general-purpose machines", 1990): a
 * store logs the reference that it overwrites, a load costs a comparison, new objects survive the
 * cycle.  Mark and allocation bits live outside the heap's pages, so that neither sweeping nor
 * a barrier touches a page that the program does not.
 *
 * Conventions.  Sizes are bytes, times nanoseconds.  Functions return 0 or a negative errno
 * unless they say otherwise; an output is left untouched on failure.  A mutator is a thread's
 * handle on one heap and is used by that thread only; functions that take a heap may be called
 * by any thread.  A thread that is attached must reach a safepoint (ebbgc_poll(), an
 * allocation, or a blocked region) within the pause that the program can bear.  References are
 * valid in the variables of an attached thread as long as they are in a frame, a handle, a root
 * range or a reachable object across every safepoint (in heaps with conservative stacks: also
 * in any local variable or register).  Of a thread that is attached to several heaps a safepoint in
 * one is a safepoint in all: where it waits for one collector no other waits for it.
 *
 * fork: the child has no collector.  There allocation fails with ECHILD as soon as it needs
 * more than the thread has at hand, ebbgc_collect() and what changes types, roots or finalizers
 * return -ECHILD, no finalizer runs, reading and storing work, and ebbgc_heap_destroy() only
 * unmaps.
 *
 * Heaps of one process share nothing: a reference of one is stored in no object, root or handle of
 * another.  The collector's threads take no signal.
 */
#ifndef EBBGC_H
#define EBBGC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EBBGC_API __attribute__((visibility("default")))
#define EBBGC_UNLIKELY(x) __builtin_expect(!!(x), 0)

#if defined(__SANITIZE_THREAD__)
#define EBBGC_SANITIZE_THREAD
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define EBBGC_SANITIZE_THREAD
#endif
#endif

/* --- references ------------------------------------------------------------------------- */

/*
 * A reference as it lies in objects, frames and handles: an address and, in its upper four
 * bits, a stamp that is the collector's business.  All bits zero is the null reference, so
 * zeroed memory holds valid references.  Compare with ebbgc_same(), never by bits.
 */
typedef struct ebbgc_reference {
	uint64_t bits;
} ebbgc_ref_t;

#ifdef __cplusplus
#define EBBGC_BITS(x) (ebbgc_ref_t{ (x) })
#else
#define EBBGC_BITS(x) ((ebbgc_ref_t){ (x) })
#endif
#define EBBGC_NULL EBBGC_BITS(0)
#define EBBGC_ADDRESS_MASK ((UINT64_C(1) << 60) - 1)

/* The object's first byte (8-byte aligned), or NULL. */
static inline void *ebbgc_ptr(ebbgc_ref_t ref)
{
	return (void *)(uintptr_t)(ref.bits & EBBGC_ADDRESS_MASK);
}

/* The reference of what ebbgc_ptr() gave; interior addresses are not references. */
static inline ebbgc_ref_t ebbgc_ref(const void *object)
{
	return EBBGC_BITS((uint64_t)(uintptr_t)object);
}

static inline bool ebbgc_same(ebbgc_ref_t a, ebbgc_ref_t b)
{
	return ((a.bits ^ b.bits) & EBBGC_ADDRESS_MASK) == 0;
}

static inline bool ebbgc_is_null(ebbgc_ref_t ref)
{
	return (ref.bits & EBBGC_ADDRESS_MASK) == 0;
}

/* --- heaps ------------------------------------------------------------------------------ */

typedef struct ebbgc_heap ebbgc_heap_t;

/* How collections run. */
enum ebbgc_mode {
	EBBGC_CONCURRENT,	/* marking beside the program, two short pauses a cycle */
	EBBGC_STOP_WORLD,	/* the whole marking in one pause, on all markers */
	/*
	 * Concurrent, and lined up with the program: what it has just touched is marked first,
	 * what seems to be swapped out is put off (MemLiner, OSDI 2022; chapter 4 of Ma's
	 * dissertation).
	 */
	EBBGC_MEMLINER,
};

/* Switches for struct ebbgc_options.features. */
enum {
	/* EBBGC_MEMLINER: what is out is asked of the kernel, not estimated from stamps. */
	EBBGC_EXACT = 1 << 0,
	/*
	 * EBBGC_MEMLINER: what is out is parked by page, woken when its page comes in, and at
	 * last fetched in batches in the order of addresses.  Implies EBBGC_EXACT.
	 */
	EBBGC_PARK = 1 << 1,
	/*
	 * Any mode: pages that hold only garbage are dropped instead of written to swap, as long
	 * as some of the process is swapped; always in checking mode.
	 */
	EBBGC_DROP = 1 << 2,
	/* Any mode: the threads are not named `ebb-gc...`, so ebb takes them for the program's. */
	EBBGC_INCOGNITO = 1 << 3,
	/*
	 * EBBGC_PARK: pages that the collector fetched are the first to go once it has traced
	 * them, before those that the program uses.
	 */
	EBBGC_COLD = 1 << 4,
	/*
	 * EBBGC_MEMLINER, with ebbd: what the program faults on is marked next, and work that is
	 * parked on the page woken, at once.  Needs no barrier of loads; nothing happens without
	 * ebbd.  Not with EBBGC_INCOGNITO (-EINVAL): the collector's own faults are to be told
	 * from the program's.
	 */
	EBBGC_ARRIVALS = 1 << 5,
	/*
	 * EBBGC_MEMLINER, with ebbd, also between cycles: what is referred to from a page that the
	 * program has just faulted on, and is out, is read ahead, at most 64 pages a time.
	 * Implies EBBGC_EXACT; not with EBBGC_INCOGNITO.
	 */
	EBBGC_HINTS = 1 << 6,
	/*
	 * Any mode: the heap grows whether or not the kernel can back it.  Else, when neither the
	 * machine nor a cgroup of the process has memory or swap left, the heap is as full as at
	 * max_bytes: it is collected, then `oom` is asked, then allocation fails, before the
	 * kernel kills.
	 */
	EBBGC_OVERCOMMIT = 1 << 7,
};

/* Who tells which pages are in memory; what the kernel lacks is replaced by the next one. */
enum ebbgc_residency {
	EBBGC_RESIDENCY_PAGEMAP_SCAN,	/* the default; Linux 6.7 */
	EBBGC_RESIDENCY_PAGEMAP,	/* /proc/self/pagemap */
	EBBGC_RESIDENCY_MINCORE,	/* mincore(2): what is in the swap cache counts as in */
	EBBGC_RESIDENCY_SIMULATED,	/* for tests: pages come and go by chance */
};

/* Who counts epochs: see struct ebbgc_stats. */
enum ebbgc_epoch_source {
	EBBGC_EPOCH_NONE,		/* not EBBGC_MEMLINER, or EBBGC_EXACT */
	EBBGC_EPOCH_EBBD,		/* ebb's BPF programs, by a plain load */
	EBBGC_EPOCH_OWN,		/* this library, from what changed between two scans */
};

/* How references in the variables of threads are found. */
enum ebbgc_stacks {
	EBBGC_PRECISE,		/* frames and handles only */
	EBBGC_CONSERVATIVE,	/* also every word on the stacks and in registers */
};

/*
 * What size the heap aims at.  A cycle begins when the room between live objects and that is used
 * up, but beside the program when half of it is.
 */
enum ebbgc_sizing {
	EBBGC_GROWABLE,		/* `growth` times what is live, up to max_bytes */
	EBBGC_FIXED,		/* max_bytes */
};

/* What an out-of-memory handler wants: see struct ebbgc_options. */
enum ebbgc_oom {
	EBBGC_OOM_FAIL,		/* the allocation returns the null reference */
	EBBGC_OOM_RETRY,	/* try again: the handler has let go of something */
};

enum ebbgc_event_kind {
	EBBGC_EVENT_CYCLE_BEGIN,	/* value: bytes in use */
	EBBGC_EVENT_PAUSE_BEGIN,	/* value: ns it took every thread to stop */
	EBBGC_EVENT_PAUSE_END,		/* value: ns from the request to the release */
	EBBGC_EVENT_MARK_BEGIN,		/* the world runs, marking is about to start */
	EBBGC_EVENT_MARK_END,		/* value: bytes found live */
	EBBGC_EVENT_CYCLE_END,		/* value: bytes of regions in use after sweeping */
	EBBGC_EVENT_FINALIZERS_READY,	/* value: how many more wait for ebbgc_finalizers_run() */
	EBBGC_EVENT_OUT_OF_MEMORY,	/* value: bytes asked for; on the allocating thread */
	EBBGC_EVENT_CHECK_FAILED,	/* value: address of the object; text says what is wrong */
};

struct ebbgc_event {
	enum ebbgc_event_kind kind;
	uint64_t time_ns;		/* CLOCK_MONOTONIC */
	uint64_t value;
	const char *text;		/* NULL unless the kind says otherwise */
};

/*
 * Later versions append members to struct ebbgc_options and struct ebbgc_layout.  The library learns
 * from the size which members a program knows: the others keep their defaults (in a layout: zero).
 * A library that is older than the header ignores members that it does not know while they are
 * zero, and fails with -E2BIG otherwise.  -EINVAL: the size is smaller than any version's.
 */
struct ebbgc_options {
	size_t struct_size;		/* set by ebbgc_options_init() */
	enum ebbgc_mode mode;
	enum ebbgc_stacks stacks;
	enum ebbgc_sizing sizing;
	size_t max_bytes;		/* hard limit of the heap; reserved, not committed; <= 16 TiB */
	size_t min_bytes;		/* growable: the least size aimed at, but for max_bytes */
	double growth;			/* growable: heap size aimed at / live bytes, > 1 */
	/*
	 * Bytes of the heap that should be resident, 0 for no opinion.  After a cycle, memory
	 * of free regions goes back to the kernel while more than this is resident.
	 */
	size_t resident_budget;
	unsigned int markers;		/* marking threads, <= 64; 0: a quarter of the cores, at least 1 */
	uint64_t pause_budget_ns;	/* marking left over at the end that a pause may take on */
	bool lock_side;			/* mlock() the side tables as they come into use */
	bool check;			/* verify each cycle independently; slow */
	/*
	 * Called on the collector's threads, or on the allocating one for OUT_OF_MEMORY; must
	 * not call functions of the heap except ebbgc_stats_get().  May be NULL.
	 */
	void (*event)(void *arg, const struct ebbgc_event *event);
	void *event_arg;
	/*
	 * Called by the thread whose allocation of `bytes` finds no memory even after a full
	 * collection: at max_bytes, or without EBBGC_OVERCOMMIT when nothing is left to back
	 * more.  It may release handles and run finalizers.  NULL: allocation fails.
	 */
	enum ebbgc_oom (*oom)(void *arg, ebbgc_heap_t *heap, size_t bytes);
	void *oom_arg;

	uint32_t features;		/* EBBGC_EXACT, ... */
	enum ebbgc_residency residency;

	/* EBBGC_MEMLINER, in the paper's words.  N and delta have no value there. */
	unsigned int depth;		/* MAX_Depth: hops explored from an object just touched; <= 64 */
	/* MAX_DL with more than 50 %, 15 % and less of the room above live objects unused; <= 6 */
	unsigned int delays[3];
	unsigned int delta;		/* a stamp at most this many epochs away means local; <= 7 */
	unsigned int epoch_percent;	/* N: share of the pages that changes in an epoch; own count */

	unsigned int scan_percent;	/* at most this share of a marker's time goes to scans */
	uint32_t unused;		/* was padding in 0.1.0: never read */
};

/*
 * Defaults: concurrent, precise, growable from 16 MiB by 2 up to half of the machine's memory;
 * no features, MAX_Depth 3, MAX_DL 4, 2, 0, delta 1, N 10 %, scans 5 %.
 */
EBBGC_API void ebbgc_options_init_size(struct ebbgc_options *options, size_t struct_size);

static inline void ebbgc_options_init(struct ebbgc_options *options)
{
	ebbgc_options_init_size(options, sizeof(*options));
}

/*
 * Changes options by a text such as "mode=memliner,park,drop,delta=2":
 *
 *	mode=concurrent|stop|memliner  sizing=fixed|growable  growth=REAL
 *	max, min, budget=BYTES[KMG]  markers, depth, delta, epoch, scan=N  delays=N:N:N
 *	residency=pagemap_scan|pagemap|mincore|simulated
 *	exact, park, cold, drop, incognito, arrivals, hints, overcommit, lock, check
 *
 * -EINVAL, and nothing is changed, for anything else or if ebbgc_options_init() was not called.
 */
EBBGC_API int ebbgc_options_parse(struct ebbgc_options *options, const char *text);

/*
 * Creates a heap and its collector threads; NULL options are the defaults.  The environment's
 * EBBGC_OPTIONS, as for ebbgc_options_parse(), overrides them.  -EINVAL for options that make
 * no sense, -E2BIG for options of a later version, -ENOMEM, -EAGAIN when no thread can be created.
 */
EBBGC_API int ebbgc_heap_create(const struct ebbgc_options *options, ebbgc_heap_t **heap);

/*
 * Ends the collector, also in the midst of a cycle (there is no EBBGC_EVENT_CYCLE_END then), and
 * unmaps everything.  No thread may be attached (-EBUSY) and no
 * finalizer runs: who needs them calls ebbgc_finalizers_run() before.  In a child of fork()
 * threads that no longer exist do not count.
 */
EBBGC_API int ebbgc_heap_destroy(ebbgc_heap_t *heap);

/* --- types ------------------------------------------------------------------------------ */

typedef uint32_t ebbgc_type_t;

enum {
	EBBGC_LEAF = 1 << 0,	/* no references: such objects are never read by the collector */
	EBBGC_WEAK = 1 << 1,	/* the references are weak: nulled when what they name dies */
};

/* `count` in a run of references that is as long as the object's length field says. */
#define EBBGC_COUNT_LENGTH UINT32_MAX

/* References at offset, offset + stride, ...  No version appends members. */
struct ebbgc_run {
	uint32_t offset;	/* bytes from the object's first byte, multiple of 8 */
	uint32_t count;
	uint32_t stride;	/* bytes, multiple of 8 */
};

typedef void (*ebbgc_visit_fn)(void *arg, ebbgc_ref_t *slot);

/*
 * A type's layout as data.  An object takes `size` bytes, plus its length times element_size
 * if length_width is not 0.  References are: those of the bitmap, those of the runs, and those
 * that trace() visits.
 */
struct ebbgc_layout {
	const char *name;	/* copied */
	uint32_t flags;		/* EBBGC_LEAF, EBBGC_WEAK */
	size_t size;		/* fixed part, > 0 */
	size_t element_size;	/* of the variable part, which follows the fixed one */
	uint32_t length_offset;	/* of the length field: unsigned, in elements, never changed */
	uint32_t length_width;	/* its size: 0 (none), 4 or 8 */
	uint64_t bitmap;	/* bit i: a reference at byte 8 * i of the fixed part */
	const struct ebbgc_run *runs;	/* copied */
	size_t run_count;
	/*
	 * For layouts that data cannot describe: calls visit(arg, slot) for each reference of
	 * the object.  Runs on marker threads beside the program and may read only what does
	 * not change during the object's life, but for being zero at first: the object may be
	 * one that has just been allocated.  Another process cannot trace such types.
	 */
	void (*trace)(void *object, ebbgc_visit_fn visit, void *arg);
};

/*
 * Registers a type for the heap's life; any thread.  Who allocates with it must have got the
 * id in an ordered way (a lock, thread creation).  -EINVAL for a layout whose references lie
 * outside of the object or overlap its length field, -E2BIG for a layout of a later version,
 * -ENOSPC beyond 4093 types, -ENOMEM, -ECHILD.
 */
EBBGC_API int ebbgc_type_register_size(ebbgc_heap_t *heap, const struct ebbgc_layout *layout,
				       size_t layout_size, ebbgc_type_t *type);

static inline int ebbgc_type_register(ebbgc_heap_t *heap, const struct ebbgc_layout *layout,
				      ebbgc_type_t *type)
{
	return ebbgc_type_register_size(heap, layout, sizeof(*layout), type);
}

/* --- threads ---------------------------------------------------------------------------- */

/* A precise root frame, on the stack of its function. */
struct ebbgc_frame {
	struct ebbgc_frame *up;
	ebbgc_ref_t *slots;
	size_t count;
};

/* The part of a thread's handle that inline functions need; the rest is private. */
typedef struct ebbgc_mutator {
	uint32_t flags;		/* what accesses have to do besides; 0 most of the time */
	uint32_t poll;		/* not 0: the collector waits for this thread */
	struct ebbgc_frame *frames;
	uint64_t stamp;		/* of this epoch, in place */
} ebbgc_mutator_t;

#define EBBGC_STAMP_SHIFT 60

/* In ebbgc_mutator.flags. */
#define EBBGC_MARKING UINT32_C(1)	/* stores log what they overwrite; changes at safepoints */
#define EBBGC_NOTING UINT32_C(2)	/* what is accessed is noted, for a while */
#define EBBGC_STAMPED UINT32_C(4)	/* epochs have passed, so references' stamps differ */

/*
 * Attaches the calling thread, which may be attached once to each of several heaps.  Waits
 * while the world is stopped: a safepoint in the others, as is ebbgc_detach().  A thread that exits
 * attached is detached then: in a blocked region, too, if it has no frames on its stack.  No
 * function is a point of cancellation, but what it calls of the program may be.  -EALREADY,
 * -ENOMEM, -ECHILD.
 */
EBBGC_API int ebbgc_attach(ebbgc_heap_t *heap, ebbgc_mutator_t **mutator);

/* Detaches; its frames are gone with it, so no reference but in handles and objects stays. */
EBBGC_API void ebbgc_detach(ebbgc_mutator_t *mutator);

EBBGC_API void ebbgc_poll_slow(ebbgc_mutator_t *mutator);

/* A safepoint: waits here if the collector has stopped the world. */
static inline void ebbgc_poll(ebbgc_mutator_t *mutator)
{
	if (EBBGC_UNLIKELY(__atomic_load_n(&mutator->poll, __ATOMIC_RELAXED)))
		ebbgc_poll_slow(mutator);
}

/*
 * Between the two the thread may block for ever and holds up no collection, but must not touch
 * the heap, its frames or handles.  Not nested.  Who is attached to several heaps blocks in each,
 * and end is a safepoint in the others.  Precise heaps only: where stacks are
 * scanned, use ebbgc_blocked_call() (-EINVAL there, and then end must not be called).
 */
EBBGC_API int ebbgc_blocked_begin(ebbgc_mutator_t *mutator);
EBBGC_API void ebbgc_blocked_end(ebbgc_mutator_t *mutator);

/* fn(arg) as a blocked region, its caller's frame being kept as it is; returns what fn does. */
EBBGC_API void *ebbgc_blocked_call(ebbgc_mutator_t *mutator, void *(*fn)(void *arg), void *arg);

/* --- allocation ------------------------------------------------------------------------- */

/*
 * A zeroed object of a type without a length field; the null reference, with errno ENOMEM,
 * ECHILD (fork) or EINVAL (type), when there is none.  A safepoint.
 */
EBBGC_API ebbgc_ref_t ebbgc_alloc(ebbgc_mutator_t *mutator, ebbgc_type_t type);

/* As ebbgc_alloc() for a type with a length field, which is set to `length`; EOVERFLOW, too. */
EBBGC_API ebbgc_ref_t ebbgc_alloc_length(ebbgc_mutator_t *mutator, ebbgc_type_t type,
					 size_t length);

/* The type an object was allocated with, and its bytes as the layout says. */
EBBGC_API ebbgc_type_t ebbgc_type_of(ebbgc_ref_t object);
EBBGC_API size_t ebbgc_size_of(ebbgc_mutator_t *mutator, ebbgc_ref_t object);

/* --- access ----------------------------------------------------------------------------- */

/*
 * Every reference inside an object is read and written by these, `object` being the one that
 * holds `slot`.  Stores release, and what is read through a loaded reference is read after it, so
 * an object's contents are seen by who sees its reference.  Racing stores lose no reference: old
 * value and new one are exchanged.  A load may write the slot: the same reference with another
 * stamp.
 */
EBBGC_API void ebbgc_log_old(ebbgc_mutator_t *mutator, ebbgc_ref_t old);

/* The accessors' rare halves: for them only. */
EBBGC_API ebbgc_ref_t ebbgc_load_slow(ebbgc_mutator_t *mutator, ebbgc_ref_t object,
				      const ebbgc_ref_t *slot, ebbgc_ref_t ref);
EBBGC_API void ebbgc_store_slow(ebbgc_mutator_t *mutator, ebbgc_ref_t object, ebbgc_ref_t *slot,
				ebbgc_ref_t value);

/*
 * A thread's flags, maybe as they were at its last safepoint: noting and epochs may be noticed
 * late, marking begins and ends at safepoints.  So the compiler may keep them in a register.
 */
static inline uint32_t ebbgc_flags(const ebbgc_mutator_t *mutator)
{
#ifdef EBBGC_SANITIZE_THREAD
	return __atomic_load_n(&mutator->flags, __ATOMIC_RELAXED);
#else
	return mutator->flags;
#endif
}

/*
 * One access, as what is reached through the reference is ordered after it by depending on it.  An
 * acquire would be no stronger for that, and would make the compiler read the flags each time.
 */
static inline ebbgc_ref_t ebbgc_read(const ebbgc_ref_t *slot)
{
#ifdef EBBGC_SANITIZE_THREAD
	return EBBGC_BITS(__atomic_load_n(&slot->bits, __ATOMIC_ACQUIRE));
#else
	return EBBGC_BITS(*(const volatile uint64_t *)&slot->bits);
#endif
}

/* Has the reference another stamp than this epoch's?  The null reference has none. */
static inline bool ebbgc_is_stale(const ebbgc_mutator_t *mutator, ebbgc_ref_t ref)
{
	uint64_t stamp = __atomic_load_n(&mutator->stamp, __ATOMIC_RELAXED);

	return (ref.bits ^ stamp) >> EBBGC_STAMP_SHIFT && ref.bits;
}

#ifdef EBBGC_NO_NOTES
/*
 * A program compiled so notes none of its loads: EBBGC_MEMLINER finds nothing to line up with, but
 * a load is a load.
 */
static inline ebbgc_ref_t ebbgc_load(ebbgc_mutator_t *mutator, ebbgc_ref_t object,
				     const ebbgc_ref_t *slot)
{
	(void)mutator;
	(void)object;
	return ebbgc_read(slot);
}

static inline void ebbgc_store(ebbgc_mutator_t *mutator, ebbgc_ref_t object, ebbgc_ref_t *slot,
			       ebbgc_ref_t value)
{
	if (EBBGC_UNLIKELY(ebbgc_flags(mutator) & EBBGC_MARKING)) {
		ebbgc_store_slow(mutator, object, slot, value);
		return;
	}
	__atomic_store_n(&slot->bits, value.bits, __ATOMIC_RELEASE);
}
#else
static inline ebbgc_ref_t ebbgc_load(ebbgc_mutator_t *mutator, ebbgc_ref_t object,
				     const ebbgc_ref_t *slot)
{
	ebbgc_ref_t ref = ebbgc_read(slot);
	uint32_t flags = ebbgc_flags(mutator) & (EBBGC_NOTING | EBBGC_STAMPED);

	/* The first test does not wait for the reference, which may take a cache miss. */
	if (EBBGC_UNLIKELY(flags) && ((flags & EBBGC_NOTING) || ebbgc_is_stale(mutator, ref)))
		return ebbgc_load_slow(mutator, object, slot, ref);
	return ref;
}

static inline void ebbgc_store(ebbgc_mutator_t *mutator, ebbgc_ref_t object, ebbgc_ref_t *slot,
			       ebbgc_ref_t value)
{
	uint32_t flags = ebbgc_flags(mutator) & (EBBGC_MARKING | EBBGC_STAMPED);

	if (EBBGC_UNLIKELY(flags) && ((flags & EBBGC_MARKING) || ebbgc_is_stale(mutator, value))) {
		ebbgc_store_slow(mutator, object, slot, value);
		return;
	}
	__atomic_store_n(&slot->bits, value.bits, __ATOMIC_RELEASE);
}
#endif

/* A first store to a slot of an object that no other thread has seen; no safepoint since. */
static inline void ebbgc_init(ebbgc_ref_t *slot, ebbgc_ref_t value)
{
	__atomic_store_n(&slot->bits, value.bits, __ATOMIC_RELEASE);
}

/*
 * If *slot is *expected, makes it `value` and returns true; else updates *expected, which has been
 * loaded then, weakly where the slot is weak.
 */
static inline bool ebbgc_cas(ebbgc_mutator_t *mutator, ebbgc_ref_t object, ebbgc_ref_t *slot,
			     ebbgc_ref_t *expected, ebbgc_ref_t value)
{
	ebbgc_ref_t was = { __atomic_load_n(&slot->bits, __ATOMIC_ACQUIRE) };

	(void)object;
	/* Stamps may differ between two references to one object. */
	while (ebbgc_same(was, *expected)) {
		if (!__atomic_compare_exchange_n(&slot->bits, &was.bits, value.bits, false,
						 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			continue;
		if (EBBGC_UNLIKELY(ebbgc_flags(mutator) & EBBGC_MARKING))
			ebbgc_log_old(mutator, was);
		return true;
	}
	if (EBBGC_UNLIKELY(ebbgc_flags(mutator) & EBBGC_MARKING))
		ebbgc_log_old(mutator, was);
	*expected = was;
	return false;
}

/* Copies `count` references from one object to another, or within one: may overlap, may be weak. */
EBBGC_API void ebbgc_copy(ebbgc_mutator_t *mutator, ebbgc_ref_t to_object, ebbgc_ref_t *to,
			  ebbgc_ref_t from_object, const ebbgc_ref_t *from, size_t count);

/* Stores `value` into `count` slots. */
EBBGC_API void ebbgc_fill(ebbgc_mutator_t *mutator, ebbgc_ref_t object, ebbgc_ref_t *slots,
			  ebbgc_ref_t value, size_t count);

/* --- roots ------------------------------------------------------------------------------ */

/*
 * Makes `count` slots roots until ebbgc_frame_pop(), which is called in reverse order by the
 * same thread.  Frame and slots are the caller's, must be initialised, and are read and
 * written plainly.
 */
static inline void ebbgc_frame_push(ebbgc_mutator_t *mutator, struct ebbgc_frame *frame,
				    ebbgc_ref_t *slots, size_t count)
{
	frame->up = mutator->frames;
	frame->slots = slots;
	frame->count = count;
	mutator->frames = frame;
}

static inline void ebbgc_frame_pop(ebbgc_mutator_t *mutator, struct ebbgc_frame *frame)
{
	mutator->frames = frame->up;
}

/*
 * A handle is a root that lives until it is freed, for references held by C structures.  NULL
 * when out of memory, or after fork.  Reading and writing one handle from two threads needs a lock.
 */
typedef struct ebbgc_handle ebbgc_handle_t;

EBBGC_API ebbgc_handle_t *ebbgc_handle_new(ebbgc_mutator_t *mutator, ebbgc_ref_t ref);
EBBGC_API void ebbgc_handle_free(ebbgc_mutator_t *mutator, ebbgc_handle_t *handle);
EBBGC_API ebbgc_ref_t ebbgc_handle_get(const ebbgc_handle_t *handle);
EBBGC_API void ebbgc_handle_set(ebbgc_handle_t *handle, ebbgc_ref_t ref);

/*
 * Makes caller's memory of `count` references a root, such as static variables, until it is
 * removed.  -ENOMEM, -ECHILD; -ENOENT from remove for a range that was not added.
 */
EBBGC_API int ebbgc_roots_add(ebbgc_mutator_t *mutator, ebbgc_ref_t *slots, size_t count);
EBBGC_API int ebbgc_roots_remove(ebbgc_mutator_t *mutator, ebbgc_ref_t *slots);

/* --- weak references, ephemerons, finalizers -------------------------------------------- */

/*
 * A weak reference is an object that does not keep its target alive; get gives the target, or
 * null once it was collected.  It is cleared before a finalizer of the target runs.
 */
EBBGC_API ebbgc_ref_t ebbgc_weak_new(ebbgc_mutator_t *mutator, ebbgc_ref_t target);
EBBGC_API ebbgc_ref_t ebbgc_weak_get(ebbgc_mutator_t *mutator, ebbgc_ref_t weak);

/* Loads a reference of an object of a type that is EBBGC_WEAK (stores are ebbgc_store()). */
EBBGC_API ebbgc_ref_t ebbgc_load_weak(ebbgc_mutator_t *mutator, ebbgc_ref_t object,
				      const ebbgc_ref_t *slot);

/*
 * An ephemeron keeps its value alive as long as its key is alive by other means, even if the
 * value leads to the key (Hayes, "Ephemerons: a new finalization mechanism", 1997).  Both are
 * null once the key was collected, and the value if there is no key to begin with.
 */
EBBGC_API ebbgc_ref_t ebbgc_ephemeron_new(ebbgc_mutator_t *mutator, ebbgc_ref_t key,
					  ebbgc_ref_t value);
EBBGC_API ebbgc_ref_t ebbgc_ephemeron_key(ebbgc_mutator_t *mutator, ebbgc_ref_t ephemeron);
EBBGC_API ebbgc_ref_t ebbgc_ephemeron_value(ebbgc_mutator_t *mutator, ebbgc_ref_t ephemeron);

typedef void (*ebbgc_finalizer_fn)(ebbgc_mutator_t *mutator, ebbgc_ref_t object, void *data);

/*
 * Has fn(object, data) called once after a collection found the object dead, which comes back
 * to life for it; all that died together are finalized, in the order they were added.  An object
 * may have several.  -ENOMEM, -ECHILD, -EINVAL for the null reference.
 */
EBBGC_API int ebbgc_finalizer_add(ebbgc_mutator_t *mutator, ebbgc_ref_t object,
				  ebbgc_finalizer_fn fn, void *data);

/*
 * Runs at most `limit` finalizers that are due, on this thread, where it is called and nowhere
 * else, so they meet no lock by surprise.  Returns how many ran.
 */
EBBGC_API size_t ebbgc_finalizers_run(ebbgc_mutator_t *mutator, size_t limit);

/* --- collection and figures ------------------------------------------------------------- */

/* A complete collection with the world stopped; returns when it is done.  -ECHILD after fork. */
EBBGC_API int ebbgc_collect(ebbgc_mutator_t *mutator);

/* Asks for a cycle in the heap's own mode and does not wait for it. */
EBBGC_API void ebbgc_collect_start(ebbgc_mutator_t *mutator);

struct ebbgc_stats {
	uint64_t cycles, full_cycles;	/* all of them; those of ebbgc_collect() and exhaustion */
	uint64_t pauses, pause_total_ns, pause_max_ns;
	uint64_t stop_max_ns;		/* the longest it took all threads to reach safepoints */
	uint64_t mark_total_ns;		/* elapsed, marking with or without the world */
	uint64_t allocated_bytes;	/* since creation */
	uint64_t live_bytes;		/* found by the last cycle, and born during it */
	uint64_t heap_bytes;		/* regions in use */
	uint64_t resident_bytes;	/* of the heap, when last looked at (resident_budget) */
	uint64_t released_bytes;	/* given back to the kernel unwritten */
	uint64_t marked_objects, logged_references;
	uint64_t weak_cleared, ephemerons_cleared, finalizers_ready;
	uint64_t remarks;		/* pauses that put marking back beside the program */
	uint64_t stalls, stall_total_ns;	/* allocations that waited for a cycle or a release */
	/* Side tables in use, of residency and parked work, too; those that are mlock()ed. */
	uint64_t side_bytes, side_locked;
	uint64_t checks, check_failures;	/* of the checking mode */

	/* EBBGC_MEMLINER; figures of marking are as of the last cycle's end. */
	enum ebbgc_epoch_source epoch_source;
	enum ebbgc_residency residency;	/* the provider in use */
	uint64_t epoch;
	uint64_t noted, noted_lost;	/* accesses noted; those overwritten before they were read */
	uint64_t red_objects;		/* objects marked because they were noted */
	uint64_t explored_objects;	/* those marked at most MAX_Depth hops from there */
	uint64_t postponed;		/* how often an object was put off by its stamp, or as out */
	uint64_t parked_objects, woken_objects;	/* by page; those whose page came in by itself */
	uint64_t fetch_calls, fetched_pages;	/* of the others, in batches */
	uint64_t scans, scan_total_ns;	/* of residency */
	uint64_t dropped_bytes;		/* EBBGC_DROP: told the kernel to be garbage */
	uint64_t cooled_pages;		/* EBBGC_COLD: told the kernel to be unused */

	/* EBBGC_ARRIVALS, EBBGC_HINTS. */
	uint64_t arrivals_shared;	/* 1 if ebbd tells of faults, else 0 */
	uint64_t arrivals, arrivals_lost;	/* faults in this heap; of the process, not seen */
	uint64_t arrived_objects;	/* marked because the program faulted on them */
	uint64_t hint_calls, hinted_pages;	/* read ahead for the program */
};

/* Copies the figures; size is sizeof(*stats), so that later versions may append.  Any thread. */
EBBGC_API void ebbgc_stats_get(ebbgc_heap_t *heap, struct ebbgc_stats *stats, size_t size);

/* The pause that a share q (0..1) of all pauses did not exceed, within 19 %; 0 without any. */
EBBGC_API uint64_t ebbgc_pause_quantile(ebbgc_heap_t *heap, double q);

#ifdef __cplusplus
}
#endif

#endif
