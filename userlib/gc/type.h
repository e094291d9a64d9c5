/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Registered layouts, and iteration over an object's references. */
#ifndef EBBGC_TYPE_H
#define EBBGC_TYPE_H

#include <stddef.h>
#include <stdint.h>
#include "ebbgc.h"

struct ebbgc_heap;

#define TYPES_MAX 65536u

struct type {
	char *name;
	uint32_t flags;
	uint32_t kind;			/* of small fixed-size objects, else KIND_FREE */
	uint32_t kinds;			/* of small objects: lowest */
	size_t size, element_size;
	uint32_t length_offset, length_width;
	uint64_t bitmap;
	struct ebbgc_run *runs;
	size_t run_count;
	void (*trace)(void *object, ebbgc_visit_fn visit, void *arg);
	struct ebbgc_slots *slots;
	size_t slot_count;
	void (*edges)(void *object, struct ebbgc_edges *edges);
	uint64_t fibre_offset;
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

/* As run_length(). */
static inline size_t slots_length(const struct type *t, const struct ebbgc_slots *slots,
				  const char *object)
{
	return slots->count == EBBGC_COUNT_LENGTH ? type_length(t, object) : slots->count;
}

/*
 * Returns what a word refers to by its tag, perhaps into an object, or 0.  The program may be
 * changing word and tag: then any word.
 */
static inline uint64_t slot_target(const struct ebbgc_slots *s, const char *slot)
{
	uint64_t tag = 0, word;

	if (s->kind == EBBGC_SLOT_VALUE_AND_TAG)
		tag = __atomic_load_n((const uint8_t *)slot + s->tag_offset, __ATOMIC_ACQUIRE);
	word = __atomic_load_n((const uint64_t *)slot, __ATOMIC_ACQUIRE);
	if (s->kind == EBBGC_SLOT_TAGGED)
		tag = word;
	return word && (tag & s->mask) == s->value ? word - s->subtract : 0;
}

/* Calls fn(arg, kind, target) for the type's slots in bytes [@from, @to) that refer to anything. */
static inline __attribute__((always_inline)) void
slots_visit(const struct type *t, uint64_t object, uint64_t from, uint64_t to,
	    void (*fn)(void *arg, uint32_t kind, uint64_t target), void *arg)
{
	for (size_t i = 0; i < t->slot_count; i++) {
		const struct ebbgc_slots *s = &t->slots[i];
		uint64_t count = slots_length(t, s, (const char *)(uintptr_t)object);
		uint64_t first = object + s->offset;
		uint64_t n = first < from ? (from - first + s->stride - 1) / s->stride : 0;

		for (; n < count && first + n * s->stride < to; n++) {
			const char *slot = (const char *)(uintptr_t)(first + n * s->stride);
			uint64_t target = slot_target(s, slot);

			if (target)
				fn(arg, s->kind, target);
		}
	}
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

/* Calls fn for the slots in [@from, @to) of an object of a type without a callback. */
static inline __attribute__((always_inline)) void
type_visit_part(const struct type *t, uint64_t address, uint64_t from, uint64_t to,
		ebbgc_visit_fn fn, void *arg)
{
	for (uint64_t bits = t->bitmap; bits; bits &= bits - 1) {
		uint64_t slot = address + 8 * (uint64_t)__builtin_ctzll(bits);

		if (slot >= from && slot < to)
			fn(arg, (ebbgc_ref_t *)(uintptr_t)slot);
	}
	for (size_t i = 0; i < t->run_count; i++) {
		const struct ebbgc_run *run = &t->runs[i];
		size_t count = run_length(t, run, (const char *)(uintptr_t)address);
		uint64_t first = address + run->offset;

		for (uint64_t n = first < from ? (from - first + run->stride - 1) / run->stride : 0;
		     n < count && first + n * run->stride < to; n++)
			fn(arg, (ebbgc_ref_t *)(uintptr_t)(first + n * run->stride));
	}
}

#endif
