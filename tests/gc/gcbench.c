// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * GCBench: binary trees of growing depth, built from the root down and from the leaves up, while a
 * tree and an array live throughout.  A new implementation of the benchmark of Ellis, Kovac and
 * Boehm.  Builds on libebbgc, on bdwgc (ON_BDWGC) and on malloc that never frees (ON_MALLOC).
 *
 *	gcbench [-d DEPTH] [-t THREADS] [-m concurrent|stop] [-x MAX_MIB] [-k MARKERS] [-c]
 *
 * DEPTH is that of the long-lived tree, which has 2^(DEPTH + 1) - 1 nodes per thread.  One JSON
 * line reports time, collections and pauses.  Exits with status 1 if a tree is wrong.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#if defined(ON_BDWGC)
#define GC_THREADS
#include <gc/gc.h>
#define SYSTEM "bdwgc"
#elif defined(ON_MALLOC)
#define SYSTEM "malloc"
#else
#include "ebbgc.h"
#define SYSTEM "ebbgc"
#define ON_EBBGC
#endif

#ifdef ON_EBBGC
typedef ebbgc_ref_t ref;
typedef ebbgc_mutator_t *ctx;
static ebbgc_heap_t *heap;
static ebbgc_type_t node_type, doubles_type;
#define LOAD(c, object, slot) ebbgc_load(c, object, slot)
#define STORE(c, object, slot, value) ebbgc_store(c, object, slot, value)
#define INIT(slot, value) ebbgc_init(slot, value)
#define PTR(r) ebbgc_ptr(r)
#define IS_NULL(r) ebbgc_is_null(r)
#define ROOTS(c, slots, n) struct ebbgc_frame frame; ebbgc_frame_push(c, &frame, slots, n)
#define UNROOT(c) ebbgc_frame_pop(c, &frame)
#else
typedef void *ref;
typedef int ctx;
#define LOAD(c, object, slot) (*(slot))
#define STORE(c, object, slot, value) (*(slot) = (value))
#define INIT(slot, value) (*(slot) = (value))
#define PTR(r) (r)
#define IS_NULL(r) (!(r))
#define ROOTS(c, slots, n) ((void)0)
#define UNROOT(c) ((void)0)
#endif

struct node {
	ref left, right;
	int i, j;
};

struct array {
	uint64_t length;
	double values[];
};

static int depth = 16, threads = 1, failures;

static ref node_new(ctx c)
{
	ref r;

#if defined(ON_EBBGC)
	r = ebbgc_alloc(c, node_type);
#elif defined(ON_BDWGC)
	r = GC_MALLOC(sizeof(struct node));
#else
	r = calloc(1, sizeof(struct node));
#endif
	if (IS_NULL(r)) {
		fprintf(stderr, "gcbench: out of memory\n");
		exit(2);
	}
	return r;
}

static ref doubles_new(ctx c, size_t n)
{
#if defined(ON_EBBGC)
	return ebbgc_alloc_length(c, doubles_type, n);
#else
	size_t bytes = sizeof(struct array) + n * sizeof(double);
#ifdef ON_BDWGC
	struct array *a = GC_MALLOC_ATOMIC(bytes);
#else
	struct array *a = malloc(bytes);
#endif
	a->length = n;
	return a;
#endif
}

/* From the leaves up: children first. */
static ref build_up(ctx c, int d)
{
	ref children[2] = { 0 }, r;

	if (d == 0)
		return node_new(c);
	ROOTS(c, children, 2);
	children[0] = build_up(c, d - 1);
	children[1] = build_up(c, d - 1);
	r = node_new(c);
	INIT(&((struct node *)PTR(r))->left, children[0]);
	INIT(&((struct node *)PTR(r))->right, children[1]);
	UNROOT(c);
	return r;
}

/* From the root down: fills a node that the caller has rooted. */
static void build_down(ctx c, int d, ref at)
{
	struct node *n;
	ref child;

	if (d == 0)
		return;
	ROOTS(c, &at, 1);
	n = PTR(at);
	child = node_new(c);
	STORE(c, at, &n->left, child);
	child = node_new(c);
	STORE(c, at, &n->right, child);
	build_down(c, d - 1, LOAD(c, at, &n->left));
	build_down(c, d - 1, LOAD(c, at, &n->right));
	UNROOT(c);
}

static long count(ctx c, ref r)
{
	struct node *n = PTR(r);

	if (IS_NULL(r))
		return 0;
	return 1 + count(c, LOAD(c, r, &n->left)) + count(c, LOAD(c, r, &n->right));
}

static long tree_size(int d)
{
	return (1L << (d + 1)) - 1;
}

static void expect(const char *what, long got, long wanted)
{
	if (got == wanted)
		return;
	fprintf(stderr, "gcbench: %s has %ld nodes, not %ld\n", what, got, wanted);
	__atomic_store_n(&failures, 1, __ATOMIC_RELAXED);
}

static void time_construction(ctx c, int d)
{
	long iterations = 2 * tree_size(depth + 2) / tree_size(d);
	ref tree = { 0 };

	ROOTS(c, &tree, 1);
	for (long i = 0; i < iterations; i++) {
		tree = node_new(c);
		build_down(c, d, tree);
	}
	expect("a tree built down", count(c, tree), tree_size(d));
	for (long i = 0; i < iterations; i++)
		tree = build_up(c, d);
	expect("a tree built up", count(c, tree), tree_size(d));
	UNROOT(c);
}

static void bench(ctx c)
{
	ref kept[2] = { 0 };
	struct array *array;

	ROOTS(c, kept, 2);
	kept[0] = build_up(c, depth + 2);
	expect("the stretching tree", count(c, kept[0]), tree_size(depth + 2));
	kept[0] = node_new(c);
	build_down(c, depth, kept[0]);
	kept[1] = doubles_new(c, 500000);
	array = PTR(kept[1]);
	for (size_t i = 0; i < 250000; i++)
		array->values[i] = 1.0 / (double)(i + 1);
	for (int d = 4; d <= depth; d += 2)
		time_construction(c, d);
	expect("the tree that was kept", count(c, kept[0]), tree_size(depth));
	array = PTR(kept[1]);
	expect("the array", array->values[1000] == 1.0 / 1001 ? 500000 : 0, (long)array->length);
	UNROOT(c);
}

static void *thread(void *arg)
{
#if defined(ON_EBBGC)
	ebbgc_mutator_t *c;

	if (ebbgc_attach(heap, &c))
		exit(2);
	bench(c);
	ebbgc_detach(c);
#else
	bench(0);
#endif
	return NULL;
}

#ifdef ON_EBBGC
static int heap_start(const char *mode, size_t max, unsigned int markers, bool check)
{
	static const struct ebbgc_layout node = {
		.name = "node", .size = sizeof(struct node), .bitmap = 3,
	};
	static const struct ebbgc_layout doubles = {
		.name = "doubles", .flags = EBBGC_LEAF, .size = sizeof(struct array),
		.element_size = sizeof(double), .length_width = 8,
	};
	struct ebbgc_options o;

	ebbgc_options_init(&o);
	o.mode = strcmp(mode, "stop") ? EBBGC_CONCURRENT : EBBGC_STOP_WORLD;
	o.check = check;
	o.markers = markers;
	if (max)
		o.max_bytes = max << 20;
	return ebbgc_heap_create(&o, &heap) || ebbgc_type_register(heap, &node, &node_type) ||
	       ebbgc_type_register(heap, &doubles, &doubles_type);
}
#endif

static void report(double seconds)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	printf("{\"system\": \"%s\", \"depth\": %d, \"threads\": %d, \"seconds\": %.3f, "
	       "\"cpu_seconds\": %.3f, \"max_rss_mib\": %ld", SYSTEM, depth, threads, seconds,
	       (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec / 1e6 +
	       (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec / 1e6,
	       usage.ru_maxrss >> 10);
#if defined(ON_EBBGC)
	{
		struct ebbgc_stats s;

		ebbgc_stats_get(heap, &s, sizeof(s));
		printf(", \"cycles\": %lu, \"full\": %lu, \"pause_p50_us\": %.1f, "
		       "\"pause_p99_us\": %.1f, \"pause_max_us\": %.1f, \"mark_s\": %.3f, "
		       "\"stalls\": %lu, \"remarks\": %lu, \"live_mib\": %lu, \"check_failures\": %lu",
		       s.cycles, s.full_cycles, (double)ebbgc_pause_quantile(heap, 0.5) / 1e3,
		       (double)ebbgc_pause_quantile(heap, 0.99) / 1e3, (double)s.pause_max_ns / 1e3,
		       (double)s.mark_total_ns / 1e9, s.stalls, s.remarks, s.live_bytes >> 20,
		       s.check_failures);
	}
#elif defined(ON_BDWGC)
	printf(", \"cycles\": %lu", (unsigned long)GC_get_gc_no());
#endif
	printf("}\n");
}

int main(int argc, char **argv)
{
	const char *mode = "concurrent";
	unsigned long max = 0, markers = 0;
	struct timespec a, b;
	pthread_t ids[64];
	bool check = false;
	int o;

	while ((o = getopt(argc, argv, "d:t:m:x:k:c")) != -1) {
		switch (o) {
		case 'd': depth = atoi(optarg); break;
		case 't': threads = atoi(optarg); break;
		case 'm': mode = optarg; break;
		case 'x': max = strtoul(optarg, NULL, 10); break;
		case 'k': markers = strtoul(optarg, NULL, 10); break;
		case 'c': check = true; break;
		default: return 2;
		}
	}
	if (depth < 4 || depth > 26 || threads < 1 || threads > 64)
		return 2;
#if defined(ON_EBBGC)
	if (heap_start(mode, max, (unsigned int)markers, check))
		return 2;
#elif defined(ON_BDWGC)
	GC_INIT();
	if (max)
		GC_set_max_heap_size(max << 20);
#endif
	(void)mode, (void)check, (void)markers, (void)max;
	clock_gettime(CLOCK_MONOTONIC, &a);
	for (int i = 0; i < threads; i++)
		if (pthread_create(&ids[i], NULL, thread, NULL))
			return 2;
	for (int i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	clock_gettime(CLOCK_MONOTONIC, &b);
	report((double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) / 1e9);
	return failures;
}
