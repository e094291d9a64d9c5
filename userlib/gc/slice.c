// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "mark.h"
#include "object.h"
#include "park.h"
#include "slice.h"
#include "type.h"

/* Returns the end of the last reference; 0 if a callback finds them or they are not strong. */
static uint64_t references_end(const struct type *type, uint64_t object)
{
	uint64_t end = object;

	if (type->trace || type->edges || (type->flags & EBBGC_WEAK) ||
	    type_id(object) == TYPE_EPHEMERON)
		return 0;
	if (type->bitmap)
		end += 8 * (64 - (uint64_t)__builtin_clzll(type->bitmap));
	for (size_t i = 0; i < type->run_count; i++) {
		const struct ebbgc_run *run = &type->runs[i];
		size_t count = run_length(type, run, (const char *)(uintptr_t)object);
		uint64_t last = object + run->offset + (count - 1) * run->stride + 8;

		if (count && last > end)
			end = last;
	}
	for (size_t i = 0; i < type->slot_count; i++) {
		const struct ebbgc_slots *s = &type->slots[i];
		uint64_t count = slots_length(type, s, (const char *)(uintptr_t)object);
		uint64_t last = object + s->offset + (count - 1) * s->stride + 8;

		if (count && last > end)
			end = last;
	}
	return end;
}

static void visit_within(struct tracer *t, const struct type *type, uint64_t object, uint64_t from,
			 uint64_t to)
{
	type_visit_part(type, object, from, to, mark_slot, t);
	if (type->slot_count)
		trace_slots(t, type, object, from, to);
	residency_touched(&t->heap->residency, page_of(t->heap, from));
}

static uint64_t page_after(uint64_t address)
{
	return (address | (PAGE_BYTES - 1)) + 1;
}

static bool slice_postpone(struct tracer *t, uint64_t from)
{
	struct ebbgc_heap *h = t->heap;
	size_t page = page_of(h, from);

	if (t->hurried || !residency_is_out(&h->residency, page))
		return false;
	park_slice(t, page);
	t->counts.postponed++;
	return true;
}

void slice_trace_object(struct tracer *t, uint64_t object)
{
	const struct type *type = &t->heap->types[type_id(object)];
	uint64_t end = references_end(type, object), to;

	if (end <= page_after(object)) {
		trace_object(t, object);
		return;
	}
	/* The caller has checked the first page. */
	for (uint64_t from = object; from < end; from = to) {
		to = page_after(from) < end ? page_after(from) : end;
		if (from == object || !slice_postpone(t, from))
			visit_within(t, type, object, from, to);
	}
}

void slice_trace(struct tracer *t, uint64_t from)
{
	uint64_t object = old_object_containing(t->heap, from);

	/* The object is marked: it exists until the end of this cycle. */
	visit_within(t, &t->heap->types[type_id(object)], object, from, page_after(from));
}
