// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* Marking an object and tracing it; barriers' slow halves; the depth-first order. */
#include <string.h>
#include "heap.h"

bool mark_now(struct tracer *t, uint64_t object, uint8_t kind)
{
	struct ebbgc_heap *h = t->heap;

	if (!bit_set(h->marks, granule_of(h, object)))
		return false;
	t->marked_objects++;
	t->marked_bytes += taken_bytes(h, object, kind);
	return true;
}

void mark_object(struct tracer *t, uint64_t ref)
{
	struct ebbgc_heap *h = t->heap;
	uint64_t object = ref & EBBGC_ADDRESS_MASK;
	uint8_t kind;

	if (bit_test(h->marks, granule_of(h, object)))
		return;
	kind = h->kinds[region_of(h, object)];
	/* A leaf's page is not touched. */
	if (kind_is_leaf(kind))
		mark_now(t, object, kind);
	else if (h->marker.late || mark_now(t, object, kind))
		h->marker.order->add(t, ref);
}

void mark_slot(void *arg, ebbgc_ref_t *slot)
{
	struct tracer *t = arg;
	uint64_t ref = work_load(slot);

	if (!(ref & EBBGC_ADDRESS_MASK))
		return;
	/* What the checking mode is going to report must not crash before. */
	if (EBBGC_UNLIKELY(t->heap->check) && !is_object(t->heap, ref & EBBGC_ADDRESS_MASK))
		return;
	mark_object(t, ref);
}

/* The value is traced now if the key is known to live, else when ephemerons_step() finds so. */
static void trace_ephemeron(struct tracer *t, uint64_t object)
{
	ebbgc_ref_t *slots = (ebbgc_ref_t *)(uintptr_t)object;
	uint64_t key = ref_load(&slots[0]);

	if (!key)
		return;
	if (bit_test(t->heap->marks, granule_of(t->heap, key)))
		mark_slot(t, &slots[1]);
	else if (!vector_push(&t->ephemerons, object)) {
		/* Out of memory: it is strong for this cycle. */
		mark_slot(t, &slots[0]);
		mark_slot(t, &slots[1]);
	}
}

void trace_object(struct tracer *t, uint64_t object)
{
	uint32_t id = type_id(object);
	const struct type *type = &t->heap->types[id];

	if (id == TYPE_EPHEMERON)
		return trace_ephemeron(t, object);
	if ((type->flags & EBBGC_WEAK) && vector_push(&t->weak, object))
		return;
	type_visit(type, object, mark_slot, t);
}

/* --- barriers --------------------------------------------------------------------------- */

void ebbgc_log_old(ebbgc_mutator_t *mutator, ebbgc_ref_t old)
{
	struct mutator *m = mutator_of(mutator);
	uint64_t object = old.bits & EBBGC_ADDRESS_MASK;

	if (!object || bit_test(m->heap->marks, granule_of(m->heap, object)))
		return;
	if (m->logged == SATB_ENTRIES) {
		/* In a child of fork() nobody marks, and the pool's lock may be lost. */
		if (!forked(m->heap))
			work_give(m->heap, m->log, m->logged);
		m->logged = 0;
	}
	m->log[m->logged++] = old.bits;
}

void ebbgc_copy(ebbgc_mutator_t *mutator, ebbgc_ref_t to_object, ebbgc_ref_t *to,
		ebbgc_ref_t from_object, const ebbgc_ref_t *from, size_t count)
{
	/* What weak references name is logged: nobody may come to where it goes, or clear it there. */
	if (EBBGC_UNLIKELY(ebbgc_flags(mutator) & EBBGC_MARKING) && !ebbgc_is_null(from_object) &&
	    (mutator_of(mutator)->heap->types[ebbgc_type_of(from_object)].flags & EBBGC_WEAK))
		for (size_t i = 0; i < count; i++)
			ebbgc_log_old(mutator, ebbgc_read(&from[i]));
	/* Upwards unless that would overwrite what is still to be read. */
	if (to <= from || to >= from + count) {
		for (size_t i = 0; i < count; i++)
			ebbgc_store(mutator, to_object, &to[i],
				    ebbgc_load(mutator, from_object, &from[i]));
	} else {
		for (size_t i = count; i-- > 0;)
			ebbgc_store(mutator, to_object, &to[i],
				    ebbgc_load(mutator, from_object, &from[i]));
	}
}

void ebbgc_fill(ebbgc_mutator_t *mutator, ebbgc_ref_t object, ebbgc_ref_t *slots,
		ebbgc_ref_t value, size_t count)
{
	for (size_t i = 0; i < count; i++)
		ebbgc_store(mutator, object, &slots[i], value);
}

/* --- depth first ------------------------------------------------------------------------ */

#define LOOK_AHEAD 8		/* objects between the prefetch of one and its tracing */
#define LOOK_EVERY 256		/* objects between two looks at the clock */

static void depth_first_add(struct tracer *t, uint64_t work)
{
	uint64_t object = work & WORK_ADDRESS;

	__builtin_prefetch(header_of(object));
	work_push(t, object);
}

static bool depth_first_drain(struct tracer *t, uint64_t deadline)
{
	struct marker *mk = &t->heap->marker;
	uint64_t ahead[LOOK_AHEAD] = { 0 };
	unsigned int turn = 0, idle = 0;

	for (;;) {
		uint64_t object = ahead[turn % LOOK_AHEAD];

		/* A short queue between stack and tracing lets the prefetch arrive. */
		if (t->depth || work_take(t)) {
			ahead[turn % LOOK_AHEAD] = t->stack[--t->depth] & WORK_ADDRESS;
			__builtin_prefetch(header_of(ahead[turn % LOOK_AHEAD]));
			idle = 0;
		} else {
			ahead[turn % LOOK_AHEAD] = 0;
			if (++idle > LOOK_AHEAD && !object)
				return true;
		}
		turn++;
		if (object)
			trace_object(t, object);
		if (turn % (deadline ? PAUSE_EVERY : LOOK_EVERY))
			continue;
		if (marking_abandoned(t->heap))
			return false;
		if (deadline && now_ns() > deadline) {
			for (size_t i = 0; i < LOOK_AHEAD; i++)
				if (ahead[i])
					depth_first_add(t, ahead[i]);
			return false;
		}
		/* Epochs pass in these cycles, too. */
		if (!deadline)
			location_look(t->heap);
		if (t->depth > 64 && __atomic_load_n(&mk->hungry, __ATOMIC_RELAXED))
			work_share(t);
	}
}

const struct order order_depth_first = {
	.name = "depth first",
	.add = depth_first_add,
	.drain = depth_first_drain,
};
