// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/*
 * Address order, as in the concurrent marking of HotSpot's G1: a finger passes over the mark bits
 * once, region by region, and traces what it finds.  An object that is marked ahead of the finger
 * needs no work item; one that is marked behind it is traced next.  Objects that are allocated
 * ahead of the finger are traced, too, which finds nothing new.
 */
#include "mark.h"
#include "object.h"
#include "os.h"
#include "work_pool.h"

#define CLOCK_EVERY 256		/* objects between two reads of the clock */
#define REGION_GRANULES (REGION_SIZE / GRANULE)

/* Will the finger still find the object's mark, which has just been set? */
static bool is_ahead(const struct tracer *t, uint64_t object)
{
	const struct marker *mk = &t->heap->marker;
	uint32_t region = region_of(t->heap, object);

	if (region >= __atomic_load_n(&mk->finger, __ATOMIC_SEQ_CST))
		return region < mk->finger_end;
	return region == t->region && granule_of(t->heap, object) >= t->granule;
}

static void address_add(struct tracer *t, uint64_t work)
{
	uint64_t object = work & WORK_ADDRESS;

	if (!is_ahead(t, object))
		work_push(t, object);
}

/* Takes the next region that may hold objects with references; returns false at the end. */
static bool region_claim(struct tracer *t)
{
	struct ebbgc_heap *h = t->heap;
	struct marker *mk = &h->marker;

	while (__atomic_load_n(&mk->finger, __ATOMIC_RELAXED) < mk->finger_end) {
		uint32_t region = __atomic_fetch_add(&mk->finger, 1, __ATOMIC_SEQ_CST);
		uint8_t kind;

		if (region >= mk->finger_end)
			break;
		kind = __atomic_load_n(&h->kinds[region], __ATOMIC_RELAXED);
		if (kind_is_leaf(kind) || (kind >= SMALL_KINDS && kind != KIND_LARGE) ||
		    region_is_out(h, region))
			continue;
		t->region = region;
		t->granule = (size_t)region * REGION_GRANULES;
		return true;
	}
	return false;
}

/* Returns the next marked object at this tracer's finger, or 0 at the end of the heap. */
static uint64_t finger_next(struct tracer *t)
{
	struct ebbgc_heap *h = t->heap;

	for (; t->region != REGION_NONE || region_claim(t); t->region = REGION_NONE) {
		size_t end = ((size_t)t->region + 1) * REGION_GRANULES;

		while (t->granule < end) {
			size_t word = t->granule >> 6;
			uint64_t bits = __atomic_load_n(&h->marks[word], __ATOMIC_SEQ_CST);
			uint64_t object;

			bits = marks_old(h, word, bits) >> (t->granule & 63);
			if (!bits) {
				t->granule = ((t->granule >> 6) + 1) << 6;
				continue;
			}
			t->granule += (size_t)__builtin_ctzll(bits);
			object = (uint64_t)(uintptr_t)h->base + (t->granule++ << GRANULE_SHIFT) +
				 HEADER;
			/* A slot of a thread's supply may hold no object yet. */
			if (type_id(object) != TYPE_NONE)
				return object;
		}
	}
	return 0;
}

static uint64_t next(struct tracer *t)
{
	uint64_t object = t->depth ? 0 : finger_next(t);

	if (!object && (t->depth || work_take(t)))
		object = t->stack[--t->depth] & WORK_ADDRESS;
	return object;
}

static bool address_drain(struct tracer *t, uint64_t deadline)
{
	struct marker *mk = &t->heap->marker;
	unsigned int turn = 0;
	uint64_t object;

	while ((object = next(t))) {
		trace_object(t, object);
		if (!deadline && ++turn % CLOCK_EVERY)
			continue;
		if (marking_abandoned(t->heap) || (deadline && os_now() > deadline))
			return false;
		if (t->depth > 64 && __atomic_load_n(&mk->hungry, __ATOMIC_RELAXED))
			work_share(t);
	}
	return true;
}

const struct order order_address = {
	.name = "address",
	.add = address_add,
	.drain = address_drain,
};
