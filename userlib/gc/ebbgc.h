/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * ebbgc: a garbage-collected heap for C programs and language runtimes.
 *
 * Objects move only if their type allows it (EBBGC_MOVABLE).  A type's layout is data (struct
 * ebbgc_layout), from which the collector finds references precisely.  It scans stacks precisely
 * (frames) or conservatively; each heap chooses.  Threads named `ebb-gc...` mark concurrently on a
 * snapshot taken when a cycle begins (Yuasa, "Real-time garbage collection on general-purpose
 * machines", 1990): a store logs the reference that it overwrites, a load costs a comparison, and
 * objects allocated during a cycle survive it.  Mark bits and allocation bits live outside the
 * heap's pages, so sweeping and barriers touch no page that the program does not touch.
 *
 * Conventions.  Sizes are in bytes, times in nanoseconds.  Functions return 0 or a negative errno
 * unless noted; on failure they leave outputs unchanged.
 *
 * Threads.  A mutator is one thread's handle on one heap; only that thread may use it.  Functions
 * that take a heap may be called by any thread.  An attached thread must reach a safepoint often:
 * ebbgc_poll(), an allocation or a blocked region.  Until it does, a pause cannot begin and the
 * other threads wait.  For a thread that is attached to several heaps, a safepoint in one heap is
 * a safepoint in all of them; a thread that waits for one collector delays no other.  Signal
 * handlers must not call the library.
 *
 * References.  A reference in a variable of an attached thread stays valid across safepoints as
 * long as its object is reachable from a frame, a handle, a root range or callback, or a reachable
 * object; in heaps with conservative stacks, also from any local variable or register.  For an
 * object that may move, one of these must refer to it directly: see EBBGC_MOVABLE.  Heaps of one
 * process share nothing: never store a reference of one heap in an object, root or handle of
 * another.
 * References to 8-byte aligned memory outside of all heaps, such as static objects, are allowed
 * everywhere: the collector neither reads that memory nor follows references in it.
 *
 * fork().  The child has no collector.  In the child, allocation fails with ECHILD once the
 * thread's own supply is used up; ebbgc_collect() and functions that change types, roots or
 * finalizers return -ECHILD; no finalizer runs; loads and stores work; ebbgc_heap_destroy() only
 * unmaps.
 *
 * The collector's threads take no signals.
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
 * A reference as stored in objects, frames and handles: an address and, in the upper four bits, a
 * stamp that belongs to the collector.  The null reference is all zero bits, so zeroed memory
 * holds valid references.  Compare references with ebbgc_same(), never by their bits.
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

/*
 * Returns the address of the object's first byte (8-byte aligned); NULL for the null reference.  An
 * address is no identity if the type is EBBGC_MOVABLE, and valid as long as the reference is.
 * Compare with ebbgc_same(), hash with ebbgc_hash().
 */
static inline void *ebbgc_ptr(ebbgc_ref_t ref)
{
	return (void *)(uintptr_t)(ref.bits & EBBGC_ADDRESS_MASK);
}

/*
 * Returns the reference for an address that ebbgc_ptr() returned, or of an object outside of all
 * heaps; not for interior addresses.
 */
static inline ebbgc_ref_t ebbgc_ref(const void *object)
{
	return EBBGC_BITS((uint64_t)(uintptr_t)object);
}

/* Do both refer to one object, or are both null? */
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
	EBBGC_CONCURRENT = 0,	/* concurrent marking, two short pauses a cycle */
	EBBGC_STOP_WORLD = 1,	/* all marking in one pause, on all markers */
	/*
	 * For heaps that may be larger than local memory.  Concurrent, and in the program's order:
	 * objects that it has just touched are marked first (MemLiner, OSDI 2022; chapter 4 of Ma's
	 * dissertation).  Work on swapped-out pages waits until they come in, and at last they are
	 * fetched in batches.  Pages that hold only garbage are dropped, not written to swap.
	 */
	EBBGC_SWAPPING = 3,
};

/* Switches for struct ebbgc_options.features. */
enum {
	/*
	 * Grow without asking whether the kernel can back the heap.  By default, a heap is full not
	 * only at max_bytes but also when the machine or a cgroup of the process has neither memory
	 * nor swap left: it collects, then calls `oom`, then fails the allocation, instead of being
	 * killed by the kernel.
	 */
	EBBGC_OVERCOMMIT = 1 << 7,
	/*
	 * References carry no stamps, so that the bits of a reference that was loaded are the
	 * address, which code may use as a C pointer.  Those of a slot may still name where an
	 * object of an EBBGC_MOVABLE type was, and where nothing is any more.
	 */
	EBBGC_PLAIN = 1 << 10,
	/* Finalizers of objects that died together are ready in reverse order, the newest first. */
	EBBGC_NEWEST_FIRST = 1 << 11,
};

/* The source of page residency.  If the kernel lacks one, the heap uses the next. */
enum ebbgc_residency {
	EBBGC_RESIDENCY_PAGEMAP_SCAN,	/* the default; Linux 6.7 */
	EBBGC_RESIDENCY_PAGEMAP,	/* /proc/self/pagemap */
	EBBGC_RESIDENCY_MINCORE,	/* mincore(2): pages in the swap cache count as resident */
	EBBGC_RESIDENCY_SIMULATED,	/* for tests: pages come and go by chance */
};

/* The source of epochs: see struct ebbgc_stats. */
enum ebbgc_epoch_source {
	EBBGC_EPOCH_NONE,		/* residency is asked of the kernel, or not needed */
	EBBGC_EPOCH_EBBD,		/* ebb's BPF programs, by a plain load */
	EBBGC_EPOCH_OWN,		/* this library, by pages that changed between two scans */
};

/* How the collector finds references in variables of threads. */
enum ebbgc_stacks {
	EBBGC_PRECISE,		/* frames and handles only */
	/*
	 * Also every word in registers and on the stack that the thread began with.  The thread
	 * must reach no safepoint on another stack, such as one of makecontext(3): what is between
	 * the two is scanned, whether it is mapped or not.
	 */
	EBBGC_CONSERVATIVE,
};

/*
 * The target size of the heap.  A stop-the-world cycle begins when allocations since the last cycle
 * reach the difference between target and live bytes; a concurrent cycle, when they reach half.
 */
enum ebbgc_sizing {
	EBBGC_GROWABLE,		/* `growth` times what is live, up to max_bytes */
	EBBGC_FIXED,		/* max_bytes */
};

/* The answer of an out-of-memory handler: see struct ebbgc_options. */
enum ebbgc_oom {
	EBBGC_OOM_FAIL,		/* the allocation returns the null reference */
	EBBGC_OOM_RETRY,	/* try again: the handler has released something */
};

enum ebbgc_event_kind {
	EBBGC_EVENT_CYCLE_BEGIN,	/* value: bytes in use */
	EBBGC_EVENT_PAUSE_BEGIN,	/* value: ns it took every thread to stop */
	EBBGC_EVENT_PAUSE_END,		/* value: ns from the request to the release */
	EBBGC_EVENT_MARK_BEGIN,		/* marking starts; value: 0 */
	EBBGC_EVENT_MARK_END,		/* value: bytes found live */
	EBBGC_EVENT_CYCLE_END,		/* value: bytes of regions in use after sweeping */
	EBBGC_EVENT_FINALIZERS_READY,	/* value: finalizers that became ready in this cycle */
	EBBGC_EVENT_OUT_OF_MEMORY,	/* value: bytes requested; on the allocating thread */
	EBBGC_EVENT_CHECK_FAILED,	/* value: address of the object; text: the fault */
};

struct ebbgc_event {
	enum ebbgc_event_kind kind;
	uint64_t time_ns;		/* CLOCK_MONOTONIC */
	uint64_t value;
	const char *text;		/* NULL unless the kind says otherwise */
};

/*
 * Later versions append members to struct ebbgc_options and struct ebbgc_layout.  The size tells
 * the library which members a program knows; the others keep their defaults (in a layout: zero).
 * A library that is older than the header accepts members that it does not know while they are
 * zero, and fails with -E2BIG otherwise.  -EINVAL: the size is smaller than in any version.
 */
struct ebbgc_options {
	size_t struct_size;		/* set by ebbgc_options_init() */
	enum ebbgc_mode mode;
	enum ebbgc_stacks stacks;
	enum ebbgc_sizing sizing;
	size_t max_bytes; /* hard limit of the heap; reserved, not committed; <= 16 TiB */
	size_t min_bytes;		/* growable: least target size; max_bytes wins */
	double growth;			/* growable: target size / live bytes, > 1 */
	/*
	 * Target for resident bytes of the heap; 0: none.  After a cycle the heap returns memory of
	 * free regions to the kernel while more than this is resident.
	 */
	size_t resident_budget;
	unsigned int markers; /* marking threads, <= 64; 0: a quarter of the cores, at least 1 */
	uint64_t pause_budget_ns; /* time that a pause may spend on marking that is left over */
	bool lock_side;			/* mlock() the side tables as they come into use */
	bool check;			/* verify each cycle independently; slow */
	/*
	 * Called on the collector's thread, on that of minor cycles, in ebbgc_heap_walk(), and on
	 * the allocating one for OUT_OF_MEMORY, perhaps at the same time; may be NULL.  It must not
	 * call functions of the heap except ebbgc_stats_get().  From PAUSE_BEGIN to PAUSE_END
	 * attached threads are stopped: a handler deadlocks that takes a lock which one of them
	 * holds at a safepoint.
	 */
	void (*event)(void *arg, const struct ebbgc_event *event);
	void *event_arg;
	/*
	 * Called by the thread whose allocation of `bytes` failed after a full collection: at
	 * max_bytes or, without EBBGC_OVERCOMMIT, without memory and swap to back more; not for an
	 * object that is larger than max_bytes.  It may release handles and run finalizers; what
	 * these allocate may call it again.  NULL: the allocation fails.
	 */
	enum ebbgc_oom (*oom)(void *arg, ebbgc_heap_t *heap, size_t bytes);
	void *oom_arg;

	uint32_t features;		/* EBBGC_OVERCOMMIT, ... */
	/* See ebbgc_debug(), which sets them. */
	enum ebbgc_residency residency;
	unsigned int depth;
	unsigned int delays[3];
	unsigned int delta;
	unsigned int epoch_percent;
	unsigned int scan_percent;
	uint32_t unused;		/* padding in 0.1.0: never read */

	/*
	 * Any mode: size of the nursery, at least 64 KiB and at most a quarter of max_bytes; 0, the
	 * default: none.  8 MiB suit programs whose objects mostly die young.
	 *
	 * Each time that threads have allocated so many bytes, a minor cycle stops them, frees the
	 * objects allocated since the last one that are dead, and gives the memory to the threads
	 * that allocate next, while it is still resident (Demers et al., POPL 1990).  What survives
	 * is old: only cycles free it.  The pause scans all roots, traces what survives, and visits
	 * old objects in which references to new ones were stored.  Once it has traced half of the
	 * new bytes, or for four times pause_budget_ns, it gives up: then this minor cycle keeps
	 * all, and the next ones, at most 7, keep all and trace nothing.  Every store takes the
	 * slow path, and side tables grow by 1.6 % of the heap.
	 *
	 * Types with slots or edges() need EBBGC_ALL_STORES: otherwise ebbgc_type_register() fails
	 * with -ENOTSUP.  ebbgc_replace() or ebbgc_overwrite() is needed before every store that
	 * bypasses ebbgc_store(), over null, too: after ebbgc_overwrite() the next minor cycle
	 * visits all of the object or, if that is unknown, frees nothing.  It frees nothing either
	 * after ebbgc_log_old(), which ebbgc_cas() of 0.1.0 calls.
	 *
	 * A thread of its own runs minor cycles, also during a cycle: it calls `event` with
	 * PAUSE_BEGIN, PAUSE_END and FINALIZERS_READY, perhaps while the collector's calls it.
	 */
	size_t nursery_bytes;
};

/*
 * Fills in the defaults: concurrent, precise, growable from 16 MiB by 2 up to half of the machine's
 * memory; no features, no nursery.
 */
EBBGC_API void ebbgc_options_init_size(struct ebbgc_options *options, size_t struct_size);

static inline void ebbgc_options_init(struct ebbgc_options *options)
{
	ebbgc_options_init_size(options, sizeof(*options));
}

/*
 * Changes options by a text such as "mode=swapping,max=4G":
 *
 *	mode=concurrent|stop|swapping  sizing=fixed|growable  growth=REAL
 *	max, min, budget, nursery=BYTES[KMG]  markers=N
 *	overcommit, plain, newest, lock, check
 *
 * -EINVAL, and no option changes, for any other word or without ebbgc_options_init().
 */
EBBGC_API int ebbgc_options_words(struct ebbgc_options *options, const char *text);

static inline int ebbgc_options_parse(struct ebbgc_options *options, const char *text)
{
	return ebbgc_options_words(options, text);
}

/*
 * For debugging, experiments and comparisons: no program needs it.  Changes options by words as
 * above and the following, which later versions may change or ignore.
 *
 *	mode=memliner	follow the program as published, by stamps in references; mode=swapping is
 *			this with park and drop
 *	exact		any mode: ask the kernel which pages are swapped out.  New objects then
 *			avoid swapped-out pages with live objects; no stamps.  With memliner, plain
 *			implies it.
 *	park		memliner: park work by page while its page is swapped out, resume it when
 *			the page comes in, and at last fetch pages in batches, in address order.
 *			Implies exact.
 *	cold		park: deactivate (MADV_COLD) pages that the collector fetched and has traced
 *	drop		any mode: while some of the process is swapped out, drop pages of garbage
 *			instead of writing them to swap.  With check always.
 *	arrivals	memliner, requires ebbd: mark next the objects that the program faults on,
 *			and resume at once work that is parked on their page.  Needs no read
 *			barrier.  No effect without ebbd.
 *	hints		memliner, requires ebbd, also between cycles: prefetch up to 64 swapped-out
 *			pages that references on the page of a fault point to.  Implies exact.
 *	incognito	any mode: do not name the threads `ebb-gc...`: ebb treats them as the
 *			program's.  Not with arrivals or hints: the collector's faults must be
 *			distinguishable from the program's.
 *	count		any mode: count the major faults of allocation (stats.allocation_faults);
 *			costs two system calls for each 8 KiB
 *	address		not with memliner: mark in address order, as G1 of the JVM does, instead of
 *			depth first.  Each page is read about once.
 *	depth=N		memliner: MAX_Depth, hops explored from a touched object [3]; <= 64
 *	delays=N:N:N	memliner: MAX_DL while > 50 %, 15 to 50 %, and < 15 % of the target are
 *			unused [4:2:0]; <= 6
 *	delta=N		a stamp at most so many epochs away means local [1]; <= 7
 *	epoch=N		share of pages that changes in an epoch of the heap's own [10 %]
 *	scan=N		greatest share of a marker's time spent on scans [5 %]
 *	residency=pagemap_scan|pagemap|mincore|simulated
 *
 * -EINVAL as above; ebbgc_heap_create() fails with -EINVAL for words that exclude each other.
 */
EBBGC_API int ebbgc_debug(struct ebbgc_options *options, const char *text);

/*
 * Creates a heap and its collector threads; NULL options are the defaults.  The environment
 * variable EBBGC_OPTIONS, as for ebbgc_debug(), overrides them; setuid programs ignore it.
 * -EINVAL for invalid options, -E2BIG for options of a later version, -ENOTSUP for EBBGC_SWAPPING
 * and resident_budget if pages of the kernel have not 4 KiB, -ENOMEM, -EAGAIN if no thread can be
 * created.
 */
EBBGC_API int ebbgc_heap_create(const struct ebbgc_options *options, ebbgc_heap_t **heap);

/*
 * Stops the collector, even during a cycle (then without EBBGC_EVENT_CYCLE_END), and unmaps the
 * heap.  NULL is ignored.  -EBUSY while a thread is attached; in a child of fork(), threads of the
 * parent do not count.  No finalizer runs: call ebbgc_finalizers_run() first if they must.
 */
EBBGC_API int ebbgc_heap_destroy(ebbgc_heap_t *heap);

/* --- types ------------------------------------------------------------------------------ */

typedef uint32_t ebbgc_type_t;

enum {
	EBBGC_LEAF = 1 << 0,	/* no references: the collector never reads such objects */
	EBBGC_WEAK = 1 << 1,	/* weak references: set to null when their targets die */
	EBBGC_FIBRE = 1 << 2,	/* a fibre: see ebbgc_fibre_touch(); needs edges() */
#ifndef EBBGC_NO_NOTES
	/*
	 * Objects may move at the end of a cycle, with all threads stopped.  An object stays where
	 * it is while a frame, a handle, a root range or callback, a ready finalizer or, in heaps
	 * with conservative stacks, a word on a stack refers to it.  Any other reference in a
	 * variable is invalid after the thread's next safepoint, although the object lives:
	 * ebbgc_load() it again.  Types whose objects do not move may hold references to such
	 * objects.  A cycle moves objects of at most 8184 bytes out of regions that are mostly
	 * free, and packs those that notes and arrivals of EBBGC_MEMLINER find in use; with
	 * `check`, it moves every object that may move.
	 *
	 * Not with EBBGC_WEAK, EBBGC_FIBRE, slots, trace() or edges(): -EINVAL.  -ENOTSUP in a heap
	 * that has a type with slots or edges(), whose words the program reads by plain loads; such
	 * a type is refused, too, once a type is EBBGC_MOVABLE.  All code that accesses the heap
	 * must be compiled with this version or a later one, and without EBBGC_NO_NOTES.
	 */
	EBBGC_MOVABLE = 1 << 3,
#endif
	/*
	 * Allows the type in heaps with a nursery: before each store of a reference in its slots,
	 * or where its edges() reads, also over null, the program calls ebbgc_overwrite() with the
	 * object or, if the word is in the object itself, ebbgc_replace().  Fibres need
	 * ebbgc_fibre_touch() only.
	 */
	EBBGC_ALL_STORES = 1 << 4,
};

/* `count` of a run that has one reference for each element of the object's variable part. */
#define EBBGC_COUNT_LENGTH UINT32_MAX

/* References at offset, offset + stride, ...  No version appends members. */
struct ebbgc_run {
	uint32_t offset;	/* bytes from the object's first byte, multiple of 8 */
	uint32_t count;
	uint32_t stride;	/* bytes, multiple of 8 */
};

/* Words that hold a reference or something else. */
enum ebbgc_slot_kind {
	/*
	 * The word says it: a reference if (word & mask) == value.  For low-bit tags and NaN boxes,
	 * and for pointers to a fixed offset in the object (mask and value 0).
	 */
	EBBGC_SLOT_TAGGED = 1,
	/* A byte beside the word says it: a reference if (byte & mask) == value. */
	EBBGC_SLOT_VALUE_AND_TAG,
	/* Nothing says it: what points to or into an object keeps that object alive. */
	EBBGC_SLOT_AMBIGUOUS,
};

/*
 * Slots at offset, offset + stride, ... as in struct ebbgc_run.  The object's address is the word
 * less `subtract`.  Zero is no reference.
 *
 * Access.  Load with plain loads.  Before a store, pass the reference that it overwrites (of an
 * AMBIGUOUS slot: the word) to ebbgc_overwrite(); then store, value and tag in any order.  One
 * thread at a time: the program orders accesses of several threads.  A concurrent tracer may read a
 * value and a tag that do not belong together; it ignores a value that is not the address of an
 * object.
 *
 * Moving.  In a later version that moves objects, only a stopped world or an accessor of the
 * thread that loads changes these words: TAGGED keeps tag and offset; VALUE_AND_TAG is changed only
 * after the tag was tested, and the tag never; AMBIGUOUS is never changed, and its target does not
 * move.
 */
struct ebbgc_slots {
	uint32_t kind;		/* enum ebbgc_slot_kind */
	uint32_t offset;	/* bytes from the object's first byte, multiple of 8 */
	uint32_t count;		/* EBBGC_COUNT_LENGTH: one for each element */
	uint32_t stride;	/* bytes, multiple of 8 */
	int64_t tag_offset;	/* VALUE_AND_TAG: bytes from the word to its tag */
	uint64_t mask, value;
	uint64_t subtract;
};

/* When references to an object that has finalizers and is otherwise dead become null. */
enum ebbgc_clear {
	EBBGC_CLEAR_FIRST,	/* before its finalizers run, as for EBBGC_WEAK */
	EBBGC_CLEAR_LAST,	/* only if the finalizers do not keep it */
};

/*
 * Receives the references that edges() of struct ebbgc_layout, or a root callback, has read.  A
 * callback passes the slot and the word that it read from it, once; a word that is not the address
 * of an object is ignored.  To clear a slot, the collector makes the word 0, if it is still the
 * word that was passed, and changes no tag beside it.  Until the end of the cycle, slots must stay
 * valid memory.  Read weak references and ephemerons by ebbgc_weak_read().
 *
 * Moving.  A later version may change a slot that still holds what was passed.  For a word that
 * must not change, pass a null slot: the target does not move.
 */
struct ebbgc_edges {
	void (*strong)(struct ebbgc_edges *edges, ebbgc_ref_t *slot, ebbgc_ref_t value);
	void (*weak)(struct ebbgc_edges *edges, ebbgc_ref_t *slot, ebbgc_ref_t value,
		     enum ebbgc_clear when);
	/*
	 * The value lives while the key lives.  A dead key is cleared; the value is cleared with it
	 * or, if it lives by other means, when it is dead, and its slot keeps it no longer.  So an
	 * entry is free once its key reads as null, whatever the value's slot holds: the program
	 * may store another key in it at once, with any value, also the old one.
	 */
	void (*ephemeron)(struct ebbgc_edges *edges, ebbgc_ref_t *key_slot, ebbgc_ref_t key,
			  ebbgc_ref_t *value_slot, ebbgc_ref_t value, enum ebbgc_clear when);
};

/* Visits one slot; for trace() of struct ebbgc_layout. */
typedef void (*ebbgc_visit_fn)(void *arg, ebbgc_ref_t *slot);

/*
 * A type's layout.  An object takes `size` bytes, plus its length times element_size if
 * length_width is not 0.  Its references are those of the bitmap, of the runs and slots, and those
 * that trace() and edges() visit.
 */
struct ebbgc_layout {
	const char *name;	/* copied */
	uint32_t flags;		/* EBBGC_LEAF, ... */
	size_t size;		/* fixed part, > 0 */
	size_t element_size;	/* of the variable part, which follows the fixed one */
	uint32_t length_offset;	/* of the length field: unsigned, in elements, never changed */
	uint32_t length_width;	/* its size: 0 (none), 4 or 8 */
	uint64_t bitmap;	/* bit i: a reference at byte 8 * i of the fixed part */
	const struct ebbgc_run *runs;	/* copied */
	size_t run_count;
	/*
	 * For layouts that data cannot describe: calls visit(arg, slot) for each reference of the
	 * object.  It runs on marker threads, concurrently with the program or while attached
	 * threads are stopped: it deadlocks if it takes a lock which one of them holds at a
	 * safepoint.  It may read only fields that are zero at first (the object may have just been
	 * allocated) and never change once set.  In types with EBBGC_WEAK the slots must lie in the
	 * object, or last until the end of the cycle: they are cleared later.  No other process can
	 * trace such types.
	 */
	void (*trace)(void *object, ebbgc_visit_fn visit, void *arg);

	const struct ebbgc_slots *slots;	/* copied; not in types with EBBGC_WEAK */
	size_t slot_count;
	size_t slot_size;			/* sizeof(struct ebbgc_slots), if slot_count > 0 */
	/*
	 * As trace(), for references that are weak or have tags; not in types with EBBGC_WEAK.  It
	 * may read fields that the program changes meanwhile if it reads each once and bounds what
	 * it does with them.  Other memory that these lead to must last until the end of the cycle;
	 * with a nursery, an object that is new may be freed before.  Only what a fibre's edges()
	 * reads does not change meanwhile.
	 */
	void (*edges)(void *object, struct ebbgc_edges *edges);
	uint64_t fibre_offset;		/* EBBGC_FIBRE: an aligned uint64_t of the collector's */
};

/*
 * Registers a type for the heap's life.  Any thread; a thread that allocates with the id must have
 * received it in an ordered way (a lock, thread creation).  -EINVAL for a layout whose references
 * lie outside of the object or overlap its length field or, as that field, the collector's word in
 * a fibre, -E2BIG for a layout of a later version,
 * -ENOTSUP for slots and edges() without EBBGC_ALL_STORES in a heap with nursery_bytes, for both in
 * one with objects that may move, and for the latter in one with the former, -ENOSPC beyond 65533
 * types, -ENOMEM, -ECHILD.
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
	uint32_t flags;		/* EBBGC_MARKING, ...; 0 most of the time, but with a nursery */
	uint32_t poll;		/* not 0: the collector waits for this thread */
	struct ebbgc_frame *frames;
	uint64_t stamp;		/* of this epoch, shifted by EBBGC_STAMP_SHIFT */
	struct ebbgc_entered *fibres;	/* that the thread has entered */
	struct ebbgc_supply *supplies;	/* by kind of slot: see ebbgc_alloc_site() */
	const uint8_t *states;	/* of the heap's blocks: see ebbgc_may_have_moved() */
	uint64_t base, blocks;	/* address of the first block; number, or 0 */
} ebbgc_mutator_t;

#define EBBGC_STAMP_SHIFT 60

/* In ebbgc_mutator.flags.  With a nursery, EBBGC_MARKING is mostly set. */
#define EBBGC_MARKING UINT32_C(1)	/* stores log what they overwrite; changes at safepoints */
#define EBBGC_NOTING UINT32_C(2)	/* accesses are noted, for a while */
#define EBBGC_STAMPED UINT32_C(4)	/* epochs have passed: stamps of references differ */
#define EBBGC_MOVED UINT32_C(8)		/* slots may name what moved, or is far; as EBBGC_MARKING */

/*
 * Attaches the calling thread, at most once to each heap; -EALREADY otherwise, -ENOMEM, -ECHILD.
 * Waits while the world is stopped, and is a safepoint in other heaps, as is ebbgc_detach().
 * A thread that exits attached is detached then; in a blocked region, only if it has no frames on
 * its stack.  No function of the library is a cancellation point; callbacks may contain some.  In
 * ebbgc_heap_walk() and in the functions of a far store a cancellation waits until the call ends.
 */
EBBGC_API int ebbgc_attach(ebbgc_heap_t *heap, ebbgc_mutator_t **mutator);

/* Detaches the thread and drops its frames: its references are no roots any more. */
EBBGC_API void ebbgc_detach(ebbgc_mutator_t *mutator);

/* For ebbgc_poll() only. */
EBBGC_API void ebbgc_poll_slow(ebbgc_mutator_t *mutator);

/* A safepoint: waits while the collector has stopped the world. */
static inline void ebbgc_poll(ebbgc_mutator_t *mutator)
{
	if (EBBGC_UNLIKELY(__atomic_load_n(&mutator->poll, __ATOMIC_RELAXED)))
		ebbgc_poll_slow(mutator);
}

/*
 * A blocked region: between begin and end the thread may block for ever without delaying a
 * collection, but must not touch the heap, its frames or handles.  Regions do not nest.  A thread
 * that is attached to several heaps begins one in each; end is a safepoint in the others.  Precise
 * heaps only: in heaps with conservative stacks begin returns -EINVAL (then do not call end);
 * use ebbgc_blocked_call().
 */
EBBGC_API int ebbgc_blocked_begin(ebbgc_mutator_t *mutator);
EBBGC_API void ebbgc_blocked_end(ebbgc_mutator_t *mutator);

/* Returns fn(arg), called in a blocked region, which fn ends by returning; works in any heap. */
EBBGC_API void *ebbgc_blocked_call(ebbgc_mutator_t *mutator, void *(*fn)(void *arg), void *arg);

/* --- allocation ------------------------------------------------------------------------- */

/*
 * Returns a zeroed object of a type without a length field.  On failure returns the null reference
 * and sets errno: ENOMEM, ECHILD (after fork) or EINVAL (type).  A safepoint.
 */
EBBGC_API ebbgc_ref_t ebbgc_alloc(ebbgc_mutator_t *mutator, ebbgc_type_t type);

/* ebbgc_alloc() for a type with a length field, which it sets to `length`.  Also EOVERFLOW. */
EBBGC_API ebbgc_ref_t ebbgc_alloc_length(ebbgc_mutator_t *mutator, ebbgc_type_t type,
					 size_t length);

/* Zeroed slots that a thread has taken; the rest is private.  No version changes it. */
struct ebbgc_supply {
	char *next, *end;
	uint64_t unused;
};

/* What inline allocation needs to know of a type.  No version changes it. */
struct ebbgc_site {
	ebbgc_type_t type;
	uint32_t kind, bytes;	/* of slot */
};

/* -EINVAL: the type has a length field, or its objects are larger than 8184 bytes. */
EBBGC_API int ebbgc_site_init(ebbgc_heap_t *heap, ebbgc_type_t type, struct ebbgc_site *site);

/* ebbgc_alloc(), inline as long as the thread's supply lasts. */
static inline ebbgc_ref_t ebbgc_alloc_site(ebbgc_mutator_t *mutator, const struct ebbgc_site *site)
{
	struct ebbgc_supply *supply = &mutator->supplies[site->kind];
	char *slot = supply->next;

	if (EBBGC_UNLIKELY(slot == supply->end))
		return ebbgc_alloc(mutator, site->type);
	supply->next = slot + site->bytes;
	__atomic_store_n((uint64_t *)(void *)slot, site->type, __ATOMIC_RELAXED);
	return EBBGC_BITS((uint64_t)(uintptr_t)(slot + 8) |
			  __atomic_load_n(&mutator->stamp, __ATOMIC_RELAXED));
}

/* The slot of a small object.  No version changes it. */
struct ebbgc_slot_size {
	uint32_t kind, bytes;
};

/* What inline allocation needs to know of a type with a length field.  No version changes it. */
struct ebbgc_length_site {
	ebbgc_type_t type;
	uint32_t length_offset, length_width;
	uint32_t unused;
	size_t fixed;		/* bytes of an object without elements, to be rounded down */
	size_t element_size;
	size_t most;		/* the greatest length of objects that are allocated inline */
	const struct ebbgc_slot_size *sizes;	/* by bytes / 16; of the heap */
};

/* -EINVAL: the type has no length field, or its fixed part is larger than 8184 bytes. */
EBBGC_API int ebbgc_length_site_init(ebbgc_heap_t *heap, ebbgc_type_t type,
				     struct ebbgc_length_site *site);

/* ebbgc_alloc_length(), inline for objects of up to 8184 bytes while the supply lasts. */
static inline ebbgc_ref_t ebbgc_alloc_length_site(ebbgc_mutator_t *mutator,
						  const struct ebbgc_length_site *site,
						  size_t length)
{
	const struct ebbgc_slot_size *size;
	struct ebbgc_supply *supply;
	char *slot, *field;

	if (EBBGC_UNLIKELY(length > site->most))
		return ebbgc_alloc_length(mutator, site->type, length);
	size = &site->sizes[(site->fixed + length * site->element_size) / 16];
	supply = &mutator->supplies[size->kind];
	slot = supply->next;
	if (EBBGC_UNLIKELY(slot == supply->end))
		return ebbgc_alloc_length(mutator, site->type, length);
	supply->next = slot + size->bytes;
	__atomic_store_n((uint64_t *)(void *)slot, site->type, __ATOMIC_RELAXED);
	field = slot + 8 + site->length_offset;
	if (site->length_width == 4)
		__atomic_store_n((uint32_t *)(void *)field, (uint32_t)length, __ATOMIC_RELAXED);
	else
		__atomic_store_n((uint64_t *)(void *)field, length, __ATOMIC_RELAXED);
	return EBBGC_BITS((uint64_t)(uintptr_t)(slot + 8) |
			  __atomic_load_n(&mutator->stamp, __ATOMIC_RELAXED));
}

/* Returns the type that an object of a heap was allocated with. */
EBBGC_API ebbgc_type_t ebbgc_type_of(ebbgc_ref_t object);

/* Returns an object's bytes according to its layout. */
EBBGC_API size_t ebbgc_size_of(ebbgc_mutator_t *mutator, ebbgc_ref_t object);

/*
 * Returns an object's identity hash: it never changes, and is not 0.  Objects may share a hash, but
 * no more often than by chance.  The first call for an object writes its header.  0 for the null
 * reference.  Works after fork().
 */
EBBGC_API uint32_t ebbgc_hash(ebbgc_mutator_t *mutator, ebbgc_ref_t object);

/* --- access ----------------------------------------------------------------------------- */

/*
 * Read and write every reference inside an object by these functions.  `object` is the object that
 * holds `slot`.  Stores release, and reads through a loaded reference are ordered after the load:
 * a thread that sees a reference sees the object's contents.  Racing stores lose no reference: a
 * store exchanges the old value and the new one.  A load and the collector may write the slot: the
 * same reference with another stamp, or to where the object is now.
 */

/*
 * For inline functions and code generators only: logs a reference that a store overwrote, as
 * ebbgc_cas() of 0.1.0 does.  Call it for null, too: a nursery must know of the store.
 */
EBBGC_API void ebbgc_log_old(ebbgc_mutator_t *mutator, ebbgc_ref_t old);

/* Slow paths, for ebbgc_load(), ebbgc_store() and ebbgc_cas() only. */
EBBGC_API ebbgc_ref_t ebbgc_load_slow(ebbgc_mutator_t *mutator, ebbgc_ref_t object,
				      const ebbgc_ref_t *slot, ebbgc_ref_t ref);
EBBGC_API void ebbgc_store_slow(ebbgc_mutator_t *mutator, ebbgc_ref_t object, ebbgc_ref_t *slot,
				ebbgc_ref_t value);
EBBGC_API bool ebbgc_cas_slow(ebbgc_mutator_t *mutator, ebbgc_ref_t object, ebbgc_ref_t *slot,
			      ebbgc_ref_t *expected, ebbgc_ref_t value);

/*
 * A thread's flags, perhaps as of its last safepoint: the compiler may keep them in a register.
 * Marking begins and ends at safepoints; noting and epochs may be noticed late.
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
 * Reads a slot once.  The address dependency orders accesses through the reference after it.  An
 * acquire load would order them no better and would force the compiler to re-read the flags.
 */
static inline ebbgc_ref_t ebbgc_read(const ebbgc_ref_t *slot)
{
#ifdef EBBGC_SANITIZE_THREAD
	return EBBGC_BITS(__atomic_load_n(&slot->bits, __ATOMIC_ACQUIRE));
#else
	return EBBGC_BITS(*(const volatile uint64_t *)&slot->bits);
#endif
}

/* Does the reference have another stamp than this epoch's?  The null reference has none. */
static inline bool ebbgc_is_stale(const ebbgc_mutator_t *mutator, ebbgc_ref_t ref)
{
	uint64_t stamp = __atomic_load_n(&mutator->stamp, __ATOMIC_RELAXED);

	return (ref.bits ^ stamp) >> EBBGC_STAMP_SHIFT && ref.bits;
}

#define EBBGC_BLOCK_SHIFT 16

/* Has any object moved out of the block of the heap that the reference names, or is it far? */
static inline bool ebbgc_may_have_moved(const ebbgc_mutator_t *mutator, ebbgc_ref_t ref)
{
	/* Without the stamp. */
	uint64_t block = (ref.bits - mutator->base) << 4 >> (4 + EBBGC_BLOCK_SHIFT);

#ifdef EBBGC_SANITIZE_THREAD
	return block < mutator->blocks &&
	       __atomic_load_n(&mutator->states[block], __ATOMIC_RELAXED);
#else
	/* It becomes and ceases to be zero at safepoints, as far as a thread can tell. */
	return block < mutator->blocks && mutator->states[block];
#endif
}

/* With EBBGC_NOTING or EBBGC_MOVED: must a load take the slow path? */
static inline bool ebbgc_must_look(const ebbgc_mutator_t *mutator, uint32_t flags, ebbgc_ref_t ref)
{
	return (flags & EBBGC_NOTING) || EBBGC_UNLIKELY(ebbgc_may_have_moved(mutator, ref)) ||
	       ((flags & EBBGC_STAMPED) && ebbgc_is_stale(mutator, ref));
}

#ifdef EBBGC_NO_NOTES
/*
 * A program compiled with EBBGC_NO_NOTES notes none of its loads: a load is one instruction, and
 * EBBGC_SWAPPING follows the program by residency only.
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
/* Returns the reference in a slot of an object whose references are not weak. */
static inline ebbgc_ref_t ebbgc_load(ebbgc_mutator_t *mutator, ebbgc_ref_t object,
				     const ebbgc_ref_t *slot)
{
	ebbgc_ref_t ref = ebbgc_read(slot);
	uint32_t flags = ebbgc_flags(mutator) & (EBBGC_NOTING | EBBGC_STAMPED | EBBGC_MOVED);

	/* The first test does not wait for the reference, which may take a cache miss. */
	if (EBBGC_UNLIKELY(flags) && (flags & (EBBGC_NOTING | EBBGC_MOVED) ?
				      ebbgc_must_look(mutator, flags, ref) :
				      ebbgc_is_stale(mutator, ref)))
		return ebbgc_load_slow(mutator, object, slot, ref);
	return ref;
}

/* Stores a reference, null or not, in a slot of an object, weak or not. */
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

/*
 * Initialises a slot of a new object: before its first safepoint since allocation, and before
 * another thread can see it.
 */
static inline void ebbgc_init(ebbgc_ref_t *slot, ebbgc_ref_t value)
{
	__atomic_store_n(&slot->bits, value.bits, __ATOMIC_RELEASE);
}

/*
 * If *slot refers to the object of *expected, stores `value` and returns true.  Otherwise sets
 * *expected to the slot's reference, as ebbgc_load() or, for a weak slot, ebbgc_load_weak() would.
 */
static inline bool ebbgc_cas(ebbgc_mutator_t *mutator, ebbgc_ref_t object, ebbgc_ref_t *slot,
			     ebbgc_ref_t *expected, ebbgc_ref_t value)
{
	ebbgc_ref_t was = { __atomic_load_n(&slot->bits, __ATOMIC_ACQUIRE) };

	if (EBBGC_UNLIKELY(ebbgc_flags(mutator) & (EBBGC_MARKING | EBBGC_MOVED)))
		return ebbgc_cas_slow(mutator, object, slot, expected, value);
	/* Stamps may differ between two references to one object. */
	while (ebbgc_same(was, *expected)) {
		if (!__atomic_compare_exchange_n(&slot->bits, &was.bits, value.bits, false,
						 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
			continue;
		return true;
	}
	*expected = was;
	return false;
}

/* Copies `count` references between objects or within one.  They may overlap and may be weak. */
EBBGC_API void ebbgc_copy(ebbgc_mutator_t *mutator, ebbgc_ref_t to_object, ebbgc_ref_t *to,
			  ebbgc_ref_t from_object, const ebbgc_ref_t *from, size_t count);

/* Stores `value` into `count` slots. */
EBBGC_API void ebbgc_fill(ebbgc_mutator_t *mutator, ebbgc_ref_t object, ebbgc_ref_t *slots,
			  ebbgc_ref_t value, size_t count);

/*
 * For slots of struct ebbgc_slots and of edges(), and for references that the program replaces
 * without ebbgc_store(): call before the store, with no safepoint in between, with the object whose
 * slot it is, or whose edges() reads it, or null if that is unknown, and the old reference, or
 * null; of an ambiguous slot, the old word as it is.  Types without EBBGC_ALL_STORES need no call
 * where the old reference is null.
 */
EBBGC_API void ebbgc_overwrite_slow(ebbgc_mutator_t *mutator, ebbgc_ref_t object, ebbgc_ref_t old);
static inline void ebbgc_overwrite(ebbgc_mutator_t *mutator, ebbgc_ref_t object, ebbgc_ref_t old)
{
	if (EBBGC_UNLIKELY(ebbgc_flags(mutator) & EBBGC_MARKING))
		ebbgc_overwrite_slow(mutator, object, old);
}

/*
 * ebbgc_overwrite() that finds the object by the slot's address: `slot` is the word in an object
 * whose type describes it, or a word that a fibre or a root callback visits.  For a word elsewhere
 * that an object's edges() reads, in a leaf or in C memory, call ebbgc_overwrite(): this function
 * does not find the object, and a nursery would free what is stored.  `value` is the reference (or
 * the ambiguous word) that is stored, or null: a nursery has work only if its object is new.
 */
EBBGC_API void ebbgc_replace_slow(ebbgc_mutator_t *mutator, const void *slot, ebbgc_ref_t old,
				  ebbgc_ref_t value);
static inline void ebbgc_replace(ebbgc_mutator_t *mutator, const void *slot, ebbgc_ref_t old,
				 ebbgc_ref_t value)
{
	if (EBBGC_UNLIKELY(ebbgc_flags(mutator) & EBBGC_MARKING))
		ebbgc_replace_slow(mutator, slot, old, value);
}

/*
 * Returns a reference that the program has read from a weak or ephemeron slot of edges(), or null
 * if its target is dead and the slot not cleared yet.  Call it before anything else is done with
 * the reference, even if that is only copied to another weak slot.  What it returned lives until
 * the next safepoint; then only a root or a reachable object keeps it, and the slot may be null.
 */
EBBGC_API ebbgc_ref_t ebbgc_weak_read_slow(ebbgc_mutator_t *mutator, ebbgc_ref_t ref,
					   enum ebbgc_clear when);
static inline ebbgc_ref_t ebbgc_weak_read(ebbgc_mutator_t *mutator, ebbgc_ref_t ref,
					  enum ebbgc_clear when)
{
	if (EBBGC_UNLIKELY(ebbgc_flags(mutator) & EBBGC_MARKING))
		return ebbgc_weak_read_slow(mutator, ref, when);
	return ref;
}

/* --- roots ------------------------------------------------------------------------------ */

/*
 * Makes `count` slots roots until ebbgc_frame_pop(), which the same thread calls in reverse order.
 * Frame and slots belong to the caller and must be initialised.  The caller accesses them directly.
 */
static inline void ebbgc_frame_push(ebbgc_mutator_t *mutator, struct ebbgc_frame *frame,
				    ebbgc_ref_t *slots, size_t count)
{
	frame->up = mutator->frames;
	frame->slots = slots;
	frame->count = count;
	mutator->frames = frame;
}

/* Removes the thread's newest frame. */
static inline void ebbgc_frame_pop(ebbgc_mutator_t *mutator, struct ebbgc_frame *frame)
{
	mutator->frames = frame->up;
}

/*
 * A handle is a root that lives until it is freed, for references held by C structures.  Threads
 * that read and write one handle need a lock of their own.
 */
typedef struct ebbgc_handle ebbgc_handle_t;

/* new returns NULL when out of memory or after fork.  free ignores NULL; any attached thread. */
EBBGC_API ebbgc_handle_t *ebbgc_handle_new(ebbgc_mutator_t *mutator, ebbgc_ref_t ref);
EBBGC_API void ebbgc_handle_free(ebbgc_mutator_t *mutator, ebbgc_handle_t *handle);
EBBGC_API ebbgc_ref_t ebbgc_handle_get(const ebbgc_handle_t *handle);
EBBGC_API void ebbgc_handle_set(ebbgc_handle_t *handle, ebbgc_ref_t ref);

/*
 * Makes `count` references in the caller's memory, for instance static variables, roots until they
 * are removed.  -ENOMEM, -ECHILD; remove returns -ENOENT for a range that was not added.
 */
EBBGC_API int ebbgc_roots_add(ebbgc_mutator_t *mutator, ebbgc_ref_t *slots, size_t count);
EBBGC_API int ebbgc_roots_remove(ebbgc_mutator_t *mutator, ebbgc_ref_t *slots);

/*
 * Calls fn(arg, edges) for roots that C structures hold, such as an interpreter's state, until it
 * is removed.  The collector calls it with all threads stopped, once or more in a cycle, and so
 * does the thread of minor cycles: fn deadlocks if it takes a lock which one of the stopped threads
 * holds at a safepoint.  fn must not call functions of the heap.  References that it passes as weak
 * are strong.
 */
typedef void (*ebbgc_roots_fn)(void *arg, struct ebbgc_edges *edges);

/* -ENOMEM, -ECHILD, -EINVAL for NULL; remove returns -ENOENT for a pair that was not added. */
EBBGC_API int ebbgc_roots_call(ebbgc_mutator_t *mutator, ebbgc_roots_fn fn, void *arg);
EBBGC_API int ebbgc_roots_call_end(ebbgc_mutator_t *mutator, ebbgc_roots_fn fn, void *arg);

/* --- fibres ----------------------------------------------------------------------------- */

/*
 * A fibre is an object whose references, those of its stack, change by plain stores.  Its type has
 * EBBGC_FIBRE; edges() visits the stack, which may be C memory or a leaf of its own.  A suspended
 * fibre is traced concurrently, if it is reachable.  A thread that touches a fibre first makes sure
 * that it has been traced in this cycle; while it runs there, the fibre is entered, and traced in
 * the first pause instead.  So edges() never runs while a thread changes what it reads.
 *
 * Memory outside of the heap may be passed, too: such a stack is a root, which a callback visits.
 */
struct ebbgc_entered {
	struct ebbgc_entered *up;
	ebbgc_ref_t fibre;	/* may change; touch a fibre before */
};

/*
 * Before the program reads or writes a fibre's stack; good until the next safepoint.  While a cycle
 * marks, this runs the fibre's edges() itself, or waits for a tracer that does: a caller deadlocks
 * that holds a lock which edges() takes.
 */
EBBGC_API void ebbgc_fibre_touch_slow(ebbgc_mutator_t *mutator, ebbgc_ref_t fibre);
static inline void ebbgc_fibre_touch(ebbgc_mutator_t *mutator, ebbgc_ref_t fibre)
{
	if (EBBGC_UNLIKELY(ebbgc_flags(mutator) & EBBGC_MARKING))
		ebbgc_fibre_touch_slow(mutator, fibre);
}

/* Touches a fibre and keeps it, across safepoints, until ebbgc_fibre_leave(), in reverse order. */
static inline void ebbgc_fibre_enter(ebbgc_mutator_t *mutator, struct ebbgc_entered *entered,
				     ebbgc_ref_t fibre)
{
	ebbgc_fibre_touch(mutator, fibre);
	entered->up = mutator->fibres;
	entered->fibre = fibre;
	mutator->fibres = entered;
}

static inline void ebbgc_fibre_leave(ebbgc_mutator_t *mutator, struct ebbgc_entered *entered)
{
	mutator->fibres = entered->up;
}

/* --- weak references, ephemerons, finalizers -------------------------------------------- */

/*
 * A weak reference is an object that does not keep its target alive.  new allocates one, as
 * ebbgc_alloc() does.  get returns the target, or null once the target was collected.  Collection
 * clears a weak reference before a finalizer of the target runs.
 */
EBBGC_API ebbgc_ref_t ebbgc_weak_new(ebbgc_mutator_t *mutator, ebbgc_ref_t target);
EBBGC_API ebbgc_ref_t ebbgc_weak_get(ebbgc_mutator_t *mutator, ebbgc_ref_t weak);

/* Loads a reference of an object whose type is EBBGC_WEAK.  Store with ebbgc_store(). */
EBBGC_API ebbgc_ref_t ebbgc_load_weak(ebbgc_mutator_t *mutator, ebbgc_ref_t object,
				      const ebbgc_ref_t *slot);

/*
 * An ephemeron keeps its value alive while its key is alive by other means, even if the value
 * leads to the key (Hayes, "Ephemerons: a new finalization mechanism", 1997).  Once the key was
 * collected both are null.  Without a key the value is null from the beginning.  Neither can be
 * replaced.
 */
EBBGC_API ebbgc_ref_t ebbgc_ephemeron_new(ebbgc_mutator_t *mutator, ebbgc_ref_t key,
					  ebbgc_ref_t value);
EBBGC_API ebbgc_ref_t ebbgc_ephemeron_key(ebbgc_mutator_t *mutator, ebbgc_ref_t ephemeron);
EBBGC_API ebbgc_ref_t ebbgc_ephemeron_value(ebbgc_mutator_t *mutator, ebbgc_ref_t ephemeron);

/* `data` is what ebbgc_finalizer_add() was given; the object is a root during the call. */
typedef void (*ebbgc_finalizer_fn)(ebbgc_mutator_t *mutator, ebbgc_ref_t object, void *data);

/*
 * Requests one call of fn(object, data) after a collection finds the object dead; the object comes
 * back to life for it.  Objects that died together are all finalized, in the order in which their
 * finalizers were added, or in reverse order with EBBGC_NEWEST_FIRST.  An object may have several.
 * -ENOMEM, -ECHILD, -EINVAL for the null reference or NULL.
 */
EBBGC_API int ebbgc_finalizer_add(ebbgc_mutator_t *mutator, ebbgc_ref_t object,
				  ebbgc_finalizer_fn fn, void *data);

/*
 * Runs at most `limit` ready finalizers on the calling thread; returns how many ran.  Finalizers
 * run nowhere else: the caller decides which locks are held.  Each object is loaded first, if it is
 * far: while that fails, its finalizer stays.  What the store has lost for good is not finalized.
 */
EBBGC_API size_t ebbgc_finalizers_run(ebbgc_mutator_t *mutator, size_t limit);

/* Makes all finalizers ready, also those of live objects: for the end of a program. */
EBBGC_API void ebbgc_finalizers_all(ebbgc_mutator_t *mutator);

/* --- collection and figures ------------------------------------------------------------- */

/*
 * Runs a full collection with the world stopped; returns when it is done.  A safepoint.  -ECHILD
 * after fork.
 */
EBBGC_API int ebbgc_collect(ebbgc_mutator_t *mutator);

/* Requests a cycle in the heap's own mode and does not wait for it. */
EBBGC_API void ebbgc_collect_start(ebbgc_mutator_t *mutator);

/*
 * Between suspend and resume no cycle, nor minor cycle, begins, unless the heap is full or the
 * program requests one.  They nest.  Suspend waits for the end of the current one: a safepoint.
 * Resume counts all objects that now live as new.
 */
EBBGC_API void ebbgc_cycles_suspend(ebbgc_mutator_t *mutator);
EBBGC_API void ebbgc_cycles_resume(ebbgc_mutator_t *mutator);

/*
 * Adds to the bytes outside of the heap that its objects own and free when they are finalized; a
 * negative number subtracts.  They make cycles begin as bytes of the heap do, but do not count in
 * max_bytes.
 */
EBBGC_API void ebbgc_external_bytes(ebbgc_mutator_t *mutator, int64_t bytes);

/*
 * Runs a full collection and, before threads run again, calls fn(arg, object) on the collector's
 * thread for each object that is reachable, in address order.  fn may read and write the objects'
 * own bytes, also their slots, but must not call functions of the heap; it deadlocks if it takes a
 * lock which a thread, such as the caller, holds at a safepoint.  A safepoint.  -ECHILD, -EBUSY
 * during another call.
 */
EBBGC_API int ebbgc_heap_each(ebbgc_mutator_t *mutator,
			      void (*fn)(void *arg, ebbgc_ref_t object), void *arg);

/*
 * Stops all threads, but collects nothing, and calls fn(arg, object) for each object that was not
 * freed yet, reachable or not, in address order.  fn may read the objects' bytes (a slot may name
 * where an object of an EBBGC_MOVABLE type was before it moved), but must store no
 * reference in the heap, call no function of the heap but ebbgc_type_of(), and take no lock which
 * another thread holds at a safepoint.  An object that fn notes down may be unreachable: before the
 * caller's next safepoint, pass it to ebbgc_weak_read() with EBBGC_CLEAR_LAST, which returns null
 * if it is dead, and keep what that returns.  A safepoint.  -ECHILD.
 */
EBBGC_API int ebbgc_heap_walk(ebbgc_mutator_t *mutator,
			      void (*fn)(void *arg, ebbgc_ref_t object), void *arg);

struct ebbgc_stats {
	uint64_t cycles, full_cycles;	/* all; those of ebbgc_collect() and of a full heap */
	uint64_t pauses, pause_total_ns, pause_max_ns;
	uint64_t stop_max_ns;		/* longest time until all threads reached a safepoint */
	uint64_t mark_total_ns;		/* elapsed time of marking, concurrent or not */
	uint64_t allocated_bytes;	/* since creation, with external bytes that were added */
	uint64_t live_bytes;		/* found by the last cycle, or allocated during it */
	uint64_t heap_bytes;		/* regions in use */
	uint64_t resident_bytes;	/* of the heap after the last cycle, with resident_budget */
	uint64_t released_bytes;	/* returned to the kernel unwritten */
	uint64_t marked_objects, logged_references;
	uint64_t weak_cleared, ephemerons_cleared, finalizers_ready;
	uint64_t remarks;		/* pauses that went back to concurrent marking */
	uint64_t stalls, stall_total_ns; /* allocations that waited for a cycle or a release */
	/* Side tables in use, including residency and parked work; mlock()ed ones. */
	uint64_t side_bytes, side_locked;
	uint64_t checks, check_failures;	/* of the checking mode; minor cycles, too */

	/* EBBGC_SWAPPING; figures of marking are as of the end of the last cycle. */
	enum ebbgc_epoch_source epoch_source;
	enum ebbgc_residency residency;	/* the provider in use */
	uint64_t epoch;
	uint64_t noted, noted_lost;	/* accesses noted; overwritten before they were read */
	uint64_t red_objects;		/* objects marked because they were noted */
	uint64_t explored_objects;	/* objects marked at most MAX_Depth hops from red ones */
	uint64_t postponed; /* times that an object was postponed, by stamp or residency */
	uint64_t parked_objects, woken_objects;	/* woken: the page came in without a fetch */
	uint64_t fetch_calls, fetched_pages;	/* for the other parked objects, in batches */
	uint64_t scans, scan_total_ns;	/* of residency */
	uint64_t dropped_bytes;		/* of garbage: MADV_FREE */
	uint64_t cooled_pages;		/* ebbgc_debug(), cold: deactivated */

	/* ebbgc_debug(), arrivals and hints. */
	uint64_t arrivals_shared;	/* 1 if ebbd shares the faults of the process, else 0 */
	uint64_t arrivals, arrivals_lost; /* faults in this heap; lost faults of the process */
	uint64_t arrived_objects;	/* marked because the program faulted on them */
	uint64_t hint_calls, hinted_pages;	/* prefetched for the program */

	/*
	 * ebbgc_debug(), count: faults that waited for a read while memory for new objects was
	 * zeroed.  Neither the program's accesses nor the collector's threads cause them.
	 */
	uint64_t allocation_faults;

	/* With a nursery. */
	uint64_t minor_cycles;		/* alone, and at the beginning and end of marking */
	uint64_t minor_concurrent;	/* those that ran while a cycle was marking */
	uint64_t minor_kept;		/* those that freed nothing: traced nothing, or gave up */
	uint64_t promoted_objects, promoted_bytes;	/* survived a minor cycle */
	uint64_t reclaimed_bytes;	/* freed by minor cycles */
	/* Older objects, and pages of large ones, in which references to new ones were stored. */
	uint64_t remembered;

	/* EBBGC_MOVABLE. */
	uint64_t moved_objects, moved_bytes;
	uint64_t pinned_objects;	/* times that an object stayed, as a root referred to it */

	/* With a far generation. */
	uint64_t far_regions;		/* of 64 KiB of addresses, without local memory */
	uint64_t far_bytes;		/* in the store, with what was fetched since */
	/* Of the heap, and of tables that lead to far objects, with those of a far cycle. */
	uint64_t far_local_bytes;
	uint64_t left_regions, left_bytes;	/* written to the store, ever */
	uint64_t fetched_objects, fetched_bytes;	/* read by loads, one by one */
	uint64_t rescued_objects;	/* loaded while their region was leaving */
	uint64_t homed_objects;		/* read by the collector, to free what was in the store */
	uint64_t healed_slots;		/* in which loads have replaced an old name */
	uint64_t far_failures;		/* of calls of the store; lost objects' finalizers */
	uint64_t far_cycles;		/* that found what is alive in the store */
	uint64_t far_abandoned;		/* began as one: a read failed, or there was too much */
	uint64_t far_read_bytes;	/* by these */
	uint64_t far_freed_bytes;	/* of dead objects in the store */
	uint64_t far_read_objects;	/* read by far cycles, one by one or in whole regions */
	uint64_t far_donor_cycles;	/* of far_cycles, those in which donors have traced */
	uint64_t far_donor_objects;	/* that they have marked */
	uint64_t far_donor_failures;	/* far cycles that they were to trace, and did not */
	uint64_t far_cpu_ns;		/* processor time of the collector for far cycles */
	uint64_t far_lost_bytes;	/* of far_bytes: lost for good */
	uint64_t far_compacted_regions;	/* in the store, by the store */
	uint64_t far_compacted_bytes;	/* that are free there since */
	uint64_t far_donor_skipped;	/* regions that stores left to the heap to read */
};

/*
 * Copies the statistics.  size is sizeof(*stats): later versions append members; members that the
 * library does not know are 0.  Any thread.
 */
EBBGC_API void ebbgc_stats_get(ebbgc_heap_t *heap, struct ebbgc_stats *stats, size_t size);

/* Returns the q-quantile (0..1) of all pauses in ns, at most 19 % too long; 0 without any. */
EBBGC_API uint64_t ebbgc_pause_quantile(ebbgc_heap_t *heap, double q);

/* --- the far generation ----------------------------------------------------------------- */

/*
 * A heap larger than its local memory: regions of 64 KiB whose objects have not been used for long
 * leave for a store, such as a donor's far memory, and single objects come back when a reference to
 * them is loaded.  Only objects of types with EBBGC_MOVABLE leave, of at most 8184 bytes.
 *
 * The oldest regions leave first.  For a while a region that leaves stays readable, and objects
 * that are loaded there stay in memory (a second chance).  What a frame, a handle, a root range or
 * callback, a ready finalizer or, in heaps with conservative stacks, a word on a stack refers to
 * keeps its region in memory.
 *
 * In most cycles, far objects count as alive, and so does what they refer to.  A far cycle finds
 * those that are dead: it reads the live ones in the store, or lets the store trace them where they
 * are (struct ebbgc_far_jobs), beside the program, once half as many bytes have left as it last
 * found alive, or the store is full.  Meanwhile regions that are leaving go on to leave, but none
 * begins to: once these have left, which are up to a quarter of `local_bytes`, allocation waits for
 * the cycle.  From then on the store has 0.5 s to trace, and 1 s for each 256 MiB in it; then the
 * heap reads, and allocation waits for that, too.  A far cycle also runs in full
 * collections that a thread requests or waits for, during which the program stands.  Then the space
 * in the store is free of regions without a live object, and in the following cycles of those that
 * are mostly garbage.  If the store does not trace them, the cycle reads; if a read fails, it frees
 * nothing there.  Once the store says that a place is lost (struct ebbgc_far_store), cycles go on
 * without it.
 *
 * max_bytes limits addresses, of which far regions keep theirs until a cycle or two after all of
 * their objects have come back: several times the live data is right.  Cycles run also when as many
 * bytes have come back as `local_bytes`, or half of the free addresses are used.  A thread that
 * loads far objects without a safepoint delays them, and may so use up all addresses.
 *
 * A load may wait for a read; a pause waits for that load.
 *
 * fork().  The child may call execve() or _exit(); loads of far objects fail there.
 */

/* Where bytes are in the store; plain data of the store's. */
struct ebbgc_far_place {
	uint64_t words[3];
};

/*
 * A type whose objects have references and may be in the store: as in struct ebbgc_layout.  This
 * struct and the next two, of which there are arrays, are the same in all versions.
 */
struct ebbgc_far_type {
	ebbgc_type_t type;		/* as in the lower half of an object's header */
	uint32_t length_offset, length_width;
	uint32_t run_count;
	uint64_t size, element_size;
	uint64_t bitmap;
	const struct ebbgc_run *runs;
};

/*
 * A region in the store: slots of one size, of which those of .live lie at the place, in their
 * order.  A slot has a header of 8 bytes, then the object.
 */
struct ebbgc_far_region {
	uint32_t region;		/* its address is the cycle's .base + .region * 64 KiB */
	uint32_t slot_bytes;
	bool leaf;			/* no object of it has references */
	struct ebbgc_far_place place;
	const uint64_t *live;		/* slots that were written, lowest bit first */
	/*
	 * 64 words, of granules of 16 bytes.  If the one at which a slot of .live begins is here,
	 * its object has come back, or is dead: the store has it no more.  Other bits say nothing.
	 */
	const uint64_t *gone;
};

/* Objects of a region, by the granules at which their slots begin: 64 * word + i for bit i. */
struct ebbgc_far_set {
	uint32_t region, word;
	uint64_t bits;
};

/*
 * A far cycle; valid until the last end() returns.  Later versions append members: those below
 * .size are there.
 */
struct ebbgc_far_cycle {
	size_t size;			/* of this struct in the library, in bytes */
	uint64_t base, mask;		/* address of region 0; bits of a reference that are one */
	uint32_t regions;		/* of the heap */
	uint32_t type_count, stored_count;
	const struct ebbgc_far_type *types;	/* those of the last cycle first */
	const struct ebbgc_far_region *stored;	/* all that the store has; others have ended */
	/* To be called by trace() and end() on the caller's thread. */
	void *data;
	/*
	 * An object that lives in the store refers to this one, which is not where that one is.
	 * Returns 1: the store is to mark and trace it, too; 0: it need not; a negative errno:
	 * there can be no such reference, or the heap is being destroyed, and the call is to fail.
	 */
	int (*found)(void *data, uint32_t region, uint32_t granule);
	/*
	 * By end(), once for each region of .stored: slots that live, and which of these are named
	 * by live objects in the store, of the same part of it.
	 */
	void (*marks)(void *data, uint32_t region, const uint64_t *marks, const uint64_t *named);
	/*
	 * By .stored, all false.  What begin() sets the store does not trace in this cycle: the
	 * heap reads it, found() returns 0 for what is there, and it gets no marks().
	 */
	bool *reads;
	/*
	 * For trace() and end(), on the caller's thread, about each ms that they wait: returns
	 * whether the time of the call is used up before @wait_ms, as a thread waits for the cycle,
	 * or the heap is being destroyed.  The call is to fail with -EAGAIN then.
	 */
	bool (*late)(void *data);
};

/*
 * How a store traces what it has, such as by jobs of donors, so that the heap reads nothing, or
 * little, in a far cycle.  The collector's thread calls these, and ebbgc_heap_destroy() end(), once
 * that thread has ended.  All return 0 or a negative errno: the heap reads the objects itself then,
 * in the same cycle.  Each begin(), also one that fails, is followed by one end(); if that was to
 * commit and fails, by another one that is not.  Begins with its size: later versions append
 * members.
 *
 * @wait_ms is what is left of the time that the heap gives a cycle: 10 s, and 1 s for each 64 MiB
 * in the store; in pauses, and from when a thread waits for a cycle beside the program (.late), 0.5
 * s, and 1 s for each 256 MiB.  A call that would take longer fails with -EAGAIN; it may end later
 * as far as it cannot be interrupted, such as in a message.  ebbgc_heap_destroy() waits for the
 * call.
 */
struct ebbgc_far_jobs {
	size_t struct_size;
	/* A cycle begins, when the program already runs on.  The last one has ended. */
	int (*begin)(void *arg, const struct ebbgc_far_cycle *cycle);
	/*
	 * Marks the objects of @sets, and all that they lead to in the store; passes on what
	 * found() says, from one part of it to another.  Called as long as there is more.
	 */
	int (*trace)(void *arg, const struct ebbgc_far_set *sets, size_t count, unsigned wait_ms);
	/*
	 * Ends the cycle.  With @commit calls marks(); else no mark is needed.  Slots with a mark
	 * are kept, all others freed, so a store that is wrong here loses live objects.
	 */
	int (*end)(void *arg, bool commit, unsigned wait_ms);
	/*
	 * Between cycles: copies the slots of @keep, which are some of from->live, behind one
	 * another to a new place, and returns which one it is; the old one stays as it is, and the
	 * heap frees it when it reads there no more.  Threads read() there meanwhile.  When it
	 * fails, there is no new place, and objects come back instead, in order to free the old
	 * one.  NULL: it cannot.
	 */
	int (*compact)(void *arg, const struct ebbgc_far_region *from, const uint64_t *keep,
		       unsigned wait_ms, struct ebbgc_far_place *to);
};

/*
 * The store.  Zero it, set what is needed: later versions append members.  All return 0 or a
 * negative errno.  Any thread may call read(), several at a time, in ebbgc_load() and ebbgc_cas();
 * a thread of the heap's, `ebb-gc-far`, and the collector's call the others.  They must not call
 * functions of the heap.  Bytes of a place change by write() alone, all of which happens before the
 * first read().
 */
struct ebbgc_far_store {
	void *arg;
	/* @bytes, at most 64 KiB.  -ENOSPC: full; it is asked again after 100 ms. */
	int (*alloc)(void *arg, size_t bytes, struct ebbgc_far_place *place);
	int (*write)(void *arg, const struct ebbgc_far_place *place, const void *from,
		     size_t bytes);
	int (*read)(void *arg, const struct ebbgc_far_place *place, size_t offset, void *to,
		    size_t bytes);
	int (*free)(void *arg, const struct ebbgc_far_place *place);
	/* NULL: far cycles read.  Must last as long as the store. */
	const struct ebbgc_far_jobs *jobs;
	/*
	 * Returns a negative errno if the place is lost for good, such as with its donor; else 0.
	 * The collector's thread asks before each far cycle.  After such an answer the heap reads
	 * nothing there: loads fail with this error (ebbgc_far_options.failed), and what only
	 * objects there refer to is garbage.  NULL: no place is ever lost.
	 */
	int (*lost)(void *arg, const struct ebbgc_far_place *place);
};

/* What the handler of a failed read wants. */
enum ebbgc_far_verdict {
	EBBGC_FAR_ABORT,	/* a message, and abort() */
	EBBGC_FAR_RETRY,	/* the load tries again */
};

/* Later versions append members, as in struct ebbgc_options.  ebbgc_far_options_init() it. */
struct ebbgc_far_options {
	size_t struct_size;
	/*
	 * Target for the heap's local memory, with the tables that lead to far objects; at least
	 * 2 MiB.  Large objects and others that do not leave count, too.  Not in it is what a far
	 * cycle takes while it runs: 1.6 % of the addresses that have been in use, 3.3 % if the
	 * store traces.
	 */
	size_t local_bytes;
	/*
	 * Of these, kept free for objects that come back: new objects wait until something has left
	 * instead.  0: a sixteenth.  At most half of local_bytes.
	 */
	size_t reserve_bytes;
	/*
	 * Called on the thread whose load needs an object that the store does not return; @error:
	 * what read() returned, -EBADMSG: no such object was written, -ENOMEM, or -ECHILD in a
	 * child of fork().  It must not reach a safepoint, but may leave by longjmp(): the load has
	 * not happened then.  NULL: a message and abort().
	 */
	enum ebbgc_far_verdict (*failed)(void *arg, ebbgc_heap_t *heap, int error);
	void *failed_arg;
};

static inline void ebbgc_far_options_init(struct ebbgc_far_options *options)
{
	const struct ebbgc_far_options o = { sizeof(o), 0, 0, 0, 0 };

	*options = o;
}

/*
 * Gives a heap a far generation.  @store and @options are copied; the store must last until
 * ebbgc_heap_destroy() has returned, which frees all places.  ebbgc_far.h has the store for a pool
 * of libebbfar.  Once per heap (-EALREADY), before a thread attaches (-EBUSY).  -ENOTSUP: the heap
 * follows the program (EBBGC_SWAPPING), asks the kernel about pages (ebbgc_debug()), or has a type
 * with slots or edges(), which is refused from here on; -EINVAL: wrong options, or a store or its
 * jobs without one of their functions; -E2BIG: options of a later version; -ENOMEM, -EAGAIN,
 * -ECHILD.
 *
 * ebbgc_heap_each() and ebbgc_heap_walk() fail with -ENOTSUP in such a heap.
 */
EBBGC_API int ebbgc_far_attach_size(ebbgc_heap_t *heap, const struct ebbgc_far_store *store,
				    size_t store_size, const struct ebbgc_far_options *options);

static inline int ebbgc_far_attach(ebbgc_heap_t *heap, const struct ebbgc_far_store *store,
				   const struct ebbgc_far_options *options)
{
	return ebbgc_far_attach_size(heap, store, sizeof(*store), options);
}

/*
 * Moves all that can leave to the store, and waits for that: before a program idles, and for tests.
 * A safepoint.  Returns the store's error if it takes no more; -EINVAL without a far generation;
 * -ECHILD.
 */
EBBGC_API int ebbgc_far_evict(ebbgc_mutator_t *mutator);

#ifdef __cplusplus
}
#endif

#endif
