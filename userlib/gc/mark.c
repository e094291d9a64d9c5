// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "check.h"
#include "fibre_word.h"
#include "forward.h"
#include "mark.h"
#include "object.h"
#include "type.h"

/* Values are marked later: chains may be long.  ephemerons_step() finds lost ones. */
static __attribute__((noinline)) void key_marked(struct tracer *t, uint64_t key)
{
	uint64_t value;
	size_t at = 0;

	while ((value = keys_next(&t->heap->marker.keys, key, &at)))
		(void)vector_push(&t->values, value);
}

bool values_mark(struct tracer *t)
{
	bool any = t->values.count;

	while (t->values.count) {
		ebbgc_ref_t value = { t->values.items[--t->values.count] };

		mark_slot(t, &value);
	}
	return any;
}

bool mark_now(struct tracer *t, uint64_t object, uint8_t kind)
{
	struct ebbgc_heap *h = t->heap;

	if (!bit_set(h->marks, granule_of(h, object)))
		return false;
	t->marked_objects++;
	t->marked_bytes += taken_bytes(h, object, kind);
	if (EBBGC_UNLIKELY(h->marker.keys.pairs != NULL))
		key_marked(t, object);
	return true;
}

bool mark_far(struct tracer *t, uint64_t object)
{
	if (!bit_set(t->heap->marks, granule_of(t->heap, object)))
		return false;
	if (EBBGC_UNLIKELY(t->heap->marker.keys.pairs != NULL))
		key_marked(t, object);
	return true;
}

void mark_object(struct tracer *t, uint64_t ref)
{
	struct ebbgc_heap *h = t->heap;
	uint64_t object = ref & EBBGC_ADDRESS_MASK;
	uint8_t kind;

	if (object_marked(h, object))
		return;
	if (region_is_out(h, region_of(h, object))) {
		if (far_reach(h, object) && EBBGC_UNLIKELY(h->marker.keys.pairs != NULL))
			key_marked(t, object);
		return;
	}
	kind = h->kinds[region_of(h, object)];
	/* Never touch a leaf's page. */
	if (kind_is_leaf(kind))
		mark_now(t, object, kind);
	else if (h->marker.late || mark_now(t, object, kind))
		h->marker.order->add(t, ref);
}

void mark_slot(void *arg, ebbgc_ref_t *slot)
{
	struct tracer *t = arg;
	uint64_t ref = slot_heal(t->heap, slot);

	if (!(ref & EBBGC_ADDRESS_MASK))
		return;
	/*
	 * The checking mode reports the slot later: do not crash before.  What is marked may be
	 * young, and freed by now.
	 */
	if (EBBGC_UNLIKELY(t->heap->check) && !object_marked(t->heap, ref & EBBGC_ADDRESS_MASK) &&
	    !is_object(t->heap, ref & EBBGC_ADDRESS_MASK))
		return;
	mark_object(t, ref);
}

/* Traces the value if the key is marked; otherwise ephemerons_step() will, once the key is. */
static void trace_ephemeron(struct tracer *t, uint64_t object)
{
	ebbgc_ref_t *slots = (ebbgc_ref_t *)(uintptr_t)object;
	const uint64_t quad[] = { object | EPHEMERON_OWN, object + sizeof(*slots),
				  slot_current(t->heap, &slots[0]),
				  slot_heal(t->heap, &slots[1]) };

	if (!quad[2])
		return;
	if (object_marked(t->heap, quad[2]))
		mark_slot(t, &slots[1]);
	else if (!vector_push_all(&t->ephemerons, quad, 4)) {
		/* Out of memory: the ephemeron is strong in this cycle. */
		mark_slot(t, &slots[0]);
		mark_slot(t, &slots[1]);
	}
}

static void trace_weak(void *arg, ebbgc_ref_t *slot)
{
	struct tracer *t = arg;
	const uint64_t pair[] = { (uint64_t)(uintptr_t)slot, slot_current(t->heap, slot) };

	if (!object_marked(t->heap, pair[1]) &&
	    !vector_push_all(&t->weak[EBBGC_CLEAR_FIRST], pair, 2))
		/* Out of memory: the reference is strong in this cycle. */
		mark_slot(t, slot);
}

static void trace_target(void *arg, uint32_t kind, uint64_t target)
{
	struct tracer *t = arg;
	uint64_t object = kind == EBBGC_SLOT_AMBIGUOUS ? old_object_containing(t->heap, target) :
							 object_at(t->heap, target);

	if (object)
		mark_object(t, object);
}

void trace_slots(struct tracer *t, const struct type *type, uint64_t object, uint64_t from,
		 uint64_t to)
{
	slots_visit(type, object, from, to, trace_target, t);
}

struct tracing {
	struct ebbgc_edges edges;	/* first */
	struct tracer *t;
};

static struct tracer *tracer_of(struct ebbgc_edges *edges)
{
	return ((struct tracing *)edges)->t;
}

/* Returns the object, or 0: the callback may have read a tag and a value of different times. */
static uint64_t edge_target(struct ebbgc_edges *edges, ebbgc_ref_t ref)
{
	return object_at(tracer_of(edges)->heap, ref.bits & EBBGC_ADDRESS_MASK);
}

static void edge_strong(struct ebbgc_edges *edges, ebbgc_ref_t *slot, ebbgc_ref_t value)
{
	uint64_t object = edge_target(edges, value);

	(void)slot;
	if (object)
		mark_object(tracer_of(edges), object);
}

static void note_last(struct tracer *t, enum ebbgc_clear when)
{
	if (when == EBBGC_CLEAR_LAST && !__atomic_load_n(&t->heap->has_last, __ATOMIC_RELAXED))
		__atomic_store_n(&t->heap->has_last, true, __ATOMIC_RELAXED);
}

/* To be cleared when the target is dead; without slot or memory the reference is strong. */
static void add_weak(struct tracer *t, ebbgc_ref_t *slot, uint64_t target, enum ebbgc_clear when)
{
	const uint64_t pair[] = { (uint64_t)(uintptr_t)slot, target };

	if (target && !object_marked(t->heap, target) &&
	    (!slot || !vector_push_all(&t->weak[when], pair, 2)))
		mark_object(t, target);
}

static void edge_weak(struct ebbgc_edges *edges, ebbgc_ref_t *slot, ebbgc_ref_t value,
		      enum ebbgc_clear when)
{
	struct tracer *t = tracer_of(edges);

	note_last(t, when);
	add_weak(t, slot, edge_target(edges, value), when);
}

static void edge_ephemeron(struct ebbgc_edges *edges, ebbgc_ref_t *key_slot, ebbgc_ref_t key,
			   ebbgc_ref_t *value_slot, ebbgc_ref_t value, enum ebbgc_clear when)
{
	struct tracer *t = tracer_of(edges);
	const uint64_t late = when == EBBGC_CLEAR_LAST ? EPHEMERON_LAST : 0;
	const uint64_t quad[] = { (uint64_t)(uintptr_t)key_slot | late,
				  (uint64_t)(uintptr_t)value_slot, edge_target(edges, key),
				  edge_target(edges, value) };

	/*
	 * A cleared entry, whose value no program reads; or one that is being made, whose value
	 * survives this cycle.
	 */
	if (ebbgc_is_null(key))
		return add_weak(t, value_slot, quad[3], EBBGC_CLEAR_LAST);
	note_last(t, when);
	if (!quad[2] || object_marked(t->heap, quad[2])) {
		if (quad[3])
			mark_object(t, quad[3]);
		return;
	}
	if (key_slot && value_slot && vector_push_all(&t->ephemerons, quad, 4))
		return;
	mark_object(t, quad[2]);
	if (quad[3])
		mark_object(t, quad[3]);
}

static void trace_edges(struct tracer *t, const struct type *type, uint64_t object)
{
	struct tracing tracing = { { edge_strong, edge_weak, edge_ephemeron }, t };

	type->edges((void *)(uintptr_t)object, &tracing.edges);
}

void trace_fibre(struct tracer *t, const struct type *type, uint64_t object)
{
	uint64_t *word = fibre_word(type, object);

	if (!fibre_begin(t->heap, word))
		return;
	trace_edges(t, type, object);
	fibre_end(t->heap, word);
}

void trace_object(struct tracer *t, uint64_t object)
{
	uint32_t id = type_id(object);
	const struct type *type = &t->heap->types[id];

	if (EBBGC_UNLIKELY(t->heap->check))
		check_traced(t->heap, object);
	if (id == TYPE_EPHEMERON)
		return trace_ephemeron(t, object);
	if (type->flags & EBBGC_WEAK)
		return type_visit(type, object, trace_weak, t);
	type_visit(type, object, mark_slot, t);
	if (type->slot_count)
		trace_slots(t, type, object, object, UINT64_MAX);
	if (type->edges) {
		if (type->flags & EBBGC_FIBRE)
			trace_fibre(t, type, object);
		else
			trace_edges(t, type, object);
	}
}
