/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The benchmark programs' interface to a collector: one source runs on libebbgc and on bdwgc
 * (ON_BDWGC).  Types, allocation, accesses, roots, threads, and the report.
 *
 * A program fills in a struct program and calls program_main().  The threads' results go to stdout
 * and are equal on all collectors.  Measurements go to the file after -j as one JSON object.
 * EBBGC_OPTIONS sets the options of libebbgc.
 *
 * With -m all objects of strong types may move (EBBGC_MOVABLE).  So a reference is good until the
 * next safepoint, an allocation or POLL(), unless a root refers to the object: ROOTS(), here or in
 * a caller.  For tests of that, programs that are compiled with FORCED collect at each FORCED-th
 * safepoint of a thread.
 */
#ifndef SYSTEM_H
#define SYSTEM_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/*
 * -c: multiplications, each of the result of the last, before an access to a reference.  Takes
 * about a nanosecond each; sets the share of time that a program spends on memory.
 */
static unsigned int compute;

static inline void computed(void)
{
	uint64_t x = compute;

	for (unsigned int i = compute; i; i--) {
		x *= UINT64_C(0x9e3779b97f4a7c15);
		__asm__ volatile("" : "+r"(x));
	}
}

#ifdef ON_BDWGC
#define GC_THREADS
#include <gc/gc.h>
#define SYSTEM "bdwgc"
typedef void *ref;
typedef int ctx;
#define LOAD(c, object, slot) (computed(), *(slot))
#define STORE(c, object, slot, value) (computed(), *(slot) = (value))
#define INIT(slot, value) (*(slot) = (value))
#define PTR(r) (r)
#define IS_NULL(r) (!(r))
#define NONE NULL
#define ROOTS(c, slots, n) ((void)(slots))
#define UNROOT(c) ((void)0)
#define POLL(c) ((void)0)
#define MOVES 0u
#else
#include "ebbgc.h"
#define SYSTEM "ebbgc"
typedef ebbgc_ref_t ref;
typedef ebbgc_mutator_t *ctx;
#ifdef RECORDED
#include "record.h"
#define LOAD(c, object, slot) recorded_load(c, object, slot)
#define STORE(c, object, slot, value) recorded_store(c, object, slot, value)
#define PTR(r) recorded_ptr(r)
#define WRITTEN(r) recorded_written(r)
#define COLLECT(c) record_collect(c)
#define BORN(r, bytes) recorded_born(r, bytes)
#else
#define LOAD(c, object, slot) (computed(), ebbgc_load(c, object, slot))
#define STORE(c, object, slot, value) (computed(), ebbgc_store(c, object, slot, value))
#define PTR(r) ebbgc_ptr(r)
#define BORN(r, bytes) (r)
#ifdef FORCED
#define COLLECT(c) forced(c)
#define POLL(c) forced(c)
static inline void forced(ctx c)
{
	static __thread unsigned int safepoints;

	if (++safepoints % FORCED == 0)
		(void)ebbgc_collect(c);
	ebbgc_poll(c);
}
#else
#define COLLECT(c) ((void)0)
#endif
#endif
#define INIT(slot, value) ebbgc_init(slot, value)
#define IS_NULL(r) ebbgc_is_null(r)
#define NONE EBBGC_NULL
#define ROOTS(c, slots, n) struct ebbgc_frame frame; ebbgc_frame_push(c, &frame, slots, n)
#define UNROOT(c) ebbgc_frame_pop(c, &frame)
#ifndef POLL
#define POLL(c) ebbgc_poll(c)
#endif
#ifdef EBBGC_NO_NOTES
#define MOVES 0u		/* loads would not notice */
#else
#define MOVES EBBGC_MOVABLE
#endif
static ebbgc_heap_t *heap;
static ebbgc_type_t refs_type, leaf_type;
#endif

/* PTR() of an object whose numbers the program changes: references change by STORE(). */
#ifndef WRITTEN
#define WRITTEN(r) PTR(r)
#endif

/* Arrays: a length, then elements. */
struct refs {
	uint64_t length;
	ref at[];
};

struct doubles {
	uint64_t length;
	double at[];
};

struct bytes {
	uint64_t length;
	unsigned char at[];
};

struct type {
	const char *name;
	size_t size;			/* of the fixed part */
	uint64_t bitmap;		/* words of it that are references */
#ifndef ON_BDWGC
	ebbgc_type_t id;
#endif
};

#define THREADS_MAX 64

struct program {
	const char *name;
	struct type **types;		/* ends with NULL */
	int (*prepare)(void);		/* with the heap, before threads start; or NULL */
	size_t size;			/* default of -n */
	unsigned int rounds;		/* default of -r */
	/*
	 * What one thread does: builds its part, calls built(), works, returns a sum that does
	 * not depend on collector or time.
	 */
	double (*work)(ctx c, unsigned int thread);
};

static struct program *program;
static size_t size;
static unsigned int rounds, threads = 1, percent = 100, failures;
static uint32_t movable;		/* EBBGC_MOVABLE if objects may move, else 0 */
static double sums[THREADS_MAX], mutator_seconds[THREADS_MAX];
static __thread double cpu_at;		/* of this thread when all was built */
static pthread_barrier_t barrier;
static double built_at;

static inline double seconds_of(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static inline double seconds_now(void)
{
	return seconds_of(CLOCK_MONOTONIC);
}

static inline ref checked(ref r)
{
	if (IS_NULL(r)) {
		fprintf(stderr, "%s: out of memory\n", program->name);
		exit(2);
	}
	return r;
}

static inline ref object_new(ctx c, const struct type *t)
{
#ifdef ON_BDWGC
	return checked(t->bitmap ? GC_MALLOC(t->size) : GC_MALLOC_ATOMIC(t->size));
#else
	COLLECT(c);
	return BORN(checked(ebbgc_alloc(c, t->id)), t->size);
#endif
}

static inline ref refs_new(ctx c, size_t n)
{
#ifdef ON_BDWGC
	struct refs *r = checked(GC_MALLOC(sizeof(*r) + n * sizeof(ref)));

	r->length = n;
	return r;
#else
	COLLECT(c);
	return BORN(checked(ebbgc_alloc_length(c, refs_type, n)),
		    sizeof(struct refs) + n * sizeof(ref));
#endif
}

/* @n bytes without references, after a length; of any content. */
static inline ref leaf_new(ctx c, size_t n)
{
#ifdef ON_BDWGC
	struct bytes *b = checked(GC_MALLOC_ATOMIC(sizeof(*b) + n));

	b->length = n;
	return b;
#else
	COLLECT(c);
	return BORN(checked(ebbgc_alloc_length(c, leaf_type, n)), sizeof(struct bytes) + n);
#endif
}

static inline ref doubles_new(ctx c, size_t n)
{
	return leaf_new(c, n * sizeof(double));
}

/*
 * References by index in arrays of PART, as one object of millions is not usual: an array of
 * arrays, to begin with of null references.  @parts is in a root of the caller's.
 */
#define PART 1000

static inline ref parts_new(ctx c, size_t n)
{
	ref slots[1] = { NONE };

	ROOTS(c, slots, 1);
	slots[0] = refs_new(c, (n + PART - 1) / PART);
	for (size_t i = 0; i < n; i += PART) {
		ref part = refs_new(c, n - i < PART ? n - i : PART);

		STORE(c, slots[0], &((struct refs *)PTR(slots[0]))->at[i / PART], part);
	}
	UNROOT(c);
	return slots[0];
}

static inline ref parts_at(ctx c, ref parts, size_t i)
{
	ref part = LOAD(c, parts, &((struct refs *)PTR(parts))->at[i / PART]);

	return LOAD(c, part, &((struct refs *)PTR(part))->at[i % PART]);
}

static inline void parts_put(ctx c, ref parts, size_t i, ref value)
{
	ref part = LOAD(c, parts, &((struct refs *)PTR(parts))->at[i / PART]);

	STORE(c, part, &((struct refs *)PTR(part))->at[i % PART], value);
}

static inline void expect(bool right, const char *what)
{
	if (right)
		return;
	fprintf(stderr, "%s: %s\n", program->name, what);
	__atomic_store_n(&failures, 1, __ATOMIC_RELAXED);
}

/* All threads are here: the part that is measured begins. */
static inline void built(ctx c)
{
#ifdef ON_BDWGC
	if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
		built_at = seconds_now();
#else
	/* A thread that waits holds up no collection. */
	ebbgc_blocked_begin(c);
	if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
		built_at = seconds_now();
	ebbgc_blocked_end(c);
#endif
#ifdef RECORDED
	record_put(heap_event(HEAP_MARK, HEAP_BUILT, 0));
#endif
	cpu_at = seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

/* Of a program whose rounds are an operation for each of @n things; -o is how many per cent. */
static inline uint64_t operations_of(uint64_t n)
{
	return n * rounds * percent / 100;
}

static inline uint64_t next_random(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s * UINT64_C(0x2545f4914f6cdd1d);
}

static inline double next_unit(uint64_t *s)
{
	return (double)(next_random(s) >> 11) / (double)(UINT64_C(1) << 53);
}

static void *program_thread(void *arg)
{
	unsigned int thread = (unsigned int)(uintptr_t)arg;
	ctx c = 0;

#ifndef ON_BDWGC
	if (ebbgc_attach(heap, &c))
		exit(2);
#ifdef RECORDED
	ebbgc_cycles_suspend(c);
#endif
#endif
	sums[thread] = program->work(c, thread);
	mutator_seconds[thread] = seconds_of(CLOCK_THREAD_CPUTIME_ID) - cpu_at;
#ifdef RECORDED
	ebbgc_cycles_resume(c);
#endif
#ifndef ON_BDWGC
	ebbgc_detach(c);
#endif
	return NULL;
}

#ifndef ON_BDWGC
static int types_register(void)
{
	static const struct ebbgc_run all = { sizeof(uint64_t), EBBGC_COUNT_LENGTH, 8 };
	const struct ebbgc_layout refs = {
		.name = "references", .flags = movable, .size = 8, .element_size = 8,
		.length_width = 8, .runs = &all, .run_count = 1,
	};
	const struct ebbgc_layout leaf = {
		.name = "leaf", .flags = EBBGC_LEAF | movable, .size = 8, .element_size = 1,
		.length_width = 8,
	};

	if (ebbgc_type_register(heap, &refs, &refs_type) ||
	    ebbgc_type_register(heap, &leaf, &leaf_type))
		return -1;
	for (struct type **t = program->types; *t; t++) {
		const struct ebbgc_layout l = {
			.name = (*t)->name, .size = (*t)->size, .bitmap = (*t)->bitmap,
			.flags = movable | ((*t)->bitmap ? 0 : EBBGC_LEAF),
		};

		if (ebbgc_type_register(heap, &l, &(*t)->id))
			return -1;
	}
	return 0;
}
#endif

static void report(const char *path, double began, double ended)
{
	FILE *f = fopen(path, "we");
	struct rusage usage;
	double mutators = 0;

	if (!f) {
		perror(path);
		exit(2);
	}
	getrusage(RUSAGE_SELF, &usage);
	for (unsigned int i = 0; i < threads; i++)
		mutators += mutator_seconds[i];
	fprintf(f, "{\"program\": \"%s\", \"system\": \"%s\", \"size\": %zu, \"rounds\": %u, "
		"\"threads\": %u, \"compute\": %u, \"movable\": %s, \"seconds\": %.4f, \"build_seconds\": %.4f, \"cpu_seconds\": %.3f, "
		"\"mutator_cpu_seconds\": %.4f, \"major_faults\": %ld, \"max_rss_mib\": %ld",
		program->name, SYSTEM, size, rounds, threads, compute, movable ? "true" : "false",
		ended - built_at,
		built_at - began,
		(double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec / 1e6 +
		(double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec / 1e6,
		mutators, usage.ru_majflt, usage.ru_maxrss >> 10);
#ifdef ON_BDWGC
	fprintf(f, ", \"cycles\": %lu}\n", (unsigned long)GC_get_gc_no());
#else
	{
		static const char *const sources[] = { "none", "ebbd", "own" };
		struct ebbgc_stats s;

		ebbgc_stats_get(heap, &s, sizeof(s));
#define FIELD(name) fprintf(f, ", \"" #name "\": %lu", (unsigned long)s.name)
		FIELD(cycles); FIELD(full_cycles); FIELD(pauses); FIELD(pause_total_ns);
		FIELD(pause_max_ns);
		FIELD(stop_max_ns);
		FIELD(mark_total_ns);
		FIELD(allocated_bytes);
		FIELD(live_bytes); FIELD(heap_bytes); FIELD(marked_objects); FIELD(remarks);
		FIELD(stalls); FIELD(stall_total_ns); FIELD(check_failures); FIELD(released_bytes);
		FIELD(epoch); FIELD(noted); FIELD(noted_lost); FIELD(red_objects);
		FIELD(explored_objects);
		FIELD(postponed);
		FIELD(parked_objects);
		FIELD(woken_objects);
		FIELD(fetch_calls); FIELD(fetched_pages); FIELD(scans); FIELD(scan_total_ns);
		FIELD(dropped_bytes); FIELD(cooled_pages); FIELD(arrivals_shared); FIELD(arrivals);
		FIELD(arrivals_lost);
		FIELD(arrived_objects);
		FIELD(hint_calls);
		FIELD(hinted_pages);
		FIELD(allocation_faults);
		FIELD(minor_cycles); FIELD(minor_concurrent); FIELD(minor_kept);
		FIELD(promoted_bytes);
		FIELD(reclaimed_bytes); FIELD(remembered);
		FIELD(moved_objects); FIELD(moved_bytes); FIELD(pinned_objects);
#undef FIELD
		fprintf(f, ", \"epoch_source\": \"%s\", \"pause_p50_ns\": %lu, \"pause_p99_ns\": %lu}\n",
			sources[s.epoch_source], (unsigned long)ebbgc_pause_quantile(heap, 0.5),
			(unsigned long)ebbgc_pause_quantile(heap, 0.99));
		expect(!s.check_failures, "the heap's own check failed");
	}
#endif
	fclose(f);
}

static int usage(void)
{
	fprintf(stderr, "usage: %s [-n SIZE] [-r ROUNDS] [-o PERCENT] [-t THREADS] [-c COMPUTE] "
		"%s[-j FILE]\n",
		program->name, MOVES ? "[-m] " : "");
	return 2;
}

static int program_main(struct program *p, int argc, char **argv)
{
	pthread_t ids[THREADS_MAX];
	const char *json = "/dev/null";
	double began, ended, sum = 0;
	int o;

	program = p;
	size = p->size;
	rounds = p->rounds;
	while ((o = getopt(argc, argv, MOVES ? "n:r:o:t:c:mj:" : "n:r:o:t:c:j:")) != -1) {
		switch (o) {
		case 'n': size = strtoul(optarg, NULL, 10); break;
		case 'r': rounds = (unsigned int)strtoul(optarg, NULL, 10); break;
		case 'o': percent = (unsigned int)strtoul(optarg, NULL, 10); break;
		case 't': threads = (unsigned int)strtoul(optarg, NULL, 10); break;
		case 'c': compute = (unsigned int)strtoul(optarg, NULL, 10); break;
		case 'm': movable = MOVES; break;
		case 'j': json = optarg; break;
		default: return usage();
		}
	}
	if (size < threads || !rounds || !threads || threads > THREADS_MAX || optind != argc)
		return usage();
#ifdef RECORDED
	if (threads != 1)
		record_fail("threads would mix; use -t 1");
	record_open();
#endif
#ifdef ON_BDWGC
	GC_INIT();
#else
	if (ebbgc_heap_create(NULL, &heap) || types_register() || (p->prepare && p->prepare())) {
		fprintf(stderr, "%s: no heap; see EBBGC_OPTIONS\n", p->name);
		return 2;
	}
#endif
	pthread_barrier_init(&barrier, NULL, threads);
	began = seconds_now();
	for (unsigned int i = 0; i < threads; i++)
		if (pthread_create(&ids[i], NULL, program_thread, (void *)(uintptr_t)i))
			return 2;
	for (unsigned int i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	ended = seconds_now();
	for (unsigned int i = 0; i < threads; i++)
		sum += sums[i];
	printf("%s %.10g\n", p->name, sum);
#ifdef RECORDED
	record_close();
#endif
	report(json, began, ended);
#ifndef ON_BDWGC
	ebbgc_heap_destroy(heap);
#endif
	return failures;
}

#endif
