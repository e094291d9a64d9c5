// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
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

void mark_object(struct tracer *t, uint64_t ref)
{
	struct ebbgc_heap *h = t->heap;
	uint64_t object = ref & EBBGC_ADDRESS_MASK;
	uint8_t kind;

	if (object_marked(h, object))
		return;
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
	uint64_t ref = work_load(slot);

	if (!(ref & EBBGC_ADDRESS_MASK))
		return;
	/* The checking mode reports the slot later: do not crash before. */
	if (EBBGC_UNLIKELY(t->heap->check) && !is_object(t->heap, ref & EBBGC_ADDRESS_MASK))
		return;
	mark_object(t, ref);
}

/* Traces the value if the key is marked; otherwise ephemerons_step() will, once the key is. */
static void trace_ephemeron(struct tracer *t, uint64_t object)
{
	ebbgc_ref_t *slots = (ebbgc_ref_t *)(uintptr_t)object;
	const uint64_t triple[] = { object, ref_load(&slots[0]), work_load(&slots[1]) };

	if (!triple[1])
		return;
	if (object_marked(t->heap, triple[1]))
		mark_slot(t, &slots[1]);
	else if (!vector_push_all(&t->ephemerons, triple, 3)) {
		/* Out of memory: the ephemeron is strong in this cycle. */
		mark_slot(t, &slots[0]);
		mark_slot(t, &slots[1]);
	}
}

static void trace_weak(void *arg, ebbgc_ref_t *slot)
{
	struct tracer *t = arg;
	const uint64_t pair[] = { (uint64_t)(uintptr_t)slot, ref_load(slot) };

	if (!object_marked(t->heap, pair[1]) && !vector_push_all(&t->weak, pair, 2))
		/* Out of memory: the reference is strong in this cycle. */
		mark_slot(t, slot);
}

void trace_object(struct tracer *t, uint64_t object)
{
	uint32_t id = type_id(object);
	const struct type *type = &t->heap->types[id];

	if (id == TYPE_EPHEMERON)
		return trace_ephemeron(t, object);
	if (type->flags & EBBGC_WEAK)
		type_visit(type, object, trace_weak, t);
	else
		type_visit(type, object, mark_slot, t);
}
