/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Shared by the tests of libebbgc: heaps in checking mode, and lists of nodes. */
#ifndef GC_TEST_H
#define GC_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "ebbgc.h"
#include "heap.h"

#ifdef __SANITIZE_THREAD__
#define FORKS 0		/* ThreadSanitizer refuses threads' runtime in a child */
#else
#define FORKS 1
#endif

struct node {
	ebbgc_ref_t left, right;
	uint64_t value;
};

static const struct ebbgc_layout node_layout = {
	.name = "node", .size = sizeof(struct node), .bitmap = 3,
};

struct refs {
	uint64_t length;
	ebbgc_ref_t slots[];
};

static const struct ebbgc_run refs_run = { sizeof(struct refs), EBBGC_COUNT_LENGTH, 8 };

static const struct ebbgc_layout refs_layout = {
	.name = "references", .size = sizeof(struct refs), .element_size = 8, .length_width = 8,
	.runs = &refs_run, .run_count = 1,
};

static inline struct node *node_of(ebbgc_ref_t r)
{
	return ebbgc_ptr(r);
}

static inline struct refs *refs_of(ebbgc_ref_t r)
{
	return ebbgc_ptr(r);
}

/*
 * Creates a heap in checking mode, in which a fault aborts the test unless there is an event
 * handler; @words as for ebbgc_debug().
 */
static inline ebbgc_heap_t *checked_heap_with(const char *words, size_t max)
{
	struct ebbgc_options o;
	ebbgc_heap_t *heap;

	ebbgc_options_init(&o);
	assert_int_equal(ebbgc_debug(&o, words), 0);
	o.check = true;
	o.max_bytes = max;
	o.min_bytes = 1 << 20;
	o.markers = 2;
	assert_int_equal(ebbgc_heap_create(&o, &heap), 0);
	return heap;
}

static inline ebbgc_heap_t *checked_heap(enum ebbgc_mode mode, size_t max)
{
	return checked_heap_with(mode == EBBGC_CONCURRENT ? "mode=concurrent" : "mode=stop", max);
}

static inline struct ebbgc_stats stats_of(ebbgc_heap_t *heap)
{
	struct ebbgc_stats s;

	ebbgc_stats_get(heap, &s, sizeof(s));
	return s;
}

/* Waits for the cycle that was requested, if any. */
static inline void cycle_ends(ebbgc_heap_t *heap, ebbgc_mutator_t *m)
{
	while (__atomic_load_n(&heap->ended, __ATOMIC_RELAXED) !=
	       __atomic_load_n(&heap->requested, __ATOMIC_RELAXED)) {
		ebbgc_poll(m);
		usleep(100);
	}
}

#endif
