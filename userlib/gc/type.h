/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Registered layouts, and iteration over an object's references. */
#ifndef EBBGC_TYPE_H
#define EBBGC_TYPE_H

#include <stddef.h>
#include <stdint.h>
#include "ebbgc.h"

struct ebbgc_heap;

#define TYPES_MAX 4096u

struct type {
	char *name;
	uint32_t flags;
	uint32_t kind;			/* of small fixed-size objects, else KIND_FREE */
	size_t size, element_size;
	uint32_t length_offset, length_width;
	uint64_t bitmap;
	struct ebbgc_run *runs;
	size_t run_count;
	void (*trace)(void *object, ebbgc_visit_fn visit, void *arg);
};

int types_create(struct ebbgc_heap *h);
void types_destroy(struct ebbgc_heap *h);

/* An object that was just allocated may have length 0 yet. */
static inline size_t type_length(const struct type *t, const char *object)
{
	const char *length = object + t->length_offset;

	if (t->length_width == 4)
		return __atomic_load_n((const uint32_t *)length, __ATOMIC_RELAXED);
	return t->length_width ? __atomic_load_n((const uint64_t *)length, __ATOMIC_RELAXED) : 0;
}

/* Returns the number of references that the run has in this object. */
static inline size_t run_length(const struct type *t, const struct ebbgc_run *run,
				const char *object)
{
	return run->count == EBBGC_COUNT_LENGTH ? type_length(t, object) : run->count;
}

/*
 * Calls fn for every reference slot, weak ones included.  Inlined into each tracer, which makes
 * fn a direct call.
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

#endif
